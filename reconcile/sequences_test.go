package reconcile

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/queue"
)

// world is an engine with a queue of link changes and a store, in a synctest
// bubble.
type world struct {
	*testing.T
	engine *kvtest.Faults
	plain  *kv.DB
	db     *kv.DB // with the capture
	queue  *queue.Queue
	store  *blob.Store
	faults *blobtest.Faults
	stop   func()
}

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(start)) // versions need a time of their epoch
		w := &world{T: t, engine: kvtest.NewFaults(kvtest.NewModel(clock.System{}))}
		w.store, w.faults = newStore(t, clock.System{})
		w.plain = kv.New(w.engine, kvtest.ModelLimits)
		for _, s := range []string{"rows", "staged"} {
			must(t, w.plain.CreateSpace(t.Context(), s, kv.SpaceOptions{Links: true}))
		}
		w.open()
		test(w)
		w.stop()
	})
}

// open starts the queue, as a process does.
func (w *world) open() {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	svc, err := queue.Open(ctx, w.plain, queue.Options{TokenKey: make([]byte, 16), Rand: rand.Reader})
	must(w.T, err)
	if w.queue, err = svc.Queue(ctx, changes.QueueName); err != nil {
		w.queue, err = svc.Create(ctx, changes.QueueName, queue.Settings{Lease: time.Minute, MaxAttempts: 5, LocalReceivers: true})
	}
	must(w.T, err)
	w.db = w.plain.WithHooks(changes.NewCapture(w.queue, tables, rand.Reader).Hook)
	done := make(chan error)
	go func() { done <- svc.Run(ctx) }()
	synctest.Wait()
	w.stop = func() {
		cancel()
		must(w.T, <-done)
	}
}

// tables has permanent rows "id" and staged rows "batch/id".
func tables(space string) (changes.Table, bool) {
	id := func(k, _ []byte) ([]changes.Field, error) {
		return []changes.Field{{Name: "id", Value: string(k)}}, nil
	}
	switch space {
	case "rows":
		return changes.Table{Name: "bsos", Keys: id}, true
	case "staged":
		return changes.Table{Name: changes.StagedTable, Keys: id, Permanent: func(k []byte) (string, []byte, error) {
			_, id, _ := strings.Cut(string(k), "/")
			return "rows", []byte(id), nil
		}}, true
	}
	return changes.Table{}, false
}

func (w *world) reconciler(opts Options) *Reconciler {
	opts.Clock = clock.System{}
	return New(NewQueueSource(w.plain, w.queue), w.store, opts)
}

// drain works until the queue has nothing that is due within a day.
func (w *world) drain() {
	w.Helper()
	r := w.reconciler(Options{})
	for range 1000 {
		must(w.T, r.Once(w.Context(), time.Hour))
		rest, err := w.queue.Peek(w.Context(), 1)
		must(w.T, err)
		if len(rest) == 0 {
			return
		}
		time.Sleep(time.Minute)
	}
	w.Fatal("the queue does not become empty")
}

func (w *world) send(messages ...string) {
	w.Helper()
	for _, m := range messages {
		_, err := w.plain.Update(w.Context(), func(tx *kv.Tx) error {
			key, err := w.queue.NewKey()
			must(w.T, err)
			return w.queue.Send(tx, queue.Outgoing{Key: key, Payload: []byte(m)})
		})
		must(w.T, err)
	}
}

// commit writes rows; "" deletes one.
func (w *world) commit(tag string, rows ...string) {
	w.Helper()
	_, err := w.db.Update(w.Context(), func(tx *kv.Tx) error {
		tx.SetTag(tag)
		for i := 0; i < len(rows); i += 3 {
			if rows[i+2] == "" {
				tx.Delete(rows[i], []byte(rows[i+1]))
			} else {
				tx.Put(kv.Write{Space: rows[i], Key: []byte(rows[i+1]), Link: "gs://B/u/c/i/" + rows[i+2]})
			}
		}
		return nil
	})
	must(w.T, err)
}

// want compares the objects a and b with "committed", "absent" or "unfinalized".
func (w *world) want(a, b string) {
	w.Helper()
	for name, want := range map[string]string{"a": a, "b": b} {
		got := "unfinalized"
		attrs, err := w.store.Stat(w.Context(), "u/c/i/"+name)
		switch {
		case err != nil:
			got = "absent"
		case attrs.Committed:
			got = "committed"
		}
		if got != want {
			w.Errorf("object %s is %s, want %s", name, got, want)
		}
	}
}

