package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// once returns a function that does f the first time it is called.
func once(f func()) func() {
	var o sync.Once
	return func() { o.Do(f) }
}

func TestUpdateRunsAgainAfterAConflict(t *testing.T) {
	b := newBed(t)
	b.mustCommit(t, put("plain", "n", "1"))
	disturb := once(func() { b.mustCommit(t, put("plain", "n", "10")) })
	runs := 0
	v, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		runs++
		row, err := tx.Get("plain", []byte("n"))
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(row.Value))
		tx.Put(put("plain", "n", strconv.Itoa(n+1)))
		disturb()
		return err
	})
	if err != nil || runs != 2 {
		t.Fatalf("%d runs, error %v", runs, err)
	}
	if row := b.mustGet(t, "plain", "n"); string(row.Value) != "11" || row.Version != v {
		t.Errorf("row = %s, version %d, want 11, %d", row.Value, row.Version, v)
	}
}

func TestUpdateCountsUnderContention(t *testing.T) {
	b := newBed(t)
	const workers, each = 8, 50
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				if _, err := b.Update(t.Context(), func(tx *kv.Tx) error {
					row, err := tx.Get("plain", []byte("n"))
					tx.Put(put("plain", "n", string(row.Value)+"x"))
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(b.mustGet(t, "plain", "n").Value); n != workers*each {
		t.Errorf("%d of %d increments are there", n, workers*each)
	}
}

func TestUpdateProtectsReadsOfAbsentRows(t *testing.T) {
	b := newBed(t)
	disturb := once(func() { b.mustCommit(t, put("plain", "absent", "now there")) })
	var seen []bool
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		row, err := tx.Get("plain", []byte("absent"))
		seen = append(seen, row.Exists())
		tx.Put(put("plain", "other", "x"))
		disturb()
		return err
	})
	if diff := cmp.Diff([]bool{false, true}, seen); err != nil || diff != "" {
		t.Errorf("error %v, seen (-want +got):\n%s", err, diff)
	}
}

// A row that comes and has expired by the time of the commit is as unseen as any
// other: its link would be lost without a record of the change.
func TestUpdateProtectsReadsOfAbsentRowsFromExpiredOnes(t *testing.T) {
	b := newBed(t)
	expired := changed(put("links", "k", "x"), func(w *kv.Write) { w.Link, w.ExpiresAt = "gs://b/o", b.clock.Now() })
	disturb := once(func() { b.mustCommit(t, expired) })
	var replaced string
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		tx.Put(put("links", "k", "new"))
		changes, err := tx.Changes(func(string) bool { return true })
		if err != nil {
			return err
		}
		for old := range changes {
			replaced = old.Link
		}
		disturb()
		return nil
	})
	if err != nil || replaced != "gs://b/o" {
		t.Errorf("replaced a row with link %q, error %v; want %q", replaced, err, expired.Link)
	}
}

func TestUpdateSeesItsOwnWrites(t *testing.T) {
	b := newBed(t)
	old := b.mustCommit(t, put("plain", "k", "old"), put("plain", "gone", "old"))
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		want := func(key, value string, version kv.Version) {
			t.Helper()
			row, err := tx.Get("plain", []byte(key))
			if err != nil || string(row.Key) != key || string(row.Value) != value || row.Version != version {
				t.Errorf("%s = %+v, %v; want %q, version %d", key, row, err, value, version)
			}
		}
		want("k", "old", old)
		tx.Put(put("plain", "k", "new"))
		want("k", "new", old)
		tx.Put(put("plain", "k", "newer"))
		want("k", "newer", old)
		tx.Delete("plain", []byte("gone"))
		want("gone", "", 0)
		tx.Put(put("plain", "gone", "back"))
		want("gone", "back", old)
		tx.Put(put("plain", "fresh", "x"))
		want("fresh", "x", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"k": "newer", "gone": "back", "fresh": "x"} {
		if got := string(b.mustGet(t, "plain", key).Value); got != value {
			t.Errorf("%s = %q after the commit, want %q", key, got, value)
		}
	}
}

