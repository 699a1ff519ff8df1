package kvtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

func expiryCases() []suiteCase {
	return []suiteCase{
		{"ExpiredRowIsInvisibleAtTheVeryInstant", caseExpiryInstant},
		{"IncludeExpiredShowsRowsAsStored", caseExpiryIncluded},
		{"ChecksOfExpiredRows", caseExpiryChecks},
		{"ExpiredRowsAreTakenOver", caseExpiryTakeover},
		{"RowWrittenExpiredIsNeverSeen", caseExpiryPast},
		{"ExpiryIsKeptToTheMicrosecond", caseExpiryRange},
		{"ExpiredRowsDoNotCountForLimits", caseExpiryLimit},
	}
}

func (f *fixture) putExpiring(space, key, value string, at time.Time) kv.Version {
	f.Helper()
	w := put(space, key, value)
	w.ExpiresAt, w.Link = at, "gs://b/"+key
	return f.write(w)
}

func caseExpiryInstant(f *fixture) {
	f.space("a")
	at := f.clock.Now().Add(time.Hour).Truncate(time.Microsecond)
	v := f.putExpiring("a", "k", "x", at)
	f.write(put("a", "l", "stays"))
	f.clock.Set(at.Add(-time.Microsecond))
	f.wantValue("a", "k", "x")
	f.wantKeys("a", kv.Range{}, "k", "l")
	f.commit([]kv.Check{check("a", "k", v)})
	f.conflicts([]kv.Check{check("a", "k", 0)}, nil, 0)
	for _, now := range []time.Time{at, at.Add(time.Microsecond), at.Add(1000 * time.Hour)} {
		f.clock.Set(now)
		f.wantAbsent("a", "k")
		f.wantKeys("a", kv.Range{}, "l")
		f.wantKeys("a", kv.Range{Reverse: true}, "l")
		f.conflicts([]kv.Check{check("a", "k", v)}, []kv.Write{put("a", "no", "x")}, 0)
		f.commit([]kv.Check{check("a", "k", 0)})
	}
	f.wantAbsent("a", "no")
	f.reopen(f.clock)
	f.wantAbsent("a", "k")
}

func caseExpiryIncluded(f *fixture) {
	f.space("a")
	at := f.clock.Now().Add(time.Hour)
	v := f.putExpiring("a", "k", "x", at)
	want := kv.Row{Key: []byte("k"), Value: []byte("x"), Link: "gs://b/k", ExpiresAt: at, Version: v}
	for _, expired := range []bool{false, true} {
		if want.Expired = expired; expired {
			f.clock.Set(at)
		}
		if diff := cmp.Diff(want, f.getStored("a", "k"), rowOptions()); diff != "" {
			f.Errorf("row (-want +got):\n%s", diff)
		}
		for _, reverse := range []bool{false, true} {
			if diff := cmp.Diff([]kv.Row{want}, f.scan("a", kv.Range{IncludeExpired: true, Reverse: reverse}), rowOptions()); diff != "" {
				f.Errorf("rows (-want +got):\n%s", diff)
			}
		}
	}
	// One read may ask for both.
	rows, err := f.db.Get(f.ctx, kv.Ref{Space: "a", Key: []byte("k")}, kv.Ref{Space: "a", Key: []byte("k"), IncludeExpired: true})
	f.ok(err)
	if rows[0].Exists() || !rows[1].Exists() {
		f.Errorf("versions = %d and %d, want 0 and %d", rows[0].Version, rows[1].Version, v)
	}
	f.write(del("a", "k"))
	if f.getStored("a", "k").Exists() {
		f.Errorf("expired row is still there after a delete")
	}
}

// caseExpiryChecks goes through all kinds of rows and checks.
func caseExpiryChecks(f *fixture) {
	f.space("a")
	live := f.putExpiring("a", "live", "x", f.clock.Now().Add(2*time.Hour))
	dead := f.putExpiring("a", "dead", "x", f.clock.Now().Add(time.Hour))
	f.clock.Advance(time.Hour)
	for _, c := range []struct {
		key      string
		version  kv.Version
		included bool
		holds    bool
	}{
		{"live", live, false, true},
		{"live", live, true, true},
		{"live", 0, false, false},
		{"live", 0, true, false},
		{"dead", dead, false, false},
		{"dead", dead, true, true},
		{"dead", 0, false, true},
		{"dead", 0, true, false},
		{"dead", dead + 1, true, false},
		{"absent", live, false, false},
		{"absent", live, true, false},
		{"absent", 0, false, true},
		{"absent", 0, true, true},
	} {
		cond := check("a", c.key, c.version)
		cond.IncludeExpired = c.included
		for _, writes := range [][]kv.Write{nil, {put("a", "other", "x")}} {
			_, err := f.db.Commit(f.ctx, &kv.Txn{Checks: []kv.Check{cond}, Writes: writes})
			if c.holds {
				if err != nil {
					f.Errorf("%+v: error = %v", c, err)
				}
			} else {
				f.conflicts([]kv.Check{cond}, writes, 0)
			}
		}
	}
}

