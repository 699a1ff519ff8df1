package bigtable

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// dead makes a transaction whose coordinator dies at a step.
func (w *world) dead(step string, writes ...kv.Write) {
	w.Helper()
	var dead atomic.Bool
	e := w.server.openWith(w.T, quiet(w.server.options(w.clock)), func(s string) error {
		if s == step {
			dead.Store(true)
		}
		if dead.Load() {
			return errCrash
		}
		return nil
	})
	_, _ = e.Commit(w.Context(), &kv.Txn{Writes: writes})
	settled(e) // what comes after the commit goes on behind the caller's back
	e.die()
	if !dead.Load() {
		w.Fatalf("no step %q", step)
	}
}

func (w *world) log() []logged {
	w.Helper()
	all, err := w.other.readLog(w.Context(), "", leaseKey)
	w.ok(err)
	return all
}

// The sweeper finishes what crashed coordinators left, without anybody reading the
// rows, and forgets their records in time.
func TestSweeperCleansUp(t *testing.T) {
	for _, c := range []struct{ step, want string }{
		{"before lock row", "a/x=- b/y=-"},
		{"before commit", "a/x=- b/y=-"},
		{"after commit", "a/x=new b/y=new"},
		{"before finish", "a/x=new b/y=new"},
	} {
		w := newWorld(t)
		w.dead(c.step, fed(put("a", "x", "new"), "e"), put("b", "y", "new"))
		w.ok(w.other.sweepOnce(t.Context()))
		if log := w.log(); c.want != "a/x=new b/y=new" && log[0].status != pending {
			t.Errorf("%s: swept before its deadline", c.step)
		}
		w.clock.Advance(10 * time.Second)
		w.ok(w.other.sweepOnce(t.Context()))
		w.unlockedAll("a/x", "b/y")
		if log := w.log(); len(log) != 1 || !log[0].finished {
			t.Errorf("%s: log = %+v", c.step, log)
		}
		if got := w.show(w.other, "a/x", "b/y"); got != c.want {
			t.Errorf("%s: %s, want %s", c.step, got, c.want)
		}
		w.clock.Advance(59 * time.Minute)
		w.ok(w.other.sweepOnce(t.Context()))
		if log := w.log(); len(log) != 1 {
			t.Errorf("%s: %d records within their retention", c.step, len(log))
		}
		w.clock.Advance(2 * time.Minute)
		w.ok(w.other.sweepOnce(t.Context()))
		if log := w.log(); len(log) != 0 {
			t.Errorf("%s: %d records behind their retention", c.step, len(log))
		}
	}
}

// A coordinator whose clock was ahead is gone: its deadline is far off, but the
// sweeper has seen it do nothing for long enough.
func TestSweeperDoesNotTrustDeadlines(t *testing.T) {
	w := newWorld(t)
	real := w.clock
	w.clock = clock.NewManual(start().Add(24 * time.Hour))
	w.dead("before commit", put("a", "x", "new"), put("b", "y", "new"))
	w.clock = real
	w.other.stopLoops()
	w.other.running.Wait()
	w.other.opts.SweeperCadence = 5 * time.Second
	for range 2 {
		w.ok(w.other.sweepOnce(t.Context()))
	}
	if log := w.log(); log[0].status != pending {
		t.Errorf("pushed at once")
	}
	for range 5 {
		w.ok(w.other.sweepOnce(t.Context()))
	}
	w.unlockedAll("a/x", "b/y")
	if log := w.log(); log[0].status != aborted {
		t.Errorf("still %c", log[0].status)
	}
}

// One process sweeps a shard; when it is gone another one does.
func TestSweepersShareTheWork(t *testing.T) {
	w := newWorld(t)
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(string) error { return nil })
	mine := func(e *Engine) (n int) {
		for i := range e.sweep.shards {
			if e.sweep.shards[i].mine {
				n++
			}
		}
		return n
	}
	for range 3 {
		w.ok(w.other.sweepOnce(t.Context()))
		w.ok(e.sweepOnce(t.Context()))
	}
	if mine(w.other) != logShards || mine(e) != 0 {
		t.Errorf("%d and %d shards", mine(w.other), mine(e))
	}
	for range leasePasses + 1 {
		w.ok(e.sweepOnce(t.Context()))
	}
	w.ok(w.other.sweepOnce(t.Context()))
	if mine(w.other) != 0 || mine(e) != logShards {
		t.Errorf("%d and %d shards after the first was silent", mine(w.other), mine(e))
	}
}

// rows counts what the table of a space holds, tombstones included.
func (w *world) rows(name string) int {
	w.Helper()
	s, err := w.other.space(w.Context(), name)
	w.ok(err)
	n := 0
	w.ok(s.table.bt.ReadRows(w.Context(), bt.InfiniteRange(""), func(bt.Row) bool { n++; return true }))
	return n
}

