package kvtest

import (
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

func versionCases() []suiteCase {
	return []suiteCase{
		{"VersionsCarryTheTime", caseVersionTime},
		{"VersionsRiseWhateverTheClockDoes", caseVersionClock},
		{"VersionsRiseOverDeletionAndReCreation", caseVersionDelete},
		{"VersionsRiseLongAfterADeletion", caseVersionLongAfter},
		{"VersionsRiseOverReopenWithEarlierClock", caseVersionReopen},
		{"VersionIsAboveEveryCheckedOne", caseVersionChecked},
		{"VersionsAreNotReusedInReCreatedSpaces", caseVersionSpace},
		{"TwoProcessesWhoseClocksDisagree", caseTwoProcesses},
	}
}

func caseVersionTime(f *fixture) {
	if f.harness.OwnTime {
		return
	}
	f.space("a")
	for _, d := range []time.Duration{0, time.Hour, 30 * 24 * time.Hour} {
		now := f.clock.Advance(d)
		for what, v := range map[string]kv.Version{
			"a write":   f.write(put("a", "k", "x")),
			"a check":   f.commit([]kv.Check{check("a", "no", 0)}),
			"no change": f.commit(nil),
		} {
			if got := v.Time(); got.Before(now.Truncate(time.Millisecond)) || got.After(now.Add(time.Second)) {
				f.Errorf("version of %v of a commit of %s was made at %v", got, what, now)
			}
		}
	}
}

// rises wants that each further call of the function it returns brings a larger
// version.
func (f *fixture) rises() func(kv.Version) {
	var last kv.Version
	return func(v kv.Version) {
		f.Helper()
		if v <= last {
			f.Fatalf("version %d after %d", v, last)
		}
		last = v
	}
}

func caseVersionClock(f *fixture) {
	f.space("a")
	rising := f.rises()
	for _, d := range []time.Duration{0, 0, time.Microsecond, time.Millisecond, time.Hour, -2 * time.Hour, 0, -24 * time.Hour, time.Minute, -10 * 365 * 24 * time.Hour, 0} {
		f.clock.Advance(d)
		v := f.write(put("a", "k", "x"))
		rising(v)
		if got := f.get("a", "k").Version; got != v {
			f.Fatalf("row has version %d, commit returned %d", got, v)
		}
		rising(f.commit([]kv.Check{check("a", "k", v)}, put("a", "k", "y")))
	}
}

func caseVersionDelete(f *fixture) {
	f.space("a")
	rising := f.rises()
	for range 3 {
		rising(f.write(put("a", "k", "x")))
		f.clock.Advance(-time.Hour)
		rising(f.write(del("a", "k")))
		f.clock.Advance(-time.Hour)
		rising(f.commit([]kv.Check{check("a", "k", 0)}, put("a", "k", "x")))
		rising(f.write(del("a", "k")))
	}
}

// caseVersionLongAfter gives an engine time and reasons to forget what it knows of
// deleted rows.
func caseVersionLongAfter(f *fixture) {
	f.space("a")
	rising := f.rises()
	for range 3 {
		rising(f.write(put("a", "k", "x")))
		rising(f.write(del("a", "k")))
		for i := range 20 {
			f.clock.Advance(7 * time.Hour)
			f.write(put("a", numbered(i), "x"))
			f.write(del("a", numbered(i)))
			f.wantAbsent("a", "k")
		}
		f.clock.Advance(-20*7*time.Hour - time.Minute)
		rising(f.write(put("a", "k", "y")))
		rising(f.write(del("a", "k")))
	}
}

func caseVersionReopen(f *fixture) {
	f.space("a")
	kept, gone := f.rises(), f.rises()
	kept(f.write(put("a", "kept", "x")))
	gone(f.write(put("a", "gone", "x")))
	gone(f.write(del("a", "gone")))
	for range 3 {
		f.clock.Advance(-24 * time.Hour)
		f.reopen(f.clock)
		kept(f.write(put("a", "kept", "x")))
		gone(f.write(put("a", "gone", "x")))
		gone(f.write(del("a", "gone")))
	}
}

func caseVersionChecked(f *fixture) {
	f.space("a")
	f.clock.Advance(1000 * time.Hour)
	high := f.write(put("a", "high", "x"))
	f.clock.Advance(-2000 * time.Hour)
	if v := f.commit([]kv.Check{check("a", "high", high)}, put("a", "low", "x")); v <= high {
		f.Errorf("version %d of a commit that checked %d", v, high)
	}
	if v := f.commit([]kv.Check{check("a", "high", high)}); v <= high {
		f.Errorf("version %d of a commit that only checked %d", v, high)
	}
}

func caseVersionSpace(f *fixture) {
	rising := f.rises()
	for i := range 4 {
		f.space("a")
		rising(f.write(put("a", "k", "x")))
		if i%2 == 1 {
			rising(f.write(del("a", "k"))) // then no row has the highest version
		}
		f.ok(f.db.DropSpace(f.ctx, "a"))
		f.clock.Advance(-time.Minute)
	}
}

// caseTwoProcesses needs engines that may be open twice on the same data.
func caseTwoProcesses(f *fixture) {
	if !f.harness.Shared {
		return
	}
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: 1000 * time.Hour})
	ahead := f.db
	late := clock.NewManual(f.clock.Now().Add(-5 * time.Minute))
	f.open(late)
	behind := f.db
	rising := f.rises()
	for range 5 {
		for _, db := range []*kv.DB{ahead, behind} {
			row, err := db.GetOne(f.ctx, "a", []byte("k"))
			f.ok(err)
			w := put("a", "k", "x")
			w.Feed = []byte("e")
			v, err := db.Commit(f.ctx, &kv.Txn{Checks: []kv.Check{check("a", "k", row.Version)}, Writes: []kv.Write{w}})
			f.ok(err)
			rising(v)
		}
	}
	for _, db := range []*kv.DB{ahead, behind} {
		entries, err := db.ReadFeed(f.ctx, "a", 0, "", 100)
		f.ok(err)
		feed := f.rises()
		for _, e := range entries {
			feed(e.Version)
		}
		if len(entries) != 10 {
			f.Errorf("%d entries, want 10", len(entries))
		}
	}
	// What one has acknowledged the other sees, inserts exclude each other, and
	// deleted rows keep their versions rising.
	v, err := ahead.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{del("a", "k")}})
	f.ok(err)
	rising(v)
	f.wantAbsent("a", "k")
	v, err = behind.Commit(f.ctx, &kv.Txn{Checks: []kv.Check{check("a", "k", 0)}, Writes: []kv.Write{put("a", "k", "y")}})
	f.ok(err)
	rising(v)
	if _, err = ahead.Commit(f.ctx, &kv.Txn{Checks: []kv.Check{check("a", "k", 0)}}); !kv.IsConflict(err) {
		f.Errorf("error = %v, want a conflict", err)
	}
}
