package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// Three processes send and receive while they are paused, killed and started anew, and
// their calls fail. Each message is finished once, with its effect.
func TestInvariant4_RandomHistoriesOfSeveralProcesses(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inShared(t, seed%2 == 0, func(s *shared) { sharedHistory(s, seed) })
		})
	}
}

func sharedHistory(s *shared, seed uint64) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 7))
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	sent := map[string]bool{}
	settings := Settings{Lease: 5 * time.Second, MaxAttempts: 8, RetryMost: 4 * time.Second, RetryLate: 4 * time.Second}
	receive := func(ctx context.Context, p *process, q *Queue) {
		for {
			batch, err := q.Receive(ctx, 4)
			if err != nil {
				return
			}
			for _, m := range batch {
				switch k := string(m.Key); {
				case m.Attempts < 2 && roll(4) == 0: // forgotten
				case m.Attempts < 2 && roll(4) == 0:
					_ = q.Retry(ctx, m.Token(), time.Second, "no")
				default:
					if err := p.finish(q, k); errors.Is(err, errEffectTwice) {
						s.t.Errorf("%q is acknowledged twice", k)
					}
				}
				time.Sleep(time.Duration(roll(300)) * time.Millisecond)
			}
		}
	}
	type member struct {
		*process
		q   *Queue
		end context.CancelFunc
	}
	ps := make([]*member, 3)
	begin := func(i int) {
		m := &member{process: s.start(time.Duration(roll(8)-4) * time.Second)}
		q, err := m.s.Create(s.t.Context(), "q", settings)
		if errors.Is(err, ErrQueueExists) {
			q, err = m.s.Queue(s.t.Context(), "q")
		}
		if err != nil {
			s.t.Fatal(err)
		}
		var ctx context.Context
		ctx, m.end = context.WithCancel(context.Background())
		m.q = q
		go receive(ctx, m.process, q)
		ps[i] = m
	}
	for i := range ps {
		begin(i)
	}
	n := 0
	for range 120 {
		pass(time.Duration(roll(800)) * time.Millisecond)
		i := roll(len(ps))
		m := ps[i]
		switch what := roll(20); {
		case m == nil:
			begin(i)
		case m.frozen != nil:
			if what < 4 {
				m.thaw()
				m.frozen = nil
			}
		case what == 0:
			m.freeze()
		case what == 1:
			m.end()
			m.kill()
			ps[i] = nil
		case what == 2:
			m.end()
			m.faults.Reset()
			m.stop()
			begin(i)
		case what == 3:
			m.faults.Before(func(_ context.Context, c kvtest.Call) error {
				switch {
				case roll(8) == 0:
					return kvtest.ErrInjected
				case c.Op == kvtest.OpCommit && roll(10) == 0:
					return kv.ErrUnknownOutcome
				}
				return nil
			})
			m.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
				if c.Op == kvtest.OpCommit && roll(10) == 0 {
					return kv.ErrUnknownOutcome
				}
				return err
			})
		case what < 6:
			m.faults.Reset()
		default:
			k := number(n)
			n++
			err := m.update(func(tx *kv.Tx) error { return m.q.Send(tx, out(k)...) })
			sent[k] = err == nil
		}
	}
	for i, m := range ps {
		switch {
		case m == nil:
			begin(i)
		case m.frozen != nil:
			m.thaw()
		}
		ps[i].faults.Reset()
	}
	pass(2 * time.Minute)
	first := ps[0]
	if left := first.check(first.q, sent); left != 0 {
		s.t.Errorf("%d messages are left", left)
	}
	for _, l := range first.deadLetters(first.q) {
		s.t.Errorf("%q is dead, though only two attempts are given up on purpose", l.Message.Key)
	}
	for _, m := range ps {
		m.end()
		m.stop()
	}
}
