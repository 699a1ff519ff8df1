package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/spanner"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

// world is an engine on a server of its own, with the spaces "a" and "b" and the
// row "k" in "a".
type world struct {
	*testing.T
	server  *spandbtest.Server
	clock   *clock.Manual
	engine  *spanner.Engine
	db      *kv.DB
	version kv.Version
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, clock: clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	w.server = spandbtest.Start(t, w.clock)
	w.engine = open(t, w.server, w.clock)
	t.Cleanup(func() {
		w.server.Before(nil)
		w.server.After(nil)
		if err := w.engine.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	w.db = kv.New(w.engine, spanner.Limits())
	for _, s := range []string{"a", "b"} {
		w.ok(w.db.CreateSpace(t.Context(), s, kv.SpaceOptions{Links: true, FeedShards: 1, FeedRetention: time.Hour}))
	}
	var err error
	w.version, err = w.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "k", "old")}})
	w.ok(err)
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("unexpected error: %v", err)
	}
}

func put(space, key, value string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte(value)}
}

func (w *world) value(space, key string) string {
	w.Helper()
	row, err := w.db.GetOne(w.Context(), space, []byte(key))
	w.ok(err)
	return string(row.Value)
}

// replace is a transaction that checks the row "k" and writes in both spaces.
func (w *world) replace() *kv.Txn {
	return &kv.Txn{
		Tag:    "a tag",
		Checks: []kv.Check{{Space: "a", Key: []byte("k"), Version: w.version}, {Space: "b", Key: []byte("k")}},
		Writes: []kv.Write{put("a", "k", "new"), put("b", "k", "new")},
	}
}

// once runs fn at the first call of a method only.
func once(method string, fn func() error) func(context.Context, spandbtest.Call) error {
	var done atomic.Bool
	return func(_ context.Context, c spandbtest.Call) error {
		if c.Method == method && done.CompareAndSwap(false, true) {
			return fn()
		}
		return nil
	}
}

func afterOnce(method string, fn func() error) func(context.Context, spandbtest.Call, error) error {
	before := once(method, fn)
	return func(ctx context.Context, c spandbtest.Call, err error) error {
		if injected := before(ctx, c); injected != nil {
			return injected
		}
		return err
	}
}

func failing(code codes.Code, text string) func() error {
	return func() error { return status.Error(code, text) }
}