func (w *world) dead() int {
	letters, err := w.queue.DeadLetters(w.Context(), nil, 1000)
	must(w.T, err)
	return len(letters)
}

var (
	v01 = record("bsos", "", "{}", "{A}")
	v02 = record("bsos", "", "{A}", "{}")
	v03 = record("bsos", "", "{A}", "{B}")
	v14 = `{"mods":[`
)

func TestSequences(t *testing.T) {
	t.Run("S1", func(t *testing.T) {
		inWorld(t, func(w *world) { w.send(v01, v01); w.drain(); w.want("committed", "unfinalized") })
	})
	t.Run("S2", func(t *testing.T) {
		inWorld(t, func(w *world) { w.send(v02); w.drain(); w.send(v01); w.drain(); w.want("absent", "unfinalized") })
	})
	t.Run("S3", func(t *testing.T) {
		inWorld(t, func(w *world) { w.send(v03); w.drain(); w.send(v01); w.drain(); w.want("absent", "committed") })
	})
	t.Run("S4", func(t *testing.T) {
		for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			inWorld(t, func(w *world) {
				messages := []string{
					record("batch_bsos", "", "{}", "{A}"), record("bsos", "batch_commit", "{}", "{A}"),
					record("batch_bsos", "batch_commit", "{A}", "{}"),
				}
				for _, i := range order {
					w.send(messages[i])
					w.drain()
				}
				w.want("committed", "unfinalized")
			})
		}
		inWorld(t, func(w *world) { // as the capture records it
			w.commit("", "staged", "x/1", "a")
			w.commit(changes.BatchCommitTag, "rows", "1", "a", "staged", "x/1", "")
			w.drain()
			w.want("committed", "unfinalized")
		})
	})
	t.Run("S5", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.commit("", "staged", "x/1", "a")
			w.drain()
			w.commit("", "staged", "x/1", "")
			w.drain()
			w.want("absent", "unfinalized")
		})
	})
	t.Run("S6", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.commit("", "staged", "x/1", "a")
			w.drain()
			w.commit(changes.BatchCommitTag, "rows", "1", "b", "staged", "x/1", "")
			w.drain()
			w.want("absent", "committed")
		})
	})
	t.Run("S7", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.send(v14, v01)
			w.drain()
			w.want("committed", "unfinalized")
			if n := w.dead(); n != 1 {
				t.Errorf("%d dead letters, want 1", n)
			}
			letters, err := w.queue.DeadLetters(w.Context(), nil, 1)
			must(t, err)
			if m := letters[0].Message; m.Attempts != 5 || !strings.Contains(m.Reason, changes.ErrMalformed.Error()) {
				t.Errorf("dead after %d attempts because of %q", m.Attempts, m.Reason)
			}
		})
	})
	t.Run("S10", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.send(v01, v01, v03, v03, v01, v03)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { must(t, w.reconciler(Options{}).Once(w.Context(), time.Hour)) })
			}
			wg.Wait()
			w.want("absent", "committed")
		})
	})
}

func TestSequenceS8_OutageBurnsNoAttemptsOfTheBacklog(t *testing.T) {
	inWorld(t, func(w *world) {
		const n = 1000
		for i := range n {
			must(t, w.store.Put(w.Context(), fmt.Sprint("n/", i), strings.NewReader(""), 0))
			w.send(strings.ReplaceAll(v01, "u/c/i/a", fmt.Sprint("n/", i)))
		}
		w.faults.SetHook(blobtest.FailOn(blobtest.OpFinalize, blobtest.Before, blobtest.ErrInjected))
		w.faults.ResetTrace()
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error)
		go func() { done <- w.reconciler(Options{}).Run(ctx) }()
		time.Sleep(10 * time.Minute)
		if tries := len(w.faults.Trace()); tries < 5 || tries > 60 {
			t.Errorf("%d operations during the outage", tries)
		}
		w.faults.SetHook(nil)
		time.Sleep(2 * time.Hour)
		cancel()
		must(t, <-done)
		if n := w.dead(); n > 5 {
			t.Errorf("%d dead letters", n)
		}
		_, err := w.queue.RedriveAll(w.Context())
		must(t, err)
		w.drain()
		must(t, w.store.List(w.Context(), "n/", "", func(a blob.Attrs) bool {
			if !a.Committed {
				t.Errorf("%s is not finalized", a.Name)
			}
			return true
		}))
	})
}

