package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// load sends 100 messages each that are leased, ready and scheduled.
func (w *world) load(q *Queue) (leased []Message) {
	w.t.Helper()
	for i := range 100 {
		w.send(q, out(fmt.Sprintf("leased%03d", i))...)
	}
	leased = w.receive(q, 100)
	for i := range 100 {
		w.send(q, out(fmt.Sprintf("ready%03d", i))...)
	}
	for i := range 100 {
		w.send(q, at(fmt.Sprintf("scheduled%03d", i), w.clock.Now().Add(time.Hour)))
	}
	return leased
}

func TestInvariant4_CrashLosesNoMessageAndHonoursLeases(t *testing.T) {
	inWorld(t, func(w *world) {
		leased := w.load(w.create("q", Settings{}))
		pass(3 * time.Second)
		w.crash()
		pass(2 * time.Second)
		w.restart()
		q := w.queue("q")
		w.send(q, out("new")...)
		w.expect(q, 9, "new") // what is sent now need not wait
		w.mustAck(q, "new")
		for w.clock.Now().Before(leased[0].LeaseEnd) {
			if got := w.receive(q, 1); len(got) != 0 {
				t.Fatalf("%q delivered before the old leases end", got[0].Key)
			}
			pass(time.Second)
		}
		pass(5 * time.Second) // the hold ends one lease after the start
		got := map[string]bool{}
		for _, m := range w.receive(q, 1000) {
			got[string(m.Key)] = true
		}
		if len(got) != 200 {
			t.Errorf("%d messages after the hold, want 200", len(got))
		}
		w.mustAck(q, keysOf(leased)...)
		pass(2 * time.Hour)
		for _, m := range w.receive(q, 1000) {
			got[string(m.Key)] = true
		}
		if len(got) != 300 {
			t.Errorf("%d of 300 messages delivered", len(got))
		}
	})
}

func TestInvariant4_StopStoresLeasesAndNothingIsHeld(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		leased := w.load(q)
		pass(3 * time.Second)
		ended := make(chan error)
		// Nothing is ready for this receiver: all is taken.
		w.receive(q, 1000)
		go func() { _, err := q.Receive(context.Background(), 1); ended <- err }()
		synctest.Wait()
		w.stop()
		if err := <-ended; !errors.Is(err, ErrStopped) {
			t.Errorf("waiting Receive ended with %v, want ErrStopped", err)
		}
		if _, err := q.Receive(context.Background(), 1); !errors.Is(err, ErrStopped) {
			t.Errorf("Receive after the stop: %v, want ErrStopped", err)
		}
		if _, err := q.RenewLease(context.Background(), leased[0].Token()); !errors.Is(err, ErrStopped) {
			t.Errorf("RenewLease after the stop: %v, want ErrStopped", err)
		}
		w.mustAck(q, "leased000") // doors may still finish their transactions
		w.send(q, out("late")...)
		w.stored(q)
		pass(time.Second)
		w.restart()
		q = w.queue("q")
		w.expect(q, 1000, "late")
		pass(leased[0].LeaseEnd.Sub(w.clock.Now()) - 1)
		w.expect(q, 1000)
		pass(1)
		got := w.receive(q, 1000)
		if len(got) != 99 || got[0].Attempts != 0 {
			t.Errorf("%d messages when the old leases end, %d attempts; want 99 and none", len(got), got[0].Attempts)
		}
		pass(3 * time.Second)
		if n := len(w.receive(q, 1000)); n != 100 {
			t.Errorf("%d messages when the later leases end, want 100", n)
		}
	})
}

func TestLocalReceiversNeedNoHold(t *testing.T) {
	for _, how := range []func(*world){(*world).stop, (*world).crash} {
		inWorld(t, func(w *world) {
			q := w.create("q", Settings{LocalReceivers: true})
			w.send(q, out("a")...)
			old := w.expect(q, 1, "a")[0]
			how(w)
			w.restart()
			q = w.queue("q")
			if r := w.renew(q, old.Token()); len(r) != 1 || r[0].NewToken != "" {
				t.Errorf("renewal of a lease that died with its process: %+v", r)
			}
			w.expect(q, 1, "a")
		})
	}
}

func TestTokenOfAnEarlierRunIsRenewable(t *testing.T) {
	for name, how := range map[string]func(*world){"stop": (*world).stop, "crash": (*world).crash} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				q := w.create("q", Settings{})
				w.send(q, out("acked", "lost", "renewed")...)
				batch := w.expect(q, 9, "acked", "lost", "renewed")
				pass(4 * time.Second)
				again := w.renew(q, batch[2].Token())[0].NewToken
				how(w)
				w.restart()
				q = w.queue("q")
				w.mustAck(q, "acked")
				pass(time.Second)
				rows := w.renew(q, batch[0].Token(), again, again)
				if len(rows) != 3 || rows[0].NewToken != "" || rows[1].NewToken == "" || rows[2].NewToken != "" {
					t.Errorf("renewals %+v, want only the second to succeed", rows)
				}
				pass(9 * time.Second)
				w.expect(q, 9, "lost")
				pass(30 * time.Second)
				for _, m := range w.expect(q, 9, "renewed", "lost") {
					if m.Attempts != 1 {
						t.Errorf("%q has %d attempts, want 1", m.Key, m.Attempts)
					}
				}
			})
		})
	}
}

