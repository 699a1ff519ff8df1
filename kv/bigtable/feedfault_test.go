package bigtable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// entries reads the whole feed of space a, in order.
func (w *world) entries(e *Engine) []string {
	w.Helper()
	var all []string
	var after kv.Position
	for {
		page, err := e.ReadFeed(w.Context(), "a", 0, after, 3)
		w.ok(err)
		if len(page) == 0 {
			return all
		}
		for _, en := range page {
			all = append(all, string(en.Key)+":"+string(en.Data))
			after = en.Position
		}
	}
}

// The forwarder crashes, or loses an answer, at every place before and after its
// calls. Another goes on: no entry is lost, none comes twice, and those of a row
// stay in order.
func TestForwarderLosesAndRepeatsNothing(t *testing.T) {
	slow(t)
	for _, crash := range []bool{true, false} {
		for n, more := 0, true; more; n++ {
			t.Run(fmt.Sprintf("crash=%v/%d", crash, n), func(t *testing.T) {
				w := newWorld(t)
				w.other.readerPatience = 40 * time.Millisecond
				w.other.stopLoops() // only readers forward
				w.other.running.Wait()
				var want []string
				write := func(e *Engine, key string) {
					data := fmt.Sprint(len(want))
					_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", key, "x"), data)}})
					w.ok(err)
					want = append(want, key+":"+data)
				}
				for range 3 {
					write(w.other, "k")
					write(w.other, "l")
				}
				w.entries(w.other)
				w.ok(w.other.dropShards(t))
				write(w.other, "k")
				p := &points{}
				e := w.server.openWith(t, quiet(w.server.options(w.clock)), p.hook)
				e.stopLoops()
				e.running.Wait()
				_, err := e.space(t.Context(), "a")
				w.ok(err)
				p.arm(n, crash)
				_, err = e.ReadFeed(t.Context(), "a", 0, "", 100)
				if crash && p.fired() {
					e.die()
				} else if err != nil && crash {
					t.Error(err)
				}
				more = p.fired()
				reader := w.other
				if !crash {
					// The same process goes on.
					reader = e
				}
				write(w.other, "l")
				write(w.other, "k")
				got := w.entries(reader)
				for _, key := range []string{"k", "l"} {
					of := func(all []string) []string {
						return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !strings.HasPrefix(s, key) })
					}
					if !slices.Equal(of(got), of(want)) {
						t.Errorf("entries %v, want %v\n%s", of(got), of(want), strings.Join(p.trace, "\n"))
					}
				}
				if again := w.entries(reader); !slices.Equal(again, got) {
					t.Errorf("entries %v, and then %v", got, again)
				}
			})
			if n > 100 {
				t.Fatal("no end")
			}
		}
	}
}

// dropShards makes an engine give up the shards of feeds, as Close does.
func (e *Engine) dropShards(t *testing.T) error {
	e.releaseFeeds(t.Context())
	for _, sh := range e.feeds.shards {
		sh.owned = false
	}
	return nil
}

// An owner that stalls in the middle of publishing is taken over, and publishes
// nothing when it goes on.
func TestSlowOwnerPublishesNothing(t *testing.T) {
	for _, step := range []string{"before write entries", "after write entries", "before publish", "after publish", "before clear outboxes", "before remove hints"} {
		w := newWorld(t)
		w.other.readerPatience = 40 * time.Millisecond
		w.other.stopLoops()
		w.other.running.Wait()
		for i := range 3 {
			w.commit(nil, fed(put("a", "k", "x"), fmt.Sprint(i)))
		}
		s := newStall(step)
		e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
		e.readerPatience = 40 * time.Millisecond
		e.stopLoops()
		e.running.Wait()
		done := make(chan error, 1)
		go func() {
			_, err := e.ReadFeed(t.Context(), "a", 0, "", 100)
			done <- err
		}()
		<-s.reached
		got := w.entries(w.other) // takes it over, after a while, unless all is published
		w.commit(nil, fed(put("a", "k", "x"), "3"))
		more := w.entries(w.other)
		close(s.resume)
		w.ok(<-done)
		w.commit(nil, fed(put("a", "k", "x"), "4"))
		last := w.entries(w.other)
		want := []string{"k:0", "k:1", "k:2", "k:3", "k:4"}
		if !slices.Equal(got, want[:3]) || !slices.Equal(more, want[:4]) || !slices.Equal(last, want) {
			t.Errorf("%s: %v, then %v, then %v", step, got, more, last)
		}
		if again := w.entries(e); !slices.Equal(again, want) {
			t.Errorf("%s: the slow owner reads %v", step, again)
		}
	}
}

