package kvtest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// runRandom does random operations on the engine and on a Model, one at a time,
// and wants the same answers. The flags of rapid set their number and bring a
// failure back; a failing run is shrunk and printed.
func runRandom(t *testing.T, h Harness) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
		defer cancel()
		l := newLockstep(rt, ctx, t, h)
		defer l.close()
		rt.Repeat(map[string]func(*rapid.T){
			"commit":       l.commit,
			"get":          l.get,
			"scan":         l.scan,
			"feed":         l.feed,
			"move clock":   l.moveClock,
			"reopen":       l.reopen,
			"create space": l.createSpace,
			"drop space":   l.dropSpace,
			"":             l.compareAll,
		})
	})
}

// lockstep holds both engines. Their versions are different numbers, so each is
// translated into the number of the commit that made it: rows are equal if the
// same commit wrote them. What the numbers themselves promise, that they rise for
// each key, is checked on the side.
type lockstep struct {
	ctx   context.Context
	tb    testing.TB
	clock *clock.Manual
	sides []*side // the model first
	// commits counts those that succeeded.
	commits int
	// history has for each row, by place, its versions in the order of the
	// commits, those of deletes too, one for each side.
	history map[string][][]kv.Version
}

// side is one of the engines.
type side struct {
	open   func() kv.Engine
	limits kv.Limits
	engine kv.Engine
	db     *kv.DB
	reader *feedReader
	// made tells which commit made a version of a row, by place.
	made map[string]map[kv.Version]int
}

// The world of the random operations is small, so that they meet.
func lockstepKeys() []string { return []string{"\x00", "a", "a\x00", "aa", "b", "b\xff", "c", "\xff"} }

const (
	linkSpace = "links" // rows may have links
	feedSpace = "fed"   // rows may have feed entries
)

func lockstepSpaces() map[string]kv.SpaceOptions {
	return map[string]kv.SpaceOptions{
		linkSpace: {Links: true},
		// Nothing is trimmed here: another case does that.
		feedSpace: {FeedShards: feedShards, FeedRetention: 1_000_000 * time.Hour},
	}
}

func drawSpace(rt *rapid.T) string {
	return rapid.SampledFrom([]string{linkSpace, feedSpace}).Draw(rt, "space")
}

func newLockstep(rt *rapid.T, ctx context.Context, tb testing.TB, h Harness) *lockstep {
	l := &lockstep{ctx: ctx, tb: tb, clock: clock.NewManual(suiteStart()), history: map[string][][]kv.Version{}}
	model, store := NewModel(l.clock), h.NewStore(tb)
	for _, open := range []func() kv.Engine{
		func() kv.Engine { return model.Open(l.clock) },
		func() kv.Engine { return store(tb, l.clock) },
	} {
		s := &side{open: open, limits: h.Limits, made: map[string]map[kv.Version]int{}}
		s.reader = &feedReader{space: feedSpace}
		s.reopen()
		l.sides = append(l.sides, s)
	}
	for name, opts := range lockstepSpaces() {
		same(rt, l, func(s *side) string { return answer(s.db.CreateSpace(ctx, name, opts)) })
	}
	return l
}

func (s *side) reopen() {
	s.engine = s.open()
	s.db = kv.New(s.engine, s.limits)
	s.reader.db = s.db
}

func (l *lockstep) close() {
	for _, s := range l.sides {
		_ = s.engine.Close()
	}
}

// same gets an answer from both sides and wants them to be equal.
func same[T any](rt *rapid.T, l *lockstep, do func(s *side) T) T {
	want, got := do(l.sides[0]), do(l.sides[1])
	if diff := cmp.Diff(want, got, rowOptions()); diff != "" {
		rt.Fatalf("the engine does not answer as the model does (-model +engine):\n%s", diff)
	}
	return want
}

// answer reduces an error to what the contract says of it.
func answer(err error) string {
	var conflict *kv.ConflictError
	if errors.As(err, &conflict) {
		return fmt.Sprint("conflict ", places(conflict.Refs))
	}
	for _, known := range []error{kv.ErrSpaceNotFound, kv.ErrSpaceMismatch, kv.ErrInvalid} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil {
		return "failed: " + err.Error()
	}
	return "ok"
}

// answered is the answer to a read.
type answered struct {
	Answer string
	Rows   []translated
}

type translated struct {
	Key, Value string // a long value is represented by its length and checksum
	Link       string
	ExpiresAt  time.Time
	Expired    bool
	Commit     int // that made the row; 0: there is none; -1: none that is known
}

func (s *side) translate(space string, row kv.Row) translated {
	value := string(row.Value)
	if len(value) > 100 {
		value = fmt.Sprintf("%d bytes, checksum %x", len(value), crc32.ChecksumIEEE(row.Value))
	}
	return translated{
		Key: string(row.Key), Value: value, Link: row.Link, ExpiresAt: row.ExpiresAt, Expired: row.Expired,
		Commit: s.commitOf(space, row.Key, row.Version),
	}
}

