package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

// TestStatementsUseTheirIndex looks at the plans of all statements that the
// functions run, on tables that nobody has analyzed and on such that were.
func TestStatementsUseTheirIndex(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	create(t, e, "a", feedOptions())
	key := func(i int) string { return fmt.Sprintf("key%06d", i) }
	for i := range 10 {
		var writes []kv.Write
		for j := range 1000 {
			writes = append(writes, fed(put("a", key(1000*i+j), strings.Repeat("x", 50)), "e"))
		}
		commit(t, e, writes...)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	p := newPlanner(t)
	calls := []string{
		// Checks and writes two rows, deletes one, and adds two entries.
		`"%[1]s".commit(0, 1, '{}', '{}',
			'{1}', '{4}', array['absent', 'key000001', 'key000002', 'new']::bytea[], '{0, null, null, null}', '{t, null, null, null}',
			'{1}', '{3}', array['key000001', 'key000002', 'new']::bytea[], array['x', '', 'y']::bytea[], '{null, null, null}',
			'{null, null, null}', '{f, t, f}', '{7}', '{6, 7, 8}',
			'{1}', '{2}', '{0, 0}', array['key000001', 'new']::bytea[], array['a', 'b']::bytea[])`,
		`"%[1]s".get_1(array['key000001', 'no']::bytea[])`,
		`"%[1]s".scan_1('key000100', 'key009000', false, 0, false, 100, 1000000)`,
		`"%[1]s".scan_1('key000100', 'key009000', true, 0, false, 100, 1000000)`,
		`"%[1]s".scan_1(null, null, false, 0, true, 100, 1000000)`,
		`"%[1]s".fetch_1(0, 0, '0', 0, 0, 100, 1000000)`,
		`"%[1]s".fetch_1(0, 1, '1', 0, 0, 100, 1000000)`,
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			p.exec(fmt.Sprintf(`analyze "%[1]s".a_1, "%[1]s".a_1_feed`, o.Schema))
		}
		for _, call := range calls {
			for _, plan := range p.plans("select * from " + fmt.Sprintf(call, o.Schema)) {
				for _, line := range strings.Split(plan, "\n") {
					step := strings.TrimLeft(line, " ->")
					if strings.HasPrefix(step, "Seq Scan") || strings.HasPrefix(step, "Bitmap") || strings.HasPrefix(step, "Sort  (") || strings.HasPrefix(step, "JIT") {
						t.Errorf("analyzed %v: %q in the plan of %s:\n%s", analyzed, step, call, plan)
					}
				}
			}
		}
	}
}

// planner is a session that hears the plans of what it runs.
type planner struct {
	session
	heard []string
}

func newPlanner(t *testing.T) *planner {
	t.Helper()
	p := &planner{}
	config, err := pgx.ParseConfig(pgtest.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.Contains(n.Message, "Query Text:") {
			p.heard = append(p.heard, n.Message)
		}
	}
	p.session = connectConfig(t, config)
	p.exec("load 'auto_explain'")
	p.exec("set auto_explain.log_min_duration = 0")
	p.exec("set auto_explain.log_nested_statements = on")
	p.exec("set client_min_messages = log")
	return p
}

// plans runs a statement and undoes it. It returns the plans of the statements that
// it ran in functions.
func (p *planner) plans(sql string) []string {
	p.tb.Helper()
	p.exec("begin")
	p.heard = nil
	p.exec(sql)
	heard := p.heard
	p.exec("rollback")
	var nested []string
	for _, plan := range heard {
		if !strings.Contains(plan, "Query Text: "+sql) {
			nested = append(nested, plan)
		}
	}
	if len(nested) == 0 {
		p.tb.Fatalf("no plan was heard of %s", sql)
	}
	return nested
}
