package kv_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// bed is a DB on a model with spaces of all kinds, and the faults in between.
type bed struct {
	*kv.DB
	faults *kvtest.Faults
	clock  *clock.Manual
}

func newBed(t *testing.T) *bed {
	t.Helper()
	c := clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	faults := kvtest.NewFaults(kvtest.NewModel(c))
	b := &bed{DB: kv.New(faults, kv.Limits{CommitRows: 40, CommitBytes: 4 << 20}), faults: faults, clock: c}
	for name, opts := range map[string]kv.SpaceOptions{
		"plain": {}, "links": {Links: true}, "fed": {FeedShards: 2, FeedRetention: time.Hour},
	} {
		if err := b.CreateSpace(t.Context(), name, opts); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bed) mustCommit(t *testing.T, writes ...kv.Write) kv.Version {
	t.Helper()
	v, err := b.Commit(t.Context(), &kv.Txn{Writes: writes})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (b *bed) mustGet(t *testing.T, space, key string) kv.Row {
	t.Helper()
	row, err := b.GetOne(t.Context(), space, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func put(space, key, value string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte(value)}
}

// changed returns w after a change.
func changed(w kv.Write, change func(*kv.Write)) kv.Write {
	change(&w)
	return w
}

func TestCommitIsRefusedBeforeTheEngineSeesIt(t *testing.T) {
	b := newBed(t)
	small := put("plain", "k", "v")
	var many []kv.Write
	for i := range 41 {
		many = append(many, put("plain", string(rune('A'+i)), ""))
	}
	asChecks := func(writes []kv.Write) (checks []kv.Check) {
		for _, w := range writes {
			checks = append(checks, kv.Check{Space: w.Space, Key: w.Key})
		}
		return checks
	}
	half := make([]byte, 2<<20)
	for name, c := range map[string]struct {
		txn  kv.Txn
		want error
	}{
		"tag of 51 bytes":          {kv.Txn{Tag: strings.Repeat("t", 51)}, kv.ErrTooLarge},
		"tag with a newline":       {kv.Txn{Tag: "a\nb"}, kv.ErrInvalid},
		"tag beyond ASCII":         {kv.Txn{Tag: "é"}, kv.ErrInvalid},
		"41 rows written":          {kv.Txn{Writes: many}, kv.ErrTooLarge},
		"41 rows checked":          {kv.Txn{Checks: asChecks(many)}, kv.ErrTooLarge},
		"41 rows in both":          {kv.Txn{Checks: asChecks(many[:21]), Writes: many[21:]}, kv.ErrTooLarge},
		"too many bytes":           {kv.Txn{Writes: []kv.Write{changed(put("plain", "1", ""), func(w *kv.Write) { w.Value = half }), changed(put("plain", "2", ""), func(w *kv.Write) { w.Value = half })}}, kv.ErrTooLarge},
		"key twice, few":           {kv.Txn{Writes: []kv.Write{small, small}}, kv.ErrInvalid},
		"key twice, many":          {kv.Txn{Writes: append(many[:20:20], many[0])}, kv.ErrInvalid},
		"check twice, few":         {kv.Txn{Checks: asChecks([]kv.Write{small, small})}, kv.ErrInvalid},
		"check twice, many":        {kv.Txn{Checks: append(asChecks(many[:20]), asChecks(many[:1])...)}, kv.ErrInvalid},
		"empty key":                {kv.Txn{Writes: []kv.Write{put("plain", "", "")}}, kv.ErrInvalid},
		"empty key among many":     {kv.Txn{Writes: append(many[:20:20], put("plain", "", ""))}, kv.ErrInvalid},
		"empty checked key":        {kv.Txn{Checks: []kv.Check{{Space: "plain"}}}, kv.ErrInvalid},
		"empty checked among many": {kv.Txn{Checks: append(asChecks(many[:20]), kv.Check{Space: "plain"})}, kv.ErrInvalid},
		"key of 4001 bytes":        {kv.Txn{Writes: []kv.Write{put("plain", strings.Repeat("k", 4001), "")}}, kv.ErrTooLarge},
		"name of a space":          {kv.Txn{Writes: []kv.Write{put("no/space", "k", "")}}, kv.ErrInvalid},
		"value too large":          {kv.Txn{Writes: []kv.Write{changed(small, func(w *kv.Write) { w.Value = make([]byte, kv.MaxValueSize+1) })}}, kv.ErrTooLarge},
		"link too large":           {kv.Txn{Writes: []kv.Write{changed(put("links", "k", ""), func(w *kv.Write) { w.Link = strings.Repeat("l", 2049) })}}, kv.ErrTooLarge},
		"feed entry too large":     {kv.Txn{Writes: []kv.Write{changed(put("fed", "k", ""), func(w *kv.Write) { w.Feed = make([]byte, kv.MaxFeedEntrySize+1) })}}, kv.ErrTooLarge},
		"link in a plain space":    {kv.Txn{Writes: []kv.Write{changed(small, func(w *kv.Write) { w.Link = "gs://b/o" })}}, kv.ErrInvalid},
		"feed in a plain space":    {kv.Txn{Writes: []kv.Write{changed(small, func(w *kv.Write) { w.Feed = []byte{} })}}, kv.ErrInvalid},
		"link in no space":         {kv.Txn{Writes: []kv.Write{changed(put("no", "k", ""), func(w *kv.Write) { w.Link = "gs://b/o" })}}, kv.ErrSpaceNotFound},
		"delete with a value":      {kv.Txn{Writes: []kv.Write{changed(small, func(w *kv.Write) { w.Delete = true })}}, kv.ErrInvalid},
		"delete with a link":       {kv.Txn{Writes: []kv.Write{{Space: "links", Key: []byte("k"), Delete: true, Link: "gs://b/o"}}}, kv.ErrInvalid},
		"delete with an expiry":    {kv.Txn{Writes: []kv.Write{{Space: "plain", Key: []byte("k"), Delete: true, ExpiresAt: time.Unix(1, 0)}}}, kv.ErrInvalid},
		"expiry before 1970":       {kv.Txn{Writes: []kv.Write{changed(small, func(w *kv.Write) { w.ExpiresAt = time.Unix(-1, 0) })}}, kv.ErrInvalid},
		"expiry after 9999":        {kv.Txn{Writes: []kv.Write{changed(small, func(w *kv.Write) { w.ExpiresAt = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) })}}, kv.ErrInvalid},
	} {
		b.faults.Reset()
		b.faults.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit {
				t.Errorf("%s: the engine was asked", name)
			}
			return nil
		})
		if _, err := b.Commit(t.Context(), &c.txn); !errors.Is(err, c.want) {
			t.Errorf("%s: error = %v, want %v", name, err, c.want)
		}
	}
}

