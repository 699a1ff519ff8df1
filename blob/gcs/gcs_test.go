package gcs

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/blob/gcs/gcstest"
	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

// openTest opens the server's bucket and closes it at the end of the test.
func openTest(tb testing.TB, s *gcstest.Server) *Driver {
	tb.Helper()
	d, err := Open(tb.Context(), Options{Bucket: s.Bucket, Endpoint: s.URL, RetryFirst: time.Millisecond})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(tb testing.TB) func() blob.Driver {
		s := gcstest.New(tb)
		s.LimitPages(7) // so that the lists of the suite are several pages long
		return func() blob.Driver { return openTest(tb, s) }
	})
}

func TestRemote(t *testing.T) {
	blobtest.RunRemote(t, func(tb testing.TB) (func() blob.Driver, *faulthttp.Server) {
		s := gcstest.New(tb)
		return func() blob.Driver { return openTest(tb, s) }, s.Server
	})
}
