package pebble

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

func never(error) bool { return false }

// TestCrashLosesNothingKnown crashes a running engine at random moments with all,
// some or none of what was not synced. What a commit acknowledged, and what any
// read returned before the crash, is there afterwards; no commit is torn; and
// versions go on rising although the clock is set back.
func TestCrashLosesNothingKnown(t *testing.T) {
	r := newRand(t)
	disk := vfs.NewCrashableMem()
	now := testStart()
	const clients, crashes = 6, 12
	for crash := range crashes {
		now = now.Add(-time.Minute)
		e := openOn(t, slowSync{disk}, clock.NewManual(now))
		if err := createCellSpaces(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		h := resume(t, e, clients)
		known, crashed := h.runAndCrash(t, e, disk, clients, r)
		// The old run has ended and knows all that was tried.
		mustClose(t, e)
		disk = crashed
		after := openOn(t, disk, clock.NewManual(now))
		if err := known.check(t.Context(), after, h); err != nil {
			t.Fatalf("crash %d: %v", crash, err)
		}
		mustClose(t, after)
	}
}

// runAndCrash runs the clients and takes a copy of the disk at some moment, as a
// crash leaves it, and of what was known just before.
func (h *history) runAndCrash(t *testing.T, e *Engine, disk *vfs.MemFS, clients int, r *rand.Rand) (*history, *vfs.MemFS) {
	t.Helper()
	const steps = 40
	done := make(chan error, 1)
	seed := rand.New(rand.NewPCG(r.Uint64(), 0))
	go func() { done <- h.run(t.Context(), e, seed, clients, steps, never) }()
	wait := time.NewTimer(time.Duration(r.IntN(30_000)) * time.Microsecond)
	defer wait.Stop()
	<-wait.C
	known := h.clone()
	crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 0, 30, 70, 100}[r.IntN(5)], RNG: r})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return known, crashed
}

// resume reads what the cells hold after a restart.
func resume(tb testing.TB, e *Engine, clients int) *history {
	tb.Helper()
	h := newHistory()
	for id := range clients * cellsPerClient {
		if err := h.read(tb.Context(), e, id); err != nil {
			tb.Fatal(err)
		}
		row := getOne(tb, e, "left", string(cellTxn(id, 1, 0, nil).Writes[0].Key))
		h.update(id, func(c *cell) { c.tried, c.version = c.done, row.Version })
	}
	return h
}

// slowSync is a disk whose syncs take their time, so that others can look at what
// is not durable yet.
type slowSync struct{ vfs.FS }

func (d slowSync) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return slowFile{f}, err
}

func (d slowSync) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(from, to, c)
	return slowFile{f}, err
}

func (d slowSync) Unwrap() vfs.FS { return d.FS }

type slowFile struct{ vfs.File }

func (f slowFile) pause() {
	timer := time.NewTimer(rand.N(2 * time.Millisecond))
	<-timer.C
}

func (f slowFile) Sync() error     { f.pause(); return f.File.Sync() }
func (f slowFile) SyncData() error { f.pause(); return f.File.SyncData() }

// TestNoVersionIsUsedTwiceOverACrash: a key deleted before a crash is written
// again after it, under a clock set back by a year.
func TestNoVersionIsUsedTwiceOverACrash(t *testing.T) {
	disk := vfs.NewCrashableMem()
	c := clock.NewManual(testStart())
	e := openOn(t, disk, c)
	mustCreate(t, e, "s", kv.SpaceOptions{})
	var last kv.Version
	for range 50 {
		last = mustCommit(t, e, put("s", "k", "v"))
		c.Advance(time.Second)
	}
	last = max(last, mustCommit(t, e, kv.Write{Space: "s", Key: []byte("k"), Delete: true}))
	crashed := disk.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, e)
	e = openOn(t, crashed, clock.NewManual(testStart().AddDate(-1, 0, 0)))
	defer e.Close()
	if v := mustCommit(t, e, put("s", "k", "again")); v <= last {
		t.Errorf("version %d after %d", v, last)
	}
}

