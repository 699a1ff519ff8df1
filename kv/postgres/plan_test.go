package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

// TestStatementsUseTheirIndex looks at the plans of the statements that the engine
// sends, and at what the server counts for those in functions, on a table that
// nobody has analyzed and on one that was.
func TestStatementsUseTheirIndex(t *testing.T) {
	ctx := t.Context()
	e, err := Open(ctx, Options{URL: pgtest.Shared(t).URL(), Schema: pgtest.NewSchema()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.CreateSpace(ctx, "a", kv.SpaceOptions{FeedShards: 2, FeedRetention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	key := func(i int) []byte { return fmt.Appendf(nil, "key%06d", i) }
	for i := range 20 {
		t1 := &kv.Txn{}
		for j := range 1000 {
			t1.Writes = append(t1.Writes, kv.Write{Space: "a", Key: key(1000*i + j), Value: make([]byte, 100), Feed: []byte("e")})
		}
		if _, err := e.Commit(ctx, t1); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, e.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	seqScans := func() (n int) {
		if err := conn.QueryRow(ctx, "select sum(seq_scan) from pg_stat_user_tables where schemaname = $1 and relname like 'a_1%'", e.schema).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s := e.catalog.get("a")
	if s == nil {
		t.Fatal("space is not in the catalog")
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			if _, err := conn.Exec(ctx, "analyze "+s.table+", "+s.feed); err != nil {
				t.Fatal(err)
			}
		}
		before := seqScans()
		for i := range 10 {
			v, err := e.Commit(ctx, &kv.Txn{
				Checks: []kv.Check{{Space: "a", Key: []byte("absent")}},
				Writes: []kv.Write{{Space: "a", Key: key(i), Value: []byte("x"), Feed: []byte("e")}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Commit(ctx, &kv.Txn{Checks: []kv.Check{{Space: "a", Key: key(i), Version: v}}, Writes: []kv.Write{{Space: "a", Key: key(i), Delete: true}}}); err != nil {
				t.Fatal(err)
			}
		}
		if n := seqScans() - before; n > 0 {
			t.Errorf("analyzed %v: commits read a whole table %d times", analyzed, n)
		}
		now := clock.System{}.Now()
		one := newGetQuery([]kv.Ref{{Space: "a", Key: key(1)}}, []string{"a"}, map[string]*space{"a": s})
		var refs []kv.Ref
		for i := range 50 {
			refs = append(refs, kv.Ref{Space: "a", Key: key(i * 7)})
		}
		many := newGetQuery(refs, []string{"a"}, map[string]*space{"a": s})
		statements := map[string]struct {
			sql  string
			args *args
		}{
			"get of one":  {one.sql, &one.args},
			"get of many": {many.sql, &many.args},
			"feed":        {(&feedReader{engine: e, space: s}).query(), (&feedReader{engine: e, space: s, limit: 10}).args(0)},
		}
		for name, r := range map[string]kv.Range{
			"scan":         {Start: key(500), End: key(15000)},
			"scan back":    {Start: key(500), End: key(15000), Reverse: true},
			"scan to end":  {Start: key(100)},
			"scan of long": {Start: []byte("key1" + strings.Repeat("x", 3000))},
		} {
			sql, a := (&scanner{engine: e, r: r, now: now}).query(s, fullPage)
			statements[name] = struct {
				sql  string
				args *args
			}{sql, a}
		}
		for name, st := range statements {
			plan := explainPlan(t, conn, st.sql, st.args)
			if strings.Contains(plan, "Seq Scan on a_1") || !strings.Contains(plan, "Index") {
				t.Errorf("analyzed %v: plan of %s:\n%s", analyzed, name, plan)
			}
			// A sort of everything would read it all for one page.
			if strings.HasPrefix(name, "scan") && slices.ContainsFunc(strings.Split(plan, "\n"), func(line string) bool {
				return strings.HasPrefix(strings.TrimLeft(line, " ->"), "Sort ")
			}) {
				t.Errorf("analyzed %v: plan of %s sorts all:\n%s", analyzed, name, plan)
			}
		}
	}
}

func explainPlan(t *testing.T, conn *pgx.Conn, sql string, a *args) string {
	t.Helper()
	r := conn.PgConn().ExecParams(t.Context(), "explain "+sql, a.values, a.oids, binaryFormat, nil).Read()
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	var lines []string
	for _, row := range r.Rows {
		lines = append(lines, string(row[0]))
	}
	return strings.Join(lines, "\n")
}