// Whoever owns no shard takes one over whose owner does nothing.
func TestBackgroundTakeover(t *testing.T) {
	w := newWorld(t)
	w.commit(nil, fed(put("a", "k", "x"), "0"))
	w.entries(w.other)
	w.other.stopLoops()
	w.other.running.Wait()
	w.commit(nil, fed(put("a", "k", "x"), "1"))
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(string) error { return nil })
	e.stopLoops()
	e.running.Wait()
	s, err := e.space(t.Context(), "a")
	w.ok(err)
	epochs := func() int {
		raw, err := e.readCell(t.Context(), "test", e.streamTable, s.shardKey(0)+headKey, headCell)
		w.ok(err)
		h, err := parseHead(raw)
		w.ok(err)
		return len(h.epochs)
	}
	for look := idleLook; look <= patience; look += idleLook {
		e.look(t.Context(), look, true)
		if epochs() != 1 {
			t.Fatalf("taken over at look %d", look)
		}
	}
	e.look(t.Context(), idleLook+patience, true)
	if epochs() != 2 {
		t.Errorf("not taken over")
	}
	if got := w.entries(e); !slices.Equal(got, []string{"k:0", "k:1"}) {
		t.Errorf("entries %v", got)
	}
}

// Two processes use the same p at the same time, on the same row: the hint of one does
// not take the other's away.
func TestHintsOfEqualVersionsAreApart(t *testing.T) {
	w := newWorld(t)
	w.other.stopLoops()
	w.other.running.Wait()
	slow := newStall("before write row")
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), slow.hook)
	e.stopLoops()
	e.running.Wait()
	e.hybrid.last = w.other.hybrid.last + 100 // the next number of both is the same
	w.other.hybrid.last = e.hybrid.last
	done := make(chan error, 1)
	go func() {
		_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "x"), "slow")}})
		done <- err
	}()
	<-slow.reached
	s, err := w.other.space(t.Context(), "a")
	w.ok(err)
	w.ok(w.other.writeHints(t.Context(), []part{{space: s, key: "k", write: &kv.Write{Feed: []byte{}}}}, version{p: e.hybrid.last, writer: w.other.writer}, unlocked(version{p: 1}, flagLive, 0)))
	if got := w.entries(w.other); len(got) != 0 {
		t.Errorf("entries %v", got)
	}
	close(slow.resume)
	w.ok(<-done)
	if got := w.entries(w.other); !slices.Equal(got, []string{"k:slow"}) {
		t.Errorf("entries %v", got)
	}
}

