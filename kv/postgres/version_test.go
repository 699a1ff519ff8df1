package postgres_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
)

// TestSweptTombstonesKeepVersionsRising deletes rows under a clock that jumps, and
// lets the sweep remove what remembers them.
func TestSweptTombstonesKeepVersionsRising(t *testing.T) {
	c := manual()
	e, o := openShared(t, postgres.Options{Clock: c})
	create(t, e, "a", kv.SpaceOptions{})
	watch := connect(t, o.URL)
	tombstones := fmt.Sprintf(`select count(*) from "%s".tombstones`, o.Schema)
	var last kv.Version
	rises := func(v kv.Version) {
		t.Helper()
		if v <= last {
			t.Fatalf("version %d after %d", v, last)
		}
		last = v
	}
	del := kv.Write{Space: "a", Key: []byte("k"), Delete: true}
	for range 3 {
		rises(commit(t, e, put("a", "k", "x")))
		rises(commit(t, e, del))
		if watch.number(tombstones) == 0 {
			t.Fatal("no tombstone of a row just deleted")
		}
		c.Advance(3 * time.Minute)
		eventually(t, "the sweep", func() bool {
			commit(t, e, kv.Write{Space: "a", Key: []byte("other"), Delete: true}) // starts it
			return watch.number(tombstones) == 1
		})
		c.Advance(-150 * time.Second)
	}
	// Where clocks agree the sweep lifts no version: it leaves what is young.
	c.Advance(time.Hour)
	commit(t, e, del)
	eventually(t, "the last sweep", func() bool { return watch.number(tombstones) == 1 })
	if v := commit(t, e, put("a", "new", "x")); v != kv.VersionAt(c.Now()) {
		t.Errorf("version %d is not that of the clock, %d", v, kv.VersionAt(c.Now()))
	}
}

// TestSweepBesideDeletions deletes and makes rows while tombstones disappear.
func TestSweepBesideDeletions(t *testing.T) {
	c := manual()
	e, o := openShared(t, postgres.Options{Clock: c})
	create(t, e, "a", kv.SpaceOptions{})
	watch := connect(t, o.URL)
	stop := make(chan struct{})
	var sweeps sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				// Beyond all versions: the worst moment for each of them.
				watch.exec(fmt.Sprintf(`select "%s".sweep(%d)`, o.Schema, kv.VersionAt(c.Now())+1<<30))
			}
		}
	})
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			var last kv.Version
			key := fmt.Sprint("k", w)
			for i := range 150 {
				write := put("a", key, "x")
				if i%2 == 1 {
					write = kv.Write{Space: "a", Key: []byte(key), Delete: true}
				}
				v, err := e.Commit(context.Background(), &kv.Txn{Writes: []kv.Write{write}})
				if err != nil || v <= last {
					t.Errorf("version %d after %d, %v", v, last, err)
					return
				}
				last = v
			}
		})
	}
	workers.Wait()
	close(stop)
	sweeps.Wait()
}

// TestLargeAndSmallCommitsExcludeEachOther counts in rows that large commits change
// all at once, and small ones a few at a time. They lock by different means.
func TestLargeAndSmallCommitsExcludeEachOther(t *testing.T) {
	e, _ := openShared(t, postgres.Options{})
	const rows = 300
	create(t, e, "a", kv.SpaceOptions{})
	db := kv.New(e, postgres.Limits())
	number := func(r kv.Row) uint64 {
		if !r.Exists() {
			return 0
		}
		return binary.BigEndian.Uint64(r.Value)
	}
	key := func(i int) []byte { return fmt.Appendf(nil, "%d-%d", i%7, i) }
	add := func(indices ...int) error {
		_, err := db.Update(context.Background(), func(tx *kv.Tx) error {
			var refs []kv.Ref
			for _, i := range indices {
				refs = append(refs, kv.Ref{Space: "a", Key: key(i)})
			}
			all, err := tx.GetAll(refs...)
			for i, r := range all {
				tx.Put(kv.Write{Space: "a", Key: refs[i].Key, Value: binary.BigEndian.AppendUint64(nil, number(r)+1)})
			}
			return err
		})
		return err
	}
	var every []int
	for i := range rows {
		every = append(every, i)
	}
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for range 10 {
				if err := add(every...); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for i := range 100 {
				if err := add((w*50+i)%rows, (w*50+i+1)%rows); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	total := uint64(0)
	err := e.Scan(t.Context(), "a", kv.Range{}, func(r kv.Row) bool { total += number(r); return true })
	if want := uint64(2*10*rows + 2*100*2); err != nil || total != want {
		t.Errorf("sum = %d, want %d (%v)", total, want, err)
	}
}