func TestUpdateReadsEachRowOnce(t *testing.T) {
	b := newBed(t)
	v := b.mustCommit(t, put("plain", "a", "1"), put("plain", "b", "1"))
	gets := 0
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpGet {
			gets++
		}
		return nil
	})
	disturb := once(func() { b.mustCommit(t, put("plain", "a", "2")) })
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		refs := []kv.Ref{{Space: "plain", Key: []byte("a")}, {Space: "plain", Key: []byte("b")}, {Space: "plain", Key: []byte("a")}}
		first, err := tx.GetAll(refs...)
		if err != nil {
			return err
		}
		disturb()
		again, err := tx.GetAll(refs...)
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("second read in one transaction (-first +second):\n%s", diff)
		}
		if first[1].Version != v {
			t.Errorf("version of b = %d, want %d", first[1].Version, v)
		}
		return err
	})
	if err != nil || gets != 2 {
		t.Errorf("%d gets in two runs, error %v", gets, err)
	}
}

func TestErrorOfTheFunctionEndsUpdate(t *testing.T) {
	boom := errors.New("boom")
	// A conflict of some other commit is an error like any other.
	for _, want := range []error{boom, fmt.Errorf("inner: %w", &kv.ConflictError{}), kv.ErrUnknownOutcome} {
		b := newBed(t)
		runs := 0
		fn := func(tx *kv.Tx) error {
			if runs++; runs > 2 {
				return errors.New("ran again")
			}
			tx.Put(put("plain", "k", "x"))
			tx.AfterCommit(func(kv.Version, error) { t.Error("AfterCommit ran") })
			return want
		}
		if v, err := b.Update(t.Context(), fn); err != want || v != 0 || runs != 1 {
			t.Errorf("Update = %d, %v after %d runs, want %v", v, err, runs, want)
		}
		ok := func(tx *kv.Tx) error { tx.Put(put("plain", "k", "x")); return nil }
		if _, err := b.WithHooks(fn).Update(t.Context(), ok); err != want || runs != 2 {
			t.Errorf("error of the hook = %v after %d runs, want %v", err, runs, want)
		}
		if b.mustGet(t, "plain", "k").Exists() {
			t.Error("a row was written")
		}
	}
}

func TestUpdateGivesUpWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		runs := 0
		_, err := b.Update(ctx, func(tx *kv.Tx) error {
			runs++
			row, err := tx.Get("plain", []byte("k"))
			b.mustCommit(t, put("plain", "k", "x"))
			tx.Put(put("plain", "k", string(row.Value)))
			return err
		})
		if !errors.Is(err, context.DeadlineExceeded) || !kv.IsConflict(err) {
			t.Errorf("error = %v, want a conflict and %v", err, context.DeadlineExceeded)
		}
		// Waits grow to about 50 ms, so a second holds some twenty to fifty runs.
		if runs < 10 || runs > 100 {
			t.Errorf("%d runs in a second", runs)
		}
	})
}

func TestUnknownOutcomeIsNotRunAgain(t *testing.T) {
	b := newBed(t)
	b.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if c.Op == kvtest.OpCommit {
			return kv.ErrUnknownOutcome
		}
		return err
	})
	runs, told := 0, []error{}
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		runs++
		tx.Put(put("plain", "k", "x"))
		tx.AfterCommit(func(_ kv.Version, err error) { told = append(told, err) })
		return nil
	})
	if !errors.Is(err, kv.ErrUnknownOutcome) || runs != 1 || len(told) != 1 || !errors.Is(told[0], kv.ErrUnknownOutcome) {
		t.Errorf("error %v after %d runs, AfterCommit got %v", err, runs, told)
	}
}

func TestAfterCommitRunsOnceForTheAttemptThatHappened(t *testing.T) {
	b := newBed(t)
	disturb := once(func() { b.mustCommit(t, put("plain", "k", "x")) })
	var order []string
	v, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		_, err := tx.Get("plain", []byte("k"))
		tx.Put(put("plain", "k", "y"))
		for _, name := range []string{"first", "second"} {
			tx.AfterCommit(func(v kv.Version, err error) { order = append(order, fmt.Sprint(name, v, err)) })
		}
		disturb()
		return err
	})
	if diff := cmp.Diff([]string{fmt.Sprint("first", v, nil), fmt.Sprint("second", v, nil)}, order); err != nil || diff != "" {
		t.Errorf("error %v, calls (-want +got):\n%s", err, diff)
	}
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit {
			return kvtest.ErrInjected
		}
		return nil
	})
	if _, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		tx.Put(put("plain", "k", "z"))
		tx.AfterCommit(func(kv.Version, error) { t.Error("AfterCommit ran for a commit that did not happen") })
		return nil
	}); !errors.Is(err, kvtest.ErrInjected) {
		t.Errorf("error = %v", err)
	}
}

