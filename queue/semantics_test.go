package queue

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func TestDeliverTimeOfThePastIsReplacedAndOfTheFutureKept(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		now := w.clock.Now()
		future := now.Add(30*24*time.Hour + 7)
		w.send(q, at("past", now.Add(-time.Hour)), at("future", future), Outgoing{Key: []byte("none")})
		stored := w.stored(q)
		for k, want := range map[string]time.Time{"past": now, "none": now, "future": future} {
			if got := stored[k].deliver; !got.Equal(want) {
				t.Errorf("%s: delivery time %v, want %v", k, got, want)
			}
		}
		w.expect(q, 9, "none", "past")
	})
}

func TestSendOfAKeyInUseFailsAndWritesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		for _, keys := range [][]string{{"a"}, {"b", "a"}, {"b", "b"}} {
			err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out(keys...)...) })
			if !errors.Is(err, ErrExists) {
				t.Errorf("Send %q: %v, want ErrExists", keys, err)
			}
		}
		if n := len(w.stored(q)); n != 1 {
			t.Errorf("%d messages stored, want 1", n)
		}
	})
}

func TestSendChecksLimits(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		for _, c := range []struct {
			m    Outgoing
			want error
		}{
			{Outgoing{}, kv.ErrInvalid},
			{Outgoing{Key: make([]byte, MaxKeySize+1)}, kv.ErrTooLarge},
			{Outgoing{Key: []byte("k"), Payload: make([]byte, MaxPayloadSize+1)}, kv.ErrTooLarge},
			{Outgoing{Key: bytes.Repeat([]byte{0}, MaxKeySize), Payload: make([]byte, MaxPayloadSize)}, nil},
		} {
			err := w.update(func(tx *kv.Tx) error { return q.Send(tx, c.m) })
			if !errors.Is(err, c.want) {
				t.Errorf("Send of key %d, payload %d: %v, want %v", len(c.m.Key), len(c.m.Payload), err, c.want)
			}
		}
		m := w.receive(q, 1)[0]
		if err := q.Retry(w.t.Context(), m.Token(), 0, strings.Repeat("é", 5000)); err != nil {
			t.Errorf("the largest message with a long reason: %v", err)
		}
	})
}

func TestRolledBackSendIsNeverReceived(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		boom := errors.New("boom")
		err := w.update(func(tx *kv.Tx) error {
			if err := q.Send(tx, out("a")...); err != nil {
				return err
			}
			return boom
		})
		if !errors.Is(err, boom) {
			t.Fatal(err)
		}
		pass(time.Minute)
		w.expect(q, 1)
	})
}

// calls returns what f asks of the engine.
func (w *world) calls(f func()) []kvtest.Op {
	synctest.Wait()
	var calls []kvtest.Op
	w.faults.Before(func(_ context.Context, c kvtest.Call) error {
		calls = append(calls, c.Op)
		return nil
	})
	f()
	w.faults.Reset()
	return calls
}

func TestMessagesOfThisProcessCostOneCommitToSendAndOneToAck(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		var keys []string
		for i := range 100 {
			keys = append(keys, number(i))
		}
		calls := w.calls(func() {
			w.send(q, out(keys...)...)
			w.mustAck(q, keysOf(w.receive(q, 60))...)
			w.mustAck(q, keys[60:]...) // not yet delivered
		})
		if want := []kvtest.Op{kvtest.OpCommit, kvtest.OpCommit, kvtest.OpCommit}; !slices.Equal(calls, want) {
			t.Errorf("calls %v, want %v", calls, want)
		}
	})
}

func TestSecondAttemptReadsAllMessagesInOneCall(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{DisableDelivery: true})
		w.send(q, out("a", "b", "c")...)
		exists := w.calls(func() {
			if err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out("x", "y", "c")...) }); !errors.Is(err, ErrExists) {
				t.Errorf("Send: %v", err)
			}
		})
		if err := w.ack(w.elsewhere(q), "b"); err != nil {
			t.Fatal(err)
		}
		gone := w.calls(func() {
			if err := w.ack(q, "a", "b", "c"); !errors.Is(err, ErrNotFound) {
				t.Errorf("Ack: %v", err)
			}
		})
		want := []kvtest.Op{kvtest.OpCommit, kvtest.OpGet}
		if !slices.Equal(exists, want) || !slices.Equal(gone, want) {
			t.Errorf("calls of Send %v, of Ack %v; want %v", exists, gone, want)
		}
	})
}

