package expiry

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/lease"
)

// Each shard is swept by one process, and by another one when that ends.
func TestProcessesShareTheShardsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		type process struct {
			s      *Sweeper
			scans  map[byte]int
			faults *kvtest.Faults
			cancel context.CancelFunc
			done   chan error
		}
		start := func() *process {
			p := &process{faults: kvtest.NewFaults(w.faults), scans: map[byte]int{}, done: make(chan error, 2)}
			db := kv.New(p.faults, kvtest.ModelLimits)
			m, err := lease.Open(t.Context(), db, lease.Options{Rand: rand.Reader, Clock: clock.Monotonic{}})
			must(t, err)
			p.s = NewSweeper(db.WithHooks(w.index.Hook), w.index, Options{Clock: w.clock, Concurrency: 1, Leases: m})
			p.faults.Before(func(_ context.Context, c kvtest.Call) error {
				if c.Op == kvtest.OpScan && c.Space == IndexSpace {
					p.scans[c.Range.Start[0]]++
				}
				return nil
			})
			var ctx context.Context
			ctx, p.cancel = context.WithCancel(t.Context())
			go func() { p.done <- m.Run(ctx) }()
			go func() { p.done <- p.s.Run(ctx) }()
			return p
		}
		a, b := start(), start()
		time.Sleep(time.Minute)
		synctest.Wait()
		clear(a.scans)
		clear(b.scans)
		for i := range 100 {
			w.put("a", fmt.Sprint(i), time.Second)
		}
		w.clock.Advance(time.Minute)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.wantStored("")
		if len(a.scans) != Shards/2 || len(b.scans) != Shards/2 {
			t.Errorf("%d and %d shards swept", len(a.scans), len(b.scans))
		}
		for shard := range a.scans {
			if b.scans[shard] > 0 {
				t.Errorf("shard %d is swept by both", shard)
			}
		}
		a.faults.Crash()
		a.cancel()
		<-a.done
		<-a.done
		time.Sleep(30 * time.Second)
		for i := range 100 {
			w.put("a", fmt.Sprint(i), time.Second)
		}
		w.clock.Advance(time.Minute)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.wantStored("")
		b.cancel()
		for range 2 {
			if err := <-b.done; err != nil {
				t.Error(err)
			}
		}
	})
}