func TestCommitTakesTwoCalls(t *testing.T) {
	w := newWorld(t)
	many := &kv.Txn{Writes: []kv.Write{put("a", "1", ""), put("b", "2", "")}}
	for i := range 300 {
		many.Checks = append(many.Checks, kv.Check{Space: []string{"a", "b"}[i%2], Key: fmt.Append(nil, "none", i)})
	}
	for _, c := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"checks and writes", func() error { _, err := w.db.Commit(t.Context(), w.replace()); return err }, []string{"ExecuteStreamingSql", "Commit"}},
		{"many checks and writes", func() error { _, err := w.db.Commit(t.Context(), many); return err }, []string{"ExecuteStreamingSql", "Commit"}},
		{"only writes", func() error {
			_, err := w.db.Commit(t.Context(), &kv.Txn{Writes: many.Writes})
			return err
		}, []string{"BeginTransaction", "Commit"}},
		{"only checks", func() error { _, err := w.db.Commit(t.Context(), &kv.Txn{Checks: many.Checks}); return err }, []string{"ExecuteStreamingSql"}},
		{"get", func() error {
			_, err := w.db.Get(t.Context(), kv.Ref{Space: "a", Key: []byte("k")}, kv.Ref{Space: "b", Key: []byte("k")})
			return err
		}, []string{"ExecuteStreamingSql"}},
		{"scan", func() error {
			return w.db.Scan(t.Context(), "a", kv.Range{Reverse: true}, func(kv.Row) bool { return true })
		}, []string{"ExecuteStreamingSql"}},
		{"feed", func() error {
			// The first read trims too.
			_, err := w.db.ReadFeed(t.Context(), "a", 0, "", 10)
			w.server.ResetCalls()
			if err == nil {
				_, err = w.db.ReadFeed(t.Context(), "a", 0, "", 10)
			}
			return err
		}, []string{"ExecuteStreamingSql"}},
	} {
		w.server.ResetCalls()
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, w.server.Calls()); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestGetBeyondOneRequestIsStillOneCut(t *testing.T) {
	w := newWorld(t)
	var refs []kv.Ref
	for i := range 1200 { // 4.8 MB of keys
		refs = append(refs, kv.Ref{Space: "a", Key: fmt.Appendf(nil, "%04000d", i)})
	}
	refs = append(refs, kv.Ref{Space: "b", Key: []byte("k")}, kv.Ref{Space: "a", Key: []byte("k")})
	w.server.ResetCalls()
	// What is committed between the statements must not be seen.
	var statements atomic.Int32
	w.server.After(func(ctx context.Context, c spandbtest.Call, err error) error {
		if c.Method == "ExecuteStreamingSql" && statements.Add(1) == 1 {
			w.server.After(nil)
			if _, err := w.db.Commit(ctx, &kv.Txn{Writes: []kv.Write{put("a", "k", "new"), put("b", "k", "new")}}); err != nil {
				t.Error(err)
			}
		}
		return err
	})
	rows, err := w.db.Get(t.Context(), refs...)
	w.ok(err)
	if a, b := string(rows[1201].Value), string(rows[1200].Value); a != "old" || b != "" {
		t.Errorf("rows = %q and %q, want those before the commit", a, b)
	}
	if n := strings.Count(strings.Join(w.server.Calls(), " "), "ExecuteStreamingSql"); n < 2 {
		t.Errorf("%d statements, want more than one", n)
	}
}

func TestTagAndChangesReachTheServer(t *testing.T) {
	w := newWorld(t)
	var commits []spandbtest.Commit
	w.server.OnCommit(func(c spandbtest.Commit) { commits = append(commits, c) })
	txn := w.replace()
	txn.Writes[0].Link = "gs://b/new"
	v, err := w.db.Commit(t.Context(), txn)
	w.ok(err)
	if len(commits) != 1 || commits[0].Tag != "a tag" || commits[0].System {
		t.Fatalf("commits = %+v, want one with the tag", commits)
	}
	if got := kv.VersionAt(commits[0].Timestamp) + kv.Version(commits[0].Timestamp.UnixMicro()%1000); got != v {
		t.Errorf("version %d of a commit at %v", v, commits[0].Timestamp)
	}
	types := map[string]string{}
	for _, c := range commits[0].Changes {
		types[c.Table] = c.Type
	}
	if diff := cmp.Diff(map[string]string{"a": "UPDATE", "b": "INSERT"}, types); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	change := commits[0].Changes[0]
	if got := change.New["payload_link"].GetStringValue(); got != "gs://b/new" || change.Old["payload_link"].GetStringValue() != "" {
		t.Errorf("link = %q", got)
	}
}

// TestLostAnswerOfACommit: the client asks again, and gets the outcome of the
// first request.
func TestLostAnswerOfACommit(t *testing.T) {
	w := newWorld(t)
	w.server.After(afterOnce("Commit", failing(codes.Unavailable, "lost")))
	v, err := w.db.Commit(t.Context(), w.replace())
	w.ok(err)
	row, err := w.db.GetOne(t.Context(), "a", []byte("k"))
	w.ok(err)
	if row.Version != v || string(row.Value) != "new" {
		t.Errorf("row = %+v, want version %d", row, v)
	}
}

