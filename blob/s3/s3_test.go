package s3

import (
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/blob/s3/s3test"
	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

func optionsFor(s *s3test.Server) Options {
	return Options{
		Bucket: s.Bucket, Endpoint: s.URL, PathStyle: true, Region: "us-east-1",
		AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey,
		Retryer: func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts, o.MaxBackoff = retryTries, time.Millisecond
			})
		},
	}
}

func openTest(tb testing.TB, s *s3test.Server) *Driver {
	tb.Helper()
	d, err := Open(tb.Context(), optionsFor(s))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(tb testing.TB) func() blob.Driver {
		s := s3test.New(tb)
		s.LimitPages(7) // so that the lists of the suite are several pages long
		return func() blob.Driver { return openTest(tb, s) }
	})
}

// Streams are what is longer than the buffer.
func TestStreamsConform(t *testing.T) {
	blobtest.Run(t, func(tb testing.TB) func() blob.Driver {
		s := s3test.New(tb)
		opts := optionsFor(s)
		opts.Buffer = 1
		return func() blob.Driver {
			d, err := Open(tb.Context(), opts)
			if err != nil {
				tb.Fatal(err)
			}
			return d
		}
	})
}

// R2 knows no condition on DELETE.
func TestStoreWithoutConditionalDeleteConforms(t *testing.T) {
	blobtest.Run(t, func(tb testing.TB) func() blob.Driver {
		s := s3test.New(tb)
		s.Ignore(http.MethodDelete, "If-Match")
		return func() blob.Driver { return openTest(tb, s) }
	})
}

func TestRemote(t *testing.T) {
	blobtest.RunRemote(t, func(tb testing.TB) (func() blob.Driver, *faulthttp.Server) {
		s := s3test.New(tb)
		return func() blob.Driver { return openTest(tb, s) }, s.Server
	})
}

func TestRangeOf(t *testing.T) {
	const most = 1 << 62
	tests := []struct {
		offset, length int64
		want           string
	}{
		{0, -1, ""}, {0, 1, "bytes=0-0"}, {5, -1, "bytes=5-"}, {5, 3, "bytes=5-7"}, {most, most, "bytes=4611686018427387904-9223372036854775807"},
		{most + 1, most, "bytes=4611686018427387905-"},
	}
	for _, test := range tests {
		if got := aws.ToString(rangeOf(test.offset, test.length)); got != test.want {
			t.Errorf("rangeOf(%d, %d) = %q, want %q", test.offset, test.length, got, test.want)
		}
	}
}