func TestCommitAtTheLimitsPasses(t *testing.T) {
	b := newBed(t)
	var writes []kv.Write
	var checks []kv.Check
	for i := range 40 {
		writes = append(writes, put("plain", string(rune('A'+i)), ""))
		checks = append(checks, kv.Check{Space: "plain", Key: writes[i].Key})
	}
	// 40 different rows, each checked and written.
	if _, err := b.Commit(t.Context(), &kv.Txn{Tag: strings.Repeat("~", 50), Checks: checks, Writes: writes}); err != nil {
		t.Error(err)
	}
	b.mustCommit(t, changed(put("fed", "k", ""), func(w *kv.Write) { w.Feed = make([]byte, kv.MaxFeedEntrySize) }))
	b.mustCommit(t, changed(put("links", strings.Repeat("k", 4000), ""), func(w *kv.Write) { w.Link = strings.Repeat("l", 2048) }))
	b.mustCommit(t, changed(put("plain", "1", ""), func(w *kv.Write) { w.Value = make([]byte, 4<<20-1) }))
	// A delete may carry a feed entry and an empty value.
	b.mustCommit(t, kv.Write{Space: "fed", Key: []byte("k"), Value: []byte{}, Delete: true, Feed: []byte("gone")})
}

func TestCommitCountsRowsOnceAndAllBytes(t *testing.T) {
	db := kv.New(kvtest.NewModel(clock.NewManual(time.Unix(0, 0))), kv.Limits{CommitRows: 2, CommitBytes: 8})
	if err := db.CreateSpace(t.Context(), "s", kv.SpaceOptions{Links: true, FeedShards: 1, FeedRetention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	checks := []kv.Check{{Space: "s", Key: []byte("1")}, {Space: "s", Key: []byte("2")}}
	full := kv.Write{Space: "s", Key: []byte("12"), Value: []byte("34"), Link: "56", Feed: []byte("78")}
	for name, c := range map[string]struct {
		txn  kv.Txn
		want error
	}{
		"both checked and written": {kv.Txn{Checks: checks, Writes: []kv.Write{put("s", "1", ""), put("s", "2", "")}}, nil},
		"a third written":          {kv.Txn{Checks: checks, Writes: []kv.Write{put("s", "3", "")}}, kv.ErrTooLarge},
		"8 bytes":                  {kv.Txn{Writes: []kv.Write{full}}, nil},
		"longer key":               {kv.Txn{Writes: []kv.Write{changed(full, func(w *kv.Write) { w.Key = []byte("123") })}}, kv.ErrTooLarge},
		"longer value":             {kv.Txn{Writes: []kv.Write{changed(full, func(w *kv.Write) { w.Value = []byte("345") })}}, kv.ErrTooLarge},
		"longer link":              {kv.Txn{Writes: []kv.Write{changed(full, func(w *kv.Write) { w.Link = "567" })}}, kv.ErrTooLarge},
		"longer feed entry":        {kv.Txn{Writes: []kv.Write{changed(full, func(w *kv.Write) { w.Feed = []byte("789") })}}, kv.ErrTooLarge},
	} {
		_, err := db.Commit(t.Context(), &c.txn)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error = %v, want %v", name, err, c.want)
		}
	}
}

func TestReadsAreRefusedBeforeTheEngineSeesThem(t *testing.T) {
	b := newBed(t)
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op != kvtest.OpSpaces {
			t.Errorf("the engine was asked: %v", c)
		}
		return nil
	})
	ctx := t.Context()
	refs := make([]kv.Ref, 41)
	for i := range refs {
		refs[i] = kv.Ref{Space: "plain", Key: []byte("k")}
	}
	_, tooMany := b.Get(ctx, refs...)
	_, noKey := b.Get(ctx, kv.Ref{Space: "plain"})
	_, badSpace := b.GetOne(ctx, "1", []byte("k"))
	scan := func(space string, r kv.Range) error { return b.Scan(ctx, space, r, func(kv.Row) bool { return true }) }
	feed := func(space string, shard, limit int) error {
		_, err := b.ReadFeed(ctx, space, shard, "", limit)
		return err
	}
	for name, c := range map[string]struct{ err, want error }{
		"41 refs":                 {tooMany, kv.ErrTooLarge},
		"no key":                  {noKey, kv.ErrInvalid},
		"bad space":               {badSpace, kv.ErrInvalid},
		"scan of bad space":       {scan("", kv.Range{}), kv.ErrInvalid},
		"scan with limit -1":      {scan("plain", kv.Range{Limit: -1}), kv.ErrInvalid},
		"scan with a long start":  {scan("plain", kv.Range{Start: make([]byte, 4002)}), kv.ErrTooLarge},
		"scan with a long end":    {scan("plain", kv.Range{End: make([]byte, 4002)}), kv.ErrTooLarge},
		"feed of plain space":     {feed("plain", 0, 1), kv.ErrInvalid},
		"feed of no space":        {feed("no", 0, 1), kv.ErrSpaceNotFound},
		"feed shard -1":           {feed("fed", -1, 1), kv.ErrInvalid},
		"feed shard beyond":       {feed("fed", 2, 1), kv.ErrInvalid},
		"feed limit 0":            {feed("fed", 0, 0), kv.ErrInvalid},
		"space without a name":    {b.CreateSpace(ctx, "", kv.SpaceOptions{}), kv.ErrInvalid},
		"name of 49 bytes":        {b.CreateSpace(ctx, strings.Repeat("s", 49), kv.SpaceOptions{}), kv.ErrInvalid},
		"name with a dash":        {b.DropSpace(ctx, "a-b"), kv.ErrInvalid},
		"feed without retention":  {b.CreateSpace(ctx, "s", kv.SpaceOptions{FeedShards: 1}), kv.ErrInvalid},
		"retention without feed":  {b.CreateSpace(ctx, "s", kv.SpaceOptions{FeedRetention: 1}), kv.ErrInvalid},
		"negative retention":      {b.CreateSpace(ctx, "s", kv.SpaceOptions{FeedRetention: -1}), kv.ErrInvalid},
		"feed of 65 shards":       {b.CreateSpace(ctx, "s", kv.SpaceOptions{FeedShards: 65, FeedRetention: 1}), kv.ErrInvalid},
		"feed of minus one shard": {b.CreateSpace(ctx, "s", kv.SpaceOptions{FeedShards: -1, FeedRetention: 1}), kv.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: error = %v, want %v", name, c.err, c.want)
		}
	}
	if rows, err := b.Get(ctx); rows != nil || err != nil {
		t.Errorf("Get of nothing = %v, %v", rows, err)
	}
}

