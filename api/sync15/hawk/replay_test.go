package hawk

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

func TestReplayGuardSeesTheSameRequestTwice(t *testing.T) {
	g := NewReplayGuard(1000)
	requests := []Header{
		{ID: "a", TS: "1", Nonce: "n"}, {ID: "b", TS: "1", Nonce: "n"}, {ID: "a", TS: "2", Nonce: "n"},
		{ID: "a", TS: "1", Nonce: "m"}, {ID: "a1", TS: "", Nonce: "n"}, {ID: "a", TS: "1n", Nonce: ""},
	}
	for i, h := range requests {
		if g.Seen(h) {
			t.Errorf("request %d was taken for an earlier one", i)
		}
	}
	for i, h := range requests {
		if !g.Seen(h) {
			t.Errorf("request %d was forgotten", i)
		}
	}
}

func TestReplayGuardIsBoundedAndForgetsTheOldest(t *testing.T) {
	const size = 64 * shards
	g := NewReplayGuard(size)
	nonce := func(i int) Header { return Header{ID: "i", TS: "1", Nonce: strconv.Itoa(i)} }
	for i := range 20 * size {
		g.Seen(nonce(i))
	}
	n := 0
	for i := range g.shards {
		n += len(g.shards[i].seen.young) + len(g.shards[i].seen.old)
	}
	if n > 2*size {
		t.Errorf("%d requests are remembered, want at most %d", n, 2*size)
	}
	// Requests spread unevenly over the shards: the last quarter is safe in all.
	for i := 20*size - size/4; i < 20*size; i++ {
		if !g.Seen(nonce(i)) {
			t.Fatalf("request %d of %d was forgotten", i, 20*size)
		}
	}
	if g.Seen(nonce(0)) {
		t.Error("the first request is still remembered")
	}
}

func TestReplayGuardLetsOneOfManyConcurrentCopiesThrough(t *testing.T) {
	g := NewReplayGuard(1 << 16)
	const requests = 1000
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range requests {
				if !g.Seen(Header{ID: "i", TS: "1", Nonce: strconv.Itoa(i)}) {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != requests {
		t.Errorf("%d copies passed, want %d", passed.Load(), requests)
	}
}
