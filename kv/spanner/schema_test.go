package spanner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/spansql"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/spanner"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

func syncSpaces() []kv.SpaceInfo {
	links := kv.SpaceOptions{Links: true}
	return []kv.SpaceInfo{
		{Name: "__extenddb_ttl_index__"}, {Name: "batch_bsos", SpaceOptions: links}, {Name: "bsos", SpaceOptions: links},
		{Name: "events", SpaceOptions: kv.SpaceOptions{FeedShards: 2, FeedRetention: time.Hour}},
	}
}

func TestSchemaHasTheNamesThatOthersRelyOn(t *testing.T) {
	all := strings.Join(spanner.Schema(syncSpaces()), ";\n")
	for _, want := range []string{
		"CREATE TABLE IF NOT EXISTS bsos (", "CREATE TABLE IF NOT EXISTS batch_bsos (", "CREATE TABLE IF NOT EXISTS hf___extenddb_ttl_index___0 (",
		"CREATE TABLE IF NOT EXISTS holdfast_feed_of_events (", "CREATE TABLE IF NOT EXISTS holdfast_spaces (",
		"payload_link STRING(2048)", "ROW DELETION POLICY (OLDER_THAN(expires_at, INTERVAL 1 DAY))",
		"CREATE CHANGE STREAM payload_link_changes\n  FOR batch_bsos(payload_link), bsos(payload_link)\n",
		"retention_period = '7d', value_capture_type = 'OLD_AND_NEW_VALUES'", "CREATE ROLE payload_link_reader",
		"GRANT SELECT ON CHANGE STREAM payload_link_changes TO ROLE payload_link_reader",
		"GRANT EXECUTE ON TABLE FUNCTION READ_payload_link_changes TO ROLE payload_link_reader",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	for _, stmt := range spanner.Schema(syncSpaces()) {
		if _, err := spansql.ParseDDLStmt(stmt); err != nil {
			t.Errorf("%s: %v", stmt, err)
		}
	}
	if without := strings.Join(spanner.Schema([]kv.SpaceInfo{{Name: "a"}}), ""); strings.Contains(without, "STREAM") || strings.Contains(without, "ROLE") {
		t.Errorf("a change stream without links: %s", without)
	}
}

func TestTableNamesAreApart(t *testing.T) {
	long := strings.Repeat("S", kv.MaxSpaceNameSize)
	seen := map[string]string{}
	for _, space := range []string{
		"a", "A", "hf_a_1", "hf_a", "_a", "__a", "a_", "aB", "Ab", "AB", "ab", "holdfast_spaces", "holdfast_feed_of_a", "holdfast",
		"payload_link_changes", "select", "_", long, strings.ToLower(long), "hf_hf_a_1_0",
	} {
		table := strings.ToLower(spanner.TableName(space))
		if other, taken := seen[table]; taken {
			t.Errorf("spaces %s and %s are both in table %s", space, other, table)
		}
		seen[table] = space
		if c := table[0]; c < 'a' || c > 'z' || len(table) > 100 {
			t.Errorf("space %s is in table %s", space, table)
		}
	}
	for _, name := range []string{"bsos", "batch_bsos", "sync_heads", "select"} {
		if got := spanner.TableName(name); got != name {
			t.Errorf("space %s is in table %s", name, got)
		}
	}
}

// schemaWorld is an empty database and its administration.
type schemaWorld struct {
	*testing.T
	server *spandbtest.Server
	admin  *spanner.Admin
	raw    *database.DatabaseAdminClient
}

func newSchemaWorld(t *testing.T) *schemaWorld {
	t.Helper()
	w := &schemaWorld{T: t, server: spandbtest.Start(t, clock.System{})}
	var err error
	if w.admin, err = spanner.OpenAdmin(t.Context(), w.options()); err != nil {
		t.Fatal(err)
	}
	if w.raw, err = database.NewDatabaseAdminClient(t.Context(), w.server.ClientOptions()...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.admin.Close(); w.raw.Close() })
	return w
}

func (w *schemaWorld) options() spanner.Options {
	return spanner.Options{ProjectID: "p", InstanceID: "i", DatabaseID: "d", ClientOptions: w.server.ClientOptions()}
}

