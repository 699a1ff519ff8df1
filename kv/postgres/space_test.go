package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

// TestSpaceReplacedByAnotherProcess: what an engine remembers of a space is wrong.
func TestSpaceReplacedByAnotherProcess(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	other := open(t, o)
	calls := map[string]func() error{
		"commit": func() error {
			_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "k", "new")}})
			return err
		},
		"check": func() error {
			_, err := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{{Space: "a", Key: []byte("k")}}})
			return err
		},
		"get": func() error {
			rows, err := e.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("k")}})
			if err == nil && rows[0].Exists() {
				err = fmt.Errorf("row %v of the space before", rows[0])
			}
			return err
		},
		"scan": func() error {
			return e.Scan(t.Context(), "a", kv.Range{}, func(r kv.Row) bool {
				t.Errorf("row %q of the space before", r.Key)
				return true
			})
		},
		"feed": func() error {
			page, err := e.ReadFeed(t.Context(), "a", 0, "", 10)
			if err == nil && len(page) > 0 {
				err = fmt.Errorf("entries of the space before")
			}
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			create(t, e, "a", feedOptions())
			commit(t, e, fed(put("a", "k", "old"), "old"))
			get(t, e, "a", "k")
			if err := other.DropSpace(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			wantErr(t, call(), kv.ErrSpaceNotFound)
			create(t, other, "a", feedOptions())
			if err := call(); err != nil {
				t.Error(err)
			}
			if err := other.DropSpace(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSpacesComeAndGoUnderLoad drops and creates a space by two engines while
// others write to it.
func TestSpacesComeAndGoUnderLoad(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	other := open(t, o)
	create(t, e, "stays", feedOptions())
	stop := make(chan struct{})
	var writers, changers sync.WaitGroup
	for w, engine := range []*postgres.Engine{e, other, e, other} {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(w, " ", i)
				_, err := engine.Commit(context.Background(), &kv.Txn{Writes: []kv.Write{fed(put("a", key, "x"), key), put("stays", key, "x")}})
				if err != nil && !isNotFound(err) {
					t.Errorf("commit: %v", err)
					return
				}
				if err := engine.Scan(context.Background(), "a", kv.Range{}, func(kv.Row) bool { return true }); err != nil && !isNotFound(err) {
					t.Errorf("scan: %v", err)
					return
				}
				if _, err := engine.ReadFeed(context.Background(), "a", 0, "", 3); err != nil && !isNotFound(err) {
					t.Errorf("feed: %v", err)
					return
				}
			}
		})
	}
	for _, engine := range []*postgres.Engine{e, other} {
		changers.Go(func() {
			for range 10 {
				if err := engine.CreateSpace(context.Background(), "a", feedOptions()); err != nil {
					t.Errorf("create: %v", err)
				}
				if err := engine.DropSpace(context.Background(), "a"); err != nil && !isNotFound(err) {
					t.Errorf("drop: %v", err)
				}
			}
		})
	}
	changers.Wait()
	close(stop)
	writers.Wait()
}

func isNotFound(err error) bool { return errors.Is(err, kv.ErrSpaceNotFound) }

func TestDroppedSpaceLeavesNothing(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	watch := connect(t, o.URL)
	count := func() int64 {
		return watch.number(`select (select count(*) from pg_class where relnamespace = n.oid) + (select count(*) from pg_proc where pronamespace = n.oid)
			from pg_namespace n where nspname = $1`, o.Schema)
	}
	before := count()
	for _, options := range []kv.SpaceOptions{{}, feedOptions()} {
		create(t, e, "a", options)
		commit(t, e, put("a", "k", "x"))
		if err := e.DropSpace(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if after := count(); after != before {
		t.Errorf("%d tables and functions, %d before", after, before)
	}
}

// TestScanPagesAreBoundedAndHoldNoConnection has one connection, and a function
// that needs it.
func TestScanPagesAreBoundedAndHoldNoConnection(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, _ := openShared(t, postgres.Options{URL: proxy.URL(), PoolSize: 1})
	create(t, e, "a", kv.SpaceOptions{})
	const rows = 20
	for i := range rows {
		commit(t, e, put("a", fmt.Sprintf("%02d", i), string(make([]byte, 1<<20))))
	}
	for _, reverse := range []bool{false, true} {
		before := proxy.Sent(pgtest.Sync)
		seen := 0
		err := e.Scan(t.Context(), "a", kv.Range{Reverse: reverse}, func(kv.Row) bool {
			seen++
			if seen%7 == 0 {
				before++
				_, err := e.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("no")}})
				return err == nil
			}
			return true
		})
		if pages := proxy.Sent(pgtest.Sync) - before; err != nil || seen != rows || pages < rows/4 || pages > rows/4+1 {
			t.Errorf("%d rows in %d pages, %v", seen, pages, err)
		}
	}
}
