package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

func TestOnceEndsWithoutABudget(t *testing.T) {
	inWorld(t, func(w *world) {
		w.send(v01)
		must(t, w.reconciler(Options{}).Once(w.Context(), 0))
		w.want("unfinalized", "unfinalized")
	})
}

func TestOnceEndsWhenTheSourceIsEmpty(t *testing.T) {
	inWorld(t, func(w *world) {
		w.send(v01, v14)
		began := time.Now()
		must(t, w.reconciler(Options{}).Once(w.Context(), time.Hour))
		if d := time.Since(began); d > time.Minute {
			t.Errorf("took %v", d)
		}
		w.want("committed", "unfinalized")
	})
}

func TestOnceEndsSoonAfterItsBudget(t *testing.T) {
	inWorld(t, func(w *world) {
		w.faults.SetHook(func(ctx context.Context, c blobtest.Call) error {
			if c.Op == blobtest.OpFinalize && c.Stage == blobtest.Before {
				w.send(v01) // there is always one more
				time.Sleep(time.Second)
			}
			return nil
		})
		w.send(v01)
		reg := metrics.New()
		began := time.Now()
		must(t, w.reconciler(Options{Metrics: reg}).Once(w.Context(), 30*time.Second))
		if d := time.Since(began); d < 30*time.Second || d > 40*time.Second {
			t.Errorf("took %v", d)
		}
		if got := counted(t, reg); got["runs"] != 1 || got["budget_exhausted"] != 1 {
			t.Errorf("counted %v", got)
		}
	})
}

func TestRunFinishesWhatItHasBegunAndGivesBackTheRest(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		for i := range 10 {
			w.send(strings.ReplaceAll(v01, "i/a", fmt.Sprint("i/", i)))
		}
		w.faults.SetHook(func(ctx context.Context, c blobtest.Call) error {
			if c.Stage == blobtest.Before {
				cancel()
				time.Sleep(time.Second)
			}
			return ctx.Err()
		})
		r := w.reconciler(Options{Concurrency: 2})
		must(t, r.Run(ctx))
		n := 0
		for _, op := range w.faults.Trace() {
			n++
			if strings.HasSuffix(op, "failed") {
				t.Errorf("%s although it had been begun", op)
			}
		}
		left, err := w.queue.Peek(w.Context(), 100)
		must(t, err)
		if n > 2 || len(left) != 10-n {
			t.Errorf("%d operations, %d messages left of 10", n, len(left))
		}
		for _, m := range left {
			if m.Attempts != 0 {
				t.Errorf("%d attempts of an untried message", m.Attempts)
			}
		}
	})
}

func TestRunEndsWithASourceThatIsClosed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.stop()
		r := w.reconciler(Options{})
		if err := r.Run(w.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Run: %v, want ErrClosed", err)
		}
		w.open()
	})
}

func TestOperationsOnOneNameAreAloneThere(t *testing.T) {
	inWorld(t, func(w *world) {
		var now, most atomic.Int64
		w.faults.SetHook(func(_ context.Context, c blobtest.Call) error {
			if c.Stage == blobtest.Before {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Second)
			} else {
				now.Add(-1)
			}
			return nil
		})
		for range 5 {
			w.send(v01, v02)
		}
		must(t, w.reconciler(Options{Concurrency: 10}).Once(w.Context(), time.Hour))
		if most.Load() != 1 {
			t.Errorf("up to %d operations on one object at a time", most.Load())
		}
	})
}

func TestMessagesAreHandledAtTheSameTime(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 40 {
			w.send(strings.ReplaceAll(v01, "i/a", fmt.Sprint("i/", i)))
		}
		w.faults.SetHook(blobtest.DelayOn(blobtest.OpFinalize, blobtest.Before, time.Second))
		began := time.Now()
		if _, err := w.reconciler(Options{Concurrency: 10}).Step(w.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("40 messages of a second each took %v, ten at a time", d)
		}
	})
}

// brokenSource fails in each of its methods.
type brokenSource struct{ *listSource }

var errSource = errors.New("broken source")

func (brokenSource) Ack(context.Context, []string) error { return errSource }

func TestSourceThatCannotAcknowledgeIsAnErrorOfTheStep(t *testing.T) {
	c := clock.NewManual(start)
	store, faults := newStore(t, c)
	s := brokenSource{newListSource(v01)}
	if found, err := New(s, store, Options{Clock: c}).Step(t.Context()); !found || !errors.Is(err, errSource) {
		t.Errorf("Step: %v, %v", found, err)
	}
	if len(faults.Trace()) != 1 {
		t.Errorf("operations %q", faults.Trace())
	}
}

func TestDeferredMessageIsLostInNoCase(t *testing.T) {
	inWorld(t, func(w *world) {
		w.commit("", "rows", "1", "a")
		w.commit("", "rows", "1", "")
		r := w.reconciler(Options{DeleteDelay: time.Hour})
		for range 3 { // a record that is early again and again
			must(t, r.Once(w.Context(), time.Minute))
		}
		w.stop()
		w.open()
		synctest.Wait()
		left, err := w.queue.Peek(w.Context(), 9)
		must(t, err)
		if len(left) != 1 || left[0].Attempts != 0 || !left[0].DeliverTime.After(time.Now()) {
			t.Fatalf("left %+v", left)
		}
		time.Sleep(time.Hour)
		must(t, w.reconciler(Options{DeleteDelay: time.Hour}).Once(w.Context(), time.Hour))
		w.want("absent", "unfinalized")
	})
}

func TestQueueSourceForgetsMessagesThatLeave(t *testing.T) {
	inWorld(t, func(w *world) {
		s := NewQueueSource(w.plain, w.queue)
		w.send(v01, v02, v03, v14)
		batch, err := s.Receive(w.Context(), 4)
		must(t, err)
		for len(batch) < 4 {
			more, err := s.Receive(w.Context(), 4)
			must(t, err)
			batch = append(batch, more...)
		}
		must(t, s.Renew(w.Context(), []string{batch[0].ID, "unknown"}))
		must(t, s.Ack(w.Context(), []string{batch[0].ID}))
		must(t, s.Fail(w.Context(), []Failure{{ID: batch[1].ID, Reason: "x"}, {ID: "unknown"}}))
		must(t, s.Release(w.Context(), []string{batch[2].ID, "unknown"}))
		must(t, s.Defer(w.Context(), batch[3], time.Now().Add(time.Hour)))
		must(t, s.Ack(w.Context(), []string{batch[0].ID, batch[3].ID}))
		if len(s.inHand) != 0 {
			t.Errorf("still in hand: %v", s.inHand)
		}
		left, err := w.queue.Peek(w.Context(), 9)
		must(t, err)
		if len(left) != 3 {
			t.Errorf("%d messages left, want those failed, released and deferred", len(left))
		}
	})
}
