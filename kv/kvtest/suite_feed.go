package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

const feedShards = 4

func feedOptions() kv.SpaceOptions {
	return kv.SpaceOptions{FeedShards: feedShards, FeedRetention: 24 * time.Hour}
}

func feedCases() []suiteCase {
	return []suiteCase{
		{"FeedEntryExistsIfAndOnlyIfItsWriteDoes", caseFeedAtomic},
		{"FeedKeepsTheOrderOfEachKeyInOneShard", caseFeedOrder},
		{"FeedReadInPiecesIsTheSame", caseFeedLimits},
		{"FeedOfLargeEntriesIsReadToItsEnd", caseFeedLarge},
		{"FeedReaderMissesAndRepeatsNothingWhileManyCommit", caseFeedConcurrent},
		{"FeedForgetsAfterItsRetention", caseFeedRetention},
		{"FeedKnowsWhatItHasRemoved", caseFeedRemoved},
		{"FeedPositionsOutliveReopen", caseFeedReopen},
		{"FeedOrderDoesNotFollowTheClock", caseFeedClock},
		{"FeedOfReCreatedSpaceIsEmpty", caseFeedReCreated},
		{"FeedCallsOutOfRangeAreRefused", caseFeedInvalid},
	}
}

// feedReader reads all shards of a feed, going on where it was.
type feedReader struct {
	db    *kv.DB
	space string
	limit int
	after [feedShards]kv.Position
}

// next returns the next entries of a shard.
func (r *feedReader) next(ctx context.Context, shard int) ([]kv.FeedEntry, error) {
	entries, err := r.db.ReadFeed(ctx, r.space, shard, r.after[shard], r.limit)
	if err != nil {
		return nil, err
	}
	if len(entries) > r.limit {
		return nil, fmt.Errorf("%d entries, limit %d", len(entries), r.limit)
	}
	for _, e := range entries {
		if e.Position == "" || e.Position == r.after[shard] {
			return nil, fmt.Errorf("position %q after %q", e.Position, r.after[shard])
		}
		r.after[shard] = e.Position
	}
	return entries, nil
}

// read returns all entries behind the last ones, shard by shard.
func (r *feedReader) read(ctx context.Context) ([]kv.FeedEntry, error) {
	var all []kv.FeedEntry
	for shard := range feedShards {
		for {
			entries, err := r.next(ctx, shard)
			if err != nil {
				return nil, err
			}
			if len(entries) == 0 {
				break
			}
			all = append(all, entries...)
		}
	}
	return all, nil
}

func (f *fixture) readFeed(r *feedReader) []kv.FeedEntry {
	f.Helper()
	entries, err := r.read(f.ctx)
	f.ok(err)
	return entries
}

// byKey lists the data of entries under their keys.
func byKey(entries []kv.FeedEntry) map[string][]string {
	m := map[string][]string{}
	for _, e := range entries {
		m[string(e.Key)] = append(m[string(e.Key)], string(e.Data))
	}
	return m
}

func fed(w kv.Write, data string) kv.Write {
	w.Feed = []byte(data)
	return w
}

func caseFeedAtomic(f *fixture) {
	f.space("a", feedOptions())
	f.space("b", feedOptions())
	a, b := &feedReader{db: f.db, space: "a", limit: 100}, &feedReader{db: f.db, space: "b", limit: 100}
	v := f.write(fed(put("a", "k", "x"), "put"), put("a", "silent", "x"), fed(put("a", "empty", "x"), ""), fed(put("b", "k", "x"), "b"))
	entries := f.readFeed(a)
	if diff := cmp.Diff(map[string][]string{"k": {"put"}, "empty": {""}}, byKey(entries)); diff != "" {
		f.Fatalf("entries (-want +got):\n%s", diff)
	}
	for _, e := range entries {
		if e.Version != v {
			f.Errorf("entry of %s has version %d, its write %d", e.Key, e.Version, v)
		}
	}
	if diff := cmp.Diff(map[string][]string{"k": {"b"}}, byKey(f.readFeed(b))); diff != "" {
		f.Fatalf("entries of the other space (-want +got):\n%s", diff)
	}
	f.conflicts([]kv.Check{check("a", "k", v), check("b", "k", 0)}, []kv.Write{fed(put("a", "k", "y"), "refused")}, 1)
	f.conflicts([]kv.Check{check("a", "k", 0)}, []kv.Write{fed(del("a", "k"), "refused")}, 0)
	_, err := f.db.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "y"), "refused"), put("no", "k", "x")}})
	f.wantErr(err, kv.ErrSpaceNotFound)
	large := fed(put("a", "k", "y"), string(pattern(200_000)))
	f.write(fed(del("a", "k"), "deleted"), fed(del("a", "never"), "deleted too"))
	f.commit([]kv.Check{check("a", "k", 0)}, large)
	want := map[string][]string{"k": {"deleted", string(large.Feed)}, "never": {"deleted too"}}
	if diff := cmp.Diff(want, byKey(f.readFeed(a))); diff != "" {
		f.Fatalf("entries (-want +got):\n%.2000s", diff)
	}
	if more := f.readFeed(a); len(more) > 0 {
		f.Errorf("entries %v were read twice", more)
	}
}