func TestReadOnlyUpdateProvesWhatItRead(t *testing.T) {
	for reads := range 3 {
		b := newBed(t)
		commits, after := 0, 0
		b.faults.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit {
				commits++
			}
			return nil
		})
		v, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			tx.AfterCommit(func(v kv.Version, err error) {
				if after++; v != 0 || err != nil {
					t.Errorf("AfterCommit got %d, %v", v, err)
				}
			})
			for i := range reads {
				if _, err := tx.Get("plain", []byte{byte(i)}); err != nil {
					return err
				}
			}
			return nil
		})
		if v != 0 || err != nil || after != 1 {
			t.Errorf("Update = %d, %v, AfterCommit ran %d times", v, err, after)
		}
		if want := reads / 2; commits != want { // one row alone needs no proof
			t.Errorf("%d commits for %d reads, want %d", commits, reads, want)
		}
	}
}

func TestHooksRunInOrderInEachAttempt(t *testing.T) {
	b := newBed(t)
	disturb := once(func() { b.mustCommit(t, put("plain", "k", "x")) })
	var order []string
	hook := func(name string) kv.Hook {
		return func(tx *kv.Tx) error {
			order = append(order, name)
			// What a hook reads is checked like the rest.
			_, err := tx.Get("plain", []byte("k"))
			tx.Put(put("plain", name, tx.Tag()))
			if name == "b" {
				disturb()
			}
			return err
		}
	}
	nop := func(*kv.Tx) error { return nil }
	first := b.WithHooks(nop, nop, nop, nop, hook("a"))
	both := first.WithHooks(hook("b"))
	first.WithHooks(hook("c")) // must not get into both
	if _, err := both.Update(t.Context(), func(tx *kv.Tx) error { tx.SetTag("tag"); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "a", "b"}, order); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	for _, name := range []string{"a", "b"} {
		if got := string(b.mustGet(t, "plain", name).Value); got != "tag" {
			t.Errorf("row of hook %s = %q", name, got)
		}
	}
}

func TestCommitWithHooksRefusesWhatTheyWouldMiss(t *testing.T) {
	b := newBed(t)
	db := b.WithHooks(func(*kv.Tx) error { return nil })
	for _, w := range []kv.Write{
		changed(put("links", "k", ""), func(w *kv.Write) { w.Link = "gs://b/o" }),
		changed(put("links", "k", ""), func(w *kv.Write) { w.ExpiresAt = b.clock.Now() }),
	} {
		if _, err := db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{w}}); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("error = %v, want %v", err, kv.ErrInvalid)
		}
		if _, err := db.Update(t.Context(), func(tx *kv.Tx) error { tx.Put(w); return nil }); err != nil {
			t.Errorf("Update: %v", err)
		}
	}
	if _, err := db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("links", "k", "x")}}); err != nil {
		t.Error(err)
	}
}

func TestExpiredRowsAreTakenOverAsTheyWereSeen(t *testing.T) {
	b := newBed(t)
	old := b.mustCommit(t, changed(put("links", "k", "old"), func(w *kv.Write) {
		w.Link, w.ExpiresAt = "gs://b/old", b.clock.Now().Add(time.Hour)
	}))
	b.clock.Advance(time.Hour)
	var checks []kv.Check
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit {
			checks = c.Txn.Checks
		}
		return nil
	})
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		row, err := tx.Get("links", []byte("k"))
		if err != nil || row.Exists() {
			t.Errorf("expired row reads as %+v, %v", row, err)
		}
		stored, err := tx.GetAll(kv.Ref{Space: "links", Key: []byte("k"), IncludeExpired: true})
		if err != nil || stored[0].Version != old || !stored[0].Expired {
			t.Errorf("stored row reads as %+v, %v", stored, err)
		}
		tx.Put(put("links", "k", "new"))
		changes, err := tx.Changes(func(space string) bool { return space == "links" })
		if err != nil {
			return err
		}
		for was, w := range changes {
			if was.Link != "gs://b/old" || string(w.Value) != "new" {
				t.Errorf("change = %+v to %+v", was, w)
			}
		}
		return nil
	})
	want := []kv.Check{{Space: "links", Key: []byte("k"), Version: old, IncludeExpired: true}}
	if diff := cmp.Diff(want, checks); err != nil || diff != "" {
		t.Errorf("error %v, checks (-want +got):\n%s", err, diff)
	}
	if row := b.mustGet(t, "links", "k"); string(row.Value) != "new" || row.Version <= old {
		t.Errorf("row = %+v", row)
	}
}

