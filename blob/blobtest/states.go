package blobtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

func testAbsentObjectIsNotFound(f *fixture) {
	f.put("a/b/c", "x")
	for _, name := range []string{"a", "a/", "a/b", "a/b/", "a/b/c/", "a/b/c/d", "A/B/C", "b", "a/b/c.u"} {
		f.wantGone(f.store, name)
		if found, err := f.store.Finalize(f.ctx, name); found || err != nil {
			f.Errorf("Finalize(%q) = %v, %v; want false, nil", name, found, err)
		}
		if found, err := f.store.Delete(f.ctx, name); found || err != nil {
			f.Errorf("Delete(%q) = %v, %v; want false, nil", name, found, err)
		}
		if removed, err := f.store.Discard(f.ctx, name); removed || err != nil {
			f.Errorf("Discard(%q) = %v, %v; want false, nil", name, removed, err)
		}
		if err := f.store.Copy(f.ctx, name, "copy"); !errors.Is(err, blob.ErrNotFound) {
			f.Errorf("Copy(%q) = %v, want ErrNotFound", name, err)
		}
		if _, _, err := f.store.GetRange(f.ctx, name, 0, 0); !errors.Is(err, blob.ErrNotFound) {
			f.Errorf("GetRange(%q) = %v, want ErrNotFound", name, err)
		}
		f.wantGone(f.store, name) // none of these created anything
	}
	f.wantGone(f.store, "copy")
}

func testFinalizeChangesOnlyTrust(f *fixture) {
	content := randomContent(70_000)
	f.put("a/b", content)
	before, err := f.store.Stat(f.ctx, "a/b")
	if err != nil {
		f.Fatal(err)
	}
	for range 3 {
		f.clock.Advance(time.Hour)
		f.finalize("a/b")
		f.wantObject(f.store, "a/b", content, true, blob.FinalizedTime)
	}
	after, err := f.store.Stat(f.ctx, "a/b")
	if err != nil {
		f.Fatal(err)
	}
	before.Committed, before.CustomTime = true, blob.FinalizedTime
	if before != after {
		f.Errorf("Finalize changed %+v to %+v", before, after)
	}
	f.wantObject(f.over(f.open()), "a/b", content, true, blob.FinalizedTime)
}

func testDiscardSparesFinalized(f *fixture) {
	f.put("kept", "x")
	f.put("dropped", "x")
	f.finalize("kept")
	if removed, err := f.store.Discard(f.ctx, "kept"); removed || err != nil {
		f.Errorf("Discard of a finalized object = %v, %v; want false, nil", removed, err)
	}
	f.wantObject(f.store, "kept", "x", true, blob.FinalizedTime)
	for _, want := range []bool{true, false} {
		if removed, err := f.store.Discard(f.ctx, "dropped"); removed != want || err != nil {
			f.Errorf("Discard = %v, %v; want %v, nil", removed, err, want)
		}
		f.wantGone(f.store, "dropped")
	}
}

func testDeleteTakesAnyState(f *fixture) {
	f.put("d/unfinalized", "x")
	f.put("d/finalized", "x")
	f.finalize("d/finalized")
	for _, name := range []string{"d/unfinalized", "d/finalized"} {
		f.delete(name)
		f.wantGone(f.store, name)
		f.wantGone(f.over(f.open()), name)
		if found, err := f.store.Delete(f.ctx, name); found || err != nil {
			f.Errorf("second Delete(%q) = %v, %v; want false, nil", name, found, err)
		}
		if found, err := f.store.Finalize(f.ctx, name); found || err != nil {
			f.Errorf("Finalize(%q) after Delete = %v, %v; want false, nil", name, found, err)
		}
		f.wantGone(f.store, name)
	}
}