// What is in memory of a message is not what is stored.
func TestAckOfMessageThatChangedSinceItsDelivery(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		other := w.elsewhere(q)
		w.send(q, out("gone", "moved", "renewed", "retried")...)
		batch := w.expect(q, 9, "gone", "moved", "renewed", "retried")
		if err := w.ack(other, "gone"); err != nil {
			t.Fatal(err)
		}
		if err := w.replace(other, at("moved", w.clock.Now().Add(time.Hour))); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if r := w.renew(q, batch[2].Token()); r[0].NewToken == "" {
			t.Error("not renewed")
		}
		if err := q.Retry(w.t.Context(), batch[3].Token(), time.Hour, ""); err != nil {
			t.Fatal(err)
		}
		if err := w.ack(q, "renewed", "gone"); !errors.Is(err, ErrNotFound) {
			t.Errorf("Ack of a message that is gone: %v", err)
		}
		counts := []int{}
		err := w.update(func(tx *kv.Tx) error {
			n, err := q.AckExisting(tx, []byte("gone"), []byte("moved"), []byte("renewed"), []byte("retried"))
			counts = append(counts, n)
			return err
		})
		if err != nil || counts[len(counts)-1] != 3 {
			t.Errorf("AckExisting: %v, %v", counts, err)
		}
		if left := w.stored(q); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	})
}

func TestDisabledSendRefusesWhileAcksGoOn(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		if err := w.s.Configure(w.t.Context(), "q", func(s *Settings) { s.DisableSend = true }); err != nil {
			t.Fatal(err)
		}
		if err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out("b")...) }); !errors.Is(err, ErrSendDisabled) {
			t.Errorf("Send: %v, want ErrSendDisabled", err)
		}
		w.expect(q, 1, "a")
		w.mustAck(q, "a")
	})
}

func TestDisabledDeliveryKeepsReceiversWaiting(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("held")...)
		held := w.expect(q, 1, "held")
		set := func(v bool) {
			if err := w.s.Configure(w.t.Context(), "q", func(s *Settings) { s.DisableDelivery = v }); err != nil {
				t.Fatal(err)
			}
		}
		set(true)
		w.send(q, out("a")...)
		w.expect(q, 1)
		if r, err := q.RenewLease(w.t.Context(), held[0].Token()); err != nil || len(r) != 1 || r[0].NewToken == "" {
			t.Errorf("renewal while disabled: %+v, %v", r, err)
		}
		got := make(chan []Message, 1)
		go func() {
			batch, _ := q.Receive(w.t.Context(), 1)
			got <- batch
		}()
		pass(5 * time.Second)
		set(false)
		if keys := keysOf(<-got); !slices.Equal(keys, []string{"a"}) {
			t.Errorf("received %q after delivery was enabled", keys)
		}
	})
}

func TestHandedOutByDueTimeThenKey(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		now := w.clock.Now()
		w.send(q, at("z", now.Add(1)), at("b", now.Add(3)), at("a", now.Add(3)), at("m", now.Add(2)))
		pass(time.Second)
		w.expect(q, 3, "z", "m", "a")
		w.expect(q, 3, "b")
	})
}

func TestWaitingReceiverGetsMessageRightAfterCommit(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		go func() {
			time.Sleep(2700 * time.Millisecond)
			w.send(q, out("a")...)
		}()
		if m, took := w.wait(q); string(m.Key) != "a" || took != 2700*time.Millisecond {
			t.Errorf("got %q after %v, want a after 2.7s", m.Key, took)
		}
	})
}

func TestScheduledMessageComesWhenDueNotBefore(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		due := w.clock.Now().Add(90*time.Minute + 1500*time.Microsecond)
		w.send(q, at("later", due.Add(time.Hour)), at("a", due))
		m, took := w.wait(q)
		if string(m.Key) != "a" || !w.clock.Now().Equal(due) {
			t.Errorf("got %q after %v, want it when due", m.Key, took)
		}
		if !m.LeaseEnd.Equal(due.Add(10*time.Second)) || !m.DeliverTime.Equal(due) || m.Attempts != 0 {
			t.Errorf("got %+v", m)
		}
	})
}

func TestBatchIsWhatIsReadyAtMostMax(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		for i := range 45 {
			w.send(q, out(number(i))...)
		}
		for _, want := range []int{20, 20, 5, 0} {
			if got := len(w.receive(q, 20)); got != want {
				t.Errorf("batch of %d, want %d", got, want)
			}
		}
	})
}

func TestDeliveryWritesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a", "b", "c")...)
		w.faults.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit {
				t.Errorf("a delivery commits: %v", c)
			}
			return nil
		})
		w.expect(q, 5, "a", "b", "c")
		w.faults.Reset()
	})
}

func TestReceiversAreServedInTheOrderOfTheirWaiting(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		type got struct {
			receiver int
			key      string
		}
		results := make(chan got, 4)
		for i := range 3 {
			go func() {
				if batch, err := q.Receive(w.t.Context(), 1); err == nil {
					results <- got{i, string(batch[0].Key)}
				}
			}()
			synctest.Wait()
		}
		w.send(q, out("a", "b", "c")...)
		for range 3 {
			g := <-results
			if want := string(rune('a' + g.receiver)); g.key != want {
				t.Errorf("receiver %d got %q, want %q", g.receiver, g.key, want)
			}
		}
	})
}

