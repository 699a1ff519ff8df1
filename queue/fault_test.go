package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

var errEffectTwice = errors.New("the effect is there already")

// finish acknowledges a message in one commit with an effect.
func (w *world) finish(q *Queue, k string) error {
	return w.update(func(tx *kv.Tx) error {
		row, err := tx.Get(effectSpace, []byte(k))
		if err != nil {
			return err
		}
		if err := q.Ack(tx, []byte(k)); err != nil {
			return err
		}
		if row.Exists() {
			return errEffectTwice
		}
		tx.Put(kv.Write{Space: effectSpace, Key: []byte(k), Value: []byte("done")})
		return nil
	})
}

// handle receives what is there. It finishes most, gives those back that begin
// with r, and forgets those that begin with f, as long as it is their first time.
func (w *world) handle(q *Queue) {
	w.t.Helper()
	for _, m := range w.receive(q, 10) {
		var err error
		switch k := string(m.Key); {
		case k[0] == 'f' && m.Attempts == 0:
		case k[0] == 'r' && m.Attempts == 0, k[0] == 'p':
			err = q.Retry(w.t.Context(), m.Token(), 2*time.Second, "no")
		default:
			err = w.finish(q, k)
		}
		if errors.Is(err, errEffectTwice) {
			w.t.Errorf("%q was acknowledged twice", m.Key)
		}
	}
}

// Whatever call of the engine fails, and however: each message that was sent is
// in the queue, or finished with its effect, or dead; and in the end it has been
// delivered.
func TestInvariant4_FaultAtAnyCallLosesAndRepeatsNothing(t *testing.T) {
	keys := []string{"a", "b", "f", "p", "r"}
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer func() { w.stop() }()
			q := w.create("q", Settings{MaxAttempts: 3})
			p.Arm(w.faults)
			sent := map[string]bool{}
			for _, k := range keys {
				err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out(k)...) })
				sent[k] = err == nil
			}
			for range 4 {
				w.handle(q)
				pass(4 * time.Second)
			}
			if p.Failure == kvtest.CrashedBefore || p.Failure == kvtest.CrashedAfter {
				w.crash()
				w.restart()
				q = w.queue("q")
			} else {
				w.faults.Reset()
			}
			w.check(q, sent)
			for range 15 {
				w.handle(q)
				pass(10 * time.Second)
			}
			if left := w.check(q, sent); left != 0 {
				t.Errorf("%d messages were never finished", left)
			}
		})
	})
}

// check fails if a message that was sent is not in exactly one place, and returns
// how many are still in the queue.
func (w *world) check(q *Queue, sent map[string]bool) int {
	w.t.Helper()
	places := map[string]int{}
	stored := w.stored(q)
	for k := range stored {
		places[k]++
	}
	for _, l := range w.deadLetters(q) {
		places[string(l.Message.Key)]++
	}
	err := w.model.Scan(w.t.Context(), effectSpace, kv.Range{}, func(r kv.Row) bool {
		places[string(r.Key)]++
		return true
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for k, certain := range sent {
		if n := places[k]; n > 1 || certain && n == 0 {
			w.t.Errorf("message %q is in %d places", k, n)
		}
	}
	return len(stored)
}
