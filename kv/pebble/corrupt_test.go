package pebble

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// logBlock is the unit of Pebble's log. Damage in the last two, or to what they
// hold the beginning of, looks like a write that a crash has torn.
const logBlock = 32 << 10

// TestFlippedBitsAreReported flips one bit in each kind of file, in many places.
// After a crash, damage is reported, or is in the tail of the log or of the
// manifest, or does not matter. What is left is right and has no gaps.
func TestFlippedBitsAreReported(t *testing.T) {
	r := newRand(t)
	disk := vfs.NewCrashableMem()
	e := openOn(t, disk, clock.NewManual(testStart()))
	defer mustClose(t, e)
	writeSizes(t, e)
	reported := flipEach(t, disk, r, true)
	for _, kind := range []string{".sst", ".log", ".blob"} {
		if reported[kind] == 0 {
			t.Errorf("no damage to a %s file was reported: %v", kind, reported)
		}
	}
}

// TestFlippedBitsInAClosedFolderAreReported: without a crash there is nothing
// that damage could be mistaken for.
func TestFlippedBitsInAClosedFolderAreReported(t *testing.T) {
	r := newRand(t)
	disk := vfs.NewCrashableMem()
	e := openOn(t, disk, clock.NewManual(testStart()))
	writeSizes(t, e)
	mustClose(t, e)
	flipEach(t, disk, r, false)
}

// TestDamagedEndOfAFileOfValuesIsReported: Pebble panics over it.
func TestDamagedEndOfAFileOfValuesIsReported(t *testing.T) {
	disk := vfs.NewCrashableMem()
	e := openOn(t, disk, clock.NewManual(testStart()))
	writeSizes(t, e)
	mustClose(t, e)
	names, err := disk.List("/data")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range names {
		if path.Ext(name) != ".blob" {
			continue
		}
		info, err := disk.Stat("/data/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for back := int64(1); back <= 40; back += 3 {
			for call, read := range map[string]func(context.Context, *Engine) (int, error){"Scan": scanSizes, "Get": getSizes} {
				damaged := disk.CrashClone(vfs.CrashCloneCfg{})
				flip(t, damaged, "/data/"+name, info.Size()-back)
				if _, err := readSizes(t.Context(), damaged, read); !errors.Is(err, kv.ErrCorrupt) {
					t.Errorf("%s, %d bytes before the end, %s: %v", name, back, call, err)
				}
			}
			tried++
		}
	}
	if tried == 0 {
		t.Error("there is no file of values")
	}
}

const sizesRows = 60

func sizesRow(i int) (key, value string) {
	return string(rune('A' + i)), strings.Repeat(string(rune('a'+i%26)), 1+i*300)
}

