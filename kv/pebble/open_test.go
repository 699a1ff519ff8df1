package pebble

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// childFolder makes the test binary act as another process that works on a
// folder: see TestMain.
const childFolder = "HOLDFAST_TEST_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child commits to one cell for ever. It prints a number when its commit has
// been acknowledged.
func child(dir string) error {
	ctx := context.Background()
	e, err := Open(ctx, dir, Options{})
	if err != nil {
		return err
	}
	if err := createCellSpaces(ctx, e); err != nil {
		return err
	}
	rows, err := e.Get(ctx, []kv.Ref{{Space: "left", Key: []byte("0")}})
	if err != nil {
		return err
	}
	v := rows[0].Version
	for n := numberOf(rows[0]) + 1; ; n++ {
		if v, err = e.Commit(ctx, cellTxn(0, n, v, make([]byte, n%10*1000))); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func startChild(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFolder+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, bufio.NewScanner(out)
}

// TestKillLosesNothingAcknowledged kills a process that commits, several times on
// the same folder.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	h := newHistory()
	for range 4 {
		cmd, out := startChild(t, dir)
		last := 0
		for wait := 1 + rand.IntN(40); wait > 0 && out.Scan(); wait-- {
			last, _ = strconv.Atoi(out.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for out.Scan() { // what it acknowledged before it died
			last, _ = strconv.Atoi(out.Text())
		}
		_ = cmd.Wait() // killed
		if last == 0 {
			t.Fatal("the child committed nothing")
		}
		h.update(0, func(c *cell) {
			for n := c.done + 1; n <= last; n++ {
				c.entries[n] = true
			}
			c.done, c.tried = last, last+1
		})
		e, err := Open(t.Context(), dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.check(t.Context(), e, h); err != nil {
			t.Error(err)
		}
		mustClose(t, e)
	}
}

func wantOpenError(t *testing.T, dir string, disk vfs.FS, words ...string) error {
	t.Helper()
	e, err := Open(t.Context(), dir, Options{FS: disk})
	if err == nil {
		mustClose(t, e)
		t.Fatalf("folder %s can be opened", dir)
	}
	for _, word := range append(words, dir) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error without %q: %v", word, err)
		}
	}
	return err
}

func TestFolderOfAnotherProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	_, out := startChild(t, dir)
	if !out.Scan() {
		t.Fatal("the child committed nothing")
	}
	wantOpenError(t, dir, nil, "in use by another holdfast process")
}

func TestFolderOpenInThisProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, e)
	wantOpenError(t, dir, nil, "in use")
	t.Chdir(filepath.Dir(dir))
	if _, err := Open(t.Context(), filepath.Base(dir), Options{}); err == nil {
		t.Error("folder can be opened by a relative name")
	}
}

func TestMissingFolderIsCreatedForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	e, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, e)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestFileInPlaceOfTheFolderIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, file, nil, "not a folder")
	wantOpenError(t, filepath.Join(file, "below"), nil, "not a directory")
}

// TestFolderThatCannotBeWrittenIsRefused: also one that exists and is whole.
func TestFolderThatCannotBeWrittenIsRefused(t *testing.T) {
	disk := vfs.NewMem()
	mustClose(t, openOn(t, disk, clock.System{}))
	for _, kind := range []errorfs.OpKind{errorfs.OpLock, errorfs.OpCreate} {
		readOnly := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == kind {
				return &fs.PathError{Op: "open", Path: op.Path, Err: fs.ErrPermission}
			}
			return nil
		}))
		err := wantOpenError(t, "/data", readOnly, "permission denied")
		if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "in use") {
			t.Errorf("error = %v", err)
		}
	}
	mustClose(t, openOn(t, disk, clock.System{}))
}

func TestNewerFormatIsRefused(t *testing.T) {
	disk := vfs.NewMem()
	e := openOn(t, disk, clock.System{})
	if err := e.db.Set(formatKey, []byte{formatVersion + 1}, pebbledb.Sync); err != nil {
		t.Fatal(err)
	}
	mustClose(t, e)
	wantOpenError(t, "/data", disk, "newer holdfast")
}

func TestNewerFormatOfPebbleIsRefused(t *testing.T) {
	disk := vfs.NewMem()
	mustClose(t, openOn(t, disk, clock.System{}))
	names, err := disk.List("/data")
	if err != nil {
		t.Fatal(err)
	}
	const marker = "marker.format-version."
	for _, name := range names {
		if n, ok := strings.CutPrefix(name, marker); ok {
			number, version, _ := strings.Cut(n, ".")
			v, err := strconv.Atoi(version)
			if err != nil {
				t.Fatal(err)
			}
			next := fmt.Sprintf("%s%s.%03d", marker, number, v+1)
			if err := disk.Rename("/data/"+name, "/data/"+next); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantOpenError(t, "/data", disk, "newer holdfast")
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	disk := vfs.NewMem()
	db, err := pebbledb.Open("/data", &pebbledb.Options{FS: disk, FormatMajorVersion: pebbledb.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set([]byte("k"), nil, nil), db.Close()); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, "/data", disk, "something else wrote it")
}
