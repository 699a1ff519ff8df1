package spandbtest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

func start(t *testing.T) (*spandbtest.Server, *spanner.Client) {
	t.Helper()
	server := spandbtest.Start(t, clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
	client, err := spanner.NewClientWithConfig(t.Context(), spandbtest.Database, spanner.ClientConfig{DisableNativeMetrics: true}, server.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin, err := database.NewDatabaseAdminClient(t.Context(), server.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	op, err := admin.UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{Database: spandbtest.Database, Statements: []string{
		"CREATE TABLE t (id INT64 NOT NULL, name STRING(10), at TIMESTAMP OPTIONS (allow_commit_timestamp = true)) PRIMARY KEY (id)",
	}})
	if err == nil {
		err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

func insert(t *testing.T, c *spanner.Client, id int, name string) time.Time {
	t.Helper()
	at, err := c.Apply(t.Context(), []*spanner.Mutation{spanner.InsertOrUpdate("t", []string{"id", "name", "at"}, []any{id, name, spanner.CommitTimestamp})})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func names(ctx context.Context, q interface {
	Query(context.Context, spanner.Statement) *spanner.RowIterator
}, sql string) (all []string, err error) {
	err = q.Query(ctx, spanner.NewStatement(sql)).Do(func(r *spanner.Row) error {
		var name string
		err := r.Columns(&name)
		all = append(all, name)
		return err
	})
	return all, err
}

// TestPhantomsAbort: a transaction that read a range runs again if a row has
// appeared in it.
func TestPhantomsAbort(t *testing.T) {
	_, client := start(t)
	insert(t, client, 1, "one")
	runs := 0
	_, err := client.ReadWriteTransaction(t.Context(), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		runs++
		seen, err := names(ctx, tx, "SELECT name FROM t ORDER BY id")
		if err != nil {
			return err
		}
		if runs == 1 {
			insert(t, client, 2, "two")
		}
		return tx.BufferWrite([]*spanner.Mutation{spanner.Insert("t", []string{"id", "name"}, []any{10, seen[len(seen)-1]})})
	})
	if err != nil || runs != 2 {
		t.Fatalf("%d runs, %v; want 2", runs, err)
	}
	got, err := names(t.Context(), client.Single(), "SELECT name FROM t ORDER BY id DESC LIMIT 1")
	if diff := cmp.Diff([]string{"two"}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestReadOnlyTransactionSeesOneState(t *testing.T) {
	_, client := start(t)
	insert(t, client, 1, "old")
	tx := client.ReadOnlyTransaction()
	defer tx.Close()
	for range 2 {
		got, err := names(t.Context(), tx, "SELECT name FROM t WHERE id = 1")
		if diff := cmp.Diff([]string{"old"}, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		insert(t, client, 1, "new")
	}
}

func TestTimestampsRiseWhileTheClockStandsStill(t *testing.T) {
	server, client := start(t)
	last := insert(t, client, 1, "a")
	server.SetClock(clock.NewManual(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)))
	for range 3 {
		at := insert(t, client, 1, "a")
		if !at.After(last) || at.Nanosecond()%1000 != 0 {
			t.Errorf("commit at %v after one at %v", at, last)
		}
		last = at
	}
}

func TestErrorsOfMutations(t *testing.T) {
	_, client := start(t)
	insert(t, client, 1, "a")
	for want, m := range map[codes.Code]*spanner.Mutation{
		codes.AlreadyExists:      spanner.Insert("t", []string{"id"}, []any{1}),
		codes.NotFound:           spanner.Update("t", []string{"id"}, []any{2}),
		codes.FailedPrecondition: spanner.Insert("t", []string{"id", "name"}, []any{3, "longer than ten"}),
		codes.InvalidArgument:    spanner.Insert("t", []string{"id", "none"}, []any{3, "x"}),
	} {
		_, err := client.Apply(t.Context(), []*spanner.Mutation{spanner.Insert("t", []string{"id"}, []any{100}), m})
		if spanner.ErrCode(err) != want {
			t.Errorf("error = %v, want %v", err, want)
		}
	}
	if got, err := names(t.Context(), client.Single(), "SELECT name FROM t WHERE id >= 2"); err != nil || len(got) != 0 {
		t.Errorf("rows = %v, %v", got, err)
	}
}

func TestHandleQueryServesWhatItWants(t *testing.T) {
	server, client := start(t)
	insert(t, client, 1, "row")
	server.HandleQuery(func(_ context.Context, req *spannerpb.ExecuteSqlRequest, stream spannerpb.Spanner_ExecuteStreamingSqlServer) (bool, error) {
		if req.GetSql() != "SELECT x FROM READ_stream()" {
			return false, nil
		}
		return true, stream.Send(&spannerpb.PartialResultSet{
			Metadata: &spannerpb.ResultSetMetadata{RowType: &spannerpb.StructType{Fields: []*spannerpb.StructType_Field{
				{Name: "x", Type: &spannerpb.Type{Code: spannerpb.TypeCode_STRING}},
			}}},
			Values: []*structpb.Value{structpb.NewStringValue("ours")}, ResumeToken: []byte("1"),
		})
	})
	for sql, want := range map[string]string{"SELECT x FROM READ_stream()": "ours", "SELECT name FROM t": "row"} {
		got, err := names(t.Context(), client.Single(), sql)
		if diff := cmp.Diff([]string{want}, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", sql, err, diff)
		}
	}
}

func TestFrozenServerDoesEverythingLate(t *testing.T) {
	server, client := start(t)
	insert(t, client, 1, "a") // from here on there is a session
	committed := make(chan struct{})
	server.OnCommit(func(spandbtest.Commit) { close(committed) })
	server.ResetCalls()
	thaw := server.Freeze()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	applied := make(chan error, 1)
	go func() {
		_, err := client.Apply(ctx, []*spanner.Mutation{spanner.Insert("t", []string{"id"}, []any{2})}, spanner.ApplyAtLeastOnce())
		applied <- err
	}()
	// A call that is given up on its way is not done late, it is not done.
	deadline := time.Now().Add(20 * time.Second)
	for !slices.Contains(server.Calls(), "Commit") {
		if time.Now().After(deadline) {
			t.Fatalf("no Commit arrives, only %v", server.Calls())
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-applied; !errors.Is(err, context.Canceled) && spanner.ErrCode(err) != codes.Canceled {
		t.Fatalf("error = %v, want the end of the context", err)
	}
	thaw()
	<-committed // after the client has given up
}
