package bigtable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// bank is a world with accounts, and processes whose clocks differ, that crash and
// lose answers.
type bank struct {
	*world
	seed     uint64
	accounts []kv.Ref
	total    int
}

func newBank(t *testing.T) *bank {
	b := &bank{world: newWorld(t), seed: rand.Uint64(), total: 600}
	t.Logf("seed %d", b.seed)
	var writes []kv.Write
	for i := range 6 {
		space := []string{"a", "b"}[i%2]
		b.accounts = append(b.accounts, kv.Ref{Space: space, Key: []byte{byte(i)}})
		writes = append(writes, kv.Write{Space: space, Key: []byte{byte(i)}, Value: []byte("100")})
	}
	b.commit(nil, writes...)
	return b
}

// process opens an engine whose clock is off by skew, and that goes wrong at random:
// crashed says that it is dead.
func (b *bank) process(rng *rand.Rand, skew time.Duration, faults int) (e *Engine, crashed *atomic.Bool) {
	crashed = &atomic.Bool{}
	var mu sync.Mutex
	var armed atomic.Bool
	e = b.server.openWith(b.T, quiet(b.server.options(skewed{b.clock, skew})), func(step string) error {
		if crashed.Load() {
			return errCrash
		}
		if !armed.Load() || faults == 0 {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		switch n := rng.IntN(faults); {
		case n == 0:
			crashed.Store(true)
			return errCrash
		case n < 4 && strings.HasPrefix(step, "after "):
			return errDropped
		case n < 6 && strings.HasPrefix(step, "before "):
			return status.Error(codes.ResourceExhausted, "slow down")
		}
		return nil
	})
	armed.Store(true)
	return e, crashed
}

type skewed struct {
	clock.Clock
	by time.Duration
}

func (s skewed) Now() time.Time { return s.Clock.Now().Add(s.by) }

func (b *bank) transfer(e *Engine, from, to kv.Ref) error {
	_, err := kv.New(e, Limits()).Update(b.Context(), func(tx *kv.Tx) error {
		rows, err := tx.GetAll(from, to)
		if err != nil {
			return err
		}
		x, _ := strconv.Atoi(string(rows[0].Value))
		y, _ := strconv.Atoi(string(rows[1].Value))
		tx.Put(kv.Write{Space: from.Space, Key: from.Key, Value: []byte(strconv.Itoa(x - 1))})
		tx.Put(kv.Write{Space: to.Space, Key: to.Key, Value: []byte(strconv.Itoa(y + 1))})
		return nil
	})
	return err
}

func (b *bank) sum(e *Engine) (int, error) {
	rows, err := e.Get(b.Context(), b.accounts)
	total := 0
	for _, r := range rows {
		n, _ := strconv.Atoi(string(r.Value))
		total += n
	}
	return total, err
}

// Money moves through several processes that crash, and the sum never changes, for
// anybody.
func TestBankConservesItsMoney(t *testing.T) {
	slow(t)
	b := newBank(t)
	var workers, done sync.WaitGroup
	var commits, crashes atomic.Int64
	stop := make(chan struct{})
	for i := range 4 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(b.seed, uint64(i)))
			for life := range 6 {
				faults := 300
				if life == 5 {
					faults = 0
				}
				e, crashed := b.process(rand.New(rand.NewPCG(b.seed, uint64(100*i+life))), time.Duration(i-2)*3*time.Second, faults)
				for range 15 {
					from, to := b.accounts[rng.IntN(6)], b.accounts[rng.IntN(6)]
					if string(from.Key) == string(to.Key) {
						continue
					}
					if err := b.transfer(e, from, to); err == nil {
						commits.Add(1)
					}
					if crashed.Load() {
						crashes.Add(1)
						e.die()
						b.clock.Advance(15 * time.Second) // the dead are past their deadline
						break
					}
				}
			}
		})
	}
	var snapshots int
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if total, err := b.sum(b.other); err != nil || total != b.total {
				t.Errorf("the accounts hold %d, %v", total, err)
			}
			snapshots++
		}
	})
	workers.Wait()
	close(stop)
	done.Wait()
	b.clock.Advance(time.Minute)
	if total, err := b.sum(b.other); err != nil || total != b.total {
		t.Errorf("in the end the accounts hold %d, %v", total, err)
	}
	t.Logf("%d commits, %d crashes, %d snapshots", commits.Load(), crashes.Load(), snapshots)
	if commits.Load() == 0 || crashes.Load() == 0 || snapshots == 0 {
		t.Error("nothing happened")
	}
}