// fillFeed commits entries over many keys and returns them by key.
func (f *fixture) fillFeed(space string, commits int) map[string][]string {
	f.Helper()
	want := map[string][]string{}
	for i := range commits {
		var writes []kv.Write
		for j := range 1 + i%3 {
			key := fmt.Sprintf("key%d", (i*7+j*5)%31)
			w := fed(put(space, key, "x"), fmt.Sprintf("%d.%d", i, j))
			w.Delete = i%4 == 3
			if w.Delete {
				w.Value = nil
			}
			writes = append(writes, w)
			want[key] = append(want[key], string(w.Feed))
		}
		f.write(writes...)
	}
	return want
}

func caseFeedOrder(f *fixture) {
	f.space("a", feedOptions())
	want := f.fillFeed("a", 120)
	shardOf, used := map[string]int{}, map[int]bool{}
	got := map[string][]string{}
	last := map[string]kv.Version{}
	for shard := range feedShards {
		entries, err := f.db.ReadFeed(f.ctx, "a", shard, "", 10_000)
		f.ok(err)
		for _, e := range entries {
			key := string(e.Key)
			if other, ok := shardOf[key]; ok && other != shard {
				f.Fatalf("entries of %s are in shards %d and %d", key, other, shard)
			}
			if e.Version <= last[key] {
				f.Fatalf("entry of %s with version %d after %d", key, e.Version, last[key])
			}
			shardOf[key], used[shard], last[key] = shard, true, e.Version
			got[key] = append(got[key], string(e.Data))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("entries by key (-want +got):\n%s", diff)
	}
	if len(used) < 2 {
		f.Errorf("%d keys share one of %d shards", len(shardOf), feedShards)
	}
}

func caseFeedLimits(f *fixture) {
	f.space("a", feedOptions())
	f.fillFeed("a", 150)
	whole := f.readFeed(&feedReader{db: f.db, space: "a", limit: 1 << 30})
	for _, limit := range []int{1, 2, 7, 64} {
		r := &feedReader{db: f.db, space: "a", limit: limit}
		if diff := cmp.Diff(whole, f.readFeed(r)); diff != "" {
			f.Fatalf("entries read by %d (-want +got):\n%s", limit, diff)
		}
		if rest := f.readFeed(r); len(rest) > 0 {
			f.Fatalf("%d entries behind the last", len(rest))
		}
	}
	// Each position works, not only the last one of a call.
	var before kv.Position
	entries, err := f.db.ReadFeed(f.ctx, "a", 0, "", 20)
	f.ok(err)
	for _, want := range entries {
		got, err := f.db.ReadFeed(f.ctx, "a", 0, before, 1)
		f.ok(err)
		if diff := cmp.Diff([]kv.FeedEntry{want}, got); diff != "" {
			f.Fatalf("entry after %q (-want +got):\n%s", before, diff)
		}
		before = want.Position
	}
}

// caseFeedLarge: an answer may end because of its bytes, before the limit.
func caseFeedLarge(f *fixture) {
	const commits, each, size = 5, 4, 1 << 20
	f.space("a", feedOptions())
	want := map[string][]string{}
	for i := range commits {
		var writes []kv.Write
		for j := range each {
			key := fmt.Sprint("key", j)
			w := fed(put("a", key, "x"), string(pattern(size+i*each+j)))
			writes = append(writes, w)
			want[key] = append(want[key], string(w.Feed))
		}
		f.write(writes...)
	}
	got := byKey(f.readFeed(&feedReader{db: f.db, space: "a", limit: 1000}))
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("entries by key (-want +got):\n%.2000s", diff)
	}
}

