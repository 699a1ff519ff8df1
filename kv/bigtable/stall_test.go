package bigtable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// stall holds an engine up at one step, the first time it gets there.
type stall struct {
	step    string
	once    sync.Once
	reached chan struct{}
	resume  chan struct{}
}

func newStall(step string) *stall {
	return &stall{step: step, reached: make(chan struct{}), resume: make(chan struct{})}
}

func (s *stall) hook(step string) error {
	if step == s.step {
		s.once.Do(func() {
			close(s.reached)
			<-s.resume
		})
	}
	return nil
}

// stalled begins a commit of two rows on a fresh engine, which stalls at a step.
func (w *world) stalled(step string) (s *stall, e *Engine, result chan error) {
	w.Helper()
	s = newStall(step)
	e = w.server.openWith(w.T, quiet(w.server.options(w.clock)), s.hook)
	result = make(chan error, 1)
	go func() {
		_, err := e.Commit(w.Context(), &kv.Txn{Writes: []kv.Write{put("a", "x", "slow"), put("b", "y", "slow")}})
		result <- err
	}()
	<-s.reached
	return s, e, result
}

// A coordinator that stalls before its commit, is pushed, and goes on when others
// have changed the rows, changes nothing.
func TestCommitAfterPushIsImpossible(t *testing.T) {
	w := newWorld(t)
	w.commit(nil, put("a", "x", "old"), put("b", "y", "old"))
	settled(w.other)
	s, e, result := w.stalled("before commit")
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=old b/y=old" {
		t.Errorf("before the commit: %s", got)
	}
	w.clock.Advance(10 * time.Second)
	w.commit(nil, put("a", "x", "fast"))
	w.commit(nil, put("b", "y", "fast"))
	close(s.resume)
	// It starts over, as a new transaction.
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	settled(e)
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=slow b/y=slow" {
		t.Errorf("in the end: %s", got)
	}
	w.unlockedAll("a/x", "b/y")
}

// The same with checks: the rows are not what they were any more.
func TestCommitAfterPushConflicts(t *testing.T) {
	w := newWorld(t)
	v := w.commit(nil, put("a", "x", "old"), put("b", "y", "old"))
	settled(w.other)
	s := newStall("before commit")
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
	result := make(chan error, 1)
	go func() {
		_, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("a", "x", v)}, Writes: []kv.Write{put("b", "y", "slow")}})
		result <- err
	}()
	<-s.reached
	w.clock.Advance(10 * time.Second)
	w.commit(nil, put("a", "x", "fast"))
	close(s.resume)
	if err := <-result; !kv.IsConflict(err) {
		t.Errorf("error = %v, want a conflict", err)
	}
	settled(e)
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=fast b/y=old" {
		t.Errorf("in the end: %s", got)
	}
}

// A coordinator that stalls behind its commit finds its rows finished and written
// again by others, and leaves them alone.
func TestLateFinishIsHarmless(t *testing.T) {
	w := newWorld(t)
	s, e, result := w.stalled("before finish")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=slow b/y=slow" {
		t.Errorf("after the commit: %s", got)
	}
	v := w.commit(nil, put("a", "x", "fast"), put("b", "y", "fast"))
	close(s.resume)
	settled(e)
	settled(w.other)
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=fast b/y=fast" {
		t.Errorf("in the end: %s", got)
	}
	w.unlockedAll("a/x", "b/y")
	w.commit([]kv.Check{check("a", "x", v), check("b", "y", v)}, put("a", "x", "last"))
}

// A lock that arrives when its transaction was aborted, and even forgotten, goes away
// with the next visitor.
func TestLockWithoutRecordIsTakenAway(t *testing.T) {
	w := newWorld(t)
	s, e, result := w.stalled("before lock row")
	w.clock.Advance(10 * time.Second)
	ctx := t.Context()
	w.ok(w.other.sweepOnce(ctx)) // aborts it
	w.clock.Advance(2 * time.Hour)
	w.ok(w.other.sweepOnce(ctx)) // forgets it
	log, err := w.other.readLog(ctx, "", leaseKey)
	w.ok(err)
	if len(log) > 0 {
		t.Fatalf("%d records are left", len(log))
	}
	close(s.resume)
	if err := <-result; err != nil { // as a new transaction
		t.Fatal(err)
	}
	settled(e)
	w.unlockedAll("a/x", "b/y")
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=slow b/y=slow" {
		t.Errorf("in the end: %s", got)
	}
}

