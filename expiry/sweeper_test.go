package expiry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/queue"
)

func (w *world) sweeper() *Sweeper {
	return NewSweeper(w.db, w.index, Options{Clock: w.clock, Concurrency: 1})
}

// sameShard returns n keys whose entries lie in one shard, in order.
func sameShard(n int) []string {
	var keys []string
	for i := 0; len(keys) < n; i++ {
		if k := fmt.Sprintf("k%04d", i); EntryKey(Space{}, 0, []byte(k))[0] == 3 {
			keys = append(keys, k)
		}
	}
	return keys
}

// sweep steps until there is no work left.
func (w *world) sweep(s *Sweeper) {
	w.Helper()
	for range 1000 {
		worked, err := s.Step(context.WithoutCancel(w.Context()))
		must(w.T, err)
		if !worked {
			return
		}
	}
	w.Fatal("no end of work")
}

func (w *world) wantStored(want string) {
	w.Helper()
	if got := w.stored(); got != want {
		w.Errorf("stored %q, want %q", got, want)
	}
	w.checkIndex()
}

func TestSweeperRemovesWhatHasExpiredAndNothingElse(t *testing.T) {
	w := newWorld(t)
	w.put("a", "forever", 0)
	w.put("a", "later", time.Hour)
	w.put("a", "soon", time.Second)
	w.put("b", "soon", 1500*time.Millisecond)
	w.put("b", "at once", -time.Hour)
	w.put("other", "not ours", time.Second)
	s := w.sweeper()
	w.sweep(s)
	w.wantStored("a/forever a/later a/soon b/soon other/not ours")
	w.clock.Advance(1600 * time.Millisecond)
	w.sweep(s)
	w.wantStored("a/forever a/later b/soon other/not ours") // the entry's second has not come
	w.clock.Advance(time.Second)
	w.sweep(s)
	w.wantStored("a/forever a/later other/not ours")
}

func TestSweeperHandlesManyRowsOfManySpaces(t *testing.T) {
	w := newWorld(t)
	for i := range 40 {
		_, err := w.db.Update(t.Context(), func(tx *kv.Tx) error {
			for j := range 100 {
				tx.Put(kv.Write{Space: []string{"a", "b"}[j%2], Key: fmt.Append(nil, i, "/", j), ExpiresAt: w.clock.Now().Add(time.Duration(i) * time.Second)})
			}
			return nil
		})
		must(t, err)
	}
	w.clock.Advance(time.Hour)
	reg := metrics.New()
	s := NewSweeper(w.db, w.index, Options{Clock: w.clock, Metrics: reg})
	w.sweep(s)
	w.wantStored("")
	must(t, reg.Err())
}

// recordQueue keeps the records that the capture of link changes sends.
type recordQueue struct{}

func (recordQueue) Send(tx *kv.Tx, messages ...queue.Outgoing) error {
	for _, m := range messages {
		tx.Put(kv.Write{Space: "messages", Key: m.Key, Value: m.Payload})
	}
	return nil
}

func captureHook() kv.Hook {
	tables := func(space string) (changes.Table, bool) {
		return changes.Table{Name: space, Keys: func(k, _ []byte) ([]changes.Field, error) {
			return []changes.Field{{Name: "k", Value: string(k)}}, nil
		}}, space == "a" || space == "b"
	}
	return changes.NewCapture(recordQueue{}, tables, rand.NewChaCha8([32]byte{})).Hook
}

func TestInvariant3_RemovalByExpiryReportsTheLink(t *testing.T) {
	w := newWorld(t, captureHook())
	w.spaces["b"] = Space{Table: "b", Remove: func(tx *kv.Tx, space string, row kv.Row) (bool, error) {
		tx.SetTag("") // as a cascade does
		tx.Delete(space, row.Key)
		return false, nil
	}}
	for _, space := range []string{"a", "b"} {
		_, err := w.plain.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{
			{Space: space, Key: []byte("k"), Link: "L" + space, ExpiresAt: w.clock.Now()},
			{Space: IndexSpace, Key: EntryKey(w.spaces[space], seconds(w.clock.Now()), []byte("k")), Value: []byte(space)},
		}})
		must(t, err)
	}
	w.sweep(w.sweeper())
	w.wantStored("")
	got := map[string]string{}
	must(t, w.plain.Scan(t.Context(), "messages", kv.Range{}, func(row kv.Row) bool {
		r, err := changes.Decode(row.Value)
		must(t, err)
		got[r.TableName] = fmt.Sprintf("%s %s %s %v", r.ModType, r.Mods[0].Old, r.TransactionTag, r.System)
		return true
	}))
	if got["a"] != "DELETE La RowDeletionPolicy true" || got["b"] != "DELETE Lb  false" || len(got) != 2 {
		t.Errorf("records %q", got)
	}
}

