package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/reconcile/pubsub"
	"github.com/holdfast-dev/holdfast/reconcile/reconciletest"
)

var (
	v01 = reconciletest.Record("bsos", "", "{}", "{A}")
	v02 = reconciletest.Record("bsos", "", "{A}", "{}")
	v03 = reconciletest.Record("bsos", "", "{A}", "{B}")
	v14 = `{"mods":[`
)

func TestVectors(t *testing.T) {
	for _, v := range reconciletest.Vectors() {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			v.Prepare(t, w.store, w.blobs)
			id := w.send(v.Message)[0]
			r := w.reconciler(sub, pubsub.Options{}, reconcile.Options{RequireTransactionTag: v.RequireTransactionTag})
			if found, err := r.Step(t.Context()); !found || err != nil {
				t.Errorf("Step: %v, %v", found, err)
			}
			if ops := reconciletest.Operations(w.blobs); ops != v.Ops {
				t.Errorf("operations %q, want %q", ops, v.Ops)
			}
			if d := cmp.Diff(v.WantCounts(), reconciletest.Counted(t, w.reg)); d != "" {
				t.Error("counts -want +got\n" + d)
			}
			if got := w.acked(id); got != v.Acked {
				t.Errorf("acked %v, want %v", got, v.Acked)
			}
			if m := w.server.Message(id); len(m.Modacks) > 0 {
				t.Errorf("ack deadline changed: %+v", m.Modacks)
			}
		})
	}
}

func TestSequences(t *testing.T) {
	staged := []string{
		reconciletest.Record("batch_bsos", "", "{}", "{A}"), reconciletest.Record("bsos", "batch_commit", "{}", "{A}"),
		reconciletest.Record("batch_bsos", "batch_commit", "{A}", "{}"),
	}
	released := reconciletest.Record("bsos", "batch_commit", "{A}", "{B}") // as Holdfast writes when the body brings another payload
	type sequence struct {
		name     string
		messages []string
		a, b     string
	}
	all := []sequence{
		{"S1", []string{v01, v01}, "committed", "unfinalized"},
		{"S2", []string{v02, v01}, "absent", "unfinalized"},
		{"S3", []string{v03, v01}, "absent", "committed"},
		{"S5", []string{staged[0], reconciletest.Record("batch_bsos", "", "{A}", "{}")}, "absent", "unfinalized"},
		{"S6", []string{staged[0], released, staged[2]}, "absent", "committed"},
	}
	for _, o := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		all = append(all, sequence{fmt.Sprint("S4 ", o), []string{staged[o[0]], staged[o[1]], staged[o[2]]}, "committed", "unfinalized"})
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.reconciler(sub, pubsub.Options{}, reconcile.Options{})
			for _, m := range s.messages {
				w.send(m)
				if found, err := r.Step(t.Context()); !found || err != nil {
					t.Fatal(found, err)
				}
			}
			w.want(s.a, s.b)
		})
	}
}

func TestSequenceS7_MalformedMessageGoesToTheDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad, good := w.send(v14)[0], w.send(v01)[0]
	for range maxAttempt + 1 {
		w.drain(sub)
		w.clock.Advance(61 * time.Second)
	}
	w.want("committed", "unfinalized")
	if !w.acked(good) {
		t.Error("the other message is not acknowledged")
	}
	if m := w.server.Message(bad); m.Deliveries != maxAttempt {
		t.Errorf("delivered %d times, want %d", m.Deliveries, maxAttempt)
	}
	dead, err := w.source(deadSub, pubsub.Options{UntilEmpty: true}).Receive(t.Context(), 10)
	if err != nil || len(dead) != 1 || string(dead[0].Data) != v14 {
		t.Errorf("dead letters %v, %v", dead, err)
	}
}

