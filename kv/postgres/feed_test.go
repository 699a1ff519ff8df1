package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
)

// TestFeedWaitsForEarlierTransactions holds a commit up between the number that it
// has got and its end, while another one comes and goes.
func TestFeedWaitsForEarlierTransactions(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	create(t, e, "a", feedOptions())
	create(t, e, "b", kv.SpaceOptions{})
	commit(t, e, fed(put("a", "before", "x"), "before"))
	other, watch := connect(t, o.URL), connect(t, o.URL)
	other.exec("begin")
	other.exec(fmt.Sprintf(`lock table "%s".b_2 in share row exclusive mode`, o.Schema))

	first := make(chan error, 1)
	go func() {
		_, err := e.Commit(context.Background(), &kv.Txn{Writes: []kv.Write{fed(put("a", "first", "x"), "first"), put("b", "k", "x")}})
		first <- err
	}()
	eventually(t, "the first commit waits", func() bool { return watch.waiting(o.Schema) == 1 })
	commit(t, e, fed(put("a", "second", "x"), "second"))

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if page, err := e.ReadFeed(ctx, "a", 0, "", 10); err == nil {
		t.Errorf("feed = %v while an earlier commit is running", page)
	}
	// Who wants no more than is settled gets it.
	page, err := e.ReadFeed(t.Context(), "a", 0, "", 1)
	if err != nil || len(page) != 1 || string(page[0].Data) != "before" {
		t.Errorf("feed = %v, %v", page, err)
	}
	read := make(chan []string, 1)
	go func() { read <- entries(t, e, "a") }()
	other.exec("rollback")
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"before", "first", "second"}, <-read); diff != "" {
		t.Errorf("feed (-want +got):\n%s", diff)
	}
}

// TestTrimStopsAtCommitsInFlight: behind an entry that is still to appear nothing is
// removed, whatever its age.
func TestTrimStopsAtCommitsInFlight(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	create(t, e, "a", feedOptions())
	create(t, e, "b", kv.SpaceOptions{})
	other, watch := connect(t, o.URL), connect(t, o.URL)
	trim := func() int64 {
		return watch.number(fmt.Sprintf(`select "%s".trim(1, 0, %d, 1000)`, o.Schema, time.Now().Add(time.Hour).UnixMicro()))
	}
	other.exec("begin")
	other.exec(fmt.Sprintf(`lock table "%s".b_2 in share row exclusive mode`, o.Schema))
	first := make(chan error, 1)
	go func() {
		_, err := e.Commit(context.Background(), &kv.Txn{Writes: []kv.Write{fed(put("a", "first", "x"), "first"), put("b", "k", "x")}})
		first <- err
	}()
	eventually(t, "the first commit waits", func() bool { return watch.waiting(o.Schema) == 1 })
	commit(t, e, fed(put("a", "second", "x"), "second"))
	if n := trim(); n != 0 {
		t.Errorf("%d entries removed behind one that is still to appear", n)
	}
	other.exec("rollback")
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if n := trim(); n != 2 {
		t.Errorf("%d entries removed, want 2", n)
	}
}

func TestFeedDoesNotWaitForOthers(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	create(t, e, "a", feedOptions())
	other := connect(t, o.URL)
	other.exec(`create table if not exists public.others (n bigint)`)
	other.exec("begin")
	other.exec("insert into public.others values (1)") // it has a number now
	began := time.Now()
	commit(t, e, fed(put("a", "k", "x"), "1"))
	if diff := cmp.Diff([]string{"1"}, entries(t, e, "a")); diff != "" {
		t.Errorf("feed (-want +got):\n%s", diff)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	other.exec("rollback")
}

// TestFeedGoesOnInAnotherCluster moves a schema to where the numbers of transactions
// are lower.
func TestFeedGoesOnInAnotherCluster(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	create(t, e, "a", feedOptions())
	commit(t, e, fed(put("a", "k", "x"), "1"))
	commit(t, e, fed(put("a", "k", "x"), "2"))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	other := connect(t, o.URL)
	other.exec(fmt.Sprintf(`update "%[1]s".a_1_feed set xid = (xid::text::bigint + 1000000)::text::xid8`, o.Schema))
	other.exec(fmt.Sprintf(`update "%[1]s".engine set cluster = 'another'`, o.Schema))

	e = open(t, o)
	old, err := e.ReadFeed(t.Context(), "a", 0, "", 10)
	if err != nil || len(old) != 2 {
		t.Fatal(old, err)
	}
	commit(t, e, fed(put("a", "k", "x"), "3"))
	if diff := cmp.Diff([]string{"1", "2", "3"}, entries(t, e, "a")); diff != "" {
		t.Errorf("feed (-want +got):\n%s", diff)
	}
	for i, want := range []int{2, 1} {
		page, err := e.ReadFeed(t.Context(), "a", 0, old[i].Position, 10)
		if err != nil || len(page) != want {
			t.Errorf("behind entry %d: %v, %v", i, page, err)
		}
	}
}

func TestFeedIsTrimmed(t *testing.T) {
	c := manual()
	e, o := openShared(t, postgres.Options{Clock: c})
	create(t, e, "a", feedOptions())
	watch := connect(t, o.URL)
	count := fmt.Sprintf(`select count(*) from "%s".a_1_feed`, o.Schema)
	var positions []kv.Position
	for i := range 300 {
		commit(t, e, fed(put("a", "k", "x"), fmt.Sprint(i)))
		c.Advance(time.Minute)
		page, err := e.ReadFeed(t.Context(), "a", 0, slices.Concat(positions, []kv.Position{""})[max(0, len(positions)-1)], 100)
		if err != nil {
			t.Fatal(err)
		}
		positions = append(positions, page[len(page)-1].Position)
	}
	eventually(t, "old entries are removed", func() bool { return watch.number(count) <= 300-(256-61) })
	if got := entries(t, e, "a"); len(got) != 60 || got[0] != "240" {
		t.Errorf("%d entries from %v", len(got), got[:1])
	}
	_, err := e.ReadFeed(t.Context(), "a", 0, positions[100], 10)
	wantErr(t, err, kv.ErrFeedTrimmed)
	// Removed altogether, and nothing left to compare with.
	c.Advance(1000 * time.Hour)
	for range 300 {
		commit(t, e, fed(put("a", "k", "x"), "late"))
	}
	eventually(t, "all old entries are removed", func() bool { return watch.number(count) == 300 })
	_, err = e.ReadFeed(t.Context(), "a", 0, positions[298], 10)
	wantErr(t, err, kv.ErrFeedTrimmed)
	page, err := e.ReadFeed(t.Context(), "a", 0, positions[299], 1000)
	if err != nil || len(page) != 300 {
		t.Errorf("%d entries, %v", len(page), err)
	}
}

func TestFeedAnswersAreBounded(t *testing.T) {
	e, _ := openShared(t, postgres.Options{})
	create(t, e, "a", feedOptions())
	for range 12 {
		commit(t, e, fed(put("a", "k", "x"), string(make([]byte, 1<<20))))
	}
	page, err := e.ReadFeed(t.Context(), "a", 0, "", 1000)
	if err != nil || len(page) != 8 {
		t.Fatalf("%d entries, %v", len(page), err)
	}
	page, err = e.ReadFeed(t.Context(), "a", 0, page[7].Position, 1000)
	if err != nil || len(page) != 4 {
		t.Errorf("%d entries, %v", len(page), err)
	}
}