func caseExpiryTakeover(f *fixture) {
	f.space("a")
	rising := f.rises()
	rising(f.putExpiring("a", "k", "old", f.clock.Now().Add(time.Hour)))
	for i := range 3 {
		f.clock.Advance(time.Hour)
		old := f.getStored("a", "k")
		if !old.Expired {
			f.Fatalf("row = %+v, want it expired", old)
		}
		cond := check("a", "k", 0)
		if i == 1 {
			cond = kv.Check{Space: "a", Key: []byte("k"), Version: old.Version, IncludeExpired: true}
		}
		w := put("a", "k", "new")
		w.ExpiresAt = f.clock.Now().Add(time.Hour)
		v := f.commit([]kv.Check{cond}, w)
		rising(v)
		f.wantRow("a", "k", kv.Row{Value: w.Value, ExpiresAt: w.ExpiresAt, Version: v})
		f.conflicts([]kv.Check{cond}, nil, 0)
	}
	// Also if the clock has jumped back in the meantime.
	f.clock.Advance(time.Hour)
	f.wantAbsent("a", "k")
	f.clock.Advance(-100 * time.Hour)
	v := f.write(put("a", "k", "forever"))
	rising(v)
	f.clock.Advance(10_000 * time.Hour)
	f.wantRow("a", "k", kv.Row{Value: []byte("forever"), Version: v})
}

func caseExpiryPast(f *fixture) {
	f.space("a")
	for i, at := range []time.Time{time.Unix(0, 0), time.Unix(0, 1000), f.clock.Now().Add(-time.Hour), f.clock.Now()} {
		key := fmt.Sprint(i)
		v := f.putExpiring("a", key, "x", at)
		f.wantAbsent("a", key)
		row := f.getStored("a", key)
		if row.Version != v || !row.Expired || !row.ExpiresAt.Equal(at) || row.Link != "gs://b/"+key {
			f.Errorf("row = %+v, want version %d, expired at %v", row, v, at)
		}
	}
	f.wantKeys("a", kv.Range{})
	f.wantKeys("a", kv.Range{IncludeExpired: true}, "0", "1", "2", "3")
}

func caseExpiryRange(f *fixture) {
	f.space("a")
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	zone := time.FixedZone("east", 3*3600)
	for i, at := range []time.Time{last, last.Add(-time.Microsecond), f.clock.Now().Add(1999 * time.Nanosecond), f.clock.Now().Add(time.Hour + 999*time.Nanosecond).In(zone)} {
		key := fmt.Sprint(i)
		f.putExpiring("a", key, "x", at)
		row := f.get("a", key)
		if !row.Exists() || row.Expired || !row.ExpiresAt.Equal(at.Truncate(time.Microsecond)) {
			f.Errorf("row = %+v, want it to expire at %v, cut to microseconds", row, at)
		}
	}
	f.clock.Advance(time.Microsecond)
	f.wantAbsent("a", "2")
	f.clock.Set(last)
	f.wantKeys("a", kv.Range{})
}

func caseExpiryLimit(f *fixture) {
	f.space("a")
	var writes []kv.Write
	var live []string
	for i := range 400 {
		w := put("a", numbered(i), "x")
		if i%10 == 5 {
			live = append(live, numbered(i))
		} else {
			w.ExpiresAt = f.clock.Now().Add(time.Minute)
		}
		writes = append(writes, w)
	}
	for len(writes) > 0 {
		n := min(len(writes), f.harness.Limits.CommitRows)
		f.write(writes[:n]...)
		writes = writes[n:]
	}
	f.clock.Advance(time.Minute)
	backwards := slices.Clone(live)
	slices.Reverse(backwards)
	for _, limit := range []int{1, 2, 3, 9, 10, 11, 25, len(live) - 1, len(live), len(live) + 1} {
		n := min(limit, len(live))
		f.wantKeys("a", kv.Range{Limit: limit}, live[:n]...)
		f.wantKeys("a", kv.Range{Limit: limit, Reverse: true}, backwards[:n]...)
	}
}