// TestCleanCloseKeepsVersionsNearTheClock: only a crash costs the distance to the
// ceiling.
func TestCleanCloseKeepsVersionsNearTheClock(t *testing.T) {
	disk := vfs.NewMem()
	c := clock.NewManual(testStart())
	for range 5 {
		e := openOn(t, disk, c)
		mustCreate(t, e, "s", kv.SpaceOptions{})
		if v := mustCommit(t, e, put("s", "k", "v")); !v.Time().Equal(testStart()) {
			t.Errorf("version of %v at %v", v.Time(), testStart())
		}
		mustClose(t, e)
	}
}

// gate is a disk whose syncs wait while it is closed.
type gate struct {
	vfs.FS
	open atomic.Pointer[chan struct{}] // syncs wait until it is closed
	at   chan struct{}                 // gets a value when a sync begins to wait
}

func newGate() *gate {
	g := &gate{FS: vfs.NewMem(), at: make(chan struct{}, 1)}
	g.close()()
	return g
}

// close closes the gate and returns the function that opens it.
func (g *gate) close() func() {
	open := make(chan struct{})
	g.open.Store(&open)
	select {
	case <-g.at: // left over
	default:
	}
	return func() { close(open) }
}

func (g *gate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, c)
	return gateFile{f, g}, err
}

func (g *gate) Unwrap() vfs.FS { return g.FS }

type gateFile struct {
	vfs.File
	g *gate
}

func (f gateFile) Sync() error     { f.g.wait(); return f.File.Sync() }
func (f gateFile) SyncData() error { f.g.wait(); return f.File.SyncData() }

func (g *gate) wait() {
	select {
	case g.at <- struct{}{}:
	default:
	}
	<-*g.open.Load()
}

// TestReadsWaitForTheSyncOfWhatTheySaw holds up the sync of a commit that writes
// a row, deletes another and carries a feed entry. Nothing of it is returned, nor
// is the absence of what it deleted, but reads of other rows go on.
func TestReadsWaitForTheSyncOfWhatTheySaw(t *testing.T) {
	g := newGate()
	e := openOn(t, g, clock.NewManual(testStart()))
	mustCreate(t, e, "s", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	mustCreate(t, e, "calm", kv.SpaceOptions{})
	mustCommit(t, e, put("s", "deleted", "old"), put("s", "written", "old"), put("s", "other", "old"))
	mustCommit(t, e, put("calm", "row", "old"))
	release := g.close()
	committed := make(chan error, 1)
	go func() {
		w := put("s", "written", "new")
		w.Feed = []byte("entry")
		_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{w, {Space: "s", Key: []byte("deleted"), Delete: true}}})
		committed <- err
	}()
	<-g.at

	if row := getOne(t, e, "s", "other"); string(row.Value) != "old" {
		t.Errorf("other row = %q", row.Value)
	}
	if row := getOne(t, e, "s", "never"); row.Exists() {
		t.Errorf("row that never was = %q", row.Value)
	}
	if err := e.Scan(t.Context(), "calm", kv.Range{}, func(kv.Row) bool { return true }); err != nil {
		t.Error(err)
	}
	// Pebble shows the commit soon after the sync began, if not before; reads
	// that come earlier see the old state, which is durable.
	for getRaw(t, e, "s", "written") != "new" {
		select {
		case err := <-committed:
			t.Fatalf("commit did not wait for its sync: %v", err)
		default:
		}
	}
	reads := map[string]func(chan error){
		"Get of a written row": func(done chan error) {
			_, err := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: []byte("written")}})
			done <- err
		},
		"Get of a deleted row": func(done chan error) {
			_, err := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: []byte("deleted")}})
			done <- err
		},
		"Get of two rows": func(done chan error) {
			_, err := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: []byte("other")}, {Space: "s", Key: []byte("written")}})
			done <- err
		},
		"Scan without the written row": func(done chan error) {
			done <- e.Scan(t.Context(), "s", kv.Range{End: []byte("other")}, func(kv.Row) bool { return true })
		},
		"ReadFeed": func(done chan error) { _, err := e.ReadFeed(t.Context(), "s", 0, "", 10); done <- err },
	}
	results := map[string]chan error{}
	for name, read := range reads {
		results[name] = make(chan error, 1)
		go read(results[name])
	}
	// All of them are found waiting, unless one returns.
	for waiting := 0; waiting < len(reads); waiting = countStacks("(*flight).await(") {
		for name, done := range results {
			if len(done) > 0 {
				t.Fatalf("%s returned before the commit was durable: %v", name, <-done)
			}
		}
	}
	release()
	for name, done := range results {
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	mustClose(t, e)
}

