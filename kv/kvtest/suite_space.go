package kvtest

import (
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