// Old entries are removed, and readers that were behind learn of it.
func TestTrimmedFeed(t *testing.T) {
	w := newWorld(t)
	var positions []kv.Position
	for i := range 5 {
		w.commit(nil, fed(put("a", "k", "x"), fmt.Sprint(i)))
		w.clock.Advance(30 * time.Hour)
	}
	w.other.stopLoops()
	w.other.running.Wait()
	old := w.clock.Now()
	w.clock.Set(start())
	page, err := w.other.ReadFeed(t.Context(), "a", 0, "", 100)
	w.ok(err)
	for _, en := range page {
		positions = append(positions, en.Position)
	}
	w.clock.Set(old.Add(-30 * time.Hour)) // it is 120 h, entries 0 is too old
	s, err := w.other.space(t.Context(), "a")
	w.ok(err)
	w.ok(w.other.trimShard(t.Context(), s, 0))
	keys, err := w.other.readEntries(t.Context(), s.shardKey(0), []place{{firstEpoch, 0}, {firstEpoch, 100}}, 100)
	w.ok(err)
	if len(keys) != 4 {
		t.Errorf("%d entries are stored, want 4", len(keys))
	}
	if got := w.entries(w.other); !slices.Equal(got, []string{"k:1", "k:2", "k:3", "k:4"}) {
		t.Errorf("entries %v", got)
	}
	if page, err = w.other.ReadFeed(t.Context(), "a", 0, positions[0], 1); err != nil || string(page[0].Data) != "1" {
		t.Errorf("behind the last one removed: %v, %v", page, err)
	}
	w.clock.Advance(30 * time.Hour)
	w.ok(w.other.trimShard(t.Context(), s, 0))
	if _, err = w.other.ReadFeed(t.Context(), "a", 0, positions[0], 1); err != kv.ErrFeedTrimmed && !strings.Contains(fmt.Sprint(err), kv.ErrFeedTrimmed.Error()) {
		t.Errorf("error = %v", err)
	}
	w.clock.Advance(1000 * time.Hour)
	w.ok(w.other.trimShard(t.Context(), s, 0))
	// Epochs without entries go when the shard changes hands.
	for range 3 {
		w.ok(w.other.dropShards(t))
		w.commit(nil, fed(put("a", "k", "x"), "new"))
		w.entries(w.other)
	}
	if n := len(w.other.feeds.shard(shardID{s.stream, 0}).head.epochs); n != 3 {
		t.Errorf("%d epochs", n)
	}
}

// Writers and forwarders of several processes crash and stall at random, under answers
// that get lost: in the end the feed has each commit that happened once, and the
// entries of each row in order.
func TestFeedUnderRandomFaults(t *testing.T) {
	slow(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorld(t)
	keys := []string{"k", "l", "m"}
	var mu sync.Mutex
	acked := map[string]bool{}
	unsure := map[string]bool{}
	var wg sync.WaitGroup
	for worker := range 3 {
		wg.Go(func() {
			for life := range 4 {
				rng := rand.New(rand.NewPCG(seed, uint64(10*worker+life)))
				var hookMu sync.Mutex
				crashed := false
				e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(step string) error {
					hookMu.Lock()
					defer hookMu.Unlock()
					switch n := rng.IntN(400); {
					case crashed:
						return errCrash
					case n == 0 && !strings.Contains(step, "self-test") && !strings.Contains(step, "table") && !strings.Contains(step, "floor"):
						crashed = life < 3
					case n < 6 && strings.HasPrefix(step, "after "):
						return errDropped
					}
					return nil
				})
				for i := range 25 {
					data := fmt.Sprintf("%d.%d.%d", worker, life, i)
					var writes []kv.Write
					for j, k := range keys {
						if (worker+i+j)%2 == 0 {
							writes = append(writes, fed(put("a", k, "x"), data))
						}
					}
					_, err := e.Commit(t.Context(), &kv.Txn{Writes: writes})
					if i%5 == 0 {
						_, _ = e.ReadFeed(t.Context(), "a", 0, "", 50)
					}
					mu.Lock()
					for _, wr := range writes {
						id := string(wr.Key) + ":" + data
						acked[id] = acked[id] || err == nil
						unsure[id] = unsure[id] || err != nil
					}
					mu.Unlock()
					hookMu.Lock()
					dead := crashed
					hookMu.Unlock()
					if dead {
						e.die()
						w.clock.Advance(10 * time.Second)
						break
					}
				}
			}
		})
	}
	wg.Wait()
	w.clock.Advance(time.Minute)
	got := w.entries(w.other)
	seen := map[string]bool{}
	for _, en := range got {
		if seen[en] {
			t.Errorf("entry %s twice", en)
		}
		if seen[en] = true; !acked[en] && !unsure[en] {
			t.Errorf("nobody wrote entry %s", en)
		}
	}
	for en, ok := range acked {
		if ok && !seen[en] {
			t.Errorf("entry %s is missing", en)
		}
	}
	page, err := w.other.ReadFeed(t.Context(), "a", 0, "", 10_000)
	w.ok(err)
	last := map[string]kv.Version{}
	for _, en := range page {
		if en.Version <= last[string(en.Key)] {
			t.Errorf("version %d of %s after %d", en.Version, en.Key, last[string(en.Key)])
		}
		last[string(en.Key)] = en.Version
	}
	t.Logf("%d entries", len(got))
}