// A single write meets the lock of a transaction that is committed but not finished:
// neither gets lost.
func TestSingleWriteSurvivesTheRollForward(t *testing.T) {
	w := newWorld(t)
	s, e, result := w.stalled("before finish")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	row, err := w.db.GetOne(t.Context(), "b", []byte("y"))
	w.ok(err)
	w.commit(nil, put("a", "x", "blind"))
	w.commit([]kv.Check{check("b", "y", row.Version)}, put("b", "y", "checked"))
	close(s.resume)
	settled(e)
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=blind b/y=checked" {
		t.Errorf("in the end: %s", got)
	}
}

// A reader of several rows sees a transaction that is committed but not finished, and
// none that is not committed.
func TestReadersFollowTheRecord(t *testing.T) {
	for _, step := range []string{"before commit", "after commit", "before finish"} {
		w := newWorld(t)
		s, _, _ := w.stalled(step)
		rows, err := w.other.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("x")}, {Space: "b", Key: []byte("y")}})
		w.ok(err)
		want := step != "before commit"
		if rows[0].Exists() != want || rows[1].Exists() != want {
			t.Errorf("%s: %v and %v, want %v", step, rows[0].Exists(), rows[1].Exists(), want)
		}
		scanned := 0
		w.ok(w.other.Scan(t.Context(), "a", kv.Range{}, func(kv.Row) bool { scanned++; return true }))
		if (scanned == 1) != want {
			t.Errorf("%s: a scan shows %d rows", step, scanned)
		}
		close(s.resume)
	}
}

// A writer does not wait for a lock on a row that it has checked; on others it does,
// until its context ends.
func TestLiveLockIsAConflict(t *testing.T) {
	w := newWorld(t)
	v := w.commit(nil, put("a", "x", "old"), put("b", "y", "old"))
	settled(w.other)
	s, _, _ := w.stalled("before commit")
	defer close(s.resume)
	for _, extra := range [][]kv.Write{nil, {put("b", "other", "x")}} {
		_, err := w.db.Commit(t.Context(), &kv.Txn{
			Checks: []kv.Check{check("a", "x", v), check("a", "z", 0)},
			Writes: append([]kv.Write{put("a", "x", "new")}, extra...),
		})
		var conflict *kv.ConflictError
		if !errors.As(err, &conflict) || len(conflict.Refs) != 1 || string(conflict.Refs[0].Key) != "x" {
			t.Errorf("error = %v, want a conflict over x", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = w.db.Commit(ctx, &kv.Txn{Writes: append([]kv.Write{put("a", "x", "new")}, extra...)})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kv.ErrUnknownOutcome) {
			t.Errorf("error = %v, want the deadline", err)
		}
	}
	// A check that is false anyhow is told at once.
	_, err := w.db.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("a", "x", 0)}, Writes: []kv.Write{put("a", "x", "new")}})
	if !kv.IsConflict(err) {
		t.Errorf("error = %v, want a conflict", err)
	}
}

// An answer to a single write gets lost, and others write before the driver looks:
// then it cannot know.
func TestLostAnswerIsSettledOrUnknown(t *testing.T) {
	for _, overwritten := range []bool{false, true} {
		w := newWorld(t)
		v := w.commit(nil, put("a", "x", "old"))
		dropped := 0
		hook := func(step string) error {
			if step == "after write row" && dropped == 0 {
				dropped++
				if overwritten {
					w.commit(nil, put("a", "x", "other"))
				}
				return errDropped
			}
			return nil
		}
		e := w.server.openWith(t, quiet(w.server.options(w.clock)), hook)
		_, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("a", "x", v)}, Writes: []kv.Write{put("a", "x", "new")}})
		want := "a/x=new"
		if overwritten {
			want = "a/x=other"
		}
		if errors.Is(err, kv.ErrUnknownOutcome) != overwritten || (err == nil) == overwritten {
			t.Errorf("overwritten %v: error = %v", overwritten, err)
		}
		if got := w.show(w.other, "a/x"); got != want {
			t.Errorf("overwritten %v: %s, want %s", overwritten, got, want)
		}
	}
}

// The feed entry tells that a write happened whose state others have replaced.
func TestOutboxTellsOfALostAnswer(t *testing.T) {
	w := newWorld(t)
	v := w.commit(nil, put("a", "x", "old"))
	first := true
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(step string) error {
		if step == "after write row" && first {
			first = false
			w.commit(nil, put("a", "x", "other"))
			return errDropped
		}
		return nil
	})
	if _, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("a", "x", v)}, Writes: []kv.Write{fed(put("a", "x", "new"), "entry")}}); err != nil {
		t.Errorf("error = %v, the entry is there", err)
	}
	if got := w.feed(w.other); got != "x:entry" {
		t.Errorf("feed %q", got)
	}
}

