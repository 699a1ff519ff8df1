package fs

import (
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

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
		root := tb.TempDir()
		return func() blob.Driver { return openTest(tb, root) }
	})
}