func (w *schemaWorld) run(ddl ...string) {
	w.Helper()
	op, err := w.raw.UpdateDatabaseDdl(w.Context(), &databasepb.UpdateDatabaseDdlRequest{Database: spandbtest.Database, Statements: ddl})
	if err == nil {
		err = op.Wait(w.Context())
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *schemaWorld) diff() []string {
	w.Helper()
	ddl, err := w.admin.Diff(w.Context(), syncSpaces())
	if err != nil {
		w.Fatal(err)
	}
	return ddl
}

func TestApplyMakesAllAndThenNothing(t *testing.T) {
	w := newSchemaWorld(t)
	if diff := cmp.Diff(spanner.Schema(syncSpaces()), w.diff()); diff != "" {
		t.Errorf("difference of an empty database (-want +got):\n%s", diff)
	}
	applied, err := w.admin.Apply(t.Context(), syncSpaces())
	if err != nil || len(applied) != len(spanner.Schema(syncSpaces())) {
		t.Fatalf("applied %q, %v", applied, err)
	}
	if rest := w.diff(); len(rest) > 0 {
		t.Errorf("difference after Apply: %q", rest)
	}
	if applied, err = w.admin.Apply(t.Context(), syncSpaces()); err != nil || len(applied) > 0 {
		t.Errorf("applied again %q, %v", applied, err)
	}
	// The printed schema does the same, and the engine needs nothing else.
	w = newSchemaWorld(t)
	w.run(spanner.Schema(syncSpaces())...)
	if rest := w.diff(); len(rest) > 0 {
		t.Errorf("difference after the printed schema: %q", rest)
	}
	e, err := spanner.Open(t.Context(), w.options())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	w.server.ResetCalls()
	for _, s := range syncSpaces() {
		if err := e.CreateSpace(t.Context(), s.Name, s.SpaceOptions); err != nil {
			t.Errorf("create %s: %v", s.Name, err)
		}
	}
	for _, call := range w.server.Calls() {
		if strings.Contains(call, "Ddl") {
			t.Errorf("the engine called %s", call)
		}
	}
	if _, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("__extenddb_ttl_index__", "k", "x"), fed(put("events", "k", "x"))}}); err != nil {
		t.Error(err)
	}
}

func fed(w kv.Write) kv.Write {
	w.Feed = []byte("entry")
	return w
}

func TestDiffRepairsWhatIsMissing(t *testing.T) {
	w := newSchemaWorld(t)
	var old []string
	for _, stmt := range spanner.Schema(syncSpaces()) {
		switch {
		case strings.Contains(stmt, " bsos ("):
			stmt = strings.Replace(stmt, "payload_link STRING(2048),\n", "", 1)
			stmt, _, _ = strings.Cut(stmt, ",\n  ROW DELETION")
		case strings.Contains(stmt, " batch_bsos ("):
			stmt = strings.Replace(stmt, "1 DAY", "30 DAY", 1)
		case strings.Contains(stmt, "CREATE CHANGE STREAM"):
			w.run("CREATE TABLE elsewhere (id INT64) PRIMARY KEY (id)")
			stmt = "CREATE CHANGE STREAM payload_link_changes FOR batch_bsos(payload_link), elsewhere OPTIONS (retention_period = '1d', value_capture_type = 'NEW_VALUES')"
		case strings.Contains(stmt, "EXECUTE"):
			continue
		}
		old = append(old, stmt)
	}
	w.run(old...)
	want := []string{
		"ALTER TABLE batch_bsos REPLACE ROW DELETION POLICY ( OLDER_THAN ( expires_at, INTERVAL 1 DAY ))",
		"ALTER TABLE bsos ADD COLUMN payload_link STRING(2048)",
		"ALTER TABLE bsos ADD ROW DELETION POLICY ( OLDER_THAN ( expires_at, INTERVAL 1 DAY ))",
		"ALTER CHANGE STREAM payload_link_changes SET FOR batch_bsos(payload_link), elsewhere, bsos(payload_link)",
		"ALTER CHANGE STREAM payload_link_changes SET OPTIONS (retention_period='7d', value_capture_type='OLD_AND_NEW_VALUES')",
		"GRANT EXECUTE ON TABLE FUNCTION READ_payload_link_changes TO ROLE payload_link_reader",
	}
	if diff := cmp.Diff(want, w.diff()); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	if _, err := w.admin.Apply(t.Context(), syncSpaces()); err != nil {
		t.Fatal(err)
	}
	if rest := w.diff(); len(rest) > 0 {
		t.Errorf("difference after Apply: %q", rest)
	}
}

