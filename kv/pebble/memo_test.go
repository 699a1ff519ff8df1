package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// TestMemoForgetsWhatAReaderSawBeforeACommit: a reader that is overtaken by a
// commit tells the memo what the row was before.
func TestMemoForgetsWhatAReaderSawBeforeACommit(t *testing.T) {
	e := openOn(t, vfs.NewMem(), clock.NewManual(testStart()))
	defer mustClose(t, e)
	mustCreate(t, e, "s", kv.SpaceOptions{})
	before := mustCommit(t, e, put("s", "k", "old"))
	looked, err := e.lookups([]kv.Ref{{Space: "s", Key: []byte("k"), IncludeExpired: true}})
	if err != nil {
		t.Fatal(err)
	}
	after := mustCommit(t, e, put("s", "k", "new"))
	e.memo.learn(&looked[0], sighting{version: before})
	check := func(v kv.Version) error {
		_, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{{Space: "s", Key: []byte("k"), Version: v}}})
		return err
	}
	if err := check(before); !kv.IsConflict(err) {
		t.Errorf("check of the version before: %v", err)
	}
	if err := check(after); err != nil {
		t.Errorf("check of the version after: %v", err)
	}
}