func TestSequenceS8_OutageLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 1000
	for i := range n {
		if err := w.store.Put(t.Context(), fmt.Sprint("n/", i), strings.NewReader(""), 0); err != nil {
			t.Fatal(err)
		}
		w.send(strings.ReplaceAll(v01, "u/c/i/a", fmt.Sprint("n/", i)))
	}
	w.blobs.SetHook(blobtest.FailOn(blobtest.OpFinalize, blobtest.Before, blobtest.ErrInjected))
	w.blobs.ResetTrace()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- w.reconciler(sub, pubsub.Options{}, reconcile.Options{Concurrency: 16}).Run(ctx)
	}()
	stop := w.pass(6, 500*time.Millisecond) // the whole outage passes as five attempts do
	time.Sleep(3 * time.Second)
	if tries := len(w.blobs.Trace()); tries > 60 {
		t.Errorf("%d operations during the outage", tries)
	}
	w.blobs.SetHook(nil)
	finalized := func() int {
		n := 0
		if err := w.store.List(t.Context(), "n/", "", func(a blob.Attrs) bool {
			if a.Committed {
				n++
			}
			return true
		}); err != nil {
			t.Error(err)
		}
		return n
	}
	for end := time.Now().Add(20 * time.Second); finalized() < n-50 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	stop()
	w.clock.Advance(61 * time.Second)
	w.drain(sub)
	t.Logf("%d of %d before the dead letters are sent again", finalized(), n)
	w.drain(deadSub)
	if got := finalized(); got != n {
		t.Errorf("%d of %d objects are finalized", got, n)
	}
}

func TestSequenceS9_KilledAnywhereAndStartedAgain(t *testing.T) {
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		w := newWorld(t)
		w.send(v03)
		w.blobs.SetHook(hook)
		_, _ = w.reconciler(sub, pubsub.Options{}, reconcile.Options{}).Step(t.Context())
		w.blobs.SetHook(nil)
		w.clock.Advance(61 * time.Second)
		w.drain(sub)
		w.want("absent", "committed")
	})
	t.Run("acknowledgement", func(t *testing.T) {
		w := newWorld(t)
		id := w.send(v03)[0]
		w.faults.set(func(call string) codes.Code {
			if call == "Acknowledge" {
				return codes.PermissionDenied
			}
			return codes.OK
		})
		if _, err := w.reconciler(sub, pubsub.Options{}, reconcile.Options{}).Step(t.Context()); err == nil {
			t.Error("a failed acknowledgement is not reported")
		}
		w.faults.set(nil)
		w.clock.Advance(61 * time.Second)
		w.drain(sub)
		w.want("absent", "committed")
		if !w.acked(id) {
			t.Error("not acknowledged the second time")
		}
	})
}

func TestSequenceS10_TwoReconcilersAndDuplicates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(v01, v01, v03, v03, v01, v03)
	stop := w.pass(3, time.Millisecond) // everything is delivered again meanwhile
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { w.drain(sub) })
	}
	wg.Wait()
	stop()
	w.clock.Advance(61 * time.Second)
	w.drain(sub)
	w.drain(deadSub)
	w.want("absent", "committed")
}

// P4
func TestDrainEndsWithAnEmptySubscription(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(v01, v14)
	began := time.Now()
	r := w.reconciler(sub, pubsub.Options{UntilEmpty: true}, reconcile.Options{Wait: time.Hour})
	if err := r.Once(t.Context(), time.Hour); err != nil || time.Since(began) > 20*time.Second {
		t.Errorf("Once: %v after %v", err, time.Since(began))
	}
	w.want("committed", "unfinalized")
}

// P5: a subscription that is never empty, and one that never answers.
func TestDrainEndsAfterItsBudget(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		w := newWorld(t)
		if silent {
			w.faults.set(func(string) codes.Code { return codes.DeadlineExceeded })
		}
		w.blobs.SetHook(func(_ context.Context, c blobtest.Call) error {
			if c.Stage == blobtest.Before {
				w.send(v01)
			}
			return nil
		})
		w.send(v01)
		began := time.Now()
		r := w.reconciler(sub, pubsub.Options{UntilEmpty: true}, reconcile.Options{Wait: time.Hour})
		if err := r.Once(t.Context(), 2*time.Second); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d < 2*time.Second || d > 5*time.Second {
			t.Errorf("silent %v: took %v", silent, d)
		}
	}
}

func TestFailuresOfTheServiceAreRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.send(v01)[0]
	failures := map[string]int{}
	var mu sync.Mutex
	w.faults.set(func(call string) codes.Code {
		mu.Lock()
		defer mu.Unlock()
		if failures[call]++; failures[call] <= 2 {
			return codes.Unavailable
		}
		return codes.OK
	})
	r := w.reconciler(sub, pubsub.Options{UntilEmpty: true}, reconcile.Options{Wait: time.Hour})
	if err := r.Once(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	w.want("committed", "unfinalized")
	if m := w.server.Message(id); m.Acks != 1 || m.Deliveries != 1 {
		t.Errorf("%d acknowledgements of %d deliveries", m.Acks, m.Deliveries)
	}
	if got := reconciletest.Counted(t, w.reg); got["errors{kind:pull}"] != 2 {
		t.Errorf("counted %v", got)
	}
}

func TestSubscriptionThatIsNotThereIsAFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := w.reconciler(sub+"2", pubsub.Options{}, reconcile.Options{}).Run(t.Context())
	if !errors.Is(err, reconcile.ErrClosed) {
		t.Errorf("Run: %v, want ErrClosed", err)
	}
}

func TestDeadlinesAreExtendedWhileWorking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.send(v01)[0]
	release := make(chan struct{})
	w.blobs.SetHook(func(_ context.Context, c blobtest.Call) error {
		if c.Stage == blobtest.Before {
			<-release
		}
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := w.reconciler(sub, pubsub.Options{}, reconcile.Options{}).Step(t.Context())
		done <- err
	}()
	for end := time.Now().Add(20 * time.Second); len(w.server.Message(id).Modacks) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the deadline is not extended")
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if m := w.server.Message(id); m.Modacks[0].AckDeadline != 60 || m.Deliveries != 1 || m.Acks != 1 {
		t.Errorf("message %+v", m)
	}
}

func TestMessageDeliveredAgainWhileInHandIsWorkedOnOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.send(v01)[0]
	s := w.source(sub, pubsub.Options{UntilEmpty: true})
	first, err := s.Receive(t.Context(), 10)
	if err != nil || len(first) != 1 {
		t.Fatal(first, err)
	}
	w.clock.Advance(61 * time.Second)
	if again, err := s.Receive(t.Context(), 10); err != nil || len(again) != 0 {
		t.Errorf("received %v, %v", again, err)
	}
	if err := s.Ack(t.Context(), []string{first[0].ID, "unknown"}); err != nil {
		t.Error(err)
	}
	if !w.acked(id) {
		t.Error("not acknowledged")
	}
}

func TestDeferredMessageComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(v02)
	s := w.source(sub, pubsub.Options{UntilEmpty: true})
	got, err := s.Receive(t.Context(), 10)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if err := s.Defer(t.Context(), got[0], w.clock.Now().Add(5*time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(4 * time.Minute)
	if early, err := s.Receive(t.Context(), 10); err != nil || len(early) != 0 {
		t.Errorf("received %v, %v before its time", early, err)
	}
	w.clock.Advance(2 * time.Minute)
	if late, err := s.Receive(t.Context(), 10); err != nil || len(late) != 1 {
		t.Errorf("received %v, %v at its time", late, err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct{ project, name, want string }{
		{"p", "s", "projects/p/subscriptions/s"},
		{"", "projects/q/subscriptions/s", "projects/q/subscriptions/s"},
		{"p", "projects/q/subscriptions/s", "projects/q/subscriptions/s"},
		{"", "s", ""}, {"p", "", ""}, {"p", "projects/q/topics/s", ""}, {"p", "a/b", ""},
	} {
		got, err := pubsub.SubscriptionName(c.project, c.name)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}