// writeSizes makes rows of different sizes, some of which are flushed.
func writeSizes(t *testing.T, e *Engine) {
	t.Helper()
	mustCreate(t, e, "s", kv.SpaceOptions{})
	for i := range sizesRows {
		k, v := sizesRow(i)
		mustCommit(t, e, put("s", k, v))
		if i == sizesRows/2 {
			if err := e.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// flipEach returns how often damage was reported, by the kind of the file.
func flipEach(t *testing.T, disk *vfs.MemFS, r *rand.Rand, torn bool) map[string]int {
	t.Helper()
	base := disk.CrashClone(vfs.CrashCloneCfg{})
	names, err := base.List("/data")
	if err != nil {
		t.Fatal(err)
	}
	reported := map[string]int{}
	for _, name := range names {
		info, err := base.Stat("/data/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() == 0 || strings.HasPrefix(name, "OPTIONS") { // not read
			continue
		}
		for i := range 20 {
			read := scanSizes
			if i%2 == 1 {
				read = getSizes
			}
			damaged := disk.CrashClone(vfs.CrashCloneCfg{})
			where := r.Int64N(info.Size())
			flip(t, damaged, "/data/"+name, where)
			rows, err := readSizes(t.Context(), damaged, read)
			tail := torn && path.Ext(name) == ".log" && where >= info.Size()-3*logBlock || strings.HasPrefix(name, "MANIFEST")
			switch {
			case errors.Is(err, kv.ErrCorrupt):
				reported[path.Ext(name)]++
			case err != nil:
				t.Errorf("%s, byte %d of %d: %v", name, where, info.Size(), err)
			case rows < sizesRows && !tail:
				t.Errorf("%s, byte %d of %d: only %d rows left, and nothing is reported", name, where, info.Size(), rows)
			}
		}
	}
	return reported
}

func flip(t *testing.T, disk *vfs.MemFS, name string, where int64) {
	t.Helper()
	f, err := disk.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], where); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << (where % 8)
	if _, err := f.WriteAt(b[:], where); err != nil {
		t.Fatal(err)
	}
}

// readSizes opens a folder and reads from it.
func readSizes(ctx context.Context, disk vfs.FS, read func(context.Context, *Engine) (int, error)) (int, error) {
	e, err := Open(ctx, "/data", Options{FS: disk, Clock: clock.NewManual(testStart())})
	if err != nil {
		return 0, err
	}
	defer e.Close()
	return read(ctx, e)
}

// scanSizes returns how many rows of writeSizes there are. A wrong row or a gap
// between rows is an error.
func scanSizes(ctx context.Context, e *Engine) (int, error) {
	n, wrong := 0, false
	err := e.Scan(ctx, "s", kv.Range{}, func(r kv.Row) bool {
		k, v := sizesRow(n)
		n++
		wrong = wrong || string(r.Key) != k || string(r.Value) != v
		return true
	})
	if err == nil && wrong {
		err = errors.New("rows are wrong or missing between others")
	}
	return n, err
}

// getSizes is scanSizes with one Get.
func getSizes(ctx context.Context, e *Engine) (int, error) {
	refs := make([]kv.Ref, sizesRows)
	for i := range refs {
		k, _ := sizesRow(i)
		refs[i] = kv.Ref{Space: "s", Key: []byte(k)}
	}
	rows, err := e.Get(ctx, refs)
	if err != nil {
		return 0, err
	}
	n := slices.IndexFunc(rows, func(r kv.Row) bool { return !r.Exists() })
	if n < 0 {
		n = len(rows)
	}
	for i, r := range rows {
		if _, v := sizesRow(i); r.Exists() != (i < n) || i < n && string(r.Value) != v {
			return n, errors.New("rows are wrong or missing between others")
		}
	}
	return n, nil
}

// TestGarbageInRowsIsReported: whatever touches a row that does not make sense
// names it and does not guess.
func TestGarbageInRowsIsReported(t *testing.T) {
	e := openOn(t, vfs.NewMem(), clock.NewManual(testStart()))
	defer mustClose(t, e)
	mustCreate(t, e, "s", kv.SpaceOptions{})
	s, err := e.space("s")
	if err != nil {
		t.Fatal(err)
	}
	eight := strings.Repeat("x", 8)
	for name, value := range map[string]string{
		"empty": "", "short": "\x00\x00", "flags": "\x80" + eight + eight, "version": "\x00" + strings.Repeat("\x00", 8),
		"expiry": "\x01" + eight + "xx", "link": "\x02" + eight + "\x7fx",
	} {
		t.Run(name, func(t *testing.T) {
			key := []byte(name)
			if err := e.db.Set(append(append([]byte(nil), s.rows...), key...), []byte(value), nil); err != nil {
				t.Fatal(err)
			}
			_, getErr := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: key}})
			_, manyErr := e.Get(t.Context(), []kv.Ref{{Space: "s", Key: []byte("x")}, {Space: "s", Key: key}, {Space: "s", Key: []byte("0")}})
			_, commitErr := e.Commit(t.Context(), &kv.Txn{Checks: []kv.Check{{Space: "s", Key: key}}})
			scanErr := e.Scan(t.Context(), "s", kv.Range{Start: key, End: append(key, 0)}, func(kv.Row) bool {
				t.Error("row shown")
				return true
			})
			for call, err := range map[string]error{"Get": getErr, "Get of many": manyErr, "Commit": commitErr, "Scan": scanErr} {
				if !errors.Is(err, kv.ErrCorrupt) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "space s") {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}
