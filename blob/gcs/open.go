package gcs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"github.com/holdfast-dev/holdfast/blob"
)

const (
	// defaultChunkSize is how much of a Put is held in memory for retries.
	defaultChunkSize = 8 << 20
	// chunkUnit is what the length of a chunk is a multiple of. The service wants it.
	chunkUnit = 256 << 10

	retryFirst = 100 * time.Millisecond
	retryMost  = 10 * time.Second
	// retryTries bounds the attempts of one request; the caller's context bounds
	// their time.
	retryTries = 6
)

// Driver is a blob.Driver on a bucket. See the package comment.
type Driver struct {
	client *storage.Client
	bucket *storage.BucketHandle
	name   string
	chunk  int64
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

	// Endpoint is the root of another server of the same interface, for example
	// "http://127.0.0.1:4443". Requests to it carry no credentials. Default: the
	// service, or what the environment variable STORAGE_EMULATOR_HOST names.
	Endpoint string

	// CredentialsPath is the file of a service account's key. Default: the
	// credentials of the environment.
	CredentialsPath string

	// ChunkSize is how many bytes of a Put are held in memory, and sent in one
	// request. Default: 8 MiB. It is rounded up to a multiple of 256 KiB.
	ChunkSize int

	// RetryFirst is the first pause before a failed request is repeated; later
	// ones grow up to ten seconds. Default: 100 milliseconds.
	RetryFirst time.Duration

	// Logger gets a warning when requests go to another endpoint. Default: none.
	Logger *slog.Logger

	// ClientOptions are further options of the client.
	ClientOptions []option.ClientOption
}

// Open makes a client and checks that the bucket can be read. Errors name the
// setting to look at. The caller must Close the driver.
func Open(ctx context.Context, opts Options) (*Driver, error) {
	if opts.Bucket == "" {
		return nil, errors.New("gcs: no bucket is set")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	clientOpts, err := clientOptions(opts)
	if err != nil {
		return nil, fmt.Errorf("gcs: open bucket %s: %w", opts.Bucket, err)
	}
	client, err := storage.NewClient(ctx, clientOpts...)
	if err != nil {
		return nil, fmt.Errorf("gcs: open bucket %s: make a client (are credentials set?): %w", opts.Bucket, err)
	}
	// A request is repeated only if repeating it is harmless by its preconditions.
	client.SetRetry(
		storage.WithPolicy(storage.RetryIdempotent),
		storage.WithBackoff(gax.Backoff{Initial: cmp.Or(opts.RetryFirst, retryFirst), Max: retryMost, Multiplier: 2}),
		storage.WithMaxAttempts(retryTries),
	)
	chunk := int64(opts.ChunkSize)
	if chunk <= 0 {
		chunk = defaultChunkSize
	}
	d := &Driver{client: client, bucket: client.Bucket(opts.Bucket), name: opts.Bucket, chunk: roundUp(chunk), log: opts.Logger}
	if opts.Endpoint != "" {
		d.log.Warn("objects are kept at another endpoint than Google Cloud Storage, without credentials", "endpoint", opts.Endpoint)
	}
	if err := d.present(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("gcs: open bucket %s: %w", opts.Bucket, err), client.Close())
	}
	return d, nil
}

func clientOptions(opts Options) ([]option.ClientOption, error) {
	var all []option.ClientOption
	if opts.CredentialsPath != "" && opts.Endpoint == "" {
		all = append(all, option.WithAuthCredentialsFile(option.ServiceAccount, opts.CredentialsPath))
	}
	if opts.Endpoint != "" {
		u, err := url.Parse(opts.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, errors.New("the endpoint is not of the form http://host:port")
		}
		if strings.Trim(u.Path, "/") == "" {
			u.Path = "/storage/v1/"
		}
		all = append(all, option.WithEndpoint(u.String()), option.WithoutAuthentication())
	}
	return append(all, opts.ClientOptions...), nil
}

func roundUp(n int64) int64 { return (n + chunkUnit - 1) / chunkUnit * chunkUnit }

// Close releases the client's connections.
func (d *Driver) Close() error {
	if err := d.client.Close(); err != nil {
		return fmt.Errorf("gcs: close: %w", err)
	}
	return nil
}

// URLPrefix returns "gs://bucket/".
func (d *Driver) URLPrefix() string { return "gs://" + d.name + "/" }

// present returns an error if the bucket cannot be read. It lists instead of asking
// for the bucket, because that needs no right that the driver does not need anyway.
func (d *Driver) present(ctx context.Context) error {
	it := d.bucket.Objects(ctx, &storage.Query{Projection: storage.ProjectionNoACL})
	it.PageInfo().MaxSize = 1
	_, err := it.Next()
	if err == nil || errors.Is(err, iterator.Done) {
		return nil
	}
	switch {
	case errors.Is(err, storage.ErrBucketNotExist), statusOf(err) == http.StatusNotFound:
		return fmt.Errorf("there is no such bucket: look at its name and its project: %w", err)
	case statusOf(err) == http.StatusUnauthorized:
		return fmt.Errorf("the credentials are not valid: %w", err)
	case statusOf(err) == http.StatusForbidden:
		return fmt.Errorf("the credentials lack rights: grant them roles/storage.objectUser on the bucket: %w", err)
	}
	return fmt.Errorf("read the bucket: %w", err)
}

// statusOf returns the HTTP status of an error of the service, or 0.
func statusOf(err error) int {
	var e *googleapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// missing returns blob.ErrNotFound for an object that the service does not know, but
// only of a bucket that is there: a change record whose object does not exist is done
// with.
func (d *Driver) missing(ctx context.Context) error {
	return cmp.Or(d.present(ctx), blob.ErrNotFound)
}