func TestDiffRefusesWhatIsAnothers(t *testing.T) {
	for _, c := range []struct{ table, want string }{
		{"CREATE TABLE bsos (id INT64 NOT NULL) PRIMARY KEY (id)", "primary key"},
		{"CREATE TABLE bsos (key STRING(MAX) NOT NULL, committed_at TIMESTAMP NOT NULL) PRIMARY KEY (key)", "column"},
		{"CREATE TABLE bsos (key BYTES(MAX) NOT NULL) PRIMARY KEY (key)", "no column"},
	} {
		w := newSchemaWorld(t)
		w.run(c.table)
		if _, err := w.admin.Diff(t.Context(), syncSpaces()); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "bsos") {
			t.Errorf("%s: error = %v, want one about %q", c.table, err, c.want)
		}
		if _, err := w.admin.Apply(t.Context(), syncSpaces()); err == nil {
			t.Errorf("%s: applied", c.table)
		}
	}
}

func TestApplyGoesOnWhenAnotherIsFaster(t *testing.T) {
	w := newSchemaWorld(t)
	w.run(spanner.Schema(nil)...)
	done := false
	w.server.Before(func(_ context.Context, c spandbtest.Call) error {
		if c.Method == "UpdateDatabaseDdl" && !done {
			done = true
			w.run("CREATE ROLE payload_link_reader")
		}
		return nil
	})
	if _, err := w.admin.Apply(t.Context(), syncSpaces()); err != nil {
		t.Fatal(err)
	}
	if rest := w.diff(); len(rest) > 0 {
		t.Errorf("difference after Apply: %q", rest)
	}
}

func TestWithoutAutoSchemaTheSchemaIsLeftAlone(t *testing.T) {
	w := newSchemaWorld(t)
	if _, err := spanner.Open(t.Context(), w.options()); err == nil || !strings.Contains(err.Error(), "holdfast schema apply") {
		t.Errorf("open without schema: error = %v", err)
	}
	w.run(spanner.Schema([]kv.SpaceInfo{{Name: "a"}})...)
	w.run("CREATE TABLE old (key BYTES(MAX) NOT NULL, value BYTES(MAX), committed_at TIMESTAMP NOT NULL) PRIMARY KEY (key)")
	e, err := spanner.Open(t.Context(), w.options())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.CreateSpace(t.Context(), "a", kv.SpaceOptions{}); err != nil {
		t.Errorf("create a: %v", err)
	}
	for _, s := range []kv.SpaceInfo{{Name: "b"}, {Name: "old"}, {Name: "a2", SpaceOptions: kv.SpaceOptions{Links: true}}} {
		if err := e.CreateSpace(t.Context(), s.Name, s.SpaceOptions); err == nil || !strings.Contains(err.Error(), "holdfast schema apply") {
			t.Errorf("create %s: error = %v", s.Name, err)
		}
	}
	if infos, err := e.Spaces(t.Context()); err != nil || len(infos) != 1 {
		t.Errorf("spaces = %v, %v", infos, err)
	}
	if err := e.DropSpace(t.Context(), "a"); err == nil {
		t.Error("dropped without AutoSchema")
	}
}

// TestDroppingASpaceKeepsTheOthersWatched: the change stream forgets only the
// table that goes.
func TestDroppingASpaceKeepsTheOthersWatched(t *testing.T) {
	w := newWorld(t)
	stream := func() string {
		raw, err := database.NewDatabaseAdminClient(t.Context(), w.server.ClientOptions()...)
		w.ok(err)
		defer raw.Close()
		resp, err := raw.GetDatabaseDdl(t.Context(), &databasepb.GetDatabaseDdlRequest{Database: spandbtest.Database})
		w.ok(err)
		for _, stmt := range resp.GetStatements() {
			if strings.Contains(stmt, "CREATE CHANGE STREAM") {
				return stmt
			}
		}
		return ""
	}
	for _, step := range []struct {
		drop string
		want string
	}{{"", "FOR a(payload_link), b(payload_link) "}, {"a", "FOR b(payload_link) "}, {"b", "payload_link_changes OPTIONS"}} {
		if step.drop != "" {
			w.ok(w.db.DropSpace(t.Context(), step.drop))
		}
		if got := stream(); !strings.Contains(got, step.want) {
			t.Errorf("after dropping %q: %s, want %q in it", step.drop, got, step.want)
		}
	}
}

