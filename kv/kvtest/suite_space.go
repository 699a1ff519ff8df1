package kvtest

import (
	"errors"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

func spaceCases() []suiteCase {
	return []suiteCase{
		{"SpacesAreCreatedListedAndDropped", caseSpaces},
		{"SpaceOptionsAreFixed", caseSpaceOptions},
		{"ReCreatedSpaceIsEmpty", caseSpaceReCreated},
		{"SpaceCreatedByManyAtOnce", caseSpaceRace},
		{"SpaceReplacedByAnotherProcess", caseSpaceReplaced},
		{"SpaceReplacedWithOtherOptions", caseSpaceOtherOptions},
	}
}

func (f *fixture) wantSpaces(want ...kv.SpaceInfo) {
	f.Helper()
	got, err := f.db.Spaces(f.ctx)
	f.ok(err)
	if diff := cmp.Diff(want, got, rowOptions()); diff != "" {
		f.Fatalf("spaces (-want +got):\n%s", diff)
	}
}

func caseSpaces(f *fixture) {
	f.wantSpaces()
	links := kv.SpaceOptions{Links: true}
	feed := kv.SpaceOptions{FeedShards: kv.MaxFeedShards, FeedRetention: 36*time.Hour + time.Second}
	f.space("b", links)
	f.space("c", feed)
	f.space("a", kv.SpaceOptions{})
	want := []kv.SpaceInfo{{Name: "a"}, {Name: "b", SpaceOptions: links}, {Name: "c", SpaceOptions: feed}}
	f.wantSpaces(want...)
	f.reopen(f.clock)
	f.wantSpaces(want...)
	f.ok(f.db.DropSpace(f.ctx, "b"))
	f.wantErr(f.db.DropSpace(f.ctx, "b"), kv.ErrSpaceNotFound)
	f.wantSpaces(want[0], want[2])
	f.reopen(f.clock)
	f.wantSpaces(want[0], want[2])
}

func caseSpaceOptions(f *fixture) {
	opts := kv.SpaceOptions{Links: true, FeedShards: 2, FeedRetention: time.Hour}
	f.space("a", opts)
	f.write(put("a", "k", "x"))
	f.space("a", opts)
	for _, other := range []kv.SpaceOptions{
		{}, {Links: true}, {FeedShards: 2, FeedRetention: time.Hour},
		{Links: true, FeedShards: 3, FeedRetention: time.Hour},
		{Links: true, FeedShards: 2, FeedRetention: 2 * time.Hour},
	} {
		f.wantErr(f.db.CreateSpace(f.ctx, "a", other), kv.ErrSpaceMismatch)
	}
	f.wantSpaces(kv.SpaceInfo{Name: "a", SpaceOptions: opts})
	f.wantValue("a", "k", "x")
	f.ok(f.db.DropSpace(f.ctx, "a"))
	f.space("a", kv.SpaceOptions{})
	f.wantSpaces(kv.SpaceInfo{Name: "a"})
}

func caseSpaceReCreated(f *fixture) {
	f.space("b")
	f.write(put("b", "k", "stays"))
	for range 3 {
		f.space("a")
		f.wantKeys("a", kv.Range{IncludeExpired: true})
		f.commit([]kv.Check{check("a", "00007", 0)}, put("a", "new", "x"))
		f.fill("a", 600)
		f.putExpiring("a", "expired", "x", f.clock.Now())
		f.ok(f.db.DropSpace(f.ctx, "a"))
	}
	f.space("a")
	f.reopen(f.clock)
	f.wantKeys("a", kv.Range{IncludeExpired: true})
	f.wantAbsent("a", "00007")
	f.wantValue("b", "k", "stays")
}

func caseSpaceRace(f *fixture) {
	opts := feedOptions()
	f.parallel(6, func(i int) error {
		if err := f.db.CreateSpace(f.ctx, "a", opts); err != nil {
			return err
		}
		_, err := f.db.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{put("a", numbered(i), "x")}})
		return err
	})
	f.wantSpaces(kv.SpaceInfo{Name: "a", SpaceOptions: opts})
	f.wantKeys("a", kv.Range{}, "00000", "00001", "00002", "00003", "00004", "00005")
}

