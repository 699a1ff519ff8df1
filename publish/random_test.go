package publish

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/clock"
)

// plan is what happens to a stream and its publisher.
type plan struct {
	partitions int
	opts       Options
	faulty     bool
	seed       uint64
	steps      []step
}

type step struct {
	after, down   time.Duration
	what          int
	which, number int
	crash         bool
}

func drawPlan(r *rapid.T) plan {
	p := plan{
		partitions: rapid.IntRange(1, 4).Draw(r, "partitions"),
		opts: Options{
			Clock: clock.System{}, Heartbeat: 20 * time.Second, MaxPartitions: rapid.IntRange(1, 8).Draw(r, "at a time"), Concurrency: rapid.IntRange(1, 4).Draw(r, "requests"),
		},
		faulty: rapid.Bool().Draw(r, "faulty"),
		seed:   rapid.Uint64().Draw(r, "seed"),
	}
	for range rapid.IntRange(5, 60).Draw(r, "steps") {
		p.steps = append(p.steps, step{
			after: time.Duration(rapid.IntRange(0, 2000).Draw(r, "ms")) * time.Millisecond,
			down:  time.Duration(rapid.IntRange(0, 60).Draw(r, "down")) * time.Second,
			what:  rapid.IntRange(0, 9).Draw(r, "step"), which: rapid.IntRange(0, 100).Draw(r, "which"),
			number: rapid.IntRange(1, 3).Draw(r, "number"), crash: rapid.Bool().Draw(r, "crash"),
		})
	}
	return p
}

// report collects what went wrong in a bubble.
type report []string

func (r *report) Helper() {}

func (r *report) Errorf(format string, args ...any) { *r = append(*r, fmt.Sprintf(format, args...)) }

// TestRandomPartitionTreesLoseNothing lets partitions split and merge at random
// while streams break, publishes fail, positions are not stored and publishers
// crash, and wants each change published, those of a key in order.
func TestRandomPartitionTreesLoseNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := drawPlan(r)
		var wrong report
		synctest.Test(t, func(t *testing.T) { p.run(t, &wrong) })
		for _, s := range wrong {
			r.Error(s)
		}
	})
}

func (p *plan) run(t *testing.T, wrong *report) {
	const keys = 6
	w := newWorld(t, p.partitions, keys)
	rng := rand.New(rand.NewPCG(p.seed, 0))
	fails := func() bool {
		w.stream.mu.Lock()
		defer w.stream.mu.Unlock()
		return p.faulty && rng.IntN(10) == 0
	}
	w.stream.fault = func(Query) error {
		if fails() {
			return errInjected
		}
		return nil
	}
	w.sink.fault = func(m [][]byte) ([][]byte, error) {
		if fails() {
			return m, errInjected
		}
		return nil, nil
	}
	run := func() (stop func(crash bool)) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		me := w.memory.user()
		var crashed atomic.Bool
		me.fault = func(op string) error {
			if op == "save" && (crashed.Load() || fails()) {
				return errInjected
			}
			return nil
		}
		publisher := New(w.stream, w.sink, me, p.opts)
		go func() { done <- publisher.Run(ctx) }()
		return func(crash bool) {
			synctest.Wait()
			crashed.Store(crash)
			cancel()
			if err := <-done; err != nil && !crash && !p.faulty {
				wrong.Errorf("Run: %v", err)
			}
		}
	}
	stop := run()
	time.Sleep(time.Millisecond) // changes of the very moment the publisher begins at are not promised
	count := map[int]int{}
	for _, s := range p.steps {
		time.Sleep(s.after)
		living := w.stream.living()
		switch s.what {
		case 0:
			w.stream.split(time.Now(), living[s.which%len(living)], s.number)
		case 1:
			w.stream.merge(time.Now(), living[:1+s.which%len(living)]...)
		case 2:
			stop(s.crash)
			time.Sleep(s.down)
			stop = run()
		default:
			k := s.which % keys
			w.stream.commit(time.Now(), k, count[k])
			count[k]++
		}
	}
	time.Sleep(2 * time.Hour) // turns of 30 seconds, waits of 30
	stop(false)
	for k := range keys {
		complete(wrong, k, w.sink.of(k), count[k])
	}
}
