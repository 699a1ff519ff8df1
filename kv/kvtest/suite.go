package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Harness tells the suite how to open the engine under test.
type Harness struct {
	// NewStore makes a fresh, empty place for data that is released by
	// tb.Cleanup. The suite calls it once for each case.
	NewStore func(tb testing.TB) Store
	// Limits are the engine's.
	Limits kv.Limits
	// Shared says that several engines may be open on one store at once.
	Shared bool
	// OwnTime says that versions, and with them the age of feed entries, carry the
	// time of a server that the suite cannot set, not that of the clock given to
	// Store.
	OwnTime bool
	// Freeze stops the server behind the engine of the last store from
	// answering, and returns a function that lets it go on. Nil if there is no
	// server.
	Freeze func(tb testing.TB) (thaw func())
}

// Store opens an engine on one place for data, or ends the test. The suite calls
// it again, to see the same data, when it has closed the engine it got before, or
// at any time if the Harness says Shared. The suite closes all engines.
type Store func(tb testing.TB, c clock.Clock) kv.Engine

// Deadlines of a case: its context ends after the first, and it counts as hanging
// after the second. Both are far beyond what a sound engine needs.
const (
	caseTimeout = 60 * time.Second
	hangTimeout = 75 * time.Second
)

// suiteStart is what the clock of each case shows at first.
func suiteStart() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

type suiteCase struct {
	name string
	run  func(f *fixture)
}

func suiteCases() []suiteCase {
	var all []suiteCase
	for _, group := range [][]suiteCase{
		rowCases(), keyCases(), commitCases(), concurrencyCases(), versionCases(), scanCases(), scanWhileCases(),
		expiryCases(), feedCases(), spaceCases(), lifeCases(),
	} {
		all = append(all, group...)
	}
	return all
}

// Run is the conformance suite: each subtest is a claim of the contract. It ends
// with random operations compared with Model, and with a check that concurrent
// transactions are serializable.
func Run(t *testing.T, h Harness) {
	for _, c := range suiteCases() {
		t.Run(c.name, func(t *testing.T) { runCase(t, h, c) })
	}
	t.Run("RandomOperationsEqualModel", func(t *testing.T) { runRandom(t, h) })
}

// runCase runs one case in a goroutine of its own, so that one that hangs fails
// with all stacks instead of holding up the others.
func runCase(tb testing.TB, h Harness, c suiteCase) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	defer cancel()
	f := &fixture{TB: tb, ctx: ctx, harness: h, clock: clock.NewManual(suiteStart()), store: h.NewStore(tb)}
	f.open(f.clock)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(f)
	}()
	hang := time.NewTimer(hangTimeout)
	defer hang.Stop()
	select {
	case <-done:
		f.closeAll()
	case <-hang.C:
		stacks := make([]byte, 1<<20)
		tb.Errorf("hangs:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

// fixture is what a case works with: a DB on a fresh engine with a manual clock,
// and helpers that end the case when a call fails.
type fixture struct {
	testing.TB
	ctx     context.Context
	harness Harness
	store   Store
	clock   *clock.Manual
	engine  kv.Engine // the one opened last, below db
	db      *kv.DB

	mu     sync.Mutex
	opened []kv.Engine
}

func (f *fixture) open(c clock.Clock) {
	f.Helper()
	f.engine = f.store(f.TB, c)
	f.db = kv.New(f.engine, f.harness.Limits)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, f.engine)
}

func (f *fixture) closeAll() {
	f.Helper()
	for _, e := range f.opened {
		if err := e.Close(); err != nil {
			f.Errorf("Close: %v", err)
		}
	}
}

// reopen closes the engine and opens its data again under a clock.
func (f *fixture) reopen(c clock.Clock) {
	f.Helper()
	f.ok(f.engine.Close())
	f.open(c)
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("unexpected error: %v", err)
	}
}

func (f *fixture) wantErr(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("error = %v, want %v", err, want)
	}
}

// space creates a space, with links unless options are given.
func (f *fixture) space(name string, opts ...kv.SpaceOptions) {
	f.Helper()
	o := kv.SpaceOptions{Links: true}
	if len(opts) > 0 {
		o = opts[0]
	}
	f.ok(f.db.CreateSpace(f.ctx, name, o))
}

func put(space, key, value string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte(value)}
}

func del(space, key string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Delete: true}
}

func check(space, key string, v kv.Version) kv.Check {
	return kv.Check{Space: space, Key: []byte(key), Version: v}
}

// write commits writes without checks.
func (f *fixture) write(writes ...kv.Write) kv.Version {
	f.Helper()
	return f.commit(nil, writes...)
}

