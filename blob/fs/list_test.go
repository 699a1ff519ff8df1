package fs

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// A folder goes with its last object, and a listing may be about to read it.
func TestListPassesOverFoldersThatGoMeanwhile(t *testing.T) {
	d, err := Open(t.Context(), t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for n := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("%d/folder/object", n)
				if err := d.Put(t.Context(), name, time.Now(), strings.NewReader("x"), 1); err != nil {
					t.Error(err)
				}
				if _, err := d.Delete(t.Context(), name, blob.Condition{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3000 {
		if err := d.List(t.Context(), "", "", func(blob.Attrs) bool { return true }); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
}
