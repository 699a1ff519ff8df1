package spanner_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	spannerclient "cloud.google.com/go/spanner"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/kv/spanner"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

// raw is a client beside the engine.
func (w *world) raw() *spannerclient.Client {
	w.Helper()
	config := spannerclient.ClientConfig{DisableNativeMetrics: true}
	c, err := spannerclient.NewClientWithConfig(w.Context(), spandbtest.Database, config, w.server.ClientOptions()...)
	w.ok(err)
	w.Cleanup(c.Close)
	return c
}

func (w *world) setSchemaVersion(v int64) {
	w.Helper()
	_, err := w.raw().Apply(w.Context(), []*spannerclient.Mutation{
		spannerclient.Update("holdfast_schema", []string{"id", "version"}, []any{1, v}),
	})
	w.ok(err)
}

// rowsOf counts the rows of a table, also those that the engine hides.
func (w *world) rowsOf(table string) int {
	w.Helper()
	n := 0
	w.ok(w.raw().Single().Query(w.Context(), spannerclient.NewStatement("SELECT committed_at FROM "+table)).Do(func(*spannerclient.Row) error {
		n++
		return nil
	}))
	return n
}

// TestVersionsRiseOverSpannersOwnDeletion: a row that nobody but Spanner has removed
// comes back with a larger version, whatever clock the engine has.
func TestVersionsRiseOverSpannersOwnDeletion(t *testing.T) {
	w := newWorld(t)
	var commits []spandbtest.Commit
	expiring := put("a", "e", "x")
	expiring.ExpiresAt, expiring.Link = w.clock.Now().Add(time.Minute), "gs://b/e"
	old, err := w.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{expiring}})
	w.ok(err)
	w.clock.Advance(23 * time.Hour)
	if n := w.server.DeleteExpired(spandbtest.Database); n != 0 {
		t.Fatalf("%d rows removed before their time", n)
	}
	w.server.OnCommit(func(c spandbtest.Commit) { commits = append(commits, c) })
	w.clock.Advance(2 * time.Hour)
	if n := w.server.DeleteExpired(spandbtest.Database); n != 1 {
		t.Fatalf("%d rows removed, want 1", n)
	}
	if len(commits) != 1 || !commits[0].System || commits[0].Tag != "RowDeletionPolicy" || commits[0].Changes[0].Old["payload_link"].GetStringValue() != "gs://b/e" {
		t.Errorf("commits = %+v", commits)
	}
	rows, err := w.db.Get(t.Context(), kv.Ref{Space: "a", Key: []byte("e"), IncludeExpired: true})
	w.ok(err)
	if rows[0].Exists() {
		t.Fatal("row is still there")
	}
	w.clock.Advance(-1000 * time.Hour)
	e := open(t, w.server, clock.NewManual(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)))
	defer e.Close()
	again, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{{Space: "a", Key: []byte("e"), IncludeExpired: true}}, Writes: []kv.Write{put("a", "e", "y")}})
	w.ok(err)
	if again <= old {
		t.Errorf("version %d after %d", again, old)
	}
	if _, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{{Space: "a", Key: []byte("e"), Version: old}}}); !kv.IsConflict(err) {
		t.Errorf("error = %v, want a conflict", err)
	}
}

// TestOldFeedEntriesAreRemoved: not only hidden.
func TestOldFeedEntriesAreRemoved(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		txn := &kv.Txn{}
		for j := range 800 { // several pages of a trim
			txn.Writes = append(txn.Writes, fed(put("a", fmt.Sprintf("%d.%d", i, j), "")))
		}
		_, err := w.db.Commit(t.Context(), txn)
		w.ok(err)
	}
	_, err := w.db.ReadFeed(t.Context(), "a", 0, "", 10)
	w.ok(err)
	first, err := w.db.ReadFeed(t.Context(), "a", 0, "", 10_000)
	w.ok(err)
	if n := w.rowsOf("holdfast_feed_of_a"); n != 2400 || len(first) != 2400 {
		t.Fatalf("%d entries, %d read, want 2400", n, len(first))
	}
	w.clock.Advance(2 * time.Hour)
	_, err = w.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", "new", ""))}})
	w.ok(err)
	rest, err := w.db.ReadFeed(t.Context(), "a", 0, first[2399].Position, 10)
	w.ok(err)
	if n := w.rowsOf("holdfast_feed_of_a"); n != 1 || len(rest) != 1 {
		t.Errorf("%d entries are stored, %d read, want 1", n, len(rest))
	}
	for i, want := range map[int]error{2399: nil, 2398: kv.ErrFeedTrimmed, 0: kv.ErrFeedTrimmed} {
		if _, err := w.db.ReadFeed(t.Context(), "a", 0, first[i].Position, 10); err != want && (want == nil || !isErr(err, want)) {
			t.Errorf("read after entry %d: error = %v, want %v", i, err, want)
		}
	}
}

// TestNoClockRemovesEntriesOfOthers: an engine whose clock is far ahead hides
// entries from its own readers and removes none.
func TestNoClockRemovesEntriesOfOthers(t *testing.T) {
	w := newWorld(t)
	_, err := w.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "")), fed(put("a", "l", ""))}})
	w.ok(err)
	entries, err := w.db.ReadFeed(t.Context(), "a", 0, "", 1)
	w.ok(err)
	ahead := open(t, w.server, clock.NewManual(w.clock.Now().Add(1000*time.Hour)))
	defer ahead.Close()
	if seen, err := ahead.ReadFeed(t.Context(), "a", 0, "", 10); err != nil || len(seen) != 0 {
		t.Errorf("entries = %v, %v", seen, err)
	}
	if rest, err := w.db.ReadFeed(t.Context(), "a", 0, entries[0].Position, 10); err != nil || len(rest) != 1 {
		t.Errorf("entries = %v, %v, want the second", rest, err)
	}
}

// TestRealDatabase runs the suite on a database of the service or of an emulator. All
// that is in it is lost.
func TestRealDatabase(t *testing.T) {
	name := os.Getenv("HOLDFAST_TEST_SPANNER_DATABASE")
	if name == "" {
		t.Skip("HOLDFAST_TEST_SPANNER_DATABASE names no database (projects/P/instances/I/databases/D, its contents are lost)")
	}
	openReal := func(tb testing.TB, c clock.Clock) kv.Engine {
		tb.Helper()
		e, err := spanner.Open(tb.Context(), spanner.Options{Database: name, AutoSchema: true, Clock: c})
		if err != nil {
			tb.Fatal(err)
		}
		return e
	}
	kvtest.Run(t, kvtest.Harness{
		Limits: spanner.Limits(), Shared: true, OwnTime: true,
		NewStore: func(tb testing.TB) kvtest.Store {
			e := openReal(tb, clock.System{})
			defer e.Close()
			infos, err := e.Spaces(tb.Context())
			for _, s := range infos {
				if err == nil {
					err = e.DropSpace(tb.Context(), s.Name)
				}
			}
			if err != nil {
				tb.Fatal(err)
			}
			return openReal
		},
	})
}
