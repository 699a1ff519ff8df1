package pebble

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

var errInjected = errors.New("injected")

// failAt fails the change with number at, and all after it, as a full or broken
// disk does.
type failAt struct {
	at, count atomic.Int64
}

func (f *failAt) String() string { return "failAt" }

func (f *failAt) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpRename, errorfs.OpRemove, errorfs.OpMkdirAll,
		errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileClose:
		if f.count.Add(1) >= f.at.Load() {
			return errInjected
		}
	}
	return nil
}

// TestFailedWriteFreezesTheEngine lets the disk refuse everything from the n-th
// change on, for many n. The engine must neither hang nor end the process, must
// refuse further calls with the cause, and must have lost nothing known.
func TestFailedWriteFreezesTheEngine(t *testing.T) {
	r := newRand(t)
	frozen := 0
	for range 60 {
		disk := vfs.NewCrashableMem()
		fail := &failAt{}
		fail.at.Store(int64(1 + r.IntN(200)))
		h := newHistory()
		e, err := Open(t.Context(), "/data", Options{FS: errorfs.Wrap(disk, fail), Clock: clock.NewManual(testStart())})
		if err == nil {
			if err := createCellSpaces(t.Context(), e); err == nil {
				go func() { _ = e.db.Flush() }() // let flushes fail too
				isFailure := func(err error) bool { return errors.Is(err, errInjected) && !kv.IsConflict(err) }
				if err := h.run(t.Context(), e, r, 4, 25, isFailure); err != nil {
					t.Fatalf("failure at %d: %v", fail.at.Load(), err)
				}
			}
			if e.disk.err() != nil {
				frozen++
				checkFrozen(t, e)
			}
			if err := e.Close(); err != nil && !errors.Is(err, errInjected) {
				t.Errorf("Close: %v", err)
			}
		} else if !errors.Is(err, errInjected) {
			t.Fatalf("failure at %d: Open: %v", fail.at.Load(), err)
		}
		after := openOn(t, disk.CrashClone(vfs.CrashCloneCfg{}), clock.NewManual(testStart()))
		if len(h.cells) > 0 {
			if err := h.check(t.Context(), after, h); err != nil {
				t.Fatalf("failure at %d: %v", fail.at.Load(), err)
			}
		}
		mustClose(t, after)
	}
	t.Logf("%d runs failed on a running engine", frozen)
	if frozen < 5 {
		t.Errorf("only %d runs got as far as a running engine", frozen)
	}
}

func checkFrozen(t *testing.T, e *Engine) {
	t.Helper()
	ctx := t.Context()
	_, getErr := e.Get(ctx, []kv.Ref{{Space: "left", Key: []byte("0")}})
	_, commitErr := e.Commit(ctx, &kv.Txn{Writes: []kv.Write{put("left", "0", "")}})
	_, feedErr := e.ReadFeed(ctx, "right", 0, "", 1)
	scanErr := e.Scan(ctx, "left", kv.Range{}, func(kv.Row) bool { return true })
	for name, err := range map[string]error{"Get": getErr, "Commit": commitErr, "ReadFeed": feedErr, "Scan": scanErr} {
		if !errors.Is(err, errInjected) || errors.Is(err, kv.ErrUnknownOutcome) || !strings.Contains(err.Error(), "/data") {
			t.Errorf("%s of a frozen engine: %v", name, err)
		}
	}
}

// TestFailedSyncOfACommitIsUnknown: the log was written, but whether it reached
// the disk nobody can tell.
func TestFailedSyncOfACommitIsUnknown(t *testing.T) {
	fail := &failAt{}
	fail.at.Store(1 << 60)
	e := openOn(t, errorfs.Wrap(vfs.NewMem(), fail), clock.NewManual(testStart()))
	mustCreate(t, e, "s", kv.SpaceOptions{})
	mustCommit(t, e, put("s", "k", "old"))
	fail.at.Store(0)
	if _, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("s", "k", "new")}}); !errors.Is(err, kv.ErrUnknownOutcome) || !errors.Is(err, errInjected) {
		t.Errorf("Commit: %v", err)
	}
	if _, err := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: []byte("k")}}); !errors.Is(err, errInjected) {
		t.Errorf("Get of what may not be durable: %v", err)
	}
	if err := e.Close(); !errors.Is(err, errInjected) {
		t.Errorf("Close: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// smallDisk has as much space as the test says.
type smallDisk struct {
	vfs.FS
	avail atomic.Uint64
}

func (d *smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.avail.Load()}, nil
}

func (d *smallDisk) Unwrap() vfs.FS { return d.FS }

// TestFullDiskRefusesCommitsUntilThereIsSpace: reads go on meanwhile, and nothing
// needs a restart.
func TestFullDiskRefusesCommitsUntilThereIsSpace(t *testing.T) {
	disk := &smallDisk{FS: vfs.NewMem()}
	disk.avail.Store(1 << 40)
	e := openOn(t, disk, clock.NewManual(testStart()))
	defer mustClose(t, e)
	mustCreate(t, e, "s", kv.SpaceOptions{})
	v := mustCommit(t, e, put("s", "k", "v"))
	disk.avail.Store(roomKept + 1000)
	big := &kv.Txn{Writes: []kv.Write{put("s", "big", strings.Repeat("x", 9<<20))}}
	for range 2 {
		_, err := e.Commit(t.Context(), big)
		if err == nil || errors.Is(err, kv.ErrUnknownOutcome) || !strings.Contains(err.Error(), "full") {
			t.Fatalf("Commit on a full disk: %v", err)
		}
	}
	if row := getOne(t, e, "s", "k"); row.Version != v {
		t.Errorf("row = %v", row)
	}
	if row := getOne(t, e, "s", "big"); row.Exists() {
		t.Error("a refused commit has written")
	}
	disk.avail.Store(1 << 40)
	if _, err := e.Commit(t.Context(), big); err != nil {
		t.Errorf("Commit with space again: %v", err)
	}
}
