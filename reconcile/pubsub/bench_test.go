package pubsub_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/reconcile/pubsub"
)

// slowStore answers as late as a store far away.
type slowStore struct {
	blob.Finisher
	delay     time.Duration
	now, most atomic.Int64
}

func (s *slowStore) Finalize(ctx context.Context, name string) (bool, error) {
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	time.Sleep(s.delay)
	s.now.Add(-1)
	return s.Finisher.Finalize(ctx, name)
}

// BenchmarkReconciler handles messages of a subscription against a store whose
// operations take 20 ms.
func BenchmarkReconciler(b *testing.B) {
	const concurrency = 64
	w := newWorld(b)
	for i := range b.N {
		name := fmt.Sprint("n/", i)
		if err := w.store.Put(b.Context(), name, strings.NewReader(""), 0); err != nil {
			b.Fatal(err)
		}
		w.send(strings.ReplaceAll(v01, "u/c/i/a", name))
	}
	store := &slowStore{Finisher: w.store, delay: 20 * time.Millisecond}
	r := reconcile.New(w.source(sub, pubsub.Options{UntilEmpty: true}), store, reconcile.Options{
		Clock: clock.System{}, Concurrency: concurrency, Wait: time.Hour,
	})
	b.ResetTimer()
	if err := r.Once(b.Context(), time.Hour); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/(b.Elapsed()-500*time.Millisecond).Seconds(), "records/s") // the last answer, that there is nothing, takes half a second
	if store.most.Load() > concurrency {
		b.Errorf("%d operations at a time", store.most.Load())
	}
}
