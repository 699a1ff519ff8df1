package kvtest

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/kv"
)

func commitCases() []suiteCase {
	return []suiteCase{
		{"ChecksDecideWhetherWritesHappen", caseChecks},
		{"CommitOfChecksOnlyTells", caseChecksOnly},
		{"ConflictNamesExactlyTheFailedChecks", caseConflictRefs},
		{"ConflictWritesNothingInAnySpace", caseConflictAtomic},
		{"ABAConflicts", caseABA},
		{"MissingSpaceWritesNothing", caseMissingSpace},
		{"CommitOverSpacesIsOneVersion", caseOneVersion},
		{"EmptyCommitSucceeds", func(f *fixture) { f.commit(nil) }},
	}
}

func caseChecks(f *fixture) {
	f.space("a")
	v1 := f.commit([]kv.Check{check("a", "k", 0)}, put("a", "k", "1"))
	f.conflicts([]kv.Check{check("a", "k", 0)}, []kv.Write{put("a", "k", "x")}, 0)
	f.conflicts([]kv.Check{check("a", "k", v1+1)}, []kv.Write{put("a", "k", "x")}, 0)
	f.conflicts([]kv.Check{check("a", "k", v1-1)}, []kv.Write{del("a", "k")}, 0)
	f.conflicts([]kv.Check{check("a", "no", v1)}, []kv.Write{put("a", "no", "x")}, 0)
	f.wantRow("a", "k", kv.Row{Value: []byte("1"), Version: v1})
	f.wantAbsent("a", "no")
	v2 := f.commit([]kv.Check{check("a", "k", v1)}, put("a", "k", "2"))
	f.wantRow("a", "k", kv.Row{Value: []byte("2"), Version: v2})
	f.commit([]kv.Check{check("a", "k", v2)}, del("a", "k"))
	f.wantAbsent("a", "k")
	f.conflicts([]kv.Check{check("a", "k", v2)}, []kv.Write{put("a", "k", "x")}, 0)
	// The row that is checked and the one that is written may be different ones.
	v3 := f.commit([]kv.Check{check("a", "k", 0)}, put("a", "other", "3"))
	f.conflicts([]kv.Check{check("a", "k", v3)}, []kv.Write{put("a", "other", "x")}, 0)
	f.wantValue("a", "other", "3")
}

func caseChecksOnly(f *fixture) {
	f.space("a")
	f.space("b")
	v := f.write(put("a", "k", "1"))
	if got := f.commit([]kv.Check{check("a", "k", v), check("b", "no", 0)}); got <= v {
		f.Errorf("version %d of the commit is not above the checked one, %d", got, v)
	}
	f.conflicts([]kv.Check{check("a", "k", v), check("b", "no", v)}, nil, 1)
	f.conflicts([]kv.Check{check("a", "k", 0)}, nil, 0)
	f.wantRow("a", "k", kv.Row{Value: []byte("1"), Version: v})
	f.wantAbsent("b", "no")
}

func caseConflictRefs(f *fixture) {
	f.space("a")
	f.space("b")
	var checks []kv.Check
	for i := range 6 {
		space := []string{"a", "b"}[i%2]
		key := fmt.Sprint(9 - i)
		checks = append(checks, check(space, key, f.write(put(space, key, "x"))))
	}
	// The same key is there in the other space.
	checks = append(checks, check("a", "8", 0), check("b", "9", 0))
	for mask := range 1 << len(checks) {
		var failing []int
		tried := make([]kv.Check, len(checks))
		for i, c := range checks {
			tried[i] = c
			if mask>>i&1 == 1 {
				failing = append(failing, i)
				tried[i].Version++
			}
		}
		if len(failing) > 0 {
			f.conflicts(tried, []kv.Write{put("a", "w", "x")}, failing...)
		}
	}
	f.wantAbsent("a", "w")
	f.commit(checks, put("a", "w", "x"))
}

func caseConflictAtomic(f *fixture) {
	spaces := []string{"a", "b", "c"}
	var writes []kv.Write
	for _, s := range spaces {
		f.space(s)
		f.write(put(s, "old", s))
		writes = append(writes, put(s, "new", "x"), put(s, "old", "x"), del(s, "old2"))
		f.write(put(s, "old2", s))
	}
	for _, s := range spaces {
		f.conflicts([]kv.Check{check("a", "free", 0), check(s, "old", 0), check("c", "free", 0)}, writes, 1)
		for _, s := range spaces {
			f.wantAbsent(s, "new")
			f.wantValue(s, "old", s)
			f.wantValue(s, "old2", s)
		}
	}
	f.write(writes...)
	for _, s := range spaces {
		f.wantValue(s, "new", "x")
		f.wantValue(s, "old", "x")
		f.wantAbsent(s, "old2")
	}
}

func caseABA(f *fixture) {
	f.space("a")
	first := f.write(put("a", "k", "A"))
	f.write(put("a", "k", "B"))
	f.write(put("a", "k", "A"))
	f.conflicts([]kv.Check{check("a", "k", first)}, []kv.Write{put("a", "k", "x")}, 0)
	f.write(del("a", "k"))
	again := f.write(put("a", "k", "A"))
	f.conflicts([]kv.Check{check("a", "k", first)}, []kv.Write{put("a", "k", "x")}, 0)
	// The same value again is a new version too.
	same := f.write(put("a", "k", "A"))
	if same <= again {
		f.Errorf("version %d after %d", same, again)
	}
	f.conflicts([]kv.Check{check("a", "k", again)}, []kv.Write{put("a", "k", "x")}, 0)
}

func caseMissingSpace(f *fixture) {
	f.space("a")
	commit := func(checks []kv.Check, writes ...kv.Write) {
		f.Helper()
		_, err := f.db.Commit(f.ctx, &kv.Txn{Checks: checks, Writes: writes})
		f.wantErr(err, kv.ErrSpaceNotFound)
	}
	commit(nil, put("a", "k", "x"), put("no", "k", "x"))
	commit(nil, put("no", "k", "x"), put("a", "k", "x"))
	commit(nil, put("a", "k", "x"), del("no", "k"))
	commit([]kv.Check{check("no", "k", 0)}, put("a", "k", "x"))
	f.wantAbsent("a", "k")
	_, err := f.db.Get(f.ctx, kv.Ref{Space: "a", Key: []byte("k")}, kv.Ref{Space: "no", Key: []byte("k")})
	f.wantErr(err, kv.ErrSpaceNotFound)
	f.wantErr(f.db.Scan(f.ctx, "no", kv.Range{}, func(kv.Row) bool { return true }), kv.ErrSpaceNotFound)
	_, err = f.engine.ReadFeed(f.ctx, "no", 0, "", 1)
	f.wantErr(err, kv.ErrSpaceNotFound)
	f.wantErr(f.db.DropSpace(f.ctx, "no"), kv.ErrSpaceNotFound)
}

func caseOneVersion(f *fixture) {
	f.space("a")
	f.space("b")
	v, err := f.db.Commit(f.ctx, &kv.Txn{Tag: "a tag of 50 bytes, which is the most that it holds", Writes: []kv.Write{
		put("a", "1", "x"), put("b", "1", "x"), put("a", "2", "x"),
	}})
	f.ok(err)
	for _, r := range []struct{ space, key string }{{"a", "1"}, {"b", "1"}, {"a", "2"}} {
		f.wantRow(r.space, r.key, kv.Row{Value: []byte("x"), Version: v})
	}
}