func (f *fixture) commit(checks []kv.Check, writes ...kv.Write) kv.Version {
	f.Helper()
	v, err := f.db.Commit(f.ctx, &kv.Txn{Checks: checks, Writes: writes})
	f.ok(err)
	if v == 0 {
		f.Fatalf("commit returned version 0")
	}
	return v
}

// conflicts wants a commit to be refused because of exactly the given checks.
func (f *fixture) conflicts(checks []kv.Check, writes []kv.Write, failing ...int) {
	f.Helper()
	_, err := f.db.Commit(f.ctx, &kv.Txn{Checks: checks, Writes: writes})
	var conflict *kv.ConflictError
	if !errors.As(err, &conflict) {
		f.Fatalf("error = %v, want a conflict", err)
	}
	var want []string
	for _, i := range failing {
		want = append(want, place(checks[i].Space, checks[i].Key))
	}
	if diff := cmp.Diff(want, places(conflict.Refs)); diff != "" {
		f.Fatalf("rows in conflict (-want +got):\n%s", diff)
	}
}

func place(space string, key []byte) string { return fmt.Sprintf("%s/%q", space, key) }

func places(refs []kv.Ref) []string {
	var all []string
	for _, r := range refs {
		all = append(all, place(r.Space, r.Key))
	}
	return all
}

func (f *fixture) get(space, key string) kv.Row {
	f.Helper()
	row, err := f.db.GetOne(f.ctx, space, []byte(key))
	f.ok(err)
	return row
}

// getStored reads a row whether or not it has expired.
func (f *fixture) getStored(space, key string) kv.Row {
	f.Helper()
	rows, err := f.db.Get(f.ctx, kv.Ref{Space: space, Key: []byte(key), IncludeExpired: true})
	f.ok(err)
	return rows[0]
}

// rowOptions compares rows by what the contract says of them: no difference
// between nil and empty bytes, and times as instants. Without an option of their own
// bytes would be compared one by one, which takes most of the time of a case.
func rowOptions() cmp.Option {
	full := func(a, b []byte) bool { return len(a) > 0 || len(b) > 0 } // the others are equal as empty
	return cmp.Options{cmpopts.EquateEmpty(), cmp.FilterValues(full, cmp.Comparer(bytes.Equal))}
}

func (f *fixture) wantRow(space, key string, want kv.Row) {
	f.Helper()
	want.Key = []byte(key)
	if diff := cmp.Diff(want, f.get(space, key), rowOptions()); diff != "" {
		f.Fatalf("row %s/%q (-want +got):\n%s", space, key, diff)
	}
}

func (f *fixture) wantValue(space, key, want string) {
	f.Helper()
	row := f.get(space, key)
	if !row.Exists() || string(row.Value) != want {
		f.Fatalf("row %s/%q = version %d, value %.40q; want value %.40q", space, key, row.Version, row.Value, want)
	}
}

func (f *fixture) wantAbsent(space, key string) {
	f.Helper()
	f.wantRow(space, key, kv.Row{})
}

// scan returns copies of the rows of a range. It fails when there are more than
// the suite ever writes.
func (f *fixture) scan(space string, r kv.Range) []kv.Row {
	f.Helper()
	const most = 1_000_000
	var rows []kv.Row
	err := f.db.Scan(f.ctx, space, r, func(row kv.Row) bool {
		row.Key, row.Value = bytes.Clone(row.Key), bytes.Clone(row.Value)
		rows = append(rows, row)
		return len(rows) < most
	})
	f.ok(err)
	if len(rows) == most {
		f.Fatalf("scan of %s does not end", space)
	}
	return rows
}

func (f *fixture) keys(space string, r kv.Range) []string {
	f.Helper()
	keys := []string{}
	for _, row := range f.scan(space, r) {
		keys = append(keys, string(row.Key))
	}
	return keys
}

func (f *fixture) wantKeys(space string, r kv.Range, want ...string) {
	f.Helper()
	if got := f.keys(space, r); !slices.Equal(want, got) {
		f.Fatalf("keys of %s in %+v (-want +got):\n%s", space, r, cmp.Diff(want, got))
	}
}

// parallel runs fn n times at once. fn returns an error instead of ending the
// test, which only the case's own goroutine may do.
func (f *fixture) parallel(n int, fn func(i int) error) {
	f.Helper()
	f.ok(concurrently(n, fn))
}

// concurrently runs fn n times, all of them started before the first goes on.
func concurrently(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var started, done sync.WaitGroup
	started.Add(n)
	for i := range n {
		done.Go(func() {
			started.Done()
			started.Wait()
			errs[i] = fn(i)
		})
	}
	done.Wait()
	return errors.Join(errs...)
}

// pause is the time that a client takes between a read and its commit: engines in
// memory are so fast that nobody would get in between without it.
func pause(n int) { time.Sleep(time.Duration(n) * 10 * time.Microsecond) }