// Tombstones go after their retention, with nothing else, and versions go on rising
// for whoever opens the engine later with a clock that is behind.
func TestTombstonesAreSwept(t *testing.T) {
	slow(t)
	w := newWorld(t)
	w.commit(nil, put("b", "stays", "x"))
	var gone kv.Version
	for i := range 1200 {
		gone = w.commit(nil, del("b", fmt.Sprintf("gone%04d", i)))
	}
	w.commit(nil, fed(del("a", "with an entry"), "e"))
	sweep := func() {
		w.other.sweep.tombstones = nil
		w.ok(w.other.sweepOnce(t.Context()))
	}
	sweep()
	w.clock.Advance(23 * time.Hour)
	sweep()
	if n := w.rows("b"); n != 1201 {
		t.Errorf("%d rows within the retention", n)
	}
	w.clock.Advance(2 * time.Hour)
	sweep()
	if n := w.rows("b"); n != 1 {
		t.Errorf("%d rows behind the retention", n)
	}
	if got := w.show(w.other, "b/stays"); got != "b/stays=x" {
		t.Error(got)
	}
	if got := w.feed(w.other); got != "with an entry:e" {
		t.Errorf("feed %q", got)
	}
	e := w.server.open(t, clock.NewManual(start().Add(-24*time.Hour)))
	v, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("b", "gone1199", "x")}})
	if w.ok(err); v <= gone {
		t.Errorf("version %d after %d", v, gone)
	}
}

func TestPlaceholdersAreSwept(t *testing.T) {
	w := newWorld(t)
	w.dead("before commit", put("b", "x", "new"), put("b", "y", "new"))
	w.clock.Advance(10 * time.Second)
	w.show(w.other, "b/x", "b/y")
	settled(w.other)
	w.unlockedAll("b/x", "b/y")
	if n := w.rows("b"); n != 2 {
		t.Errorf("%d rows", n)
	}
	w.clock.Advance(25 * time.Hour)
	w.ok(w.other.sweepOnce(t.Context()))
	if n := w.rows("b"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// The index of package expiry is read where everything was deleted: its tombstones go
// early.
func TestTombstonesOfTheExpiryIndexGoEarly(t *testing.T) {
	w := newWorld(t)
	w.ok(w.db.CreateSpace(t.Context(), ttlSpace, kv.SpaceOptions{}))
	w.commit(nil, del(ttlSpace, "k"))
	w.commit(nil, del("b", "k"))
	w.clock.Advance(ttlRetention + time.Minute)
	w.ok(w.other.sweepOnce(t.Context()))
	if ttl, b := w.rows(ttlSpace), w.rows("b"); ttl != 0 || b != 1 {
		t.Errorf("%d and %d rows", ttl, b)
	}
}

// A process crashes while it drops a space.
func TestDropIsFinishedByOthers(t *testing.T) {
	for _, step := range []string{"before delete table", "after delete table", "before list leftovers", "before forget space"} {
		w := newWorld(t)
		w.commit(nil, fed(put("a", "x", "old"), "e"))
		w.feed(w.other)
		p := &points{}
		e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(s string) error {
			if s == step {
				p.mu.Lock()
				p.crashed = true
				p.mu.Unlock()
			}
			return p.hook(s)
		})
		if err := e.DropSpace(context.WithoutCancel(t.Context()), "a"); err == nil {
			t.Errorf("%s: no error", step)
		}
		e.die()
		if infos, err := w.db.Spaces(t.Context()); err != nil || len(infos) != 1 {
			t.Errorf("%s: spaces %v, %v", step, infos, err)
		}
		w.other.sweep.shards[0].mine = true
		w.ok(w.other.sweepSpaces(t.Context()))
		s, _, err := w.other.readSpace(t.Context(), "a")
		if w.ok(err); s.stage != dropped {
			t.Errorf("%s: stage %d", step, s.stage)
		}
		for _, table := range []*table{w.other.streamTable, w.other.outboxTable} {
			n := 0
			w.ok(table.bt.ReadRows(t.Context(), bt.InfiniteRange(""), func(bt.Row) bool { n++; return true }))
			if n > 0 {
				t.Errorf("%s: %d rows are left in %s", step, n, table.name)
			}
		}
		w.ok(w.db.CreateSpace(t.Context(), "a", kv.SpaceOptions{}))
		if got := w.show(w.other, "a/x"); got != "a/x=-" {
			t.Errorf("%s: %s", step, got)
		}
	}
}

// A write that a slow process sends to a space that was dropped does not appear in
// the one that was created after it.
func TestLateWriteMissesTheNewSpace(t *testing.T) {
	for _, writes := range [][]kv.Write{{put("a", "x", "late")}, {put("a", "x", "late"), put("b", "y", "late")}} {
		for _, step := range []string{"before write row", "before lock row", "before commit"} {
			if (len(writes) == 1) != (step == "before write row") {
				continue
			}
			w := newWorld(t)
			s := newStall(step)
			e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
			_, err := e.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("x")}}) // it knows the space
			w.ok(err)
			result := make(chan error, 1)
			go func() {
				_, err := e.Commit(t.Context(), &kv.Txn{Writes: writes})
				result <- err
			}()
			<-s.reached
			w.ok(w.db.DropSpace(t.Context(), "a"))
			if step != "before commit" {
				close(s.resume)
				if err := <-result; err == nil {
					t.Errorf("%s: wrote to a space that was dropped", step)
				}
				w.ok(w.db.CreateSpace(t.Context(), "a", kv.SpaceOptions{}))
			} else {
				w.ok(w.db.CreateSpace(t.Context(), "a", kv.SpaceOptions{}))
				close(s.resume)
				if err := <-result; err != nil { // before the drop
					t.Errorf("%s: %v", step, err)
				}
			}
			settled(e)
			if got := w.show(w.other, "a/x"); got != "a/x=-" {
				t.Errorf("%s: %s", step, got)
			}
			if got := w.show(e, "a/x"); got != "a/x=-" {
				t.Errorf("%s: %s", step, got)
			}
			w.unlockedAll("b/y")
		}
	}
}
