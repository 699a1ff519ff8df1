package kvtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

func scanCases() []suiteCase {
	return []suiteCase{
		{"ScanOfEmptySpaceFindsNothing", func(f *fixture) { f.space("a"); f.wantKeys("a", kv.Range{}) }},
		{"ScanKeepsBoundsOrderAndLimit", caseScanRanges},
		{"ScanCrossesPageBorders", caseScanPages},
		{"ScanGoesOnWithTheVeryNextKey", caseScanNextKey},
		{"ScanStopsWhenToldTo", caseScanStop},
		{"ScanShowsWholeRows", caseScanFields},
		{"ScanOfLargeRowsShowsAll", caseScanLarge},
	}
}

func caseScanRanges(f *fixture) {
	f.space("a")
	all := []string{"b", "d", "f", "h", "j"}
	for _, k := range all {
		f.write(put("a", k, "x"))
	}
	bounds := [][]byte{nil, {}}
	for _, b := range []string{"a", "b", "c", "d", "d\x00", "f", "j", "j\x00", "k", "\xff"} {
		bounds = append(bounds, []byte(b))
	}
	for _, start := range bounds {
		for _, end := range bounds {
			var in []string
			for _, k := range all {
				if k >= string(start) && (end == nil || k < string(end)) {
					in = append(in, k)
				}
			}
			backwards := slices.Clone(in)
			slices.Reverse(backwards)
			for limit := range len(in) + 2 {
				most := len(in)
				if limit > 0 {
					most = min(limit, most)
				}
				f.wantKeys("a", kv.Range{Start: start, End: end, Limit: limit}, in[:most]...)
				f.wantKeys("a", kv.Range{Start: start, End: end, Limit: limit, Reverse: true}, backwards[:most]...)
			}
		}
	}
}

func numbered(i int) string { return fmt.Sprintf("%05d", i) }

// fill writes rows "00000" to n-1, each with its number as the value.
func (f *fixture) fill(space string, n int) []string {
	f.Helper()
	var keys []string
	step := min(500, f.harness.Limits.CommitRows)
	for i := 0; i < n; i += step {
		var writes []kv.Write
		for j := i; j < min(i+step, n); j++ {
			keys = append(keys, numbered(j))
			writes = append(writes, put(space, numbered(j), strconv.Itoa(j)))
		}
		f.write(writes...)
	}
	return keys
}

func caseScanPages(f *fixture) {
	f.space("a")
	all := f.fill("a", 2100)
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	f.wantKeys("a", kv.Range{}, all...)
	f.wantKeys("a", kv.Range{Reverse: true}, backwards...)
	// Up to, at, and behind the ends of likely pages.
	for _, n := range []int{1, 2, 63, 64, 65, 99, 100, 101, 127, 128, 129, 200, 201, 255, 256, 257, 499, 500, 501, 511, 512, 513, 999, 1000, 1001, 1023, 1024, 1025, 2000, 2001} {
		f.wantKeys("a", kv.Range{Limit: n}, all[:n]...)
		f.wantKeys("a", kv.Range{Reverse: true, Limit: n}, backwards[:n]...)
		if n <= 1024 {
			f.wantKeys("a", kv.Range{End: []byte(all[n])}, all[:n]...)
		}
	}
}

// caseScanNextKey has keys with nothing between them. An engine that reads page after
// page must begin the next one right behind the last key, whatever its size.
func caseScanNextKey(f *fixture) {
	f.space("a")
	var all []string
	for i := range 700 {
		all = append(all, numbered(i), numbered(i)+"\x00", numbered(i)+"\x00\x00")
	}
	for part := range slices.Chunk(all, min(500, f.harness.Limits.CommitRows)) {
		var writes []kv.Write
		for _, key := range part {
			writes = append(writes, put("a", key, "x"))
		}
		f.write(writes...)
	}
	f.wantKeys("a", kv.Range{}, all...)
	slices.Reverse(all)
	f.wantKeys("a", kv.Range{Reverse: true}, all...)
}

func caseScanStop(f *fixture) {
	f.space("a")
	f.fill("a", 300)
	for _, reverse := range []bool{false, true} {
		for _, stop := range []int{1, 2, 128, 129, 299} {
			calls := 0
			f.ok(f.db.Scan(f.ctx, "a", kv.Range{Reverse: reverse}, func(kv.Row) bool {
				calls++
				return calls < stop
			}))
			if calls != stop {
				f.Errorf("reverse %v: fn ran %d times after it stopped at %d", reverse, calls, stop)
			}
		}
	}
}

func caseScanFields(f *fixture) {
	f.space("a")
	var want []kv.Row
	for i := range 5 {
		w := put("a", fmt.Sprint(i), fmt.Sprint("value", i))
		w.Link = fmt.Sprint("gs://b/", i)
		v := f.write(w)
		want = append(want, kv.Row{Key: w.Key, Value: w.Value, Link: w.Link, Version: v})
	}
	if diff := cmp.Diff(want, f.scan("a", kv.Range{}), rowOptions()); diff != "" {
		f.Errorf("rows (-want +got):\n%s", diff)
	}
	slices.Reverse(want)
	if diff := cmp.Diff(want, f.scan("a", kv.Range{Reverse: true}), rowOptions()); diff != "" {
		f.Errorf("rows in reverse (-want +got):\n%s", diff)
	}
}