// caseFeedConcurrent is about commits that become visible in another order than
// they began: a reader that polls must never pass one that comes later.
func caseFeedConcurrent(f *fixture) {
	const writers, each = 6, 40
	f.space("a", feedOptions())
	var mu sync.Mutex
	want := map[string][]string{}
	acked := map[string]map[string]kv.Version{}
	write := func(run, writer int) error {
		for i := range each {
			own, data := fmt.Sprint("own", writer), fmt.Sprintf("%d.%d.%d", run, writer, i)
			t := &kv.Txn{Writes: []kv.Write{fed(put("a", own, "x"), data), fed(put("a", fmt.Sprint("shared", i%3), "x"), data)}}
			if (writer+i)%5 == 0 {
				t.Writes[1].Value = pattern(100_000) // takes longer
			}
			v, err := f.db.Commit(f.ctx, t)
			if err != nil {
				return err
			}
			mu.Lock()
			want[own] = append(want[own], data)
			for _, w := range t.Writes {
				if acked[string(w.Key)] == nil {
					acked[string(w.Key)] = map[string]kv.Version{}
				}
				acked[string(w.Key)][data] = v
			}
			mu.Unlock()
		}
		return nil
	}
	reader := &feedReader{db: f.db, space: "a", limit: 20}
	var got []kv.FeedEntry
	f.while(func(run int) error {
		return concurrently(writers, func(i int) error { return write(run, i) })
	}, func() error {
		// To read to the end would mean to chase the writers of an engine behind a
		// network.
		for shard := range feedShards {
			entries, err := reader.next(f.ctx, shard)
			if err != nil {
				return err
			}
			got = append(got, entries...)
		}
		return nil
	})
	got = append(got, f.readFeed(reader)...)
	f.ok(checkFeed(got, acked))
	// The same for one who reads all of it afterwards.
	f.ok(checkFeed(f.readFeed(&feedReader{db: f.db, space: "a", limit: 7}), acked))
	for key, data := range want {
		if diff := cmp.Diff(data, byKey(got)[key]); diff != "" {
			f.Errorf("entries of %s (-want +got):\n%s", key, diff)
		}
	}
}

// checkFeed wants each acknowledged entry once, and the entries of a key in the
// order of their versions.
func checkFeed(got []kv.FeedEntry, acked map[string]map[string]kv.Version) error {
	last := map[string]kv.Version{}
	seen := map[string]int{}
	for _, e := range got {
		key, data := string(e.Key), string(e.Data)
		v, ok := acked[key][data]
		switch {
		case !ok:
			return fmt.Errorf("nobody wrote entry %s of %s", data, key)
		case v != e.Version:
			return fmt.Errorf("entry %s of %s has version %d, its commit %d", data, key, e.Version, v)
		case v <= last[key]:
			return fmt.Errorf("entry of %s with version %d after %d", key, v, last[key])
		}
		last[key] = v
		seen[key]++ // another one than before, because its version is above the last
	}
	for key, entries := range acked {
		if seen[key] != len(entries) {
			return fmt.Errorf("%d of %d entries of %s were read", seen[key], len(entries), key)
		}
	}
	return nil
}

func caseFeedRetention(f *fixture) {
	if f.harness.OwnTime {
		return
	}
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	read := func(after kv.Position) ([]kv.FeedEntry, error) { return f.db.ReadFeed(f.ctx, "a", 0, after, 100) }
	want := func(after kv.Position, data ...string) []kv.FeedEntry {
		f.Helper()
		entries, err := read(after)
		f.ok(err)
		got := []string{}
		for _, e := range entries {
			got = append(got, string(e.Data))
		}
		if diff := cmp.Diff(append([]string{}, data...), got); diff != "" {
			f.Fatalf("entries after %q (-want +got):\n%s", after, diff)
		}
		return entries
	}
	for i := range 6 {
		f.write(fed(put("a", fmt.Sprint("k", i), "x"), fmt.Sprint(i)))
		f.clock.Advance(20 * time.Minute) // entry i is written at i*20 minutes
	}
	// It is 12:00 and two hours; 0, 1 and 2 are older than an hour. 3 is on the edge.
	f.clock.Advance(-time.Minute)
	entries := want("", "3", "4", "5")
	want(entries[0].Position, "4", "5")
	want(entries[2].Position)
	f.clock.Advance(30 * time.Minute)
	// 3 and 4 are gone now, even if nobody has removed them yet. Who has read 4 misses
	// nothing; who has read 3 does.
	_, err := read(entries[0].Position)
	f.wantErr(err, kv.ErrFeedTrimmed)
	want("", "5")
	want(entries[1].Position, "5")
	_, err = read(entries[0].Position)
	f.wantErr(err, kv.ErrFeedTrimmed)
	f.clock.Advance(1000 * time.Hour)
	want("")
	want(entries[2].Position)
	_, err = read(entries[1].Position)
	f.wantErr(err, kv.ErrFeedTrimmed)
	f.write(fed(put("a", "k", "x"), "new"))
	want(entries[2].Position, "new")
	want("", "new")
	f.reopen(f.clock)
	want("", "new")
	_, err = read(entries[1].Position)
	f.wantErr(err, kv.ErrFeedTrimmed)
	f.wantValue("a", "k0", "x") // rows outlive their entries
}