// Single writes and transactions of several processes meet on the same rows: each
// write that was acknowledged is there, or was replaced by one that knew it.
func TestNoAcknowledgedIncrementIsLost(t *testing.T) {
	slow(t)
	b := newBank(t)
	var acked, unsure atomic.Int64
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			e, _ := b.process(rand.New(rand.NewPCG(b.seed, uint64(i))), time.Duration(i-2)*3*time.Second, 0)
			db := kv.New(e, Limits())
			for n := range 40 {
				refs := b.accounts[:1]
				if n%2 == 0 {
					refs = b.accounts[:2]
				}
				_, err := db.Update(b.Context(), func(tx *kv.Tx) error {
					rows, err := tx.GetAll(refs...)
					if err != nil {
						return err
					}
					for j, r := range refs {
						x, _ := strconv.Atoi(string(rows[j].Value))
						tx.Put(kv.Write{Space: r.Space, Key: r.Key, Value: []byte(strconv.Itoa(x + 1))})
					}
					return nil
				})
				switch {
				case err == nil:
					acked.Add(1)
				case errors.Is(err, kv.ErrUnknownOutcome):
					unsure.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	row, err := b.db.GetOne(t.Context(), b.accounts[0].Space, b.accounts[0].Key)
	b.ok(err)
	got, _ := strconv.Atoi(string(row.Value))
	if n := int64(got - 100); n < acked.Load() || n > acked.Load()+unsure.Load() || acked.Load() != 160 {
		t.Errorf("%d increments are there, %d were acknowledged, %d are unknown", n, acked.Load(), unsure.Load())
	}
}

// Answers get lost at random. What is acknowledged is there, what is refused is not,
// and only what is called unknown may be either.
func TestUnknownOutcomesAreReported(t *testing.T) {
	slow(t)
	b := newBank(t)
	rng := rand.New(rand.NewPCG(b.seed, 1))
	var mu sync.Mutex
	e := b.server.openWith(t, quiet(b.server.options(b.clock)), func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(step, "row") && rng.IntN(3) == 0 {
			return errDropped
		}
		return nil
	})
	var unknown, acked int
	for i := range 60 {
		key := fmt.Sprint("key", i)
		writes := []kv.Write{put("a", key, "x")}
		if i%3 == 0 {
			writes = append(writes, put("b", key, "x"))
		}
		t1 := &kv.Txn{Writes: writes}
		if i%2 == 0 {
			t1.Checks = []kv.Check{check("a", key, 0)}
		}
		_, err := e.Commit(t.Context(), t1)
		row, getErr := b.db.GetOne(t.Context(), "a", []byte(key))
		b.ok(getErr)
		switch {
		case errors.Is(err, kv.ErrUnknownOutcome):
			unknown++
		case (err == nil) != row.Exists():
			t.Errorf("commit %d: %v, and the row exists: %v", i, err, row.Exists())
		}
		if err == nil {
			acked++
		}
	}
	t.Logf("%d acknowledged, %d unknown", acked, unknown)
}

// Two processes read that a range is empty under a guard row, and insert into it: one
// of them fails.
func TestGuardedRangeHasNoPhantoms(t *testing.T) {
	w := newWorld(t)
	second := w.server.openWith(t, quiet(w.server.options(w.clock)), func(string) error { return nil })
	guard := kv.Ref{Space: "b", Key: []byte("guard")}
	for round := range 20 {
		prefix := fmt.Sprintf("%02d/", round)
		var inserted atomic.Int64
		var both, done sync.WaitGroup
		both.Add(2)
		for i, e := range []*Engine{w.other, second} {
			done.Go(func() {
				first := true
				_, err := kv.New(e, Limits()).Update(t.Context(), func(tx *kv.Tx) error {
					empty := true
					if err := tx.Scan(guard, "a", kv.Prefix([]byte(prefix)), func(kv.Row) bool { empty = false; return true }); err != nil {
						return err
					}
					if first {
						first = false
						both.Done()
						both.Wait()
					}
					if !empty {
						return errAborted
					}
					tx.Put(put("a", fmt.Sprint(prefix, i), "x"))
					tx.Put(kv.Write{Space: guard.Space, Key: guard.Key})
					return nil
				})
				if err == nil {
					inserted.Add(1)
				} else if !errors.Is(err, errAborted) {
					t.Error(err)
				}
			})
		}
		done.Wait()
		if n := inserted.Load(); n != 1 {
			t.Errorf("%d inserts into an empty range", n)
		}
	}
}
