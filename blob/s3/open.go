package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/holdfast-dev/holdfast/blob"
)

const (
	defaultBuffer = 8 << 20
	defaultRegion = "us-east-1"

	// retryTries bounds the attempts of one request; the caller's context bounds
	// their time.
	retryTries = 5
)

// Driver is a blob.Driver on a bucket. See the package comment.
type Driver struct {
	client *s3.Client
	bucket *string
	buffer int64
	log    *slog.Logger
}

var (
	_ blob.Driver  = (*Driver)(nil)
	_ blob.Checker = (*Driver)(nil)
)

// Options says which bucket, and how to reach it.
type Options struct {
	// Bucket is the name of the bucket, which must exist.
	Bucket string

	// Region of the bucket. Default: that of the environment, else us-east-1. R2
	// calls its region "auto".
	Region string

	// Endpoint is the root of another service than Amazon's, for example
	// "https://<account>.r2.cloudflarestorage.com" or "http://127.0.0.1:9000".
	Endpoint string

	// PathStyle puts the bucket into the path and not into the host name. MinIO
	// usually needs it.
	PathStyle bool

	// AccessKeyID, SecretAccessKey and SessionToken are the credentials. Default:
	// those of the environment, the shared files or the machine.
	AccessKeyID, SecretAccessKey, SessionToken string

	// Buffer is how many bytes of a Put are held in memory, so that the request can
	// be repeated; longer content is streamed. Default: 8 MiB.
	Buffer int64

	// Logger gets a line when something was left behind. Default: none.
	Logger *slog.Logger

	// HTTPClient makes the requests. Default: the SDK's.
	HTTPClient *http.Client

	// Retryer decides about repetitions. Default: five attempts with growing pauses.
	Retryer func() aws.Retryer
}

// Open makes a client, and checks that the bucket can be read and that the store
// honours conditions on writes. Errors name the setting to look at. There is nothing
// to close.
func Open(ctx context.Context, opts Options) (*Driver, error) {
	d, err := connect(ctx, opts)
	if err == nil {
		err = d.present(ctx)
	}
	if err == nil {
		err = d.probe(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("s3: open bucket %q: %w", opts.Bucket, err)
	}
	return d, nil
}

// connect makes a client. No request is made yet.
func connect(ctx context.Context, opts Options) (*Driver, error) {
	if opts.Bucket == "" {
		return nil, errors.New("no bucket is set")
	}
	if (opts.AccessKeyID == "") != (opts.SecretAccessKey == "") {
		return nil, errors.New("of the access key ID and the secret access key only one is set")
	}
	if opts.Endpoint != "" {
		u, err := url.Parse(opts.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, errors.New("the endpoint is not of the form https://host")
		}
	}
	cfg, err := loadConfig(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &Driver{
		client: s3.NewFromConfig(cfg, func(o *s3.Options) {
			o.UsePathStyle = opts.PathStyle
			if opts.Endpoint != "" {
				o.BaseEndpoint = aws.String(opts.Endpoint)
			}
		}),
		bucket: aws.String(opts.Bucket),
		buffer: cmp.Or(opts.Buffer, defaultBuffer),
		log:    cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
	}, nil
}

func loadConfig(ctx context.Context, opts Options) (aws.Config, error) {
	load := []func(*config.LoadOptions) error{
		// Not all stores know the SDK's own checksums; the contract has its own.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if opts.Region != "" {
		load = append(load, config.WithRegion(opts.Region))
	}
	if opts.AccessKeyID != "" {
		load = append(load, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(opts.AccessKeyID, opts.SecretAccessKey, opts.SessionToken)))
	}
	if opts.HTTPClient != nil {
		load = append(load, config.WithHTTPClient(opts.HTTPClient))
	}
	retryer := opts.Retryer
	if retryer == nil {
		retryer = func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = retryTries })
		}
	}
	load = append(load, config.WithRetryer(retryer))
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return cfg, fmt.Errorf("load the configuration: %w", err)
	}
	cfg.Region = cmp.Or(cfg.Region, defaultRegion)
	return cfg, nil
}

// URLPrefix returns "s3://bucket/".
func (d *Driver) URLPrefix() string { return "s3://" + *d.bucket + "/" }

// present returns an error if the bucket cannot be read.
func (d *Driver) present(ctx context.Context) error {
	_, err := d.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: d.bucket, MaxKeys: aws.Int32(1)})
	if err == nil {
		return nil
	}
	switch code := codeOf(err); code {
	case "NoSuchBucket":
		return fmt.Errorf("there is no such bucket: look at its name, the region and the endpoint: %w", err)
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "Unauthorized":
		return fmt.Errorf("the credentials are not valid (%s): look at the access key ID and the secret access key: %w", code, err)
	case "AccessDenied":
		return fmt.Errorf("the credentials lack rights: they need to list, read, write and delete in the bucket: %w", err)
	case "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return fmt.Errorf("the bucket is in another region: set the region: %w", err)
	}
	return fmt.Errorf("read the bucket: %w", err)
}

// missing returns blob.ErrNotFound for an object that the store does not know, but
// only of a bucket that is there: a change record whose object does not exist is done
// with.
func (d *Driver) missing(ctx context.Context) error {
	return cmp.Or(d.present(ctx), blob.ErrNotFound)
}

// probe makes sure that the store honours the conditions that everything rests on: one
// that ignores them would let a Put replace an object.
func (d *Driver) probe(ctx context.Context) error {
	free := &s3.PutObjectInput{Bucket: d.bucket, Key: aws.String(probeKey), IfNoneMatch: aws.String("*")}
	// The first time, the key is free.
	for range 2 {
		free.Body = bytes.NewReader(nil)
		_, err := d.client.PutObject(ctx, free)
		if refused(err) {
			return d.probeMatch(ctx)
		}
		if err != nil {
			return fmt.Errorf("try a conditional write: %w", err)
		}
	}
	return errors.New("the store ignores If-None-Match on PUT, so it could lose objects: update it or take another")
}

func (d *Driver) probeMatch(ctx context.Context) error {
	_, err := d.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: d.bucket, Key: aws.String(probeKey), Body: bytes.NewReader(nil), IfMatch: aws.String(noETag),
	})
	if err == nil {
		return errors.New("the store ignores If-Match on PUT, so it could lose objects: update it or take another")
	}
	if !refused(err) {
		return fmt.Errorf("try a conditional write: %w", err)
	}
	return nil
}

// noETag is an ETag that no object has.
const noETag = `"00000000000000000000000000000000"`

// codeOf returns the code of an error of the service, or "".
func codeOf(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}

// statusOf returns the HTTP status of an error of the service, or 0.
func statusOf(err error) int {
	var e interface{ HTTPStatusCode() int }
	if errors.As(err, &e) {
		return e.HTTPStatusCode()
	}
	return 0
}

// notFound reports whether the service said that there is no such key. Of a HEAD, it
// may also be the bucket that is missing.
func notFound(err error) bool { return statusOf(err) == http.StatusNotFound }

// refused reports whether a condition of the request did not hold. A conflict with
// another request at the same time counts: the caller looks again in any case.
func refused(err error) bool {
	status := statusOf(err)
	return status == http.StatusPreconditionFailed || status == http.StatusConflict
}
