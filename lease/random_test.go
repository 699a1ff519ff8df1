package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// Processes are paused, killed and restarted, commits get lost or are not reported,
// and clocks jump if asked.
type history struct {
	*cluster
	roll  func(n int) int
	ps    []*process // nil: killed
	jumps bool
	// all leases that anybody has ever had.
	leases map[*Lease]*process
}

const randomNames = 5

// dice returns a source of numbers below n for many goroutines.
func dice(seed uint64) func(n int) int {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
}

func (h *history) begin(i int) {
	p := h.start(Options{Duration: 10 * time.Second})
	p.compete("r", names(randomNames))
	h.ps[i] = p
}

// unreliable makes some commits fail in all ways.
func (h *history) unreliable(p *process) {
	p.faults.Before(func(_ context.Context, c kvtest.Call) error {
		switch h.roll(10) {
		case 0:
			return kvtest.ErrInjected
		case 1:
			if c.Op == kvtest.OpCommit {
				return kv.ErrUnknownOutcome
			}
		case 2:
			time.Sleep(time.Duration(h.roll(4000)) * time.Millisecond)
		}
		return nil
	})
	p.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if c.Op == kvtest.OpCommit && err == nil && h.roll(6) == 0 {
			return kv.ErrUnknownOutcome
		}
		return err
	})
}

func (h *history) step() {
	i := h.roll(len(h.ps))
	p := h.ps[i]
	switch n := h.roll(12); {
	case p == nil:
		h.begin(i)
	case p.pause != nil:
		if n < 6 {
			p.thaw()
			p.pause = nil
		}
	case n == 0:
		p.freeze()
	case n == 1:
		h.unreliable(p)
	case n < 4:
		p.faults.Reset()
	case n == 4:
		p.kill()
		h.ps[i] = nil
	case n == 5 && h.jumps:
		p.clock.Jump(time.Duration(h.roll(60)-30) * time.Second)
	case n == 6:
		p.stop()
		h.begin(i)
	}
}

// check notes new leases and lets everybody write who ever had one.
func (h *history) check() {
	valid := map[string]*Lease{}
	for _, p := range h.ps {
		if p == nil {
			continue
		}
		p.mu.Lock()
		for _, l := range p.held {
			h.leases[l] = p
		}
		p.mu.Unlock()
	}
	for l := range h.leases {
		if !l.Valid() {
			continue
		}
		if other := valid[l.name]; other != nil && !h.jumps {
			h.t.Errorf("%q: epochs %d and %d are valid at a time", l.name, other.epoch, l.epoch)
		}
		valid[l.name] = l
	}
	db := kv.New(h.model, kvtest.ModelLimits) // a write that left its process long ago
	last := map[string]uint64{}
	for l := range h.leases {
		last[l.name] = max(last[l.name], l.epoch)
	}
	for l := range h.leases {
		err := h.write(db, l)
		switch {
		case err != nil && !errors.Is(err, ErrLost):
			h.t.Errorf("%q: %v", l.name, err)
		case err != nil && l.Valid() && !h.jumps:
			h.t.Errorf("%q: epoch %d is valid and fenced off", l.name, l.epoch)
		case err == nil && l.epoch != last[l.name]:
			h.t.Errorf("%q: epoch %d has written, %d was held", l.name, l.epoch, last[l.name])
		}
		if l.epoch+8 < last[l.name] {
			delete(h.leases, l) // old enough
		}
	}
}

// settle ends all trouble and expects that the names are spread evenly.
func (h *history) settle() {
	for i, p := range h.ps {
		if p == nil {
			h.begin(i)
			continue
		}
		if p.pause != nil {
			p.thaw()
		}
		p.faults.Reset()
	}
	pass(time.Minute)
	owned := map[string]int{}
	for _, p := range h.ps {
		held := p.names()
		if n := len(held); n < randomNames/len(h.ps) || n > (randomNames+len(h.ps)-1)/len(h.ps) {
			h.t.Errorf("%d names for one of %d processes", n, len(h.ps))
		}
		for _, name := range held {
			owned[name]++
			if l := p.lease(name); !l.Valid() || h.write(p.db, l) != nil {
				h.t.Errorf("%q: held, valid %v", name, l.Valid())
			}
		}
	}
	if len(owned) != randomNames {
		h.t.Errorf("owned in the end: %v", owned)
	}
	for _, p := range h.ps {
		p.stop()
	}
}

func TestRandomHistories(t *testing.T) {
	for _, jumps := range []bool{false, true} {
		for seed := range uint64(40) {
			t.Run(fmt.Sprintf("jumps=%v/%d", jumps, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := &history{
						cluster: newCluster(t), roll: dice(seed), jumps: jumps,
						leases: map[*Lease]*process{}, ps: make([]*process, 2+seed%2),
					}
					for i := range h.ps {
						h.begin(i)
					}
					for range 150 {
						pass(time.Duration(h.roll(3000)) * time.Millisecond)
						h.step()
						synctest.Wait()
						h.check()
					}
					h.settle()
				})
			})
		}
	}
}
