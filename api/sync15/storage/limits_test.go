package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func TestABatchOfTenThousandRecordsIsOneCommit(t *testing.T) {
	const total = 10_000
	limits := kv.Limits{CommitRows: 200_000, CommitBytes: 288 << 20} // as the embedded engine's
	f := newFaulty(t, Options{MaxBatchRecords: total, MaxBatchBytes: 1 << 30}, limits)
	ctx := t.Context()
	// Half of the records exist, and all that is staged has a life.
	fill := func(add func([]Patch), n int) {
		for from := 0; from < n; from += 1000 {
			patches := make([]Patch, 1000)
			for i := range patches {
				patches[i] = patch(fmt.Sprintf("r%05d", from+i), "x", 1000)
			}
			add(patches)
		}
	}
	fill(func(p []Patch) {
		_, err := f.store.Post(ctx, f.user, "bookmarks", p, none)
		must(t, err)
	}, total/2)
	staged, err := f.store.StartBatch(ctx, f.user, "bookmarks", nil, none)
	must(t, err)
	fill(func(p []Patch) {
		s, err := f.store.Append(ctx, f.user, "bookmarks", staged.Batch, p, none)
		if err != nil || len(s.TooManyBytes)+len(s.TooManyRecords) > 0 {
			t.Fatal(err, s)
		}
	}, total)
	f.engine.Reset()
	commits := 0
	f.engine.After(func(_ context.Context, c kvtest.Call, err error) error {
		if c.Op == kvtest.OpCommit {
			commits++
		}
		return err
	})
	out, err := f.store.CommitBatch(ctx, f.user, "bookmarks", staged.Batch, []Patch{patch("r00000", "y", 0), patch("surplus", "y", 0)}, none)
	must(t, err)
	f.engine.Reset()
	if commits != 1 || len(out.TooManyRecords) != 1 {
		t.Errorf("%d commits, too many: %q", commits, out.TooManyRecords)
	}
	l, err := f.store.List(ctx, f.user, "bookmarks", bso.Query{})
	must(t, err)
	for _, it := range l.Items {
		if it.Modified != out.Modified {
			t.Fatalf("%s has %v, want %v", it.ID, it.Modified, out.Modified)
		}
	}
	if len(l.Items) != total {
		t.Errorf("%d records", len(l.Items))
	}
	f.checkRows(t)
	f.clock.Advance(2000 * time.Second)
	_, err = f.store.DeleteAll(ctx, f.user, none)
	must(t, err)
	f.finish(t)
	if n := f.count(t, SpaceRecords) + f.count(t, spaceOrder) + f.count(t, SpaceStaged); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestACommitTooLargeForTheEngineChangesNothing(t *testing.T) {
	f := newFaulty(t, Options{}, kv.Limits{CommitRows: 300, CommitBytes: 1 << 20})
	ctx := t.Context()
	staged, err := f.store.StartBatch(ctx, f.user, "bookmarks", nil, none)
	must(t, err)
	for from := 0; from < 200; from += 50 {
		var patches []Patch
		for i := range 50 {
			patches = append(patches, patch(fmt.Sprintf("r%03d", from+i), "x", 0))
		}
		_, err := f.store.Append(ctx, f.user, "bookmarks", staged.Batch, patches, none)
		must(t, err)
	}
	want := f.state(t)
	if _, err := f.store.CommitBatch(ctx, f.user, "bookmarks", staged.Batch, nil, none); !errors.Is(err, kv.ErrTooLarge) {
		t.Errorf("error %v", err)
	}
	if got := f.state(t); got != want {
		t.Errorf("state is\n%s", got)
	}
	f.clock.Advance(3 * time.Hour)
	f.finish(t)
	if n := f.count(t, SpaceStaged); n != 0 {
		t.Errorf("%d staged rows are left", n)
	}
}

func TestAUserHasSoManyCollectionsAndNoMore(t *testing.T) {
	f := newFaulty(t, Options{}, kvtest.ModelLimits)
	ctx := t.Context()
	name := func(i int) string { return fmt.Sprintf("collection-%d", i) }
	for i := range maxCollections {
		_, err := f.store.Post(ctx, f.user, name(i), nil, none)
		must(t, err)
	}
	for what, write := range map[string]func() error{
		"put":   func() error { _, err := f.store.Put(ctx, f.user, "bookmarks", patch("a", "x", 0), none); return err },
		"post":  func() error { _, err := f.store.Post(ctx, f.user, "bookmarks", nil, none); return err },
		"batch": func() error { _, err := f.store.StartBatch(ctx, f.user, "bookmarks", nil, none); return err },
	} {
		if err := write(); !errors.Is(err, ErrTooManyCollections) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Existing ones go on, another user is not concerned, and a delete makes room.
	_, err := f.store.Put(ctx, f.user, name(5), patch("a", "x", 0), none)
	must(t, err)
	_, err = f.store.Put(ctx, User{UID: 8}, "bookmarks", patch("a", "x", 0), none)
	must(t, err)
	_, err = f.store.DeleteCollection(ctx, f.user, name(7), none)
	must(t, err)
	_, err = f.store.Put(ctx, f.user, "bookmarks", patch("a", "x", 0), none)
	must(t, err)
	info, err := f.store.Usage(ctx, f.user)
	must(t, err)
	if len(info.Collections) != maxCollections {
		t.Errorf("%d collections", len(info.Collections))
	}
	_, err = f.store.DeleteAll(ctx, f.user, none)
	must(t, err)
	f.finish(t)
	if n := f.count(t, SpaceRecords); n != 1 {
		t.Errorf("%d records, want the other user's", n)
	}
}

func TestNamesOfCollectionsGetTheirNumbersOnce(t *testing.T) {
	f := newFaulty(t, Options{}, kvtest.ModelLimits)
	ctx := t.Context()
	numbers := map[uint32]string{}
	for _, name := range []string{"own", "other", "own", "third", "bookmarks"} {
		id, err := f.store.assign(ctx, name)
		must(t, err)
		if before, ok := numbers[id]; ok && before != name {
			t.Errorf("%s and %s have number %d", name, before, id)
		}
		numbers[id] = name
	}
	if numbers[7] != "bookmarks" || numbers[101] != "own" || numbers[102] != "other" || numbers[103] != "third" {
		t.Errorf("numbers %v", numbers)
	}
	// Another process sees them at once, however they were given.
	second, err := Open(ctx, f.db, f.store.opts)
	must(t, err)
	id, err := second.lookup(ctx, "third")
	must(t, err)
	if id != 103 {
		t.Errorf("third has number %d", id)
	}
	id, err = second.assign(ctx, "fourth")
	must(t, err)
	if again, err := f.store.lookup(ctx, "fourth"); err != nil || again != id || id != 104 {
		t.Errorf("fourth has numbers %d and %d, %v", id, again, err)
	}
	name, err := f.store.name(ctx, 104)
	if err != nil || name != "fourth" {
		t.Errorf("104 is %q, %v", name, err)
	}
}

func TestLargeRecordsNamedInAQueryAreNotHeldTogether(t *testing.T) {
	const records, size = 25, loadBytes / 5
	f := newFixture(t, Options{})
	u := User{UID: 1}
	var q bso.Query
	q.Full, q.Sort = true, bso.Oldest
	for i := range records {
		id := fmt.Sprintf("r%02d", i)
		q.IDs = append(q.IDs, id)
		p := Patch{Update: bso.Update{ID: id, HasPayload: true, Payload: bytes.Repeat([]byte{byte('a' + i)}, size)}}
		if _, err := f.store.Put(t.Context(), u, "large", p, bso.Precondition{}); err != nil {
			t.Fatal(err)
		}
	}
	l, err := f.store.List(t.Context(), u, "large", q)
	if err != nil {
		t.Fatal(err)
	}
	if l.Whole() || len(l.Items) != records {
		t.Fatalf("%d items, read as a whole: %v", len(l.Items), l.Whole())
	}
	n := 0
	err = l.Records(t.Context(), func(chunk []Record) error {
		sum := 0
		for i := range chunk {
			sum += len(chunk[i].Payload)
			if chunk[i].ID != q.IDs[n] || len(chunk[i].Payload) != size || chunk[i].Payload[0] != byte('a'+n) {
				t.Errorf("record %d is %s", n, chunk[i].ID)
			}
			n++
		}
		if sum > chunkBytes {
			t.Errorf("a chunk of %d bytes", sum)
		}
		return nil
	})
	if err != nil || n != records {
		t.Errorf("%d records, %v", n, err)
	}
	q.IDs = q.IDs[:3]
	if l, err = f.store.List(t.Context(), u, "large", q); err != nil || !l.Whole() {
		t.Errorf("few bytes are not kept: %v", err)
	}
}

// TestALargestBatchFitsIntoOneCommit publishes as many records as BatchLimits allows on a
// small engine, where each of them costs as many rows as one can.
func TestALargestBatchFitsIntoOneCommit(t *testing.T) {
	limits := kv.Limits{CommitRows: 1000, CommitBytes: 4 << 20}
	records, size := BatchLimits(limits, 10_000)
	if records < 150 || size < 2<<20 {
		t.Fatalf("%d records, %d bytes", records, size)
	}
	f := newFaulty(t, Options{MaxBatchRecords: records, MaxBatchBytes: size}, limits)
	ctx := t.Context()
	fill := func(ttl int32, payload string, send func([]Patch)) {
		for from := 0; from < int(records); from += 50 {
			var patches []Patch
			for i := from; i < min(from+50, int(records)); i++ {
				patches = append(patches, patch(fmt.Sprintf("r%05d", i), payload, ttl))
			}
			send(patches)
		}
	}
	fill(1000, "x", func(p []Patch) {
		_, err := f.store.Post(ctx, f.user, "bookmarks", p, none)
		must(t, err)
	})
	staged, err := f.store.StartBatch(ctx, f.user, "bookmarks", nil, none)
	must(t, err)
	fill(2000, strings.Repeat("y", int(size/records)), func(p []Patch) {
		s, err := f.store.Append(ctx, f.user, "bookmarks", staged.Batch, p, none)
		if err != nil || len(s.TooManyBytes)+len(s.TooManyRecords) > 0 {
			t.Fatal(err, s)
		}
	})
	_, err = f.store.CommitBatch(ctx, f.user, "bookmarks", staged.Batch, nil, none)
	must(t, err)
	f.checkRows(t)
}