func TestStaleEntriesGo(t *testing.T) {
	w := newWorld(t)
	stray := func(key string, at time.Time) {
		_, err := w.plain.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{
			{Space: IndexSpace, Key: EntryKey(w.spaces["a"], seconds(at), []byte(key)), Value: []byte("a")}}})
		must(t, err)
	}
	w.put("a", "live", time.Hour)
	w.put("a", "forever", 0)
	for _, key := range []string{"live", "forever", "absent"} {
		stray(key, w.clock.Now())
	}
	w.sweep(w.sweeper())
	w.wantStored("a/forever a/live")
}

func TestInvariant1_RowTakenOverDuringTheSweepSurvives(t *testing.T) {
	w := newWorld(t)
	keys := sameShard(10)
	for _, k := range keys {
		w.put("a", k, time.Second)
	}
	w.clock.Advance(time.Minute)
	once := false
	w.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit && !once {
			once = true
			w.put("a", keys[3], time.Hour)
			w.put("a", keys[4], 0)
			w.delete("a", keys[5])
		}
		return nil
	})
	w.sweep(w.sweeper())
	w.wantStored("a/" + keys[3] + " a/" + keys[4])
}

func TestRowsAreRemovedOneByOneUnderContention(t *testing.T) {
	w := newWorld(t)
	for _, k := range sameShard(5) {
		w.put("a", k, time.Second)
	}
	w.clock.Advance(time.Minute)
	writes := 0
	w.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit && len(c.Txn.Writes) > 5 && writes < 100 {
			writes++
			return &kv.ConflictError{}
		}
		return nil
	})
	w.sweep(w.sweeper())
	w.wantStored("")
	if writes != patience {
		t.Errorf("%d attempts, want %d", writes, patience)
	}
}

func TestRemoveMayTakeSeveralTransactions(t *testing.T) {
	w := newWorld(t)
	calls := 0
	w.spaces["b"] = Space{Table: "b", Remove: func(tx *kv.Tx, space string, row kv.Row) (bool, error) {
		if calls++; calls%7 != 0 {
			tx.Put(kv.Write{Space: "other", Key: fmt.Append(nil, calls)})
			return true, nil
		}
		tx.Delete(space, row.Key)
		return false, nil
	}}
	for _, k := range sameShard(3) {
		w.put("b", k, time.Second)
	}
	w.clock.Advance(time.Minute)
	_, err := w.sweeper().Step(t.Context())
	must(t, err)
	w.checkIndex()
	if got := w.stored(); strings.Contains(got, "b/") || strings.Count(got, "other/") != calls-3 {
		t.Errorf("after %d calls: %s", calls, got)
	}
}

func TestRemoveMayRemoveOtherRowsOfTheSamePage(t *testing.T) {
	w := newWorld(t)
	keys, removals := sameShard(3), 0
	w.spaces["a"] = Space{Scope: "s", Table: "a", Remove: func(tx *kv.Tx, space string, row kv.Row) (bool, error) {
		for _, k := range keys {
			tx.Delete(space, []byte(k))
		}
		removals++
		return false, nil
	}}
	for _, k := range keys {
		w.put("a", k, time.Second)
	}
	w.clock.Advance(time.Minute)
	w.sweep(w.sweeper())
	w.wantStored("")
	if removals != 1 {
		t.Errorf("%d removals, want 1: the others went with it", removals)
	}
}

func TestRowThatCannotBeRemovedHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	broken := errors.New("broken")
	good := w.spaces["a"]
	w.spaces["a"] = Space{Scope: "s", Table: "a", Remove: func(tx *kv.Tx, space string, row kv.Row) (bool, error) {
		if string(row.Key) == "bad" {
			return false, broken
		}
		tx.Delete(space, row.Key)
		return false, nil
	}}
	for i := range 50 {
		w.put("a", fmt.Sprint("k", i), time.Second)
	}
	w.put("a", "bad", time.Second)
	w.clock.Advance(time.Hour)
	s := w.sweeper()
	if _, err := s.Step(t.Context()); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	w.wantStored("a/bad")
	w.sweep(s) // passes over it
	w.spaces["a"] = good
	w.sweep(s)
	w.wantStored("a/bad")
	w.clock.Advance(defaultRescan)
	w.sweep(s)
	w.sweep(s)
	w.wantStored("")
}

func TestSweeperDoesNotLookAgainAtWhatItHasPassed(t *testing.T) {
	w := newWorld(t)
	w.put("a", "k", time.Second)
	w.clock.Advance(time.Hour)
	s := w.sweeper()
	w.sweep(s)
	var starts []uint64
	w.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpScan {
			e, err := ParseEntry(kv.Row{Key: append(c.Range.Start, 0, 0, 0), Value: []byte("x")})
			must(t, err)
			starts = append(starts, e.Seconds)
		}
		return nil
	})
	w.sweep(s)
	behind := uint64(w.clock.Now().Add(-overlap).Unix())
	for _, at := range starts {
		if at < behind {
			t.Errorf("scan from %d, want none before %d", at, behind)
		}
	}
	w.faults.Reset()
	w.put("a", "past", -24*time.Hour)
	w.put("a", "now", -time.Second)
	w.sweep(s)
	w.wantStored("a/past")
	w.clock.Advance(defaultRescan)
	w.sweep(s)
	w.sweep(s)
	w.wantStored("")
}

func TestClockThatJumpsBackDoesNoHarm(t *testing.T) {
	w := newWorld(t)
	s := w.sweeper()
	w.put("a", "k1", time.Second)
	w.clock.Advance(time.Hour)
	w.sweep(s)
	w.clock.Advance(-2 * time.Hour)
	w.put("a", "k2", time.Second)
	w.put("a", "k3", time.Hour)
	w.clock.Advance(time.Minute)
	w.sweep(s)
	w.sweep(s)
	w.wantStored("a/k3")
}

func TestEntriesOfDroppedSpacesGo(t *testing.T) {
	w := newWorld(t)
	w.put("a", "k", time.Second)
	w.put("b", "k", time.Second)
	w.clock.Advance(time.Minute)
	must(t, w.plain.DropSpace(t.Context(), "a"))
	w.sweep(w.sweeper())
	must(t, w.plain.CreateSpace(t.Context(), "a", kv.SpaceOptions{Links: true}))
	w.wantStored("")
}

func TestEntryOfASpaceCreatedAgainSurvives(t *testing.T) {
	// The space may come back after each of the sweeper's looks at it.
	for look := 1; look <= 3; look++ {
		t.Run(fmt.Sprint(look), func(t *testing.T) { spaceCreatedAgain(t, look) })
	}
}

func spaceCreatedAgain(t *testing.T, look int) {
	w := newWorld(t)
	w.put("a", "k", time.Second)
	expiry := w.clock.Now().Add(time.Second)
	w.clock.Advance(time.Minute)
	must(t, w.plain.DropSpace(t.Context(), "a"))
	seen := 0
	w.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if errors.Is(err, kv.ErrSpaceNotFound) {
			if seen++; seen == look {
				must(t, w.plain.CreateSpace(t.Context(), "a", kv.SpaceOptions{Links: true}))
				_, err := w.db.Update(t.Context(), func(tx *kv.Tx) error {
					tx.Put(kv.Write{Space: "a", Key: []byte("k"), ExpiresAt: expiry})
					return nil
				})
				must(t, err)
			}
		}
		return err
	})
	_, err := w.sweeper().Step(t.Context())
	must(t, err)
	if seen < look {
		t.Errorf("the sweeper met the dropped space %d times", seen)
	}
	w.checkIndex()
	w.sweep(w.sweeper())
	w.wantStored("")
}

func TestRowsThatTheEngineStillShowsAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.put("a", "k", time.Minute)
	ahead := clock.NewManual(w.clock.Now().Add(time.Hour))
	s := NewSweeper(w.db, w.index, Options{Clock: ahead})
	w.sweep(s)
	w.wantStored("a/k")
	w.clock.Advance(time.Minute)
	ahead.Advance(defaultRescan)
	w.sweep(s)
	w.sweep(s)
	w.wantStored("")
}

func TestPageOfEntriesThatStayHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	txn := &kv.Txn{}
	for i := range pageEntries {
		key := EntryKey(Space{}, 1, fmt.Append(nil, i))
		key[0] = 3
		txn.Writes = append(txn.Writes, kv.Write{Space: IndexSpace, Key: key, Value: []byte("unknown")})
	}
	_, err := w.plain.Commit(t.Context(), txn)
	must(t, err)
	w.put("a", sameShard(1)[0], time.Second)
	w.clock.Advance(time.Minute)
	w.sweep(w.sweeper())
	if got := w.stored(); got != "" {
		t.Errorf("stored %q", got)
	}
}

func TestUnknownSpacesAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.put("a", "k", time.Second)
	w.clock.Advance(time.Minute)
	a := w.spaces["a"]
	delete(w.spaces, "a")
	s := w.sweeper()
	w.sweep(s)
	w.spaces["a"] = a
	w.wantStored("a/k")
	w.sweep(w.sweeper())
	w.wantStored("")
}

func TestSweepSurvivesAFaultAtEachCall(t *testing.T) {
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		w := newWorld(t)
		steps := 0
		w.spaces["b"] = Space{Table: "b", Rows: 1, Remove: func(tx *kv.Tx, space string, row kv.Row) (bool, error) {
			n, err := tx.Get("other", row.Key)
			if err != nil {
				return false, err
			}
			steps++
			tx.Put(kv.Write{Space: "other", Key: row.Key, Value: append(n.Value, 'x')})
			if len(n.Value) < 2 {
				return true, nil
			}
			tx.Delete(space, row.Key)
			return false, nil
		}}
		for i := range 3 {
			w.put("a", fmt.Sprint("k", i), time.Second)
		}
		w.put("a", "live", time.Hour)
		w.put("b", "cascade", time.Second)
		w.clock.Advance(time.Minute)
		p.Arm(w.faults)
		s := w.sweeper()
		_, _ = s.Step(t.Context())
		w.faults.Reset()
		w.checkIndex() // whatever happened, entries and rows agree
		w.sweep(s)     // the same sweeper goes on
		w.wantStored("a/live other/cascade")
		row, err := w.plain.GetOne(t.Context(), "other", []byte("cascade"))
		must(t, err)
		if string(row.Value) != "xxx" {
			t.Errorf("steps of the cascade: %s", row.Value)
		}
	})
}

func TestSweepersAndWritersMayRace(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			s := NewSweeper(w.db, w.index, Options{Clock: w.clock})
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.Step(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var writers sync.WaitGroup
	for g := range 4 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 150 {
				_, err := w.db.Update(ctx, func(tx *kv.Tx) error {
					tx.Put(kv.Write{Space: "a", Key: fmt.Append(nil, rng.IntN(10)), ExpiresAt: w.clock.Now().Add(time.Duration(rng.IntN(5)-1) * time.Second)})
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
				w.clock.Advance(100 * time.Millisecond)
			}
		})
	}
	writers.Wait()
	close(stop)
	wg.Wait()
	w.checkIndex()
	w.clock.Advance(time.Hour)
	w.sweep(w.sweeper())
	w.wantStored("")
}

func TestRunBacksOffWhileTheEngineFailsAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put("a", "k", time.Second)
		w.clock.Advance(time.Minute)
		var scans atomic.Int64
		w.faults.Before(func(_ context.Context, c kvtest.Call) error { scans.Add(1); return kvtest.ErrInjected })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		s := w.sweeper()
		go func() { done <- s.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		if passes := scans.Load() / Shards; passes < 8 || passes > 30 {
			t.Errorf("%d passes in ten minutes of failure", passes)
		}
		w.faults.Reset()
		time.Sleep(2 * retryMost)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.wantStored("")
	})
}
