package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// The tests of this file put something into the gap between two steps of the
// service. Nothing in them waits for an audit: what they expect comes before.

// first runs f once, after the first call of the engine that match accepts. The
// calls that f makes do not count.
func (w *world) first(match func(kvtest.Call) bool, f func() error) {
	done := false
	w.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if done || !match(c) {
			return err
		}
		done = true
		return errors.Join(err, f())
	})
}

func readsMessage(c kvtest.Call) bool { return c.Op == kvtest.OpGet && c.Refs[0].Space == messageSpace }

func commits(c kvtest.Call) bool { return c.Op == kvtest.OpCommit }

// soon makes a message that is read when it is due, not made ready by its sender.
func (w *world) soon(k string) Outgoing { return at(k, w.clock.Now().Add(time.Second)) }

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

func TestInvariant4_AckWhileTheMessageIsReadPreventsItsDelivery(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, w.soon("a"))
		w.first(readsMessage, func() error { return w.ack(q, "a") })
		pass(time.Second)
		w.expect(q, 1)
		if len(q.known) != 0 {
			t.Errorf("%d messages known, want none", len(q.known))
		}
	})
}

func TestAckOfMessageThatGoesElsewhereWhileItIsReadFails(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		other := w.elsewhere(q)
		w.send(q, w.soon("a"))
		w.first(readsMessage, func() error {
			w.mustAck(other, "a")
			if err := w.ack(q, "a"); !errors.Is(err, ErrNotFound) {
				t.Errorf("Ack: %v, want ErrNotFound", err)
			}
			return nil
		})
		pass(time.Minute)
	})
}

func TestMessageSentAgainWhileItIsReadIsDeliveredOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, w.soon("a"))
		w.first(readsMessage, func() error { return w.replace(q, Outgoing{Key: []byte("a"), Payload: []byte("new")}) })
		pass(time.Second)
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

// What happens between the commit of a message and the report of its sender.
func TestInvariant4_MessageRemovedBeforeItsSenderReportsIsNotDelivered(t *testing.T) {
	nothing := func(*world, *Queue) {}
	ack := func(w *world, q *Queue) { w.mustAck(q, "a") }
	unknownAck := func(w *world, q *Queue) {
		w.first(commits, func() error { return kv.ErrUnknownOutcome })
		if err := w.ack(q, "a"); !errors.Is(err, kv.ErrUnknownOutcome) {
			w.t.Errorf("Ack: %v", err)
		}
	}
	deliver := func(w *world, q *Queue) Message {
		q.wake(time.Unix(0, 0))
		return w.expect(q, 1, "a")[0]
	}
	for name, c := range map[string]struct{ before, between func(w *world, q *Queue) }{
		"acknowledged": {nothing, ack},
		"perhaps":      {nothing, unknownAck},
		"delivered and acknowledged": {nothing, func(w *world, q *Queue) {
			deliver(w, q)
			ack(w, q)
		}},
		"delivered and dead": {nothing, func(w *world, q *Queue) {
			m := deliver(w, q)
			if err := q.Retry(w.t.Context(), m.Token(), 0, ""); err != nil {
				w.t.Error(err)
			}
		}},
		"acknowledged among many": {nothing, func(w *world, q *Queue) {
			ack(w, q)
			q.mu.Lock()
			defer q.mu.Unlock()
			for i := range departedCount {
				q.depart(number(i))
			}
		}},
		"acknowledged while an earlier one is in memory": {func(w *world, q *Queue) {
			w.send(q, out("a")...)
			w.expect(q, 1, "a")
			unknownAck(w, q)
		}, ack},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				q := w.create("q", Settings{MaxAttempts: 1})
				c.before(w, q)
				w.first(commits, func() error { c.between(w, q); return nil })
				w.send(q, out("a")...)
				w.faults.Reset()
				w.expect(q, 9)
				pass(time.Minute)
				w.expect(q, 9)
				if left := w.stored(q); len(left) != 0 {
					t.Errorf("stored: %v", left)
				}
			})
		})
	}
}

func TestMessageSentAndRemovedInOneCommitIsNotDelivered(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		go func() {
			if batch, err := q.Receive(w.t.Context(), 9); err == nil {
				t.Errorf("received %q", keysOf(batch))
			}
		}()
		synctest.Wait()
		if err := w.update(func(tx *kv.Tx) error {
			return errors.Join(q.Send(tx, out("a")...), q.Ack(tx, []byte("a")))
		}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if left := w.stored(q); len(left) != 0 || len(q.known) != 0 {
			t.Errorf("stored %v, %d known", left, len(q.known))
		}
	})
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		if err := w.update(func(tx *kv.Tx) error {
			return errors.Join(q.Send(tx, out("a")...), q.Ack(tx, []byte("a")), q.Send(tx, out("a")...))
		}); err != nil {
			t.Fatal(err)
		}
		w.expect(q, 9, "a")
		w.mustAck(q, "a")
		pass(time.Minute)
		w.expect(q, 9)
	})
}

// A receiver may change what it got, and the sender what it sent.
func TestSentMessageSharesNoMemory(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		m := out("a")[0]
		w.send(q, m)
		m.Payload[0], m.Key[0] = 'x', 'x'
		got := w.expect(q, 1, "a")[0]
		if string(got.Payload) != "a" {
			t.Errorf("payload %q", got.Payload)
		}
		got.Payload[0] = 'y'
		_ = append(got.Payload, 'y')
		pass(time.Minute)
		if again := w.expect(q, 1, "a")[0]; string(again.Payload) != "a" {
			t.Errorf("payload of the second delivery %q", again.Payload)
		}
	})
}

func TestMessageThatFailsToBeReadIsReadAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, w.soon("a"))
		failed := false
		w.first(readsMessage, func() error { failed = true; return kvtest.ErrInjected })
		if _, took := w.wait(q); !failed || took > time.Second+tick {
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
			dispatcher := c.Op == kvtest.OpScan && c.Space == readySpace && c.Range.Limit == scanLimit
			if dispatcher && !moved && !w.clock.Now().Before(later.DeliverTime.Add(-9*time.Minute)) {
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
