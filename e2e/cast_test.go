package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// cast is everybody who puts load on a server: workers with models, a troupe and
// its watchers, a mayfly.
type cast struct {
	workers []*worker
	troupe  *troupe
	mayfly  *mayfly
}

// newCast assembles the cast. login returns a client of the user with this name.
// The offloaded collections are bookmarks, history and forms.
func newCast(t *testing.T, seed uint64, login func(user string) *syncclient.Client, noFailures bool) *cast {
	c := &cast{
		troupe: &troupe{t: t, client: login("troupe"), collection: "bookmarks"},
		mayfly: &mayfly{t: t, client: login("mayfly"), collection: "forms"},
	}
	add := func(user string, line *timeline, client *syncclient.Client, wipes bool, collections ...string) {
		w := &worker{
			t: t, client: client, user: line, wipes: wipes, noFailures: noFailures,
			name: user + "-" + strconv.Itoa(len(c.workers)),
			rng:  rand.New(rand.NewPCG(seed, uint64(len(c.workers)))),
		}
		for _, name := range collections {
			w.collections = append(w.collections, &collection{name: name, possible: []state{{}}})
		}
		c.workers = append(c.workers, w)
	}
	shared, line := login("shared"), &timeline{}
	add("shared", line, shared, false, "bookmarks", "tabs")
	add("shared", line, shared, false, "history", "own_collection")
	add("alone", &timeline{}, login("alone"), true, "bookmarks", "passwords")
	return c
}

// perform puts load on the server until stop is closed, and returns when nobody
// waits for an answer any more.
func (c *cast) perform(ctx context.Context, stop <-chan struct{}) {
	var wg sync.WaitGroup
	for _, w := range c.workers {
		wg.Go(func() { w.run(ctx, stop) })
	}
	wg.Go(func() { c.troupe.perform(ctx, stop) })
	wg.Go(func() { c.troupe.watch(ctx, stop) })
	wg.Go(func() { c.mayfly.run(ctx, stop) })
	wg.Wait()
}

// performFor is perform for a while.
func (c *cast) performFor(ctx context.Context, d time.Duration) {
	stop := make(chan struct{})
	timer := time.AfterFunc(d, func() { close(stop) })
	defer timer.Stop()
	c.perform(ctx, stop)
}

// curtain compares what the server has with what the cast knows.
func (c *cast) curtain(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, w := range c.workers {
		if !w.settle(ctx, ctx.Done()) {
			t.Errorf("%s could not read its collections", w.name)
		}
	}
	if !c.troupe.look(ctx) {
		t.Error("the troupe could not be read")
	}
}

// tally says how much was done.
func (c *cast) tally() string {
	acked, unknown := int64(0), int64(0)
	for _, w := range c.workers {
		acked += w.acked.Load()
		unknown += w.unknown.Load()
	}
	return fmt.Sprintf("%d writes acknowledged, %d unknown, %d generations", acked, unknown, c.troupe.last.Load())
}

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// eventually waits until check returns an empty text, which otherwise says what is
// missing.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	late := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := check()
		if missing == "" {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("after %v: %s", patience, missing)
		}
		<-tick.C
	}
}

// seedOf returns the seed of a random test and prints it. HOLDFAST_SEED repeats a
// run.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("HOLDFAST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("HOLDFAST_SEED: %v", err)
		}
	}
	t.Logf("HOLDFAST_SEED=%d", seed)
	return seed
}

// newHTTP returns an HTTP client with connections of its own.
func newHTTP(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