func TestReceiveThatEndsReleasesWhatItWasGiven(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		_, r := q.takeOrWait(5)
		w.send(q, out("a", "b")...)
		synctest.Wait()
		if len(r.batch) != 1 {
			t.Fatal("the receiver has not been served")
		}
		q.leave(r) // what Receive does when its context ends at this moment
		for _, m := range w.expect(q, 5, "a", "b") {
			if m.Attempts != 0 || string(m.Payload) != string(m.Key) {
				t.Errorf("released message came back as %+v", m)
			}
		}
		pass(20 * time.Second)
		if n := q.counts.expired.Load(); n != 2 {
			t.Errorf("%d leases expired, want the 2 of the second delivery", n)
		}
	})
}

func TestReleasedMessageGoesToTheNextAndItsTokenIsVoid(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		first := w.expect(q, 1, "a")
		q.Release(first...)
		second := w.expect(q, 1, "a")
		q.Release(first...) // no longer its lease
		w.expect(q, 1)
		r, err := q.RenewLease(w.t.Context(), first[0].Token(), second[0].Token())
		if err != nil || len(r) != 2 || r[0].NewToken != "" || r[1].NewToken == "" {
			t.Errorf("renewals %+v, %v", r, err)
		}
	})
}

func TestReceiveRefusesBadBatchAndEndedContext(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		if _, err := q.Receive(w.t.Context(), 0); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("batch of 0: %v", err)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		cancel()
		if _, err := q.Receive(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("ended context: %v", err)
		}
		w.expect(q, 1, "a")
	})
}

func TestAckOfMissingMessageFailsTheTransaction(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		for _, keys := range [][]string{{"x"}, {"a", "x"}, {"a", "a"}} {
			if err := w.ack(q, keys...); !errors.Is(err, ErrNotFound) {
				t.Errorf("Ack %q: %v, want ErrNotFound", keys, err)
			}
		}
		err := w.update(func(tx *kv.Tx) error {
			n, err := q.AckExisting(tx, []byte("x"), []byte("a"), []byte("a"))
			if n != 1 {
				t.Errorf("AckExisting acknowledged %d, want 1", n)
			}
			return err
		})
		if err != nil || len(w.stored(q)) != 0 {
			t.Errorf("AckExisting: %v, left %v", err, w.stored(q))
		}
	})
}

func TestInvariant4_AcknowledgedOnceInOneCommitWithEffects(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		finish := func(worker string) error {
			return w.update(func(tx *kv.Tx) error {
				tx.Put(kv.Write{Space: effectSpace, Key: []byte("result"), Value: []byte(worker)})
				return q.Ack(tx, []byte("a"))
			})
		}
		w.expect(q, 1, "a")
		pass(11 * time.Second) // the first worker's lease is lost
		w.expect(q, 1, "a")
		if err := finish("first"); err != nil {
			t.Errorf("whose lease is lost may still acknowledge: %v", err)
		}
		if err := finish("second"); !errors.Is(err, ErrNotFound) {
			t.Errorf("second acknowledgement: %v, want ErrNotFound", err)
		}
		row, err := w.db.GetOne(w.t.Context(), effectSpace, []byte("result"))
		if err != nil || string(row.Value) != "first" {
			t.Errorf("effect of %q, %v", row.Value, err)
		}
		pass(2 * time.Hour)
		w.expect(q, 1)
	})
}

func TestAckThenSendOfTheSameKeyInOneCommit(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		old := w.expect(q, 1, "a")[0]
		due := w.clock.Now().Add(time.Minute)
		again := Outgoing{Key: []byte("a"), Payload: []byte("again"), DeliverTime: due}
		err := w.update(func(tx *kv.Tx) error { return errors.Join(q.Send(tx, again), q.Ack(tx, again.Key)) })
		if !errors.Is(err, ErrExists) {
			t.Errorf("in reverse order: %v, want ErrExists", err)
		}
		if err := w.update(func(tx *kv.Tx) error { return errors.Join(q.Ack(tx, again.Key), q.Send(tx, again)) }); err != nil {
			t.Fatal(err)
		}
		if r, err := q.RenewLease(w.t.Context(), old.Token()); err != nil || len(r) != 1 || r[0].NewToken != "" {
			t.Errorf("renewal of the old lease: %+v, %v", r, err)
		}
		w.stored(q)
		pass(time.Minute - 1)
		w.expect(q, 1)
		pass(1)
		if m := w.expect(q, 1, "a")[0]; string(m.Payload) != "again" || !m.DeliverTime.Equal(due) {
			t.Errorf("got %+v", m)
		}
		if n := q.counts.expired.Load(); n != 0 {
			t.Errorf("%d leases expired, want 0", n)
		}
		// At once, and from several receivers' view: the new message is delivered once.
		if err := w.update(func(tx *kv.Tx) error { return errors.Join(q.Ack(tx, again.Key), q.Send(tx, out("a")...)) }); err != nil {
			t.Fatal(err)
		}
		w.expect(q, 5, "a")
		w.expect(q, 5)
	})
}