func (w *world) hints() int {
	w.Helper()
	all, err := w.other.readHints(w.Context(), "\xff", "")
	w.ok(err)
	return len(all)
}

// A transaction is not committed yet when its hints are looked at: they stay.
func TestHintsOfUndecidedTransactionsStay(t *testing.T) {
	w := newWorld(t)
	s := newStall("before commit")
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
	done := make(chan error, 1)
	go func() {
		_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "x"), "0"), fed(put("a", "l", "x"), "0")}})
		done <- err
	}()
	<-s.reached
	if got := w.entries(w.other); len(got) != 0 {
		t.Errorf("entries %v", got)
	}
	if n := w.hints(); n != 2 {
		t.Errorf("%d hints", n)
	}
	close(s.resume)
	w.ok(<-done)
	settled(e)
	if got := w.entries(w.other); len(got) != 2 {
		t.Errorf("entries %v", got)
	}
	if n := w.hints(); n != 0 {
		t.Errorf("%d hints are left", n)
	}
}

// A writer stalls between its hint and its write. After a while its write is made
// impossible and the hint goes; the writer starts over with another.
func TestHintOfAStalledWriterGoes(t *testing.T) {
	for _, there := range []bool{false, true} {
		w := newWorld(t)
		if there {
			w.commit(nil, put("a", "k", "x"))
		}
		s := newStall("before write row")
		e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
		done := make(chan error, 1)
		go func() {
			_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "x"), "0")}})
			done <- err
		}()
		<-s.reached
		w.entries(w.other)
		if n := w.hints(); n != 1 {
			t.Errorf("%d hints", n)
		}
		w.clock.Advance(hintPatience)
		w.entries(w.other) // touches the row
		w.entries(w.other)
		if n := w.hints(); n != 0 {
			t.Errorf("%d hints after a while", n)
		}
		close(s.resume)
		w.ok(<-done)
		if got := w.entries(w.other); !slices.Equal(got, []string{"k:0"}) {
			t.Errorf("entries %v", got)
		}
	}
}

// A published entry that is not there is an error, and no endless search.
func TestMissingEntryIsCorruption(t *testing.T) {
	w := newWorld(t)
	w.commit(nil, fed(put("a", "k", "x"), "0"))
	w.commit(nil, fed(put("a", "k", "x"), "1"))
	w.entries(w.other)
	s, err := w.other.space(t.Context(), "a")
	w.ok(err)
	w.ok(w.other.deleteRows(t.Context(), "test", w.other.streamTable, []string{s.shardKey(0) + entryKey(place{firstEpoch, 1})}))
	if _, err := w.other.ReadFeed(t.Context(), "a", 0, "", 1); err != nil {
		t.Error(err)
	}
	if _, err := w.other.ReadFeed(t.Context(), "a", 0, place{firstEpoch, 0}.position(), 10); !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("error = %v, want %v", err, kv.ErrCorrupt)
	}
}

// After a write of entries whose fate is unknown, nothing else is written to their
// places: it may be carried out later.
func TestEpochEndsWithAFailure(t *testing.T) {
	w := newWorld(t)
	w.other.stopLoops()
	w.other.running.Wait()
	failing := true
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), func(step string) error {
		if failing && step == "after write entries" {
			return errDropped
		}
		return nil
	})
	e.stopLoops()
	e.running.Wait()
	w.commit(nil, fed(put("a", "k", "x"), "0"))
	if _, err := e.ReadFeed(t.Context(), "a", 0, "", 10); err == nil {
		t.Fatal("no error")
	}
	failing = false
	page, err := e.ReadFeed(t.Context(), "a", 0, "", 10)
	w.ok(err)
	if want := (place{firstEpoch + 1, 0}).position(); len(page) != 1 || page[0].Position != want {
		t.Errorf("feed %+v, want one entry at %s", page, want)
	}
}