// caseScanLarge: a page may end because of its bytes, long before it has its rows.
func caseScanLarge(f *fixture) {
	const rows, size = 20, 1 << 20
	f.space("a")
	var all []string
	for i := range rows {
		all = append(all, numbered(i))
		f.write(kv.Write{Space: "a", Key: []byte(all[i]), Value: pattern(size + i)})
	}
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	for _, limit := range []int{0, rows - 1} {
		for _, reverse := range []bool{false, true} {
			want := all
			if reverse {
				want = backwards
			}
			if limit > 0 {
				want = want[:limit]
			}
			var got []string
			f.ok(f.db.Scan(f.ctx, "a", kv.Range{Limit: limit, Reverse: reverse}, func(row kv.Row) bool {
				key := string(row.Key)
				if i, _ := strconv.Atoi(key); len(row.Value) != size+i {
					f.Errorf("value of row %s has %d bytes, want %d", key, len(row.Value), size+i)
				}
				got = append(got, key)
				return true
			}))
			if diff := cmp.Diff(want, got); diff != "" {
				f.Errorf("rows with limit %d, reverse %v (-want +got):\n%s", limit, reverse, diff)
			}
		}
	}
}

func scanWhileCases() []suiteCase {
	return []suiteCase{
		{"ScanMissesNoUnchangedRowWhileOthersChange", caseScanWhile},
		{"ScanCallbackMayUseTheEngine", caseScanCallback},
		{"ScanEndsOnCancelOrShowsAll", caseScanCancel},
		{"ScanOfADroppedSpaceFails", caseScanDropped},
	}
}

// caseScanWhile: even rows stay, odd ones come and go. Each scan must show all even
// rows, in order, nothing twice, and each row as some commit left it.
func caseScanWhile(f *fixture) {
	const n = 600
	f.space("a")
	var writes []kv.Write
	for i := 0; i < n; i += 2 {
		writes = append(writes, scanned(i, 0))
	}
	f.write(writes...)
	round := 0
	f.while(func(int) error {
		for i := range 150 {
			t := &kv.Txn{}
			for j := range 4 {
				odd := (i*37+j*150)%n | 1
				w := scanned(odd, i)
				if i%3 == 2 {
					w = kv.Write{Space: "a", Key: w.Key, Delete: true}
				}
				t.Writes = append(t.Writes, w)
			}
			if _, err := f.db.Commit(f.ctx, t); err != nil {
				return err
			}
		}
		return nil
	}, func() error {
		round++
		return f.scanOnce(n, round%2 == 0)
	})
}

func scanned(i, round int) kv.Write {
	w := put("a", numbered(i), fmt.Sprintf("%s of %d", numbered(i), round))
	w.Link = "gs://b/" + string(w.Value)
	return w
}

func (f *fixture) scanOnce(n int, reverse bool) error {
	even, last := 0, ""
	var wrong error
	err := f.db.Scan(f.ctx, "a", kv.Range{Reverse: reverse}, func(row kv.Row) bool {
		key := string(row.Key)
		i, _ := strconv.Atoi(key)
		if last != "" && (key <= last) != reverse || key == last {
			wrong = fmt.Errorf("key %s after %s, reverse %v", key, last, reverse)
		}
		if row.Link != "gs://b/"+string(row.Value) || len(row.Value) < len(key) || string(row.Value[:len(key)]) != key {
			wrong = fmt.Errorf("row %s is put together from value %s and link %s", key, row.Value, row.Link)
		}
		if i%2 == 0 {
			even++
		}
		last = key
		return wrong == nil
	})
	if err == nil && wrong == nil && even != n/2 {
		wrong = fmt.Errorf("scan showed %d of %d rows that never changed", even, n/2)
	}
	return errors.Join(err, wrong)
}

func caseScanCallback(f *fixture) {
	f.space("a")
	f.space("b")
	all := f.fill("a", 300)
	var seen []string
	var failed error
	f.ok(f.db.Scan(f.ctx, "a", kv.Range{}, func(row kv.Row) bool {
		key := string(row.Key)
		seen = append(seen, key)
		got, err := f.db.GetOne(f.ctx, "a", []byte(key))
		if err == nil && got.Version != row.Version {
			err = fmt.Errorf("row %s: version %d, in scan %d", key, got.Version, row.Version)
		}
		if err == nil && len(seen)%50 == 0 {
			_, err = f.db.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{put("b", key, "x"), del("a", key)}})
		}
		if err == nil && len(seen)%100 == 0 {
			err = f.db.Scan(f.ctx, "b", kv.Range{}, func(kv.Row) bool { return true })
		}
		failed = errors.Join(failed, err)
		return err == nil
	}))
	f.ok(failed)
	if !slices.Equal(seen, all) {
		f.Errorf("scan showed %d rows, want %d", len(seen), len(all))
	}
	if n := len(f.keys("a", kv.Range{})); n != len(all)-6 {
		f.Errorf("%d rows are left, want %d", n, len(all)-6)
	}
}

// caseScanCancel: a scan that was cut short never looks like a complete one.
func caseScanCancel(f *fixture) {
	f.space("a")
	all := f.fill("a", 1500)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	n := 0
	err := f.db.Scan(ctx, "a", kv.Range{}, func(kv.Row) bool {
		n++
		cancel()
		return true
	})
	if err == nil && n != len(all) {
		f.Errorf("scan ended without an error after %d of %d rows", n, len(all))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Errorf("error = %v, want %v", err, context.Canceled)
	}
}

func caseScanDropped(f *fixture) {
	f.space("a")
	f.fill("a", 10)
	f.ok(f.db.DropSpace(f.ctx, "a"))
	rows := 0
	err := f.db.Scan(f.ctx, "a", kv.Range{}, func(kv.Row) bool { rows++; return true })
	f.wantErr(err, kv.ErrSpaceNotFound)
	if rows > 0 {
		f.Errorf("%d rows of a dropped space", rows)
	}
}