func TestSequenceS9_KilledAnywhereAndStartedAgain(t *testing.T) {
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		inWorld(t, func(w *world) {
			w.send(v03)
			w.faults.SetHook(hook)
			_, _ = w.reconciler(Options{}).Step(w.Context())
			w.faults.SetHook(nil)
			w.drain()
			w.want("absent", "committed")
		})
	})
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		inWorld(t, func(w *world) {
			w.send(v03)
			w.stop()
			w.open()
			synctest.Wait()
			p.Arm(w.engine)
			_, _ = w.reconciler(Options{}).Step(w.Context())
			w.engine.Reset()
			w.stop()
			w.open()
			w.drain()
			w.want("absent", "committed")
		})
	})
}

// TestInvariant2_DeletesOnlyAfterARecord attacks the path from rows to objects with
// a failure at each call of the store, and then compares all objects with all
// rows.
func TestInvariant2_DeletesOnlyAfterARecord(t *testing.T) {
	script := func(w *world) {
		w.commit("", "rows", "1", "a", "staged", "x/1", "b", "staged", "x/2", "c")
		w.commit(changes.BatchCommitTag, "rows", "1", "b", "staged", "x/1", "", "staged", "x/2", "")
		w.commit("", "rows", "2", "d")
	}
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		inWorld(t, func(w *world) {
			script(w)
			w.faults.SetHook(hook)
			_, _ = w.reconciler(Options{Concurrency: 1}).Step(w.Context())
			w.faults.SetHook(nil)
			w.drain()
			got := map[string]bool{}
			must(t, w.store.List(w.Context(), "u/c/i/", "", func(a blob.Attrs) bool { got[a.Name] = a.Committed; return true }))
			if want := map[string]bool{"u/c/i/b": true, "u/c/i/d": true}; !maps.Equal(got, want) {
				t.Errorf("objects %v, want %v", got, want)
			}
		})
	})
}

func TestGoldenOrderOfAnOffloadedRow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.commit("", "rows", "1", "a")
		time.Sleep(time.Millisecond) // messages of one moment have no order
		w.commit("", "rows", "1", "b")
		if ops := w.faults.Trace(); len(ops) != 0 {
			t.Errorf("operations before the reconciler ran: %q", ops)
		}
		r := w.reconciler(Options{Concurrency: 1})
		must(t, r.Once(w.Context(), time.Hour))
		want := []string{"finalize u/c/i/a", "finalize u/c/i/b", "delete u/c/i/a"}
		if got := w.faults.Trace(); !slices.Equal(got, want) {
			t.Errorf("operations %q, want %q", got, want)
		}
	})
}

func TestDeleteDelayHoldsBackDeletionsOnly(t *testing.T) {
	inWorld(t, func(w *world) {
		w.commit("", "rows", "1", "a")
		w.drain()
		w.commit("", "rows", "1", "b")
		r := w.reconciler(Options{DeleteDelay: 5 * time.Minute})
		must(t, r.Once(w.Context(), time.Hour))
		w.want("committed", "committed")
		time.Sleep(4 * time.Minute)
		must(t, r.Once(w.Context(), time.Hour))
		w.want("committed", "committed")
		time.Sleep(time.Minute)
		must(t, r.Once(w.Context(), time.Hour))
		w.want("absent", "committed")
		if left, err := w.queue.Peek(w.Context(), 9); err != nil || len(left) != 0 {
			t.Errorf("left in the queue: %v, %v", left, err)
		}
	})
}

func TestLeasesAreRenewedWhileTheStoreIsSlow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.faults.SetHook(blobtest.DelayOn(blobtest.OpFinalize, blobtest.Before, 9*time.Second))
		for range 30 { // one after the other, for each is about the same name
			w.send(v01)
		}
		r := w.reconciler(Options{})
		must(t, r.Once(w.Context(), time.Hour))
		if n := len(w.faults.Trace()); n != 30 {
			t.Errorf("%d operations for 30 messages: some were delivered twice", n)
		}
		if stats, err := w.queue.Stats(w.Context()); err != nil || stats.Expired != 0 {
			t.Errorf("%d leases ended, %v", stats.Expired, err)
		}
		if left, err := w.queue.Peek(w.Context(), 9); err != nil || len(left) != 0 {
			t.Errorf("left in the queue: %v, %v", left, err)
		}
	})
}

func TestStoreThatHangsEndsInAnErrorAndGoesOn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.faults.SetHook(blobtest.HangOn(blobtest.OpFinalize, blobtest.Before))
		w.send(v01)
		if found, err := w.reconciler(Options{}).Step(w.Context()); !found || err != nil {
			t.Errorf("Step: %v, %v", found, err)
		}
		w.faults.SetHook(nil)
		w.drain()
		w.want("committed", "unfinalized")
	})
}