func TestRowThatExpiresDuringUpdateRunsItAgain(t *testing.T) {
	b := newBed(t)
	b.mustCommit(t, changed(put("plain", "k", "x"), func(w *kv.Write) { w.ExpiresAt = b.clock.Now().Add(time.Hour) }))
	var seen []bool
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		row, err := tx.Get("plain", []byte("k"))
		seen = append(seen, row.Exists())
		tx.Put(put("plain", "other", "x"))
		if len(seen) == 1 {
			b.clock.Advance(time.Hour)
		}
		return err
	})
	if diff := cmp.Diff([]bool{true, false}, seen); err != nil || diff != "" {
		t.Errorf("error %v, seen (-want +got):\n%s", err, diff)
	}
}

func TestChangesReadsWhatWasNotRead(t *testing.T) {
	b := newBed(t)
	b.mustCommit(t, put("links", "a", "old a"), put("links", "b", "old b"), put("plain", "c", "old c"))
	disturb := once(func() { b.mustCommit(t, put("links", "b", "newer b")) })
	var got []string
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		got = nil
		tx.Put(put("links", "a", "new a"))
		tx.Delete("links", []byte("b"))
		tx.Put(put("links", "d", "new d"))
		tx.Put(put("plain", "c", "new c"))
		changes, err := tx.Changes(func(space string) bool { return space == "links" })
		if err != nil {
			return err
		}
		for old, w := range changes {
			got = append(got, fmt.Sprintf("%s: %s -> %s", w.Key, old.Value, w.Value))
			tx.Put(put("links", "of hook", "not yielded"))
		}
		disturb()
		return nil
	})
	want := []string{"a: old a -> new a", "b: newer b -> ", "d:  -> new d"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, changes (-want +got):\n%s", err, diff)
	}
}

// Transactions of more than a few rows find them another way.
func TestUpdateOfManyRows(t *testing.T) {
	b := newBed(t)
	for _, n := range []int{15, 16, 17, 18, 36} {
		_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			for round := range 2 {
				for i := range n {
					key := []byte{'k', byte(i)}
					space := []string{"plain", "links"}[i%2]
					row, err := tx.Get(space, key)
					if err != nil {
						return err
					}
					if round == 1 && string(row.Value) != strconv.Itoa(n*i) {
						t.Errorf("row %d of %d = %q within the transaction", i, n, row.Value)
					}
					tx.Put(kv.Write{Space: space, Key: key, Value: []byte(strconv.Itoa(n * i))})
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if got := string(b.mustGet(t, []string{"plain", "links"}[i%2], string([]byte{'k', byte(i)})).Value); got != strconv.Itoa(n*i) {
				t.Errorf("row %d of %d = %q", i, n, got)
			}
		}
	}
}

// A transfer fails at each call in turn; the sum never changes, and the answer is
// true.
func TestUpdateIsAllOrNothingWhateverFails(t *testing.T) {
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		b := newBed(t)
		b.mustCommit(t, put("plain", "from", "10"), put("links", "to", "0"))
		p.Arm(b.faults)
		_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			if _, err := tx.Get("plain", []byte("from")); err != nil {
				return err
			}
			if _, err := tx.Get("links", []byte("to")); err != nil {
				return err
			}
			tx.Put(put("plain", "from", "3"))
			tx.Put(put("links", "to", "7"))
			return nil
		})
		b.faults.Reset()
		state := string(b.mustGet(t, "plain", "from").Value) + " " + string(b.mustGet(t, "links", "to").Value)
		done := state == "3 7"
		switch {
		case !done && state != "10 0":
			t.Errorf("state = %s", state)
		case err == nil && !done:
			t.Error("no error, but nothing happened")
		case p.Fired() && err == nil:
			t.Error("the failure was not reported")
		case done && errors.Is(err, kvtest.ErrInjected):
			t.Errorf("error %v, but it happened", err)
		}
	})
}
