package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// fixture is a Store on the model engine with its purge.
type fixture struct {
	db     *kv.DB
	clock  *clock.Manual
	store  *Store
	purges [][]byte
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// counting is a source of random bytes that never repeats.
type counting struct{ n byte }

func (c *counting) Read(p []byte) (int, error) {
	c.n++
	for i := range p {
		p[i] = c.n
	}
	return len(p), nil
}

func newFixture(t tester, opts Options) *fixture {
	f := &fixture{clock: clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	f.db = kvtest.NewDB(f.clock)
	f.open(t, opts)
	return f
}

// open opens the store on f.db.
func (f *fixture) open(t tester, opts Options) {
	opts.Clock, opts.Random = f.clock, &counting{}
	if opts.MaxBatchRecords == 0 {
		opts.MaxBatchRecords, opts.MaxBatchBytes = 1000, 1<<20
	}
	if opts.SendPurge == nil {
		opts.SendPurge = func(tx *kv.Tx, message []byte) error {
			tx.AfterCommit(func(kv.Version, error) { f.purges = append(f.purges, message) })
			return nil
		}
	}
	var err error
	if f.store, err = Open(context.Background(), f.db, opts); err != nil {
		t.Fatal(err)
	}
}

// sweep removes what has expired, as the expiry layer does.
func (f *fixture) sweep(t tester) {
	ctx := context.Background()
	for space, remove := range ExpirySpaces() {
		for again := true; again; {
			again = false
			var keys [][]byte
			err := f.db.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
				if row.Expired {
					keys = append(keys, bytes.Clone(row.Key))
				}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range keys {
				_, err := f.db.Update(ctx, func(tx *kv.Tx) error {
					rows, err := tx.GetAll(kv.Ref{Space: space, Key: k, IncludeExpired: true})
					if err != nil {
						return err
					}
					more, err := remove.Remove(tx, space, rows[0])
					again = again || more
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func (f *fixture) purge(t tester) {
	for _, m := range f.purges {
		for more := true; more; {
			var err error
			if more, err = f.store.Purge(context.Background(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.purges = nil
}

// mergePatches lays later patches over earlier ones of the same records.
func mergePatches(earlier, later []Patch) []Patch {
	for _, p := range later {
		i := slices.IndexFunc(earlier, func(e Patch) bool { return e.ID == p.ID })
		if i < 0 {
			earlier = append(earlier, p)
			continue
		}
		earlier[i].merge(p)
	}
	return earlier
}

// modelRecord is what the protocol says about a record.
type modelRecord struct {
	bso.Record
	expires time.Time
}

type modelCollection struct {
	modified bso.Timestamp
	records  map[string]*modelRecord
}

type modelBatch struct {
	collection string
	patches    []Patch
	ends       time.Time
	dead       bool
}

// model is the storage of one user as the protocol describes it.
type model struct {
	collections map[string]*modelCollection
	tombstone   bso.Timestamp
	batches     map[string]*modelBatch
}

func (m *model) live(now time.Time, name string) []*modelRecord {
	var out []*modelRecord
	if c := m.collections[name]; c != nil {
		for _, r := range c.records {
			if r.expires.IsZero() || r.expires.After(now) {
				out = append(out, r)
			}
		}
	}
	return out
}

func (m *model) get(now time.Time, name, id string) *modelRecord {
	for _, r := range m.live(now, name) {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (m *model) apply(now time.Time, name string, t bso.Timestamp, patches []Patch) {
	c := m.collections[name]
	if c == nil {
		c = &modelCollection{records: map[string]*modelRecord{}}
		m.collections[name] = c
	}
	c.modified = t
	for _, p := range patches {
		r := m.get(now, name, p.ID)
		if r == nil {
			r = &modelRecord{Record: bso.Record{ID: p.ID, Modified: t}}
			c.records[p.ID] = r
		}
		if p.HasPayload {
			r.Payload, r.Modified = p.Payload, t
		}
		if p.HasSortIndex {
			r.SortIndex, r.HasSortIndex, r.Modified = p.SortIndex, true, t
		}
		if p.HasTTL {
			r.expires = now.Add(time.Duration(p.TTL) * time.Second)
		}
	}
}

func (m *model) modified() bso.Timestamp {
	t := m.tombstone
	for _, c := range m.collections {
		t = max(t, c.modified)
	}
	return t
}

func (m *model) list(now time.Time, name string, q bso.Query) []bso.Record {
	var out []bso.Record
	for _, r := range m.live(now, name) {
		if q.IDs != nil && !slices.Contains(q.IDs, r.ID) || q.Newer != nil && r.Modified <= *q.Newer || q.Older != nil && r.Modified >= *q.Older {
			continue
		}
		out = append(out, r.Record)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		switch {
		case q.Sort == bso.Index && a.HasSortIndex != b.HasSortIndex:
			return a.HasSortIndex
		case q.Sort == bso.Index && a.SortIndex != b.SortIndex:
			return a.SortIndex > b.SortIndex
		case q.Sort == bso.Oldest && a.Modified != b.Modified:
			return a.Modified < b.Modified
		case q.Sort == bso.Newest && a.Modified != b.Modified:
			return a.Modified > b.Modified
		case q.Sort == bso.Newest:
			return a.ID > b.ID
		}
		return a.ID < b.ID
	})
	return out
}

var (
	names = []string{"bookmarks", "tabs", "own"}
	ids   = []string{"a", "b", "c", "d/e", "f g"}
)

func drawPatch(t *rapid.T, id string) Patch {
	p := Patch{Update: bso.Update{ID: id}}
	if p.HasPayload = rapid.Bool().Draw(t, "gives payload"); p.HasPayload {
		p.Payload = []byte(rapid.StringN(0, 10, 20).Draw(t, "payload"))
	}
	if p.HasSortIndex = rapid.Bool().Draw(t, "gives sortindex"); p.HasSortIndex {
		p.SortIndex = int32(rapid.IntRange(-2, 2).Draw(t, "sortindex"))
	}
	if p.HasTTL = rapid.IntRange(0, 3).Draw(t, "gives ttl") == 0; p.HasTTL {
		p.TTL = int32(rapid.SampledFrom([]int{0, 1, 60, 999_999_999}).Draw(t, "ttl"))
	}
	return p
}

func drawPatches(t *rapid.T) []Patch {
	var patches []Patch
	for _, id := range ids {
		if rapid.Bool().Draw(t, "with "+id) {
			patches = append(patches, drawPatch(t, id))
		}
	}
	return patches
}

func drawQuery(t *rapid.T, m *model, name string) bso.Query {
	q := bso.Query{Full: rapid.Bool().Draw(t, "full"), Sort: bso.Sort(rapid.IntRange(0, 2).Draw(t, "sort"))}
	times := []bso.Timestamp{0, 1 << 60}
	if c := m.collections[name]; c != nil {
		for _, r := range c.records {
			times = append(times, r.Modified)
		}
		slices.Sort(times)
	}
	if rapid.IntRange(0, 2).Draw(t, "has newer") == 0 {
		v := rapid.SampledFrom(times).Draw(t, "newer")
		q.Newer = &v
	}
	if rapid.IntRange(0, 2).Draw(t, "has older") == 0 {
		v := rapid.SampledFrom(times).Draw(t, "older")
		q.Older = &v
	}
	if rapid.IntRange(0, 3).Draw(t, "has ids") == 0 {
		q.IDs = rapid.SliceOfN(rapid.SampledFrom(append(ids, "nobody")), 1, 4).Draw(t, "ids")
	}
	if rapid.Bool().Draw(t, "has limit") {
		v := uint32(rapid.IntRange(1, 4).Draw(t, "limit"))
		q.Limit = &v
	}
	return q
}

// readAll follows the pages of a query.
func (f *fixture) readAll(t *rapid.T, u User, name string, q bso.Query) []bso.Record {
	var out []bso.Record
	for page := 0; ; page++ {
		if page > 50 {
			t.Fatal("paging does not end")
		}
		l, err := f.store.List(context.Background(), u, name, q)
		if err != nil {
			t.Fatal(err)
		}
		if q.Limit != nil && len(l.Items) > int(*q.Limit) {
			t.Fatalf("page of %d, limit %d", len(l.Items), *q.Limit)
		}
		if q.Full {
			err = l.Records(context.Background(), func(records []Record) error {
				for _, r := range records {
					out = append(out, r.Record)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		} else {
			for _, it := range l.Items {
				out = append(out, bso.Record{ID: it.ID})
			}
		}
		if !l.More {
			return out
		}
		c, err := bso.ParseCursor(l.Items[len(l.Items)-1].Cursor(q.Sort).String())
		if err != nil {
			t.Fatal(err)
		}
		q.After = &c
	}
}

func TestStorageBehavesLikeTheProtocolsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFixture(t, Options{})
		ctx := context.Background()
		u := User{UID: 7, FxaUID: "account", FxaKID: "key"}
		other := User{UID: 7}
		m := &model{collections: map[string]*modelCollection{}, batches: map[string]*modelBatch{}}
		last := bso.Timestamp(0)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		rising := func(ts bso.Timestamp) {
			t.Helper()
			if ts <= last || ts < bso.Ceil(f.clock.Now()) {
				t.Fatalf("timestamp %v after %v at %v", ts, last, f.clock.Now())
			}
			last = ts
		}
		name := func() string { return rapid.SampledFrom(names).Draw(t, "collection") }
		pre := func(modified bso.Timestamp) (bso.Precondition, bool) {
			since := rapid.SampledFrom([]bso.Timestamp{-1, 0, modified, max(modified-1, 0), modified + 1}).Draw(t, "unmodified since")
			if since < 0 {
				return bso.Precondition{}, true
			}
			p, err := bso.ParsePrecondition("PUT", map[string][]string{"X-If-Unmodified-Since": {since.String()}})
			must(err)
			return p, modified <= since
		}
		expect := func(err error, ok bool) bool {
			t.Helper()
			var pe *PreconditionError
			if ok == errors.As(err, &pe) {
				t.Fatalf("precondition holds: %v, got %v", ok, err)
			}
			return ok
		}
		collectionTime := func(n string) bso.Timestamp {
			if c := m.collections[n]; c != nil {
				return c.modified
			}
			return 0
		}
		recordTime := func(n, id string) bso.Timestamp {
			if r := m.get(f.clock.Now(), n, id); r != nil {
				return r.Modified
			}
			return 0
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n, id := name(), rapid.SampledFrom(ids).Draw(t, "id")
				patch := drawPatch(t, id)
				p, ok := pre(recordTime(n, id))
				ts, err := f.store.Put(ctx, u, n, patch, p)
				if expect(err, ok) {
					must(err)
					rising(ts)
					m.apply(f.clock.Now(), n, ts, []Patch{patch})
				}
			},
			"post": func(t *rapid.T) {
				n, patches := name(), drawPatches(t)
				p, ok := pre(collectionTime(n))
				ts, err := f.store.Post(ctx, u, n, patches, p)
				if expect(err, ok) {
					must(err)
					rising(ts)
					m.apply(f.clock.Now(), n, ts, patches)
				}
			},
			"post by another user": func(t *rapid.T) {
				_, err := f.store.Post(ctx, other, name(), drawPatches(t), bso.Precondition{})
				must(err)
			},
			"start batch": func(t *rapid.T) {
				n, patches := name(), drawPatches(t)
				staged, err := f.store.StartBatch(ctx, u, n, patches, bso.Precondition{})
				must(err)
				if staged.Modified != collectionTime(n) {
					t.Fatalf("batch reports %v, collection has %v", staged.Modified, collectionTime(n))
				}
				m.batches[staged.Batch] = &modelBatch{collection: n, patches: patches, ends: f.clock.Now().Add(BatchLifetime)}
			},
			"append or commit": func(t *rapid.T) {
				keys := make([]string, 0, len(m.batches)+1)
				for k := range m.batches {
					keys = append(keys, k)
				}
				slices.Sort(keys)
				id := rapid.SampledFrom(append(keys, "AAAAAAAAAAAAAAAAAAAAAA")).Draw(t, "batch")
				b := m.batches[id]
				n := name()
				patches := drawPatches(t)
				exists := b != nil && !b.dead && b.collection == n && f.clock.Now().Before(b.ends)
				if rapid.Bool().Draw(t, "commit") {
					published, err := f.store.CommitBatch(ctx, u, n, id, patches, bso.Precondition{})
					if !exists {
						if !errors.Is(err, ErrNoBatch) {
							t.Fatalf("commit of no batch: %v", err)
						}
						return
					}
					must(err)
					rising(published.Modified)
					m.apply(f.clock.Now(), n, published.Modified, mergePatches(b.patches, patches))
					b.dead = true
					return
				}
				_, err := f.store.Append(ctx, u, n, id, patches, bso.Precondition{})
				if !exists {
					if !errors.Is(err, ErrNoBatch) {
						t.Fatalf("append to no batch: %v", err)
					}
					return
				}
				must(err)
				b.patches = mergePatches(slices.Clone(b.patches), patches)
			},
			"delete record": func(t *rapid.T) {
				n, id := name(), rapid.SampledFrom(ids).Draw(t, "id")
				if m.get(f.clock.Now(), n, id) == nil {
					if _, err := f.store.Delete(ctx, u, n, id, bso.Precondition{}); !errors.Is(err, ErrNotFound) {
						t.Fatalf("delete of nothing: %v", err)
					}
					return
				}
				p, ok := pre(recordTime(n, id))
				ts, err := f.store.Delete(ctx, u, n, id, p)
				if expect(err, ok) {
					must(err)
					rising(ts)
					delete(m.collections[n].records, id)
					m.collections[n].modified = ts
				}
			},
			"delete some": func(t *rapid.T) {
				n := name()
				del := rapid.SliceOfN(rapid.SampledFrom(ids), 1, 3).Draw(t, "ids")
				c := m.collections[n]
				p, ok := pre(collectionTime(n))
				if c == nil {
					p, ok = bso.Precondition{}, true
				}
				ts, err := f.store.DeleteSome(ctx, u, n, del, p)
				if !expect(err, ok) || c == nil {
					return
				}
				must(err)
				rising(ts)
				for _, id := range del {
					delete(c.records, id)
				}
				c.modified = ts
			},
			"delete collection": func(t *rapid.T) {
				n := name()
				p, ok := pre(collectionTime(n))
				ts, err := f.store.DeleteCollection(ctx, u, n, p)
				if !expect(err, ok) {
					return
				}
				must(err)
				for _, b := range m.batches {
					b.dead = b.dead || b.collection == n
				}
				if m.collections[n] != nil {
					rising(ts)
					m.tombstone = ts
					delete(m.collections, n)
				}
			},
			"delete all": func(t *rapid.T) {
				p, ok := pre(m.modified())
				_, err := f.store.DeleteAll(ctx, u, p)
				if expect(err, ok) {
					must(err)
					m.collections, m.tombstone = map[string]*modelCollection{}, 0
					for _, b := range m.batches {
						b.dead = true
					}
				}
			},
			"time passes": func(t *rapid.T) {
				f.clock.Advance(rapid.SampledFrom([]time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second, 61 * time.Second, 3 * time.Hour}).Draw(t, "by"))
			},
			"sweep": func(t *rapid.T) { f.sweep(t) },
			"purge": func(t *rapid.T) { f.purge(t) },
			"": func(t *rapid.T) {
				n := name()
				q := drawQuery(t, m, n)
				want := m.list(f.clock.Now(), n, q)
				if !q.Full {
					for i := range want {
						want[i] = bso.Record{ID: want[i].ID}
					}
				}
				got := f.readAll(t, u, n, q)
				same := cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
				if diff := cmp.Diff(want, got, same); diff != "" && len(want)+len(got) > 0 {
					t.Fatalf("list %+v (-want +got):\n%s", q, diff)
				}
				f.checkInfo(t, u, m)
			},
		})
		f.sweep(t)
		f.purge(t)
		f.checkRows(t)
		f.checkInfo(t, u, m)
	})
}

// checkInfo compares the info views with the model.
func (f *fixture) checkInfo(t *rapid.T, u User, m *model) {
	info, err := f.store.Usage(context.Background(), u)
	if err != nil {
		t.Fatal(err)
	}
	if info.Modified != m.modified() {
		t.Fatalf("storage modified %v, want %v", info.Modified, m.modified())
	}
	got := map[string]string{}
	for _, c := range info.Collections {
		got[c.Name] = fmt.Sprint(c.Modified, c.Count, c.Bytes)
	}
	want := map[string]string{}
	for n, c := range m.collections {
		var bytes int64
		live := m.live(f.clock.Now(), n)
		for _, r := range live {
			bytes += int64(len(r.Payload))
		}
		want[n] = fmt.Sprint(c.modified, int64(len(live)), bytes)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("info (-want +got):\n%s", diff)
	}
}

// checkRows checks the invariants of the package doc over all rows of all users.
func (f *fixture) checkRows(t tester) {
	ctx := context.Background()
	count := func(space string) map[string]string {
		rows := map[string]string{}
		if err := f.db.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
			rows[string(row.Key)] = strconv.FormatInt(row.ExpiresAt.UnixMicro(), 10)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	if a, b := len(count(SpaceRecords)), len(count(spaceOrder)); a != b {
		t.Fatalf("%d records, %d rows in order", a, b)
	}
	sums := map[string]int64{}
	if err := f.db.Scan(ctx, spaceHeads, kv.Range{}, func(row kv.Row) bool {
		h, err := decodeHead(row)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range h.collections {
			sums["count"] += c.count
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if int(sums["count"]) != len(count(SpaceRecords)) {
		t.Fatalf("heads count %d records, there are %d", sums["count"], len(count(SpaceRecords)))
	}
	batches := count(SpaceBatches)
	for k := range count(SpaceStaged) {
		found := false
		for b := range batches {
			found = found || bytes.HasPrefix([]byte(k), []byte(b))
		}
		if !found {
			t.Fatalf("staged row %q without batch", k)
		}
	}
}