// TestCommitWhoseOutcomeIsUnknown: every way in which the answer can stay away for
// good, with the commit done and with it not done.
func TestCommitWhoseOutcomeIsUnknown(t *testing.T) {
	for _, done := range []bool{false, true} {
		for _, c := range []struct {
			name string
			err  error
		}{
			{"internal", status.Error(codes.Internal, "broken")},
			{"unknown", status.Error(codes.Unknown, "lost track")},
			{"deadline of the server", status.Error(codes.DeadlineExceeded, "late")},
			{"cancelled by the server", status.Error(codes.Canceled, "stopped")},
			// After this one the client would run the transaction again.
			{"stream reset", status.Error(codes.Internal, "stream terminated by RST_STREAM")},
			{"unavailable, then refused", status.Error(codes.Unavailable, "gone")},
		} {
			t.Run(fmt.Sprintf("%s, done %v", c.name, done), func(t *testing.T) {
				w := newWorld(t)
				if done {
					w.server.After(afterOnce("Commit", func() error { return c.err }))
				} else {
					w.server.Before(once("Commit", func() error { return c.err }))
				}
				if status.Code(c.err) == codes.Unavailable {
					var commits atomic.Int32
					first := c.err
					refuse := func() error {
						if commits.Add(1) == 1 {
							return first
						}
						return status.Error(codes.PermissionDenied, "no right any more")
					}
					w.server.Before(func(_ context.Context, call spandbtest.Call) error {
						if call.Method == "Commit" && (!done || commits.Load() > 0) {
							return refuse()
						}
						return nil
					})
					w.server.After(func(_ context.Context, call spandbtest.Call, err error) error {
						if call.Method == "Commit" && err == nil {
							return refuse()
						}
						return err
					})
				}
				_, err := w.db.Commit(t.Context(), w.replace())
				if !errors.Is(err, kv.ErrUnknownOutcome) || kv.IsConflict(err) {
					t.Fatalf("error = %v, want an unknown outcome", err)
				}
				w.server.Before(nil)
				w.server.After(nil)
				if got := w.value("b", "k") == "new"; got != done {
					t.Errorf("commit is there: %v, want %v", got, done)
				}
			})
		}
	}
}

// endable is a context that ends with an error, at once, when end is called.
type endable struct {
	context.Context
	err   error
	ended chan struct{}
}

func newEndable(ctx context.Context, err error) *endable {
	return &endable{Context: ctx, err: err, ended: make(chan struct{})}
}

func (e *endable) end() { close(e.ended) }

func (e *endable) Done() <-chan struct{} { return e.ended }

func (e *endable) Err() error {
	select {
	case <-e.ended:
		return e.err
	default:
		return nil
	}
}

// TestEndOfContextDuringCommitIsUnknown ends the context when the Commit has reached
// the server, which answers when nobody waits for it any more.
func TestEndOfContextDuringCommitIsUnknown(t *testing.T) {
	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		w := newWorld(t)
		ctx := newEndable(t.Context(), end)
		returned := make(chan struct{})
		w.server.Before(once("Commit", func() error {
			ctx.end()
			<-returned
			return nil
		}))
		_, err := w.db.Commit(ctx, w.replace())
		close(returned)
		if !errors.Is(err, kv.ErrUnknownOutcome) {
			t.Errorf("%v: error = %v, want an unknown outcome", end, err)
		}
	}
}

// TestErrorsThatSayNothingWasWritten must not be called unknown: somebody would
// keep what the commit was to own.
func TestErrorsThatSayNothingWasWritten(t *testing.T) {
	for _, c := range []struct {
		method string
		err    error
	}{
		{"Commit", status.Error(codes.FailedPrecondition, "no")},
		{"Commit", status.Error(codes.InvalidArgument, "too many mutations")},
		{"Commit", status.Error(codes.PermissionDenied, "no right")},
		{"Commit", status.Error(codes.OutOfRange, "no")},
		{"ExecuteStreamingSql", status.Error(codes.Internal, "broken")},
		{"ExecuteStreamingSql", status.Error(codes.PermissionDenied, "no right")},
		{"BeginTransaction", status.Error(codes.PermissionDenied, "no right")},
	} {
		w := newWorld(t)
		txn := w.replace()
		if c.method == "BeginTransaction" {
			txn.Checks = nil
		}
		w.server.Before(func(_ context.Context, call spandbtest.Call) error {
			if call.Method == c.method {
				return c.err
			}
			return nil
		})
		_, err := w.db.Commit(t.Context(), txn)
		if err == nil || errors.Is(err, kv.ErrUnknownOutcome) || kv.IsConflict(err) {
			t.Errorf("%s refused with %v: error = %v", c.method, c.err, err)
		}
		w.server.Before(nil)
		if w.value("a", "k") != "old" {
			t.Errorf("%s refused with %v: the commit is there", c.method, c.err)
		}
	}
}