func TestSpaceOptionsAreForgottenWithTheSpace(t *testing.T) {
	b := newBed(t)
	link := changed(put("plain", "k", ""), func(w *kv.Write) { w.Link = "gs://b/o" })
	if _, err := b.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{link}}); !errors.Is(err, kv.ErrInvalid) {
		t.Fatalf("error = %v, want %v", err, kv.ErrInvalid)
	}
	if err := b.DropSpace(t.Context(), "plain"); err != nil {
		t.Fatal(err)
	}
	if err := b.CreateSpace(t.Context(), "plain", kv.SpaceOptions{Links: true}); err != nil {
		t.Fatal(err)
	}
	b.mustCommit(t, link)
}

func TestConflictErrorNamesTheFirstRows(t *testing.T) {
	var err kv.ConflictError
	for _, k := range []string{"1", "2\x00", "3", "4", "5"} {
		err.Refs = append(err.Refs, kv.Ref{Space: "s", Key: []byte(k)})
	}
	if got, want := err.Error(), `conflict on s/"1", s/"2\x00", s/"3" and 2 more`; got != want {
		t.Errorf("message = %s, want %s", got, want)
	}
}

func TestVersionIsTimeAndCounter(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123_999_999, time.UTC)
	v := kv.VersionAt(at)
	for _, counted := range []kv.Version{v, v + 1, v + 4095} {
		if got, want := counted.Time(), at.Truncate(time.Millisecond); !got.Equal(want) {
			t.Errorf("time of %d = %v, want %v", counted, got, want)
		}
	}
	if got := (v + 4096).Time(); !got.Equal(at.Truncate(time.Millisecond).Add(time.Millisecond)) {
		t.Errorf("a full counter brings the next millisecond, got %v", got)
	}
	for _, early := range []time.Time{{}, time.Unix(0, 0), time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if v := kv.VersionAt(early); v != 0 {
			t.Errorf("version at %v = %d, want 0", early, v)
		}
	}
}