func TestInterruptedDropIsFinishedByTheNextRun(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.load(q)
		w.faults.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit && len(c.Txn.Checks) == 0 { // of the sweep
				return kvtest.ErrInjected
			}
			return nil
		})
		if err := w.s.Drop(w.t.Context(), "q"); !errors.Is(err, kvtest.ErrInjected) {
			t.Fatalf("Drop: %v", err)
		}
		w.faults.Reset()
		if _, err := w.s.Queue(w.t.Context(), "q"); !errors.Is(err, ErrQueueNotFound) {
			t.Errorf("Queue: %v", err)
		}
		w.crash()
		w.restart()
		for _, space := range []string{messageSpace, readySpace, movedSpace, deadSpace} {
			_ = w.model.Scan(w.t.Context(), space, kv.Range{}, func(r kv.Row) bool {
				t.Errorf("left in %s: %q", space, r.Key)
				return true
			})
		}
	})
}

func TestMessageThatBecameVisibleLateIsFound(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("now")...)
		w.expect(q, 1, "now")
		w.mustAck(q, "now")
		// Another process sends: this one gets no signal. Its clock lags.
		other, err := Open(w.t.Context(), w.db, Options{TokenKey: make([]byte, 16), Rand: constant{}, Clock: lagging{w.clock}})
		if err != nil {
			t.Fatal(err)
		}
		otherQ, err := other.Queue(w.t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		w.send(otherQ, out("late")...)
		if m, took := w.wait(q); string(m.Key) != "late" || took > auditEvery+tick {
			t.Errorf("got %q after %v", m.Key, took)
		}
		w.send(otherQ, at("fresh", w.clock.Now().Add(time.Minute)))
		w.mustAck(q, "late")
		if m, took := w.wait(q); string(m.Key) != "fresh" || took > time.Minute+tick {
			t.Errorf("got %q after %v", m.Key, took)
		}
	})
}

type lagging struct{ c *bubbleClock }

func (l lagging) Now() time.Time { return l.c.Now().Add(-20 * time.Second) }

type constant struct{}

func (constant) Read(p []byte) (int, error) { return len(p), nil }

func TestUnknownOutcomeOfASendIsDeliveredIfItHappened(t *testing.T) {
	for name, fail := range map[string]func(*kvtest.Faults){
		"before": func(f *kvtest.Faults) {
			f.Before(func(_ context.Context, c kvtest.Call) error { return unknown(c, nil) })
		},
		"after": func(f *kvtest.Faults) {
			f.After(func(_ context.Context, c kvtest.Call, err error) error { return unknown(c, err) })
		},
	} {
		inWorld(t, func(w *world) {
			q := w.create("q", Settings{})
			fail(w.faults)
			err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out("a")...) })
			w.faults.Reset()
			if !errors.Is(err, kv.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			var want []string
			if name == "after" {
				want = []string{"a"}
			}
			w.expect(q, 1, want...)
		})
	}
}

// unknown makes a commit's outcome unknown.
func unknown(c kvtest.Call, err error) error {
	if c.Op == kvtest.OpCommit {
		return kv.ErrUnknownOutcome
	}
	return err
}

func TestClockThatJumpsBackDeliversNewMessagesAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		w.expect(q, 1, "a")
		w.clock.Jump(-time.Hour)
		w.send(q, out("b")...)
		if m, took := w.wait(q); string(m.Key) != "b" || took != 0 {
			t.Errorf("got %q after %v", m.Key, took)
		}
		w.clock.Jump(2 * time.Hour)
		if _, took := w.wait(q); took > 3*time.Second {
			t.Errorf("leases of before the jump end after %v", took)
		}
	})
}

func TestManyReceiversGetEachMessageOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		const senders, receivers, each = 8, 16, 250
		var received atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan []string, receivers)
		for i := range receivers {
			go func() {
				var mine []string
				for {
					batch, err := q.Receive(ctx, 1+i%5)
					if err != nil {
						done <- mine
						return
					}
					mine = append(mine, keysOf(batch)...)
					if err := w.ack(q, keysOf(batch)...); err != nil {
						t.Error(err)
					}
					if received.Add(int64(len(batch))) == senders*each {
						cancel()
					}
				}
			}()
		}
		for s := range senders {
			go func() {
				for i := range each {
					if err := w.update(func(tx *kv.Tx) error { return q.Send(tx, out(fmt.Sprintf("%d-%d", s, i))...) }); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		var all []string
		for range receivers {
			all = append(all, <-done...)
		}
		slices.Sort(all)
		if n := len(all); n != senders*each || len(slices.Compact(all)) != n {
			t.Errorf("%d deliveries of %d messages", n, senders*each)
		}
		if st, err := q.Stats(context.Background()); err != nil || st.Leased != 0 || st.Ready != 0 || len(q.known) != 0 {
			t.Errorf("left in memory: %+v, %v, %d known", st, err, len(q.known))
		}
	})
}

func TestRunStartsAndStopsCleanly(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create("q", Settings{})
		for range 20 {
			w.stop()
			w.restart()
		}
		w.stop()
		w.open()
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // before it has begun
		if err := w.s.Run(ctx); err != nil {
			t.Errorf("Run with an ended context: %v", err)
		}
		if _, err := w.s.Queue(context.Background(), "q"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.queue("q").Receive(context.Background(), 1); !errors.Is(err, ErrStopped) {
			t.Errorf("Receive: %v", err)
		}
		w.restart()
	})
}

func TestEngineErrorsDelayButDoNotStopDelivery(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		w.expect(q, 1, "a")
		w.faults.Before(func(context.Context, kvtest.Call) error { return kvtest.ErrInjected })
		pass(time.Minute)
		w.faults.Reset()
		if m, took := w.wait(q); m.Attempts != 1 || took > 2*tick {
			t.Errorf("after the engine is back: %+v after %v", m, took)
		}
	})
}
