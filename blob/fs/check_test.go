package fs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
)

func TestCheckTellsAStoreFromNone(t *testing.T) {
	root := newRoot(t)
	d := openTest(t, root)
	findings, err := d.Check(t.Context())
	if err != nil || len(findings) == 0 {
		t.Fatalf("Check = %v, %v", findings, err)
	}
	for _, f := range findings {
		if f.Level != blob.OK {
			t.Errorf("%+v, want ok", f)
		}
	}
	if err := os.Remove(filepath.Join(root, markerName)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Check(t.Context()); err == nil {
		t.Error("Check of a store that is gone returned no error")
	}
}