// caseSpaceReplaced: what an engine remembers of a space is wrong once another
// process has dropped it, or dropped and created it again.
func caseSpaceReplaced(f *fixture) {
	if !f.harness.Shared {
		return
	}
	mine := f.db
	f.open(f.clock)
	other := f.db
	feed := kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour}
	f.ok(mine.CreateSpace(f.ctx, "b", kv.SpaceOptions{}))
	// prepare fills the space, and makes mine remember all there is to it.
	prepare := func() {
		f.ok(mine.CreateSpace(f.ctx, "a", feed))
		_, err := mine.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "old"), "old"), put("b", "k", "old")}})
		f.ok(err)
		_, err = mine.ReadFeed(f.ctx, "a", 0, "", 10)
		f.ok(err)
		f.ok(other.DropSpace(f.ctx, "a"))
	}
	for _, c := range f.callsInReplaced(mine) {
		prepare()
		if err := c.call(); !errors.Is(err, kv.ErrSpaceNotFound) {
			f.Errorf("%s in a space that was dropped: error = %v, want %v", c.name, err, kv.ErrSpaceNotFound)
		}
		prepare()
		f.ok(other.CreateSpace(f.ctx, "a", feed))
		if err := c.call(); err != nil {
			f.Errorf("%s in a space that was replaced: %v", c.name, err)
		}
		row, err := other.GetOne(f.ctx, "a", []byte("k"))
		f.ok(err)
		if row.Exists() != c.writes {
			f.Errorf("%s in a space that was replaced: row = %+v", c.name, row)
		}
		f.ok(other.DropSpace(f.ctx, "a"))
	}
}

// replacedCall is a call in the space "a", whose row "k" is that of a space dropped
// by another process.
type replacedCall struct {
	name   string
	writes bool // the row
	call   func() error
}

func (f *fixture) callsInReplaced(db *kv.DB) []replacedCall {
	absent := []kv.Check{check("a", "k", 0)}
	commit := func(checks []kv.Check, writes ...kv.Write) func() error {
		return func() error {
			_, err := db.Commit(f.ctx, &kv.Txn{Checks: checks, Writes: writes})
			return err
		}
	}
	return []replacedCall{
		{"Get", false, func() error {
			row, err := db.GetOne(f.ctx, "a", []byte("k"))
			if row.Exists() {
				f.Errorf("Get shows row %+v", row)
			}
			return err
		}},
		{"Get in two spaces", false, func() error {
			rows, err := db.Get(f.ctx, kv.Ref{Space: "b", Key: []byte("k")}, kv.Ref{Space: "a", Key: []byte("k")})
			if err == nil && (!rows[0].Exists() || rows[1].Exists()) {
				f.Errorf("Get shows rows %+v, want only the first", rows)
			}
			return err
		}},
		{"Scan", false, func() error {
			return db.Scan(f.ctx, "a", kv.Range{}, func(row kv.Row) bool {
				f.Errorf("Scan shows row %q", row.Key)
				return true
			})
		}},
		{"ReadFeed", false, func() error {
			entries, err := db.ReadFeed(f.ctx, "a", 0, "", 10)
			if len(entries) > 0 {
				f.Errorf("ReadFeed shows %v", entries)
			}
			return err
		}},
		{"Commit of checks", false, commit(absent)},
		{"Commit of one row", true, commit(nil, put("a", "k", "new"))},
		{"Commit of one row that is checked", true, commit(absent, put("a", "k", "new"))},
		{"Commit of one row with an entry", true, commit(nil, fed(put("a", "k", "new"), "new"))},
		{"Commit in two spaces", true, commit(absent, put("b", "k", "x"), put("a", "k", "new"))},
	}
}

// caseSpaceOtherOptions: an engine that has met the end of a space remembers nothing
// of it.
func caseSpaceOtherOptions(f *fixture) {
	if !f.harness.Shared {
		return
	}
	mine := f.engine
	f.ok(mine.CreateSpace(f.ctx, "a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour}))
	_, err := mine.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "old"), "old")}})
	f.ok(err)
	f.open(f.clock)
	f.ok(f.db.DropSpace(f.ctx, "a"))
	_, err = mine.Get(f.ctx, []kv.Ref{{Space: "a", Key: []byte("k")}})
	f.wantErr(err, kv.ErrSpaceNotFound)
	f.space("a", kv.SpaceOptions{Links: true, FeedShards: feedShards, FeedRetention: 2 * time.Hour})
	want := map[string][]string{}
	for i := range 20 {
		w := fed(put("a", numbered(i), "new"), numbered(i))
		w.Link = "gs://b/" + numbered(i)
		v, err := mine.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{w}})
		f.ok(err)
		f.wantRow("a", numbered(i), kv.Row{Value: w.Value, Link: w.Link, Version: v})
		want[numbered(i)] = []string{numbered(i)}
	}
	for _, db := range []*kv.DB{f.db, kv.New(mine, f.harness.Limits)} {
		if diff := cmp.Diff(want, byKey(f.readFeed(&feedReader{db: db, space: "a", limit: 3}))); diff != "" {
			f.Errorf("entries (-want +got):\n%s", diff)
		}
	}
}