func TestAckedMessageInTheBufferIsNotDelivered(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a", "b", "c")...)
		synctest.Wait()
		w.mustAck(q, "b")
		w.expect(q, 5, "a", "c")
	})
}

func TestRemoveIsNotCountedAsAck(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a", "b")...)
		leased := w.expect(q, 1, "a")
		if err := w.update(func(tx *kv.Tx) error { _, err := q.Remove(tx, []byte("a")); return err }); err != nil {
			t.Fatal(err)
		}
		if r, err := q.RenewLease(w.t.Context(), leased[0].Token()); err != nil || len(r) != 1 || r[0].NewToken != "" {
			t.Errorf("renewal after removal: %+v, %v", r, err)
		}
		if err := w.ack(q, "a"); !errors.Is(err, ErrNotFound) {
			t.Errorf("Ack after removal: %v", err)
		}
		w.mustAck(q, "b")
		pass(time.Minute)
		if st, err := q.Stats(w.t.Context()); err != nil || st.Acked != 1 || st.Expired != 0 {
			t.Errorf("stats %+v, %v", st, err)
		}
	})
}

func TestTokensOfAnotherOrDroppedQueueMeanNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		q, other := w.create("q", Settings{}), w.create("other", Settings{})
		w.send(q, out("a")...)
		tok := w.expect(q, 1, "a")[0].Token()
		for _, queue := range []*Queue{other} {
			if r, err := queue.RenewLease(w.t.Context(), tok); err != nil || len(r) != 0 {
				t.Errorf("token of another queue: %+v, %v", r, err)
			}
		}
		ended := make(chan error)
		go func() { _, err := q.Receive(w.t.Context(), 1); ended <- err }()
		synctest.Wait()
		if err := w.s.Drop(w.t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, ErrQueueNotFound) {
			t.Errorf("open receive ended with %v, want ErrQueueNotFound", err)
		}
		if err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out("b")...) }); !errors.Is(err, ErrQueueNotFound) {
			t.Errorf("Send to a dropped queue: %v", err)
		}
		again := w.create("q", Settings{})
		if r, err := again.RenewLease(w.t.Context(), tok); err != nil || len(r) != 0 {
			t.Errorf("token of the dropped queue: %+v, %v", r, err)
		}
		w.expect(again, 1)
		w.send(again, out("a")...)
		w.expect(again, 1, "a")
		if n := len(w.stored(q)); n != 0 {
			t.Errorf("%d messages of the dropped queue are left", n)
		}
	})
}

func TestCatalogErrors(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create("q", Settings{})
		ctx := w.t.Context()
		if _, err := w.s.Create(ctx, "q", Settings{}); !errors.Is(err, ErrQueueExists) {
			t.Errorf("Create: %v", err)
		}
		if _, err := w.s.Queue(ctx, "x"); !errors.Is(err, ErrQueueNotFound) {
			t.Errorf("Queue: %v", err)
		}
		if err := w.s.Drop(ctx, "x"); !errors.Is(err, ErrQueueNotFound) {
			t.Errorf("Drop: %v", err)
		}
		if err := w.s.Configure(ctx, "x", func(*Settings) {}); !errors.Is(err, ErrQueueNotFound) {
			t.Errorf("Configure: %v", err)
		}
		for _, bad := range []Settings{{Lease: -1}, {MaxAttempts: -1}} {
			if _, err := w.s.Create(ctx, "bad", bad); !errors.Is(err, kv.ErrInvalid) {
				t.Errorf("Create with %+v: %v", bad, err)
			}
		}
		w.create("a", Settings{})
		if names, err := w.s.Names(ctx); err != nil || !slices.Equal(names, []string{"a", "q"}) {
			t.Errorf("Names: %q, %v", names, err)
		}
		if err := w.s.Run(ctx); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("second Run: %v", err)
		}
	})
}

func TestNewKeysAreUniqueAndSortByTime(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		var last []byte
		for range 100 {
			k, err := q.NewKey()
			if err != nil || bytes.Compare(k, last) <= 0 {
				t.Fatalf("key %x after %x, %v", k, last, err)
			}
			last = k
			time.Sleep(time.Millisecond)
		}
	})
}
