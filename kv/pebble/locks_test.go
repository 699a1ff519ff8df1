package pebble

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestLocksExcludeWriters(t *testing.T) {
	const keys, turns = 5, 3000
	var l locks
	var readers, writers [keys]atomic.Int64
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range turns {
				var refs []lockRef
				for range 1 + r.IntN(4) {
					// Neighbours and keys far from each other.
					k := uint64(r.IntN(keys))
					refs = append(refs, lockOf(k<<1|k<<62, r.IntN(2) == 0))
				}
				refs = sortLocks(refs)
				l.lock(refs)
				for _, ref := range refs {
					k := ref.id() & 7
					if ref.writes() {
						if writers[k].Add(1) != 1 || readers[k].Load() != 0 {
							t.Error("a writer is not alone")
						}
					} else if readers[k].Add(1); writers[k].Load() != 0 {
						t.Error("a reader beside a writer")
					}
				}
				for _, ref := range refs {
					if k := ref.id() & 7; ref.writes() {
						writers[k].Add(-1)
					} else {
						readers[k].Add(-1)
					}
				}
				l.unlock(refs)
			}
		})
	}
	wg.Wait()
	for i := range l.shards {
		if n := len(l.shards[i].held); n != 0 {
			t.Errorf("%d locks of shard %d are still held", n, i)
		}
	}
}

func TestLocksAreGrantedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		read, write := []lockRef{lockOf(6, false)}, []lockRef{lockOf(6, true)}
		var order []string
		var mu sync.Mutex
		next := make(map[string]chan struct{})
		take := func(name string, refs []lockRef) {
			next[name] = make(chan struct{})
			go func() {
				l.lock(refs)
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				<-next[name]
				l.unlock(refs)
			}()
			synctest.Wait()
		}
		give := func(name string) { close(next[name]); synctest.Wait() }
		expect := func(want ...string) {
			t.Helper()
			if slices.Sort(order); !slices.Equal(order, want) {
				t.Fatalf("holders so far %v, want %v", order, want)
			}
		}
		take("a reads", read)
		take("b reads", read)
		take("c writes", write)
		take("d reads", read) // behind the writer
		take("e reads", read)
		take("f writes", write)
		expect("a reads", "b reads")
		give("a reads")
		expect("a reads", "b reads")
		give("b reads")
		expect("a reads", "b reads", "c writes")
		give("c writes")
		expect("a reads", "b reads", "c writes", "d reads", "e reads")
		give("e reads")
		give("d reads")
		expect("a reads", "b reads", "c writes", "d reads", "e reads", "f writes")
		give("f writes")
	})
}

func TestSortLocks(t *testing.T) {
	const far = uint64(1) << 63
	got := sortLocks([]lockRef{lockOf(far, false), lockOf(8, false), lockOf(9, true), lockOf(8, false), lockOf(2, false), lockOf(2, false)})
	if want := []lockRef{lockOf(2, false), lockOf(8, true), lockOf(far, false)}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if got := sortLocks(nil); len(got) != 0 {
		t.Errorf("got %x", got)
	}
}