// The feed entry of another process, which used the same p for its write of the row,
// tells nothing about a write whose answer is lost.
func TestOutboxOfAnotherWriterTellsNothing(t *testing.T) {
	for _, feed := range [][]byte{[]byte("lost"), nil} {
		w := newWorld(t)
		v := w.commit(nil, put("a", "x", "old"))
		w.other.stopLoops() // nobody forwards the entry
		w.other.running.Wait()
		before, after := true, true
		var e *Engine
		e = w.server.openWith(t, quiet(w.server.options(w.clock)), func(step string) error {
			switch {
			case step == "before write row" && before:
				before = false
				w.other.hybrid.last = e.hybrid.last - 1
				w.commit([]kv.Check{check("a", "x", v)}, fed(put("a", "x", "other"), "entry"))
				if w.other.hybrid.last != e.hybrid.last {
					t.Errorf("different versions %d and %d", w.other.hybrid.last, e.hybrid.last)
				}
			case step == "after write row" && after:
				after = false
				return errDropped
			}
			return nil
		})
		e.stopLoops()
		e.running.Wait()
		e.hybrid.raise(uint64(v) + 100)
		write := put("a", "x", "new")
		write.Feed = feed
		if _, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("a", "x", v)}, Writes: []kv.Write{write}}); !errors.Is(err, kv.ErrUnknownOutcome) {
			t.Errorf("error = %v, want %v", err, kv.ErrUnknownOutcome)
		}
		if got := w.show(w.other, "a/x"); got != "a/x=other" {
			t.Errorf("row %s", got)
		}
		if got := w.feed(w.other); got != "x:entry" {
			t.Errorf("feed %q", got)
		}
	}
}

// Under a storm of changes a snapshot takes locks, and still is one.
func TestSnapshotTakesLocksInTheEnd(t *testing.T) {
	w := newWorld(t)
	w.commit(nil, put("a", "x", "0"), put("b", "y", "0"))
	settled(w.other)
	var changes atomic.Int32
	var locked atomic.Bool
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(step string) error {
		if strings.Contains(step, "lock row") {
			locked.Store(true)
		}
		if step == "after read rows" && !locked.Load() && changes.Load() < 30 {
			value := fmt.Sprint(changes.Add(1))
			w.commit(nil, put("a", "x", value), put("b", "y", value))
		}
		return nil
	})
	rows, err := e.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("x")}, {Space: "b", Key: []byte("y")}, {Space: "a", Key: []byte("x")}})
	w.ok(err)
	if string(rows[0].Value) != string(rows[1].Value) || rows[0].Version != rows[1].Version || rows[2].Version != rows[0].Version {
		t.Errorf("rows = %+v", rows)
	}
	if !locked.Load() {
		t.Errorf("no lock was taken")
	}
}

// Whoever meets a lock without a record makes sure that the transaction can never
// commit, before it takes the lock for nothing.
func TestMissingRecordIsFenced(t *testing.T) {
	for name, visit := range map[string]func(w *world){
		"reader": func(w *world) { w.show(w.other, "b/x") },
		"writer": func(w *world) { w.commit(nil, put("b", "x", "new")) },
	} {
		w := newWorld(t)
		w.commit(nil, put("b", "x", "old"))
		s, err := w.other.space(t.Context(), "b")
		w.ok(err)
		r, err := w.other.readRow(t.Context(), "test", s, "x")
		w.ok(err)
		id, err := w.other.newTxID()
		w.ok(err)
		lock := r.state.lockedBy(id, intent{kind: intentDelete}.encode(), version{})
		res, err := w.other.cas(t.Context(), "test", s.table, "x", stateCell.is(r.state.raw), newMutation().set(stateCell, lock))
		if w.ok(err); !res.applied {
			t.Fatal("not locked")
		}
		visit(w)
		settled(w.other)
		w.unlockedAll("b/x")
		records, err := w.other.readRecords(t.Context(), []txID{id})
		if w.ok(err); records[id].status != aborted {
			t.Errorf("%s: record %q", name, records[id].raw)
		}
		if err := w.other.createRecord(t.Context(), id, nil); !errors.Is(err, errAborted) {
			t.Errorf("%s: the record was created after all: %v", name, err)
		}
	}
}

// A transaction that is given up says so at once, for those who meet its locks.
func TestConflictAbortsTheRecord(t *testing.T) {
	w := newWorld(t)
	w.commit(nil, put("b", "x", "old"))
	settled(w.other)
	_, err := w.db.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{check("b", "x", 0)}, Writes: []kv.Write{put("b", "x", "new"), put("b", "y", "new")}})
	if !kv.IsConflict(err) {
		t.Errorf("error = %v", err)
	}
	settled(w.other)
	if log := w.log(); len(log) != 1 || log[0].status != aborted {
		t.Errorf("log = %+v", log)
	}
}