func (s *side) commitOf(space string, key []byte, v kv.Version) int {
	if v == 0 {
		return 0
	}
	if n, ok := s.made[place(space, key)][v]; ok {
		return n
	}
	return -1
}

// commit commits random checks and writes.
func (l *lockstep) commit(rt *rapid.T) {
	txns := make([]kv.Txn, len(l.sides))
	for _, p := range drawRows(rt, "checks", 3) {
		versions := l.drawVersion(rt, place(p.Space, p.Key))
		included := rapid.Bool().Draw(rt, "including expired")
		for i := range txns {
			txns[i].Checks = append(txns[i].Checks, kv.Check{Space: p.Space, Key: p.Key, Version: versions[i], IncludeExpired: included})
		}
	}
	for _, p := range drawRows(rt, "writes", 4) {
		w := l.drawWrite(rt, p)
		for i := range txns {
			txns[i].Writes = append(txns[i].Writes, w)
		}
	}
	versions := make([]kv.Version, len(l.sides))
	var got string
	i := 0
	got = same(rt, l, func(s *side) string {
		v, err := s.db.Commit(l.ctx, &txns[i])
		versions[i] = v
		i++
		return answer(err)
	})
	if got == "ok" {
		l.record(rt, txns, versions)
	}
}

func drawRows(rt *rapid.T, label string, most int) []kv.Ref {
	ref := rapid.Custom(func(t *rapid.T) kv.Ref {
		return kv.Ref{Space: drawSpace(t), Key: []byte(rapid.SampledFrom(lockstepKeys()).Draw(t, "key"))}
	})
	return rapid.SliceOfNDistinct(ref, 0, most, func(r kv.Ref) string { return place(r.Space, r.Key) }).Draw(rt, label)
}

// drawVersion draws a version to check, as each side calls it: of no row, one
// that the row has or had, mostly the last one, or one that never was.
func (l *lockstep) drawVersion(rt *rapid.T, row string) []kv.Version {
	past := l.history[row]
	switch kind := rapid.IntRange(0, 9).Draw(rt, "version"); {
	case kind == 9:
		return []kv.Version{1 << 62, 1 << 62}
	case kind < 3 || len(past) == 0:
		return []kv.Version{0, 0}
	case kind < 5:
		return past[rapid.IntRange(0, len(past)-1).Draw(rt, "past version")]
	}
	return past[len(past)-1]
}

func (l *lockstep) drawWrite(rt *rapid.T, ref kv.Ref) kv.Write {
	w := kv.Write{Space: ref.Space, Key: ref.Key}
	if ref.Space == feedSpace && rapid.Bool().Draw(rt, "has feed entry") {
		w.Feed = fmt.Appendf([]byte{}, "%d", rapid.IntRange(0, 99).Draw(rt, "feed entry"))
	}
	if w.Delete = rapid.IntRange(0, 3).Draw(rt, "delete") == 0; w.Delete {
		return w
	}
	w.Value = pattern(rapid.SampledFrom([]int{0, 1, 2, 3, 70_000}).Draw(rt, "value size"))
	if ref.Space == linkSpace && rapid.Bool().Draw(rt, "has link") {
		w.Link = fmt.Sprintf("gs://b/%d", rapid.IntRange(0, 9).Draw(rt, "link"))
	}
	if rapid.Bool().Draw(rt, "expires") {
		in := rapid.SampledFrom([]time.Duration{-time.Hour, 0, 999, time.Microsecond, time.Second, time.Hour}).Draw(rt, "expires in")
		w.ExpiresAt = l.clock.Now().Add(in)
	}
	return w
}

// record notes a commit, and checks what the contract says of its version.
func (l *lockstep) record(rt *rapid.T, txns []kv.Txn, versions []kv.Version) {
	l.commits++
	for i, s := range l.sides {
		for _, c := range txns[i].Checks {
			if versions[i] <= c.Version {
				rt.Fatalf("version %d of a commit that checked %d", versions[i], c.Version)
			}
		}
		for _, w := range txns[i].Writes {
			row := place(w.Space, w.Key)
			if past := l.history[row]; len(past) > 0 && versions[i] <= past[len(past)-1][i] {
				rt.Fatalf("version %d of %s after %d", versions[i], row, past[len(past)-1][i])
			}
			if s.made[row] == nil {
				s.made[row] = map[kv.Version]int{}
			}
			s.made[row][versions[i]] = l.commits
		}
	}
	for _, w := range txns[0].Writes {
		row := place(w.Space, w.Key)
		l.history[row] = append(l.history[row], versions)
	}
}

func (l *lockstep) get(rt *rapid.T) {
	refs := drawRows(rt, "rows", 5)
	for i := range refs {
		refs[i].IncludeExpired = rapid.Bool().Draw(rt, "including expired")
	}
	l.sameRows(rt, refs)
}