func testDeleteKeepsToItsCondition(f *fixture) {
	f.put("x", "x")
	born := f.created()
	wrong := blob.Condition{CustomTime: born.Add(time.Millisecond)}
	right := blob.Condition{CustomTime: born, Unfinalized: true}
	if removed, err := f.driver.Delete(f.ctx, "x", wrong); removed || err != nil {
		f.Errorf("Delete with another custom time = %v, %v; want false, nil", removed, err)
	}
	f.wantObject(f.store, "x", "x", false, born)
	if removed, err := f.driver.Delete(f.ctx, "x", right); !removed || err != nil {
		f.Errorf("Delete with the right condition = %v, %v; want true, nil", removed, err)
	}
	f.put("x", "x")
	f.finalize("x")
	for _, cond := range []blob.Condition{right, {CustomTime: born}, {Unfinalized: true}, {Unfinalized: true, CustomTime: blob.FinalizedTime}} {
		if removed, err := f.driver.Delete(f.ctx, "x", cond); removed || err != nil {
			f.Errorf("Delete of a finalized object with %+v = %v, %v; want false, nil", cond, removed, err)
		}
	}
	if removed, err := f.driver.Delete(f.ctx, "x", blob.Condition{CustomTime: blob.FinalizedTime}); !removed || err != nil {
		f.Errorf("Delete with the finalized custom time = %v, %v; want true, nil", removed, err)
	}
}

func testDeletedNameStartsAnew(f *fixture) {
	f.put("d/e/again", "first")
	f.finalize("d/e/again")
	f.delete("d/e/again")
	f.clock.Advance(time.Hour)
	f.put("d/e/again", "second one")
	f.wantObject(f.store, "d/e/again", "second one", false, f.created())
}

