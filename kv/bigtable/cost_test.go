package bigtable

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
)

// cost tells what an operation costs in calls: reads, conditional writes, plain
// writes.
func (w *world) cost(e *Engine, do func()) string {
	w.Helper()
	settled(e)
	w.server.calls()
	do()
	settled(e)
	c := w.server.calls()
	got := fmt.Sprintf("%d %d %d", c["ReadRows"], c["CheckAndMutateRow"], c["MutateRow"]+c["MutateRows"])
	delete(c, "ReadRows")
	delete(c, "CheckAndMutateRow")
	delete(c, "MutateRow")
	delete(c, "MutateRows")
	if len(c) > 0 {
		w.Errorf("other calls: %v", c)
	}
	return got
}

// The number of calls is what the service's users pay for and wait for.
func TestCallsPerOperation(t *testing.T) {
	w := newWorld(t)
	o := quiet(w.server.options(w.clock))
	e := w.server.openWith(t, o, func(string) error { return nil })
	// No forwarder beside: it would count.
	e.stopLoops()
	e.running.Wait()
	w.other.stopLoops()
	w.other.running.Wait()
	commit := func(checks []kv.Check, writes ...kv.Write) kv.Version {
		t.Helper()
		v, err := e.Commit(t.Context(), &kv.Txn{Checks: checks, Writes: writes})
		w.ok(err)
		return v
	}
	v := commit(nil, put("a", "0", "x"), put("b", "0", "x"), put("b", "1", "x"), put("b", "2", "x"), put("b", "3", "x"))
	get := func(keys ...string) func() {
		return func() {
			var refs []kv.Ref
			for _, k := range keys {
				space, key, _ := strings.Cut(k, "/")
				refs = append(refs, kv.Ref{Space: space, Key: []byte(key)})
			}
			_, err := e.Get(t.Context(), refs)
			w.ok(err)
		}
	}
	for _, c := range []struct {
		name, want string // reads, conditional writes, plain writes
		do         func()
	}{
		{"read of one row", "1 0 0", get("b/0")},
		{"read of an absent row", "1 0 0", get("b/none")},
		{"read of three rows of one space", "2 0 0", get("b/0", "b/1", "b/2")},
		{"read of rows of two spaces", "4 0 0", get("a/0", "b/0", "b/1")},
		{"blind put", "0 1 0", func() { commit(nil, put("b", "4", "x")) }},
		{"blind put over a row", "0 1 0", func() { commit(nil, put("b", "4", "y")) }},
		{"blind delete", "0 1 0", func() { commit(nil, del("b", "4")) }},
		{"insert", "1 1 0", func() { commit([]kv.Check{check("b", "5", 0)}, put("b", "5", "x")) }},
		{"update", "1 1 0", func() { commit([]kv.Check{check("b", "0", v)}, put("b", "0", "y")) }},
		{"conflict", "1 0 0", func() {
			_, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("b", "1", 0)}, Writes: []kv.Write{put("b", "1", "y")}})
			if !kv.IsConflict(err) {
				t.Error(err)
			}
		}},
		{"check of one row", "1 0 0", func() { commit([]kv.Check{check("b", "1", v)}) }},
		{"check of two rows", "2 0 0", func() { commit([]kv.Check{check("b", "1", v), check("b", "2", v)}) }},
		{"put with a feed entry", "1 1 1", func() { commit(nil, fed(put("a", "1", "x"), "e")) }},
		{"2 rows of one space", "1 6 0", func() { commit(nil, put("b", "6", "x"), put("b", "7", "x")) }},
		{"10 rows of one space", "1 22 0", func() {
			var writes []kv.Write
			for i := range 10 {
				writes = append(writes, put("b", fmt.Sprint("ten", i), "x"))
			}
			commit(nil, writes...)
		}},
		{"a row written and one checked, of two spaces", "2 6 0", func() { commit([]kv.Check{check("b", "2", v)}, put("a", "2", "x")) }},
		{"2 rows with feed entries", "1 6 1", func() { commit(nil, fed(put("a", "3", "x"), "e"), fed(put("a", "4", "x"), "e")) }},
		{"conflict over 2 rows", "1 2 0", func() {
			_, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("b", "3", 0)}, Writes: []kv.Write{put("b", "3", "y"), put("b", "4", "y")}})
			if !kv.IsConflict(err) {
				t.Error(err)
			}
		}},
		{"scan of a page", "1 0 0", func() {
			w.ok(e.Scan(t.Context(), "b", kv.Range{}, func(kv.Row) bool { return true }))
		}},
	} {
		if got := w.cost(e, c.do); got != c.want {
			t.Errorf("%s: %s calls, want %s", c.name, got, c.want)
		}
	}
	// hints, head, entries
	w.feed(e)
	if got := w.cost(e, func() { w.feed(e) }); got != "3 0 0" {
		t.Errorf("feed that was forwarded: %s calls", got)
	}
	entries, err := e.ReadFeed(t.Context(), "a", 0, "", 1000)
	w.ok(err)
	last := entries[len(entries)-1].Position
	if got := w.cost(e, func() {
		if _, err := e.ReadFeed(t.Context(), "a", 0, last, 10); err != nil {
			t.Error(err)
		}
	}); got != "2 0 0" {
		t.Errorf("feed at its end: %s calls", got)
	}
}
