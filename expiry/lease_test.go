package expiry

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
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
			scans  *[256]atomic.Int64 // of the index, by shard
			faults *kvtest.Faults
			cancel context.CancelFunc
			done   chan error
		}
		start := func() *process {
			p := &process{faults: kvtest.NewFaults(w.faults), scans: new([256]atomic.Int64), done: make(chan error, 2)}
			db := kv.New(p.faults, kvtest.ModelLimits)
			m, err := lease.Open(t.Context(), db, lease.Options{Rand: rand.Reader, Clock: clock.Monotonic{}})
			must(t, err)
			p.s = NewSweeper(db.WithHooks(w.index.Hook), w.index, Options{Clock: w.clock, Concurrency: 1, Leases: m})
			p.faults.Before(func(_ context.Context, c kvtest.Call) error {
				if c.Op == kvtest.OpScan && c.Space == IndexSpace {
					p.scans[c.Range.Start[0]].Add(1)
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
		before := [2][256]int64{}
		for shard := range 256 {
			before[0][shard], before[1][shard] = a.scans[shard].Load(), b.scans[shard].Load()
		}
		for i := range 100 {
			w.put("a", fmt.Sprint(i), time.Second)
		}
		w.clock.Advance(time.Minute)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.wantStored("")
		var swept [2]int
		for shard := range 256 {
			byA, byB := a.scans[shard].Load() > before[0][shard], b.scans[shard].Load() > before[1][shard]
			if byA {
				swept[0]++
			}
			if byB {
				swept[1]++
			}
			if byA && byB {
				t.Errorf("shard %d is swept by both", shard)
			}
		}
		if swept != [2]int{Shards / 2, Shards / 2} {
			t.Errorf("%v shards swept", swept)
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
