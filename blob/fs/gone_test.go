package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// Who is told that an object does not exist is done with it: a change record is
// acknowledged, a row is taken for broken. So a store whose folder was removed, or
// whose disk was unmounted from an empty folder, must not say so.
func TestStoreThatIsGoneDoesNotSayThatObjectsDoNotExist(t *testing.T) {
	for _, unmounted := range []bool{false, true} {
		ctx := context.Background()
		root := filepath.Join(t.TempDir(), "store")
		d, err := Open(ctx, root, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Put(ctx, "a/b/c", time.Unix(1, 0), strings.NewReader("x"), 1); err != nil {
			t.Fatal(err)
		}
		away := root + ".away"
		if err := os.Rename(root, away); err != nil {
			t.Fatal(err)
		}
		if unmounted {
			if err := os.Mkdir(root, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		calls := map[string]func() error{
			"Get":    func() error { _, _, err := d.Get(ctx, "a/b/c", 0, -1); return err },
			"Stat":   func() error { _, err := d.Stat(ctx, "a/b/c"); return err },
			"Copy":   func() error { return d.Copy(ctx, "a/b/c", "a/b/d", time.Unix(1, 0)) },
			"Put":    func() error { return d.Put(ctx, "a/b/e", time.Unix(1, 0), strings.NewReader("x"), 1) },
			"List":   func() error { return d.List(ctx, "", "", func(blob.Attrs) bool { return true }) },
			"Delete": func() error { _, err := d.Delete(ctx, "a/b/c", blob.Condition{}); return err },
			"discard of an old object": func() error {
				_, err := d.Delete(ctx, "a/b/c", blob.Condition{Unfinalized: true, CustomTime: time.Unix(1, 0)})
				return err
			},
			"Finalize": func() error { _, err := d.Finalize(ctx, "a/b/c"); return err },
		}
		for name, call := range calls {
			if err := call(); err == nil || errors.Is(err, blob.ErrNotFound) {
				t.Errorf("unmounted %v: %s returned %v", unmounted, name, err)
			}
		}
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(away, root); err != nil {
			t.Fatal(err)
		}
		if found, err := d.Finalize(ctx, "a/b/c"); err != nil || !found {
			t.Errorf("unmounted %v: Finalize once the store is back: %v, %v", unmounted, found, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAStoreThatMustExistIsNotMade(t *testing.T) {
	root := filepath.Join(t.TempDir(), "store")
	if _, err := Open(t.Context(), root, Options{Existing: true}); !errors.Is(err, ErrNoStore) {
		t.Errorf("open of a folder that is not there: %v", err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
	if err := os.Mkdir(root, 0o700); err != nil { // as an empty mount point
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), root, Options{Existing: true}); !errors.Is(err, ErrNoStore) {
		t.Errorf("open of an empty folder: %v", err)
	}
	for _, opts := range []Options{{}, {Existing: true}} {
		d, err := Open(t.Context(), root, opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
