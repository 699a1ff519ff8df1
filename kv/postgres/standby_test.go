package postgres_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

// TestScansUseAStandbyThatShowsNoLess commits right before each scan, also while the
// standby replays nothing, is gone, or has become a server of its own.
func TestScansUseAStandbyThatShowsNoLess(t *testing.T) {
	primary := pgtest.New(t)
	second := pgtest.NewStandby(t, primary)
	proxy := pgtest.NewProxy(t, second)
	c := manual()
	e := open(t, postgres.Options{URL: primary.URL(), ReadURL: proxy.URL(), Clock: c})
	create(t, e, "a", kv.SpaceOptions{})
	const first, batch = 3000, 10
	rows := 0
	write := func(n int) {
		var writes []kv.Write
		for range n {
			writes = append(writes, put("a", fmt.Sprintf("%06d", rows), "x"))
			rows++
		}
		commit(t, e, writes...)
	}
	// scan returns how many statements it sent to the standby.
	scan := func() int {
		t.Helper()
		write(batch)
		before := proxy.Sent(pgtest.Sync)
		for _, reverse := range []bool{false, true} {
			seen := 0
			if err := e.Scan(t.Context(), "a", kv.Range{Reverse: reverse}, func(kv.Row) bool { seen++; return true }); err != nil || seen != rows {
				t.Errorf("scan of %d rows shows %d, %v", rows, seen, err)
			}
		}
		return proxy.Sent(pgtest.Sync) - before
	}
	write(first)
	onPrimary, onStandby := connect(t, primary.URL()), connect(t, second.URL())
	eventually(t, "the standby follows", func() bool {
		return onPrimary.number("select count(*) from pg_stat_replication where state = 'streaming'") == 1
	})
	if n := scan(); n < 6 {
		t.Errorf("%d statements reached the standby", n)
	}
	onStandby.exec("select pg_wal_replay_pause()")
	write(batch)
	scan()
	if n := scan(); n > 0 {
		t.Errorf("%d statements reached a standby that was late just before", n)
	}
	onStandby.exec("select pg_wal_replay_resume()")
	c.Advance(testRest)
	if n := scan(); n < 6 {
		t.Errorf("%d statements reached the standby that is back", n)
	}
	thaw := proxy.Freeze()
	proxy.CutAll()
	c.Advance(testRest)
	scan()
	thaw()
	c.Advance(testRest)
	onStandby.exec("select pg_promote()")
	eventually(t, "the standby is one no more", func() bool { return onStandby.number("select pg_is_in_recovery()::int") == 0 })
	scan()
}