// TestReadsDuringADropWaitForItsSync: that rows are gone is not told before it is
// certain, and then it is told that the space is gone.
func TestReadsDuringADropWaitForItsSync(t *testing.T) {
	g := newGate()
	e := openOn(t, g, clock.NewManual(testStart()))
	mustCreate(t, e, "s", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	w := put("s", "k", "v")
	w.Feed = []byte("entry")
	mustCommit(t, e, w)
	release := g.close()
	dropped := make(chan error, 1)
	go func() { dropped <- e.DropSpace(t.Context(), "s") }()
	<-g.at
	s, err := e.space("s")
	if err != nil {
		t.Fatal(err)
	}
	for key := append(append([]byte(nil), s.rows...), 'k'); ; {
		_, closer, err := e.db.Get(key)
		if err != nil {
			break // the drop can be seen
		}
		_ = closer.Close()
	}
	results := make(chan error, 3)
	go func() { _, err := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: []byte("k")}}); results <- err }()
	go func() { _, err := e.ReadFeed(t.Context(), "s", 0, "", 1); results <- err }()
	go func() { results <- e.Scan(t.Context(), "s", kv.Range{}, func(kv.Row) bool { return true }) }()
	for countStacks("(*Engine).settleSpace(") < cap(results) {
		if len(results) > 0 {
			t.Fatalf("a read returned before the drop was durable: %v", <-results)
		}
	}
	release()
	for range cap(results) {
		if err := <-results; !errors.Is(err, kv.ErrSpaceNotFound) {
			t.Errorf("read during a drop: %v", err)
		}
	}
	if err := <-dropped; err != nil {
		t.Error(err)
	}
	mustClose(t, e)
}

// countStacks returns how many goroutines are inside of a function.
func countStacks(function string) int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), function)
}

// getRaw reads the value below the engine.
func getRaw(tb testing.TB, e *Engine, space, key string) string {
	tb.Helper()
	s, err := e.space(space)
	if err != nil {
		tb.Fatal(err)
	}
	b, closer, err := e.db.Get(append(append([]byte(nil), s.rows...), key...))
	if err != nil {
		tb.Fatal(err)
	}
	defer closer.Close()
	var h header
	if err := h.decode(b); err != nil {
		tb.Fatal(err)
	}
	return string(h.value)
}

// TestBigCommitsSurviveACrash: commits larger than a memtable take another way
// through Pebble.
func TestBigCommitsSurviveACrash(t *testing.T) {
	disk := vfs.NewCrashableMem()
	e := openOn(t, disk, clock.NewManual(testStart()))
	mustCreate(t, e, "s", kv.SpaceOptions{})
	big := make([]byte, 1<<20)
	var txn kv.Txn
	for i := range byte(50) {
		txn.Writes = append(txn.Writes, kv.Write{Space: "s", Key: []byte{i}, Value: big})
	}
	v, err := e.Commit(t.Context(), &txn)
	if err != nil {
		t.Fatal(err)
	}
	crashed := disk.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, e)
	e = openOn(t, crashed, clock.NewManual(testStart()))
	defer mustClose(t, e)
	n := 0
	err = e.Scan(t.Context(), "s", kv.Range{}, func(r kv.Row) bool {
		if r.Version != v || len(r.Value) != len(big) {
			t.Errorf("row %x: version %d, %d bytes", r.Key, r.Version, len(r.Value))
		}
		n++
		return true
	})
	if err != nil || n != len(txn.Writes) {
		t.Errorf("%d rows, %v", n, err)
	}
}