func TestPrefixEndIsTheFirstKeyBehindThePrefix(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "a\xff\xff": "b", "a\x00": "a\x01", "\xfe\xff": "\xff"} {
		if got := kv.PrefixEnd([]byte(prefix)); string(got) != want {
			t.Errorf("end of %q = %q, want %q", prefix, got, want)
		}
	}
	for _, prefix := range []string{"", "\xff", "\xff\xff"} {
		if got := kv.PrefixEnd([]byte(prefix)); got != nil {
			t.Errorf("end of %q = %q, want none", prefix, got)
		}
	}
}

func TestEnsureSpacesMakesWhatIsMissing(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	var created []string
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCreateSpace {
			created = append(created, "one")
		}
		return nil
	})
	if err := b.EnsureSpaces(ctx, kv.SpaceInfo{Name: "plain"}, kv.SpaceInfo{Name: "more", SpaceOptions: kv.SpaceOptions{Links: true}}); err != nil {
		t.Fatal(err)
	}
	if len(created) != 1 {
		t.Errorf("%d spaces created, want 1", len(created))
	}
	b.mustCommit(t, kv.Write{Space: "more", Key: []byte("k"), Link: "file:///x"})
	if err := b.EnsureSpaces(ctx, kv.SpaceInfo{Name: "plain", SpaceOptions: kv.SpaceOptions{Links: true}}); !errors.Is(err, kv.ErrSpaceMismatch) {
		t.Errorf("other options: %v", err)
	}
}