func (l *lockstep) sameRows(rt *rapid.T, refs []kv.Ref) {
	same(rt, l, func(s *side) answered {
		rows, err := s.db.Get(l.ctx, refs...)
		got := answered{Answer: answer(err)}
		for i, row := range rows {
			got.Rows = append(got.Rows, s.translate(refs[i].Space, row))
		}
		return got
	})
}

func (l *lockstep) scan(rt *rapid.T) {
	bound := rapid.SampledFrom(append(lockstepKeys(), "", "a\x01", "bb", "\xff\xff"))
	r := kv.Range{
		Start:          []byte(bound.Draw(rt, "start")),
		Reverse:        rapid.Bool().Draw(rt, "reverse"),
		Limit:          rapid.IntRange(0, 5).Draw(rt, "limit"),
		IncludeExpired: rapid.Bool().Draw(rt, "including expired"),
	}
	if rapid.Bool().Draw(rt, "has end") {
		r.End = []byte(bound.Draw(rt, "end"))
	}
	l.sameScan(rt, drawSpace(rt), r)
}

func (l *lockstep) sameScan(rt *rapid.T, space string, r kv.Range) {
	same(rt, l, func(s *side) answered {
		var got answered
		got.Answer = answer(s.db.Scan(l.ctx, space, r, func(row kv.Row) bool {
			got.Rows = append(got.Rows, s.translate(space, row))
			return len(got.Rows) <= len(lockstepKeys())
		}))
		return got
	})
}

// feed lets both sides read on in all shards. Which shard a key is in is the
// engine's affair, so the entries are compared key by key.
func (l *lockstep) feed(rt *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(rt, "limit")
	same(rt, l, func(s *side) map[string][]string {
		s.reader.limit = limit
		entries, err := s.reader.read(l.ctx)
		got := map[string][]string{"answer": {answer(err)}}
		for _, e := range entries {
			made := s.commitOf(feedSpace, e.Key, e.Version)
			key := place(feedSpace, e.Key)
			got[key] = append(got[key], fmt.Sprintf("%s in commit %d", e.Data, made))
		}
		return got
	})
}

func (l *lockstep) moveClock(rt *rapid.T) {
	l.clock.Advance(rapid.SampledFrom([]time.Duration{
		time.Nanosecond, time.Microsecond, time.Millisecond, time.Second, time.Hour, -time.Microsecond, -time.Millisecond, -time.Hour, -30 * time.Hour,
	}).Draw(rt, "by"))
}

func (l *lockstep) reopen(rt *rapid.T) {
	same(rt, l, func(s *side) string {
		err := s.engine.Close()
		s.reopen()
		return answer(err)
	})
}

func (l *lockstep) createSpace(rt *rapid.T) {
	space := drawSpace(rt)
	opts := lockstepSpaces()[space]
	if rapid.IntRange(0, 4).Draw(rt, "with other options") == 0 {
		l.sameOptionsRefused(rt, space)
		return
	}
	same(rt, l, func(s *side) string { return answer(s.db.CreateSpace(l.ctx, space, opts)) })
}

// sameOptionsRefused tries other options, if the space exists.
func (l *lockstep) sameOptionsRefused(rt *rapid.T, space string) {
	infos, err := l.sides[0].db.Spaces(l.ctx)
	if err != nil {
		rt.Fatal(err)
	}
	if slices.ContainsFunc(infos, func(s kv.SpaceInfo) bool { return s.Name == space }) {
		same(rt, l, func(s *side) string { return answer(s.db.CreateSpace(l.ctx, space, kv.SpaceOptions{})) })
	}
}

func (l *lockstep) dropSpace(rt *rapid.T) {
	if rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
		return
	}
	space := drawSpace(rt)
	same(rt, l, func(s *side) string { return answer(s.db.DropSpace(l.ctx, space)) })
	gone := func(row string) bool { return row[:len(space)] == space }
	maps.DeleteFunc(l.history, func(row string, _ [][]kv.Version) bool { return gone(row) })
	for _, s := range l.sides {
		maps.DeleteFunc(s.made, func(row string, _ map[kv.Version]int) bool { return gone(row) })
		if space == feedSpace {
			s.reader.after = [feedShards]kv.Position{}
		}
	}
}

// compareAll compares all that is stored, after each operation.
func (l *lockstep) compareAll(rt *rapid.T) {
	same(rt, l, func(s *side) []kv.SpaceInfo {
		infos, err := s.db.Spaces(l.ctx)
		if err != nil {
			rt.Fatal(err)
		}
		return infos
	})
	for _, space := range []string{linkSpace, feedSpace} {
		l.sameScan(rt, space, kv.Range{IncludeExpired: true})
		var refs []kv.Ref
		for _, key := range lockstepKeys() {
			refs = append(refs, kv.Ref{Space: space, Key: []byte(key)})
		}
		l.sameRows(rt, refs)
	}
}
