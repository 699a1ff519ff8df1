package pebble

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

func TestFeedTrimIsExact(t *testing.T) {
	c := clock.NewManual(testStart())
	e := openOn(t, vfs.NewMem(), c)
	defer mustClose(t, e)
	mustCreate(t, e, "s", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Minute})
	for range 3 * trimEvery {
		w := put("s", "k", "v")
		w.Feed = []byte("entry")
		mustCommit(t, e, w)
		c.Advance(time.Second)
	}
	s, err := e.space("s")
	if err != nil {
		t.Fatal(err)
	}
	// Removed: all that was too old at the last trim, and nothing else.
	trimmedAt := testStart().Add((3*trimEvery - 1) * time.Second)
	it, err := e.shardIter(s, 0, 1<<63)
	if err != nil {
		t.Fatal(err)
	}
	mark, err := it.mark()
	if err != nil {
		t.Fatal(err)
	}
	oldest := kv.Version(0)
	if it.seek(feedPlace{}) {
		p, err := it.place()
		if err != nil {
			t.Fatal(err)
		}
		oldest = p.version
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if want := kv.VersionAt(trimmedAt.Add(-time.Minute)); oldest != want || mark.version != kv.VersionAt(want.Time().Add(-time.Second)) {
		t.Errorf("oldest entry of %v, mark at %v, want entries from %v", oldest.Time(), mark.version.Time(), want.Time())
	}
	// Behind the mark nothing is missing, in front of it something is.
	c.Set(trimmedAt)
	entries, err := e.ReadFeed(t.Context(), "s", 0, mark.position(), 1)
	if err != nil || entries[0].Version != oldest {
		t.Errorf("behind the mark: %v, %v", entries, err)
	}
	before := feedPlace{version: mark.version - 1}
	if _, err := e.ReadFeed(t.Context(), "s", 0, before.position(), 1); !errors.Is(err, kv.ErrFeedTrimmed) {
		t.Errorf("in front of the mark: %v", err)
	}
	entries, err = e.ReadFeed(t.Context(), "s", 0, "", 1)
	if err != nil || entries[0].Version != oldest {
		t.Errorf("from the beginning: %v, %v", entries, err)
	}
}