// caseFeedRemoved writes and reads so much that an engine removes old entries, which
// then nobody can look at any more.
func caseFeedRemoved(f *fixture) {
	if f.harness.OwnTime {
		return
	}
	const commits, shards = 300, 2
	read := func(shard int, after kv.Position) (all []kv.FeedEntry) {
		f.Helper()
		for {
			page, err := f.db.ReadFeed(f.ctx, "a", shard, after, commits)
			f.ok(err)
			if len(page) == 0 {
				return all
			}
			all, after = append(all, page...), page[len(page)-1].Position
		}
	}
	f.space("a", kv.SpaceOptions{FeedShards: shards, FeedRetention: time.Hour})
	// fill returns the entries that there are then, by shard.
	fill := func(data string) (all [shards][]kv.FeedEntry) {
		f.Helper()
		for i := range commits {
			f.write(fed(put("a", fmt.Sprint("k", i%7), "x"), data))
		}
		total := 0
		for shard := range shards {
			all[shard] = read(shard, "")
			total += len(all[shard])
			for _, e := range all[shard] {
				if string(e.Data) != data {
					f.Fatalf("entry %q, want only those of %s", e.Data, data)
				}
			}
		}
		if total != commits {
			f.Fatalf("%d entries of %s, want %d", total, data, commits)
		}
		return all
	}
	old := fill("old")
	f.clock.Advance(1000 * time.Hour)
	young := fill("young")
	for range 2 {
		for shard := range shards {
			last := len(old[shard]) - 1
			for _, after := range []kv.Position{"", old[shard][last].Position} {
				if diff := cmp.Diff(young[shard], read(shard, after)); diff != "" {
					f.Fatalf("entries of shard %d after %q (-want +got):\n%s", shard, after, diff)
				}
			}
			for _, i := range []int{0, last - 1} {
				_, err := f.db.ReadFeed(f.ctx, "a", shard, old[shard][i].Position, 1)
				f.wantErr(err, kv.ErrFeedTrimmed)
			}
		}
		f.reopen(f.clock)
	}
}

func caseFeedReopen(f *fixture) {
	f.space("a", feedOptions())
	whole := &feedReader{limit: 1000, space: "a"}
	var got []kv.FeedEntry
	want := map[string][]string{}
	for round := range 3 {
		whole.db = f.db
		for key, data := range f.fillFeed("a", 10+round) {
			want[key] = append(want[key], data...)
		}
		got = append(got, f.readFeed(whole)...)
		f.clock.Advance(-time.Hour) // positions do not follow the clock
		f.reopen(f.clock)
	}
	if diff := cmp.Diff(want, byKey(got)); diff != "" {
		f.Errorf("entries (-want +got):\n%s", diff)
	}
}

func caseFeedClock(f *fixture) {
	f.space("a", feedOptions())
	r := &feedReader{db: f.db, space: "a", limit: 3}
	var got []string
	var want []string
	for i, d := range []time.Duration{0, time.Hour, -3 * time.Hour, time.Minute, -time.Hour, 5 * time.Hour, 0} {
		f.clock.Advance(d)
		data := fmt.Sprint(i)
		want = append(want, data)
		f.write(fed(put("a", "k", "x"), data), fed(put("a", "l", "x"), data))
		got = append(got, byKey(f.readFeed(r))["k"]...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("entries of one key (-want +got):\n%s", diff)
	}
}

func caseFeedReCreated(f *fixture) {
	for range 2 {
		f.space("a", feedOptions())
		f.wantKeys("a", kv.Range{})
		r := &feedReader{db: f.db, space: "a", limit: 100}
		if entries := f.readFeed(r); len(entries) > 0 {
			f.Fatalf("%d entries in a new space", len(entries))
		}
		want := f.fillFeed("a", 20)
		if diff := cmp.Diff(want, byKey(f.readFeed(r))); diff != "" {
			f.Errorf("entries (-want +got):\n%s", diff)
		}
		f.ok(f.db.DropSpace(f.ctx, "a"))
		if _, err := r.read(f.ctx); !errors.Is(err, kv.ErrSpaceNotFound) {
			f.Errorf("error = %v, want %v", err, kv.ErrSpaceNotFound)
		}
	}
}

func caseFeedInvalid(f *fixture) {
	f.space("a", feedOptions())
	f.space("plain")
	for _, c := range []struct {
		space        string
		shard, limit int
	}{{"a", -1, 1}, {"a", feedShards, 1}, {"a", 0, 0}, {"a", 0, -1}, {"plain", 0, 1}} {
		_, err := f.db.ReadFeed(f.ctx, c.space, c.shard, "", c.limit)
		f.wantErr(err, kv.ErrInvalid)
	}
}
