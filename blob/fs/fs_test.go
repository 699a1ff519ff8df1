package fs

import (
	"os"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

// newRoot returns an empty folder, in memory where the system has such a place:
// a sync costs nothing there, and none of the tests depends on what it does.
func newRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-fs-test")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// openTest opens root and closes it at the end of the test.
func openTest(tb testing.TB, root string) *Driver {
	tb.Helper()
	d, err := Open(tb.Context(), root, Options{})
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
		root := newRoot(tb)
		return func() blob.Driver { return openTest(tb, root) }
	})
}
