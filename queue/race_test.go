package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// The tests of this file put something into the gap between two steps of the
// service. Nothing in them waits for an audit: what they expect comes before.

// second runs f once, after the second call of the engine that match accepts. The
// calls that f makes do not count.
func (w *world) second(match func(kvtest.Call) bool, f func() error) {
	seen := 0
	w.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if !match(c) {
			return err
		}
		if seen++; seen != 2 {
			return err
		}
		return errors.Join(err, f())
	})
}

func gets(c kvtest.Call) bool { return c.Op == kvtest.OpGet }

// replace acknowledges a message and sends another one with its key.
func (w *world) replace(q *Queue, m Outgoing) error {
	return w.update(func(tx *kv.Tx) error { return errors.Join(q.Ack(tx, m.Key), q.Send(tx, m)) })
}

// elsewhere is the same queue in another process, of which this one learns only
// by reading.
func (w *world) elsewhere(q *Queue) *Queue {
	w.t.Helper()
	s, err := Open(w.t.Context(), w.db, Options{TokenKey: make([]byte, 16), Rand: rand.Reader, Clock: w.clock})
	if err != nil {
		w.t.Fatal(err)
	}
	other, err := s.Queue(w.t.Context(), q.name)
	if err != nil {
		w.t.Fatal(err)
	}
	return other
}

// The first read is Send's, the second the dispatcher's.
func TestInvariant4_AckWhileTheMessageIsReadPreventsItsDelivery(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.second(gets, func() error { return w.ack(q, "a") })
		w.send(q, out("a")...)
		w.expect(q, 1)
		if len(q.known) != 0 {
			t.Errorf("%d messages known, want none", len(q.known))
		}
	})
}

func TestMessageSentAgainWhileItIsReadIsDeliveredOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.second(gets, func() error { return w.replace(q, Outgoing{Key: []byte("a"), Payload: []byte("new")}) })
		w.send(q, out("a")...)
		if m := w.expect(q, 9, "a")[0]; string(m.Payload) != "new" {
			t.Errorf("payload %q", m.Payload)
		}
		w.expect(q, 9)
	})
}

func TestMessageReceivedBeforeItsSenderLearnsOfTheCommitKeepsItsLease(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, at("a", w.clock.Now().Add(time.Hour)))
		w.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
			if c.Op == kvtest.OpCommit { // and Update's function still has hooks to run
				q.wake(time.Unix(0, 0))
				w.expect(q, 9, "a")
			}
			return err
		})
		if err := w.replace(q, out("a")[0]); err != nil {
			t.Fatal(err)
		}
		w.faults.Reset()
		w.expect(q, 9)
	})
}

func TestMessageThatFailsToBeReadIsReadAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.second(gets, func() error { return kvtest.ErrInjected })
		w.send(q, out("a")...)
		if _, took := w.wait(q); took > tick {
			t.Errorf("delivered after %v", took)
		}
	})
}

func TestMessageMovedElsewhereWhileItIsReadIsNotDeliveredEarly(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		other := w.elsewhere(q)
		later := at("a", w.clock.Now().Add(10*time.Minute))
		moved := false
		w.send(q, at("a", w.clock.Now().Add(time.Minute)))
		pass(59 * time.Second)
		w.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
			if c.Op == kvtest.OpScan && c.Space == readySpace && !moved && !w.clock.Now().Before(later.DeliverTime.Add(-9*time.Minute)) {
				moved = true
				return errors.Join(err, w.replace(other, later))
			}
			return err
		})
		if _, took := w.wait(q); !moved || took < 9*time.Minute {
			t.Errorf("delivered after %v", took)
		}
	})
}

func TestMessageSentAgainElsewhereIsNotTheOneThatWasLeased(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{MaxAttempts: 1})
		other := w.elsewhere(q)
		w.send(q, out("a")...)
		old := w.expect(q, 1, "a")[0]
		pass(time.Second)
		if err := w.replace(other, Outgoing{Key: []byte("a"), Payload: []byte("new")}); err != nil {
			t.Fatal(err)
		}
		if r := w.renew(q, old.Token()); len(r) != 1 || r[0].NewToken != "" {
			t.Errorf("renewal of the old message's lease: %+v", r)
		}
		m, took := w.wait(q)
		if string(m.Payload) != "new" || m.Attempts != 0 || took != 9*time.Second {
			t.Errorf("after %v: %+v", took, m)
		}
	})
}

func TestUnknownOutcomeOfALossDeliversAgainSoon(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		w.expect(q, 1, "a")
		w.faults.Before(func(_ context.Context, c kvtest.Call) error { return unknown(c, nil) })
		pass(10 * time.Second)
		w.faults.Reset()
		if _, took := w.wait(q); took > 2*tick {
			t.Errorf("delivered after %v", took)
		}
	})
}

func TestAllMessagesOfASendBehindTheCursorAreFound(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		w.expect(q, 1, "a")
		w.clock.Jump(-time.Hour)
		w.send(q, at("later", w.clock.Now().Add(time.Second)), at("now", w.clock.Now()))
		w.expect(q, 9, "now")
		pass(time.Second)
		w.expect(q, 9, "later")
	})
}

func TestNewMessagesDoNotOvertakeABacklog(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		var want []string
		for i := range 15 {
			var batch []string
			for j := range 100 {
				batch = append(batch, fmt.Sprintf("%02d-%02d", i, j))
			}
			w.send(q, out(batch...)...)
			want = append(want, batch...)
			pass(time.Millisecond)
		}
		got := keysOf(w.receive(q, 100))
		w.send(q, out("new")...)
		for len(got) <= len(want) { // more at once than the buffer has
			got = append(got, keysOf(w.receive(q, 2*bufferCount))...)
		}
		if !slices.Equal(got, append(want, "new")) {
			t.Error("not in the order of due times")
		}
	})
}

func TestScanGoesOnBehindManyLeasedMessages(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{Lease: time.Hour})
		for i := range 25 {
			var batch []string
			for j := range 100 {
				batch = append(batch, fmt.Sprintf("%02d-%02d", i, j))
			}
			w.send(q, out(batch...)...)
			w.receive(q, 100)
		}
		pass(time.Millisecond)
		w.send(w.elsewhere(q), out("new")...)
		q.wake(time.Unix(0, 0))
		if _, took := w.wait(q); took != 0 {
			t.Errorf("delivered after %v", took)
		}
	})
}