func testFinalizeOrDiscardNeverBoth(f *fixture) {
	stores := []*blob.Store{f.store, f.over(f.open())}
	for round := range 30 {
		name := fmt.Sprintf("race/%d", round)
		f.put(name, "x")
		var finalized, discarded bool
		errs := together(2, func(i int) (err error) {
			// Alternate who starts first and in which process.
			if i == round%2 {
				finalized, err = stores[0].Finalize(f.ctx, name)
			} else {
				discarded, err = stores[round/2%2].Discard(f.ctx, name)
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			f.Fatal(err)
		}
		if finalized == discarded {
			f.Fatalf("round %d: finalized is %v and discarded is %v", round, finalized, discarded)
		}
		if finalized {
			f.wantObject(f.store, name, "x", true, blob.FinalizedTime)
		} else {
			f.wantGone(f.store, name)
		}
	}
}

func testDeleteBeatsFinalizeForGood(f *fixture) {
	other := f.over(f.open())
	for round := range 30 {
		name := fmt.Sprintf("race/%d/x", round)
		f.put(name, "x")
		errs := together(3, func(i int) error {
			if i == round%3 {
				found, err := other.Delete(f.ctx, name)
				if !found {
					err = errors.Join(err, errors.New("Delete did not find it"))
				}
				return err
			}
			_, err := f.store.Finalize(f.ctx, name)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			f.Fatal(err)
		}
		f.wantGone(f.store, name)
	}
}

func testOneOfManyDeletesFinds(f *fixture) {
	for round := range 10 {
		name := fmt.Sprintf("race/%d", round)
		f.put(name, "x")
		if round%2 == 1 {
			f.finalize(name)
		}
		found := make([]bool, 6)
		errs := together(len(found), func(i int) (err error) {
			found[i], err = f.store.Delete(f.ctx, name)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			f.Fatal(err)
		}
		n := 0
		for _, ok := range found {
			if ok {
				n++
			}
		}
		if n != 1 {
			f.Fatalf("round %d: %d Deletes say that they found the object", round, n)
		}
	}
}

func testReadDuringFinalizeNeverMisses(f *fixture) {
	for round := range 30 {
		name := fmt.Sprintf("race/%d", round)
		f.put(name, "content")
		errs := together(4, func(i int) error {
			if i == 0 {
				_, err := f.store.Finalize(f.ctx, name)
				return err
			}
			r, a, err := f.store.Get(f.ctx, name)
			if err != nil {
				return err
			}
			if a.Committed != a.CustomTime.Equal(blob.FinalizedTime) {
				err = fmt.Errorf("half-finalized attributes: %+v", a)
			}
			return errors.Join(err, r.Close())
		})
		if err := errors.Join(errs...); err != nil {
			f.Fatal(err)
		}
	}
}

func testCopyIsIndependent(f *fixture) {
	content := randomContent(300_000)
	f.put("src", content)
	f.finalize("src")
	f.clock.Advance(time.Hour)
	if err := f.store.Copy(f.ctx, "src", "trash/src"); err != nil {
		f.Fatalf("Copy = %v", err)
	}
	f.wantObject(f.store, "trash/src", content, false, f.created())
	f.wantObject(f.store, "src", content, true, blob.FinalizedTime)

	f.put("other", "taken")
	for _, dst := range []string{"trash/src", "other", "src"} {
		if err := f.store.Copy(f.ctx, "src", dst); !errors.Is(err, blob.ErrExists) {
			f.Errorf("Copy to taken %q = %v, want ErrExists", dst, err)
		}
	}
	f.wantObject(f.store, "other", "taken", false, f.created())

	born := f.created()
	f.delete("src")
	f.wantObject(f.store, "trash/src", content, false, born)
	f.clock.Advance(time.Hour)
	if err := f.store.Copy(f.ctx, "trash/src", "src"); err != nil {
		f.Fatalf("Copy back = %v", err)
	}
	f.finalize("src")
	f.wantObject(f.store, "trash/src", content, false, born)
	f.wantObject(f.store, "src", content, true, blob.FinalizedTime)
}

func testLifecycleRemovesAfter30Days(f *fixture) {
	f.put("early", "x")
	f.put("saved", "x")
	f.finalize("saved")
	f.clock.Advance(2 * time.Second)
	f.put("late", "x")
	if err := f.store.Copy(f.ctx, "saved", "copied"); err != nil {
		f.Fatal(err)
	}
	born := f.created()

	worker := blob.NewLifecycle(f.store, blob.LifecycleOptions{})
	pass := func(now time.Time, want ...string) {
		f.Helper()
		f.clock.Set(now)
		for {
			more, err := worker.Step(f.ctx)
			if err != nil {
				f.Fatalf("Step = %v", err)
			}
			if !more {
				break
			}
		}
		if got := f.listNames("", ""); strings.Join(got, " ") != strings.Join(want, " ") {
			f.Errorf("at %v objects are %v, want %v", now.Sub(born), got, want)
		}
	}
	// early was born two seconds before late and copied.
	pass(born.Add(blob.UnfinalizedLifetime-3*time.Second), "copied", "early", "late", "saved")
	pass(born.Add(blob.UnfinalizedLifetime-time.Second), "copied", "late", "saved")
	pass(born.Add(blob.UnfinalizedLifetime+time.Second), "saved")
	pass(born.Add(100*365*24*time.Hour), "saved")
	f.wantObject(f.store, "saved", "x", true, blob.FinalizedTime)
}

// stepWith runs one lifecycle step over due objects with the hook in place.
func (f *fixture) stepWith(h Hook) {
	f.Helper()
	faults := NewFaults(f.driver)
	faults.SetHook(h)
	worker := blob.NewLifecycle(f.over(faults), blob.LifecycleOptions{})
	if _, err := worker.Step(f.ctx); err != nil {
		f.Fatalf("Step = %v", err)
	}
}

func testLifecycleYieldsToFinalize(f *fixture) {
	for _, op := range []Op{OpStat, OpDiscard} {
		name := "before " + string(op)
		f.put(name, "x")
		f.clock.Advance(blob.UnfinalizedLifetime + time.Second)
		f.stepWith(On(op, Before, func(_ context.Context, c Call) error {
			f.finalize(c.Name)
			return nil
		}))
		f.wantObject(f.store, name, "x", true, blob.FinalizedTime)
	}
}

func testLifecycleSparesNewObjectOfOldName(f *fixture) {
	for _, op := range []Op{OpStat, OpDiscard} {
		name := "before " + string(op)
		f.put(name, "old")
		f.clock.Advance(blob.UnfinalizedLifetime + time.Second)
		f.stepWith(On(op, Before, func(_ context.Context, c Call) error {
			f.delete(c.Name)
			f.put(c.Name, "new")
			return nil
		}))
		f.wantObject(f.store, name, "new", false, f.created())
		f.delete(name)
	}
}

func testReopenedStoreSeesEverything(f *fixture) {
	names := []string{"a", "a/b", "a/b/c/d", "deep/er/and/deeper", strings.Repeat("l", 738) + "/x"}
	for i, name := range names {
		f.put(name, randomContent(i*50_000))
		if i%2 == 1 {
			f.finalize(name)
		}
	}
	f.put("gone", "x")
	f.delete("gone")
	again := f.over(f.open())
	for i, name := range names {
		want := f.created()
		if i%2 == 1 {
			want = blob.FinalizedTime
		}
		f.wantObject(again, name, randomContent(i*50_000), i%2 == 1, want)
	}
	f.wantGone(again, "gone")
}
