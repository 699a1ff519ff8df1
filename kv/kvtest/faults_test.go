package kvtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func newFaults(t *testing.T) (*kvtest.Faults, *kv.DB) {
	t.Helper()
	f := kvtest.NewFaults(kvtest.NewModel(clock.NewManual(start())))
	db := kv.New(f, kvtest.ModelLimits)
	if err := db.CreateSpace(t.Context(), "a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return f, db
}

func set(ctx context.Context, db *kv.DB, key string) error {
	_, err := db.Commit(ctx, &kv.Txn{Writes: []kv.Write{{Space: "a", Key: []byte(key)}}})
	return err
}

func exists(t *testing.T, db *kv.DB, key string) bool {
	t.Helper()
	row, err := db.GetOne(t.Context(), "a", []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return row.Exists()
}

func TestFaultBeforeTheCallPreventsIt(t *testing.T) {
	f, db := newFaults(t)
	f.Before(func(context.Context, kvtest.Call) error { return kvtest.ErrInjected })
	if err := set(t.Context(), db, "k"); !errors.Is(err, kvtest.ErrInjected) {
		t.Errorf("error = %v", err)
	}
	f.Reset()
	if exists(t, db, "k") {
		t.Error("the call was made")
	}
}

func TestFaultAfterTheCallHidesItsSuccess(t *testing.T) {
	f, db := newFaults(t)
	f.After(func(context.Context, kvtest.Call, error) error { return kv.ErrUnknownOutcome })
	if err := set(t.Context(), db, "k"); !errors.Is(err, kv.ErrUnknownOutcome) {
		t.Errorf("error = %v", err)
	}
	f.Reset()
	if !exists(t, db, "k") {
		t.Error("the call was not made")
	}
}

func TestCrashAnswersNobody(t *testing.T) {
	f, db := newFaults(t)
	f.After(func(_ context.Context, c kvtest.Call, err error) error {
		if c.Op != kvtest.OpCommit {
			t.Error("a call came through after the crash")
		}
		f.Crash() // while the call is in progress
		return err
	})
	if n := f.Calls(); n != 1 {
		t.Fatalf("%d calls, want 1", n)
	}
	if err := set(t.Context(), db, "k"); !errors.Is(err, kvtest.ErrCrashed) {
		t.Errorf("error = %v", err)
	}
	if _, err := db.GetOne(t.Context(), "a", []byte("k")); !errors.Is(err, kvtest.ErrCrashed) {
		t.Errorf("error = %v", err)
	}
	f.Reset()
	if f.Calls() != 0 || !exists(t, db, "k") {
		t.Error("what a call did before the crash is gone")
	}
}

func TestFaultCanDelayUntilToldOtherwise(t *testing.T) {
	f, db := newFaults(t)
	reached, release := make(chan struct{}), make(chan struct{})
	f.Before(func(ctx context.Context, c kvtest.Call) error {
		if c.Op != kvtest.OpCommit {
			return nil
		}
		close(reached)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	done := make(chan error)
	go func() { done <- set(t.Context(), db, "k") }()
	<-reached
	if exists(t, db, "k") {
		t.Error("the commit did not wait")
	}
	close(release)
	if err := <-done; err != nil || !exists(t, db, "k") {
		t.Errorf("error = %v", err)
	}
}

func TestEachCallReachesEveryCallInEveryWay(t *testing.T) {
	var met []string
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		f, db := newFaults(t)
		p.Arm(f)
		_, getErr := db.GetOne(t.Context(), "a", []byte("x"))
		commitErr := set(t.Context(), db, "k")
		f.Reset()
		met = append(met, fmt.Sprintf("%s %d: get %v, commit %v, done %v, fired %v", p.Failure, p.N, getErr, commitErr, exists(t, db, "k"), p.Fired()))
	})
	want := []string{
		"refused 0: get injected failure, commit <nil>, done true, fired true",
		"refused 1: get <nil>, commit injected failure, done false, fired true",
		"refused 2: get <nil>, commit <nil>, done true, fired false",
		"lost-before 0: get <nil>, commit outcome of the commit is unknown, done false, fired true",
		"lost-before 1: get <nil>, commit <nil>, done true, fired false",
		"lost-after 0: get <nil>, commit outcome of the commit is unknown, done true, fired true",
		"lost-after 1: get <nil>, commit <nil>, done true, fired false",
		"crashed-before 0: get simulated crash, commit simulated crash, done false, fired true",
		"crashed-before 1: get <nil>, commit simulated crash, done false, fired true",
		"crashed-before 2: get <nil>, commit <nil>, done true, fired false",
		"crashed-after 0: get simulated crash, commit simulated crash, done false, fired true",
		"crashed-after 1: get <nil>, commit simulated crash, done true, fired true",
		"crashed-after 2: get <nil>, commit <nil>, done true, fired false",
	}
	if diff := cmp.Diff(want, met); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestTraceTellsEachCallInALine(t *testing.T) {
	var lines []string
	db := kv.New(kvtest.NewTrace(kvtest.NewModel(clock.NewManual(start())), func(l string) { lines = append(lines, l) }), kvtest.ModelLimits)
	ctx := t.Context()
	feed := kv.SpaceOptions{Links: true, FeedShards: 1, FeedRetention: time.Hour}
	_ = db.CreateSpace(ctx, "a", feed)
	_, _ = db.Commit(ctx, &kv.Txn{Tag: "t", Checks: []kv.Check{{Space: "a", Key: []byte("k")}}, Writes: []kv.Write{
		{Space: "a", Key: []byte("k"), Value: []byte("secret"), Link: "gs://b/o", ExpiresAt: start(), Feed: []byte("ab")},
		{Space: "a", Key: []byte("\x00"), Delete: true},
	}})
	_, _ = db.Commit(ctx, &kv.Txn{Checks: []kv.Check{{Space: "a", Key: []byte("k"), Version: 7, IncludeExpired: true}}})
	_, _ = db.Get(ctx, kv.Ref{Space: "a", Key: []byte("k")}, kv.Ref{Space: "a", Key: []byte("l"), IncludeExpired: true})
	_ = db.Scan(ctx, "a", kv.Range{}, func(kv.Row) bool { return true })
	_ = db.Scan(ctx, "a", kv.Range{Start: []byte("b"), End: []byte("c"), Reverse: true, Limit: 3, IncludeExpired: true}, func(kv.Row) bool { return true })
	_, _ = db.ReadFeed(ctx, "a", 0, "", 1)
	_ = db.DropSpace(ctx, "b")
	want := []string{
		`create a: ok`,
		`spaces: ok`, // the DB looks whether the space has links and a feed
		`commit tag="t" check a/"k"=absent put a/"k" 6B link=gs://b/o expires feed=2B delete a/"\x00": ok`,
		`commit check a/"k"+expired: conflict on a/"k"`,
		`get a/"k" a/"l"+expired: ok`,
		`scan a [""): ok`,
		`scan a ["b" "c") reverse limit=3 +expired: ok`,
		`feed a shard=0: ok`,
		`drop b: space does not exist: b`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

func TestCloneIsIndependent(t *testing.T) {
	c := clock.NewManual(start())
	model := kvtest.NewModel(c)
	db := kv.New(model, kvtest.ModelLimits)
	if err := errors.Join(
		db.CreateSpace(t.Context(), "a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour}),
		set(t.Context(), db, "before"),
	); err != nil {
		t.Fatal(err)
	}
	clone := kv.New(model.Clone(c), kvtest.ModelLimits)
	other := kv.New(model.Open(c), kvtest.ModelLimits)
	if err := errors.Join(set(t.Context(), db, "original"), set(t.Context(), clone, "clone"), model.Close()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		db   *kv.DB
		want []string
	}{"clone": {clone, []string{"before", "clone"}}, "same data": {other, []string{"before", "original"}}} {
		var got []string
		if err := c.db.Scan(t.Context(), "a", kv.Range{}, func(r kv.Row) bool { got = append(got, string(r.Key)); return true }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s has rows %v, want %v", name, got, c.want)
		}
	}
}

func BenchmarkModelCommit(b *testing.B) {
	db := kvtest.NewDB(clock.NewManual(start()))
	if err := db.CreateSpace(b.Context(), "a", kv.SpaceOptions{}); err != nil {
		b.Fatal(err)
	}
	value := make([]byte, 100)
	for i := 0; b.Loop(); i++ {
		key := fmt.Appendf(nil, "%05d", i*7919%100_000)
		if _, err := db.Commit(b.Context(), &kv.Txn{Writes: []kv.Write{{Space: "a", Key: key, Value: value}}}); err != nil {
			b.Fatal(err)
		}
	}
}