func TestAbortedTransactionsRunAgain(t *testing.T) {
	for _, method := range []string{"Commit", "ExecuteStreamingSql"} {
		w := newWorld(t)
		w.server.Before(once(method, spandbtest.Aborted))
		_, err := w.db.Commit(t.Context(), w.replace())
		w.ok(err)
		if w.value("b", "k") != "new" {
			t.Errorf("%s: the commit is not there", method)
		}
	}
}

// TestAbortedForEver: an endless conflict ends with the context, and nobody is
// told that it might have happened.
func TestAbortedForEver(t *testing.T) {
	w := newWorld(t)
	w.server.Before(func(_ context.Context, c spandbtest.Call) error {
		if c.Method == "Commit" {
			return spandbtest.Aborted()
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := w.db.Commit(ctx, w.replace())
	// Only if the deadline hit a request that was on its way it is unknown.
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, kv.ErrUnknownOutcome) {
		t.Errorf("error = %v, want the end of the context", err)
	}
}

// TestConflictBetweenReadAndCommit: what was read is no longer true at the commit.
func TestConflictBetweenReadAndCommit(t *testing.T) {
	w := newWorld(t)
	other := open(t, w.server, w.clock)
	defer other.Close()
	w.server.Before(once("Commit", func() error {
		w.server.Before(nil)
		_, err := other.Commit(context.Background(), &kv.Txn{Writes: []kv.Write{put("a", "k", "between")}})
		return err
	}))
	if _, err := w.db.Commit(t.Context(), w.replace()); !kv.IsConflict(err) {
		t.Fatalf("error = %v, want a conflict", err)
	}
	if w.value("a", "k") != "between" || w.value("b", "k") != "" {
		t.Error("a commit whose check failed has written")
	}
}

// TestBrokenStreamGoesOn: the client asks for the rest of a result.
func TestBrokenStreamGoesOn(t *testing.T) {
	w := newWorld(t)
	txn := &kv.Txn{}
	for i := range 500 {
		txn.Writes = append(txn.Writes, put("b", fmt.Sprintf("%03d", i), "x"))
	}
	_, err := w.db.Commit(t.Context(), txn)
	w.ok(err)
	for _, before := range []bool{true, false} {
		if before {
			w.server.Before(once("ExecuteStreamingSql", failing(codes.Unavailable, "gone")))
		} else {
			w.server.After(afterOnce("ExecuteStreamingSql", failing(codes.Unavailable, "gone")))
		}
		var keys []string
		w.ok(w.db.Scan(t.Context(), "b", kv.Range{}, func(r kv.Row) bool { keys = append(keys, string(r.Key)); return true }))
		if len(keys) != 500 || !slices.IsSorted(keys) {
			t.Errorf("scan showed %d rows, want 500", len(keys))
		}
	}
}

// TestDeadlineHoldsInARollback: the client would wait for the end of a rollback.
func TestDeadlineHoldsInARollback(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	rolledBack := make(chan struct{})
	w.server.Before(once("Rollback", func() error {
		close(rolledBack)
		<-release
		return nil
	}))
	txn := w.replace()
	txn.Checks[0].Version++
	_, err := w.db.Commit(t.Context(), txn)
	if !kv.IsConflict(err) {
		t.Errorf("error = %v, want a conflict", err)
	}
	<-rolledBack // locks are given up
	close(release)
}

func isErr(err, want error) bool { return errors.Is(err, want) }
