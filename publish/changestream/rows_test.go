package changestream_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
	"github.com/holdfast-dev/holdfast/publish/changestream"
	"github.com/holdfast-dev/holdfast/publish/changestream/streamtest"
)

// TestRowsBecomeMessages goes from transactions of rows to messages: a batch is
// staged and committed under its tag.
func TestRowsBecomeMessages(t *testing.T) {
	ctx := t.Context()
	db, stream := spandbtest.Start(t, clock.System{}), streamtest.New(t)
	stream.Attach(db)
	admin, err := database.NewDatabaseAdminClient(ctx, db.ClientOptions()...)
	ok(t, err)
	defer admin.Close()
	op, err := admin.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{Database: spandbtest.Database, Statements: []string{
		"CREATE TABLE bsos (id STRING(MAX) NOT NULL, payload_link STRING(MAX)) PRIMARY KEY (id)",
		"CREATE TABLE batch_bsos (id STRING(MAX) NOT NULL, payload_link STRING(MAX)) PRIMARY KEY (id)",
	}})
	ok(t, err)
	ok(t, op.Wait(ctx))
	client, err := spanner.NewClientWithConfig(ctx, spandbtest.Database, spanner.ClientConfig{DisableNativeMetrics: true}, db.ClientOptions()...)
	ok(t, err)
	defer client.Close()

	opts := options()
	opts.Database = spandbtest.Database
	src, err := changestream.Open(ctx, opts, db.ClientOptions()...)
	ok(t, err)
	defer src.Close()
	to := &topic{}
	stop := publisher(t, src, to, filepath.Join(t.TempDir(), "p"))

	row := func(table, link string) *spanner.Mutation {
		return spanner.InsertOrUpdate(table, []string{"id", "payload_link"}, []any{"x", spanner.NullString{StringVal: link, Valid: link != ""}})
	}
	commit := func(tag string, mutations ...*spanner.Mutation) {
		t.Helper()
		_, err := client.ReadWriteTransactionWithOptions(ctx, func(_ context.Context, tx *spanner.ReadWriteTransaction) error {
			return tx.BufferWrite(mutations)
		}, spanner.TransactionOptions{TransactionTag: tag})
		ok(t, err)
	}
	commit("", row("batch_bsos", "gs://B/a"))
	commit("batch_commit", row("bsos", "gs://B/a"), spanner.Delete("batch_bsos", spanner.Key{"x"}))
	stream.Split(stream.Living()[0], 2)
	commit("", row("bsos", "gs://B/b"))
	commit("", row("bsos", "gs://B/b")) // changes no link
	commit("", row("bsos", ""))
	wait(t, "all messages", func() bool { return len(to.all()) >= 5 })

	var got []string
	for _, m := range to.all() {
		r, err := changes.Decode([]byte(m))
		ok(t, err)
		if at, err := time.Parse(time.RFC3339Nano, r.CommitTimestamp); err != nil || time.Since(at) > time.Minute {
			t.Errorf("time %q", r.CommitTimestamp)
		}
		for _, mod := range r.Mods {
			got = append(got, string(r.ModType)+" "+r.TableName+" "+r.TransactionTag+" "+mod.Old+" "+mod.New+" "+mod.Keys)
			if handover := r.IsHandover(mod); handover != (r.TableName == "batch_bsos" && r.ModType == changes.Delete) {
				t.Errorf("hand-over %v: %+v", handover, r)
			}
		}
	}
	slices.Sort(got)
	want := []string{
		`DELETE batch_bsos batch_commit gs://B/a  {"id":"x"}`,
		`INSERT batch_bsos   gs://B/a {"id":"x"}`,
		`INSERT bsos batch_commit  gs://B/a {"id":"x"}`,
		`UPDATE bsos  gs://B/a gs://B/b {"id":"x"}`,
		`UPDATE bsos  gs://B/b  {"id":"x"}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error("-want +got\n" + d)
	}
	ok(t, stop())
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