// TestInterruptedDropIsFinished: the tables are gone and the catalog still has the
// space.
func TestInterruptedDropIsFinished(t *testing.T) {
	for _, again := range []string{"drop", "create"} {
		w := newWorld(t)
		opts := kv.SpaceOptions{Links: true, FeedShards: 1, FeedRetention: time.Hour}
		w.server.Before(once("Commit", failing(codes.PermissionDenied, "no")))
		if err := w.db.DropSpace(t.Context(), "a"); err == nil {
			t.Fatal("dropped")
		}
		w.server.Before(nil)
		if again == "drop" {
			w.ok(w.db.DropSpace(t.Context(), "a"))
		}
		w.ok(w.db.CreateSpace(t.Context(), "a", opts))
		if w.value("a", "k") != "" {
			t.Errorf("%s: the old row is back", again)
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	server := spandbtest.Start(t, clock.System{})
	refuse := func(code codes.Code) func(context.Context, spandbtest.Call) error {
		return func(context.Context, spandbtest.Call) error { return status.Error(code, "no") }
	}
	for _, c := range []struct {
		name   string
		opts   spanner.Options
		before func(context.Context, spandbtest.Call) error
		want   string
	}{
		{"no project", spanner.Options{InstanceID: "i", DatabaseID: "d"}, nil, "no project given"},
		{"no instance", spanner.Options{ProjectID: "p", DatabaseID: "d"}, nil, "no instance given"},
		{"no database", spanner.Options{ProjectID: "p", InstanceID: "i"}, nil, "no database given"},
		{"bad name", spanner.Options{Database: "d"}, nil, "projects/P/instances/I/databases/D"},
		{"twice", spanner.Options{Database: spandbtest.Database, DatabaseID: "d"}, nil, "in parts"},
		{"missing", spanner.Options{ProjectID: "p", InstanceID: "i", DatabaseID: "none"}, nil, "check the setting of the database projects/p/instances/i/databases/none"},
		{"no right", spanner.Options{Database: spandbtest.Database}, refuse(codes.PermissionDenied), "roles/spanner.databaseUser"},
		{"no login", spanner.Options{Database: spandbtest.Database}, refuse(codes.Unauthenticated), "credentials"},
		{"no role", spanner.Options{Database: spandbtest.Database, Role: "nobody"}, nil, "Role not found: nobody"},
	} {
		server.Before(c.before)
		c.opts.ClientOptions = server.ClientOptions()
		e, err := spanner.Open(t.Context(), c.opts)
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v, want %q in it", c.name, err, c.want)
		}
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	w := newWorld(t)
	w.setSchemaVersion(2)
	opts := spanner.Options{Database: spandbtest.Database, AutoSchema: true, ClientOptions: w.server.ClientOptions()}
	if _, err := spanner.Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "newer holdfast") {
		t.Errorf("error = %v", err)
	}
	w.setSchemaVersion(1)
	e, err := spanner.Open(t.Context(), opts)
	w.ok(err)
	w.ok(e.Close())
}

func TestEmulatorHostAndRole(t *testing.T) {
	for _, byVariable := range []bool{true, false} {
		t.Run(fmt.Sprint(byVariable), func(t *testing.T) {
			server := spandbtest.Start(t, clock.System{})
			opts := spanner.Options{Database: spandbtest.Database, AutoSchema: true, Channels: 2}
			if byVariable {
				t.Setenv("SPANNER_EMULATOR_HOST", server.Addr())
			} else {
				opts.EmulatorHost = server.Addr()
			}
			e, err := spanner.Open(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.CreateSpace(t.Context(), "a", kv.SpaceOptions{Links: true}); err != nil {
				t.Error(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			opts.Role = spanner.ReaderRole // exists now
			opts.AutoSchema = false
			if e, err = spanner.Open(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
