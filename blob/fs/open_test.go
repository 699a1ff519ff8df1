package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

func TestOpenRefusesWhatIsNotItsOwn(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(root string) error
		want    string
	}{
		{"a file", func(root string) error { return os.WriteFile(root, nil, 0o600) }, "not a folder"},
		{"under a file", func(root string) error { return os.WriteFile(filepath.Dir(root), nil, 0o600) }, "not a directory"},
		{"a folder in use", func(root string) error {
			return errors.Join(os.MkdirAll(root, 0o700), os.WriteFile(filepath.Join(root, "thesis.tex"), nil, 0o600))
		}, `contains "thesis.tex"`},
		{"a newer format", func(root string) error {
			return errors.Join(os.MkdirAll(root, 0o700), os.WriteFile(filepath.Join(root, markerName), []byte(markerTitle+"2\n"), 0o600))
		}, "newer version"},
		{"a spoilt marker", func(root string) error {
			return errors.Join(os.MkdirAll(root, 0o700), os.WriteFile(filepath.Join(root, markerName), []byte("hello"), 0o600))
		}, "not a marker"},
		{"a read-only folder", func(root string) error { return os.MkdirAll(root, 0o500) }, "permission denied"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.want == "permission denied" && os.Geteuid() == 0 {
				t.Skip("root may write everywhere")
			}
			root := filepath.Join(newRoot(t), "parent", "root")
			if test.name != "under a file" {
				if err := os.MkdirAll(filepath.Dir(root), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := test.prepare(root); err != nil {
				t.Fatal(err)
			}
			d, err := Open(t.Context(), root, Options{})
			if err == nil {
				d.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), root) {
				t.Errorf("Open = %v, want an error with %q and the folder", err, test.want)
			}
		})
	}
}

func TestOpenTogetherMakesOneStore(t *testing.T) {
	root := filepath.Join(newRoot(t), "new", "root")
	var wg sync.WaitGroup
	drivers := make([]*Driver, 8)
	for i := range drivers {
		wg.Go(func() {
			d, err := Open(t.Context(), root, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			drivers[i] = d
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	owners := 0
	for i, d := range drivers {
		if d.folders.owner {
			owners++
		}
		s := blob.New(d, blob.Options{})
		if err := s.Put(t.Context(), fmt.Sprintf("dir/%d", i), strings.NewReader("x"), 1); err != nil {
			t.Error(err)
		}
	}
	if n := len(stateOf(t, blob.New(drivers[0], blob.Options{}))); n != len(drivers) || owners != 1 {
		t.Errorf("%d objects and %d owners, want %d and 1", n, owners, len(drivers))
	}
	for _, d := range drivers {
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRemovesTempsOfDeadProcessesOnly(t *testing.T) {
	root := newRoot(t)
	dead := openTest(t, root)
	alive := openTest(t, root)
	for _, d := range []*Driver{dead, alive} {
		if err := os.WriteFile(filepath.Join(d.tmp, "1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kill(t, dead)
	var log bytes.Buffer
	d, err := Open(t.Context(), root, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := os.Stat(dead.tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temp of the dead process: %v, want not exist", err)
	}
	if _, err := os.Stat(filepath.Join(alive.tmp, "1")); err != nil {
		t.Errorf("temp of the living process: %v", err)
	}
	if !strings.Contains(log.String(), "removed=1") {
		t.Errorf("log is %q, want a line about one file", log.String())
	}
}

func TestUseAfterCloseFails(t *testing.T) {
	d := openTest(t, newRoot(t))
	s := blob.New(d, blob.Options{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a", strings.NewReader("x"), 1); err == nil {
		t.Error("Put after Close succeeded")
	}
	if _, err := s.Finalize(t.Context(), "a"); err == nil {
		t.Error("Finalize after Close succeeded")
	}
}

func TestSpoiltFilesAreReportedAndHideNoOthers(t *testing.T) {
	d := openTest(t, newRoot(t))
	s := blob.New(d, blob.Options{})
	spoil := map[string]func(f *os.File) error{
		"bit":    func(f *os.File) error { _, err := f.WriteAt([]byte("X"), headerLen+10); return err },
		"size":   func(f *os.File) error { _, err := f.WriteAt([]byte("X"), 9); return err },
		"time":   func(f *os.File) error { _, err := f.WriteAt([]byte("X"), 17); return err },
		"cut":    func(f *os.File) error { return f.Truncate(headerLen + 50) },
		"empty":  func(f *os.File) error { return f.Truncate(0) },
		"longer": func(f *os.File) error { return f.Truncate(headerLen + 1000) },
	}
	for name, fn := range spoil {
		if err := s.Put(t.Context(), name, strings.NewReader(strings.Repeat("c", 100)), 100); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(d.locate(name).unfinalized(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(fn(f), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.objects, ".DS_Store"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listed := 0
	err := s.List(t.Context(), "", "", func(blob.Attrs) bool { listed++; return true })
	if err != nil || listed != len(spoil) {
		t.Errorf("List showed %d objects, %v; want %d", listed, err, len(spoil))
	}
	for name := range spoil {
		r, _, err := s.Get(t.Context(), name)
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("%s: read = %v, want ErrCorrupt", name, err)
		}
		if err := s.Copy(t.Context(), name, name+" copy"); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("%s: Copy = %v, want ErrCorrupt", name, err)
		}
		if found, err := s.Delete(t.Context(), name); !found || err != nil {
			t.Errorf("%s: Delete = %v, %v; want true, nil", name, found, err)
		}
	}
	if rest := stateOf(t, s); len(rest) > 0 {
		t.Errorf("left: %v", rest)
	}
}

func TestNewerFileFormatIsNotCalledCorrupt(t *testing.T) {
	b := make([]byte, headerLen)
	header{customTime: time.UnixMilli(0)}.put(b)
	if _, err := parseHeader(b, headerLen); err != nil {
		t.Fatal(err)
	}
	b[4] = 2
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	if _, err := parseHeader(b, headerLen); err == nil || errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("parseHeader = %v, want an error about the version", err)
	}
}

func TestEmptyFoldersGoAndPutsSurviveThat(t *testing.T) {
	root := newRoot(t)
	stores := []*blob.Store{blob.New(openTest(t, root), blob.Options{}), blob.New(openTest(t, root), blob.Options{})}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for round := range 15 {
				s, name := stores[i%2], fmt.Sprintf("same/folder/%d", i)
				if err := s.Put(t.Context(), name, strings.NewReader("x"), 1); err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				// The owner is the one that removes folders.
				if found, err := stores[0].Delete(t.Context(), name); !found || err != nil {
					t.Errorf("round %d: Delete = %v, %v", round, found, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := stores[0].Put(t.Context(), "same/x/y", strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := stores[0].Delete(t.Context(), "same/x/y"); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(root, "objects"))
	if err != nil || len(left) != 0 {
		t.Errorf("objects has %v, %v; want nothing", left, err)
	}
}

// patternReader makes content without holding it.
type patternReader struct{ left int64 }

func (p *patternReader) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), p.left))
	for i := range b[:n] {
		b[i] = byte(p.left - int64(i))
	}
	p.left -= int64(n)
	return n, nil
}

func TestLargeObjectsNeedLittleMemory(t *testing.T) {
	const size = 100 << 20
	s := blob.New(openTest(t, t.TempDir()), blob.Options{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.Put(t.Context(), "large", &patternReader{size}, size); err != nil {
		t.Fatal(err)
	}
	if err := s.Copy(t.Context(), "large", "copy"); err != nil {
		t.Fatal(err)
	}
	r, _, err := s.Get(t.Context(), "copy")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != size || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("allocated %d bytes in all for an object of %d", used, size)
	}
}

func TestGroupSyncCoversWhatCameBeforeTheCall(t *testing.T) {
	var g groupSync
	var done, synced, runs atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 50 {
				mine := done.Add(1)
				err := g.do("folder", func() error {
					runs.Add(1)
					seen := done.Load()
					runtime.Gosched()
					synced.Store(seen)
					return nil
				})
				if err != nil || synced.Load() < mine {
					t.Errorf("after do: synced up to %d, mine is %d, %v", synced.Load(), mine, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := runs.Load(); n >= 32*50 {
		t.Errorf("%d runs for %d calls: nothing was shared", n, 32*50)
	}
	if len(g.folders) != 0 {
		t.Errorf("%d folders are remembered", len(g.folders))
	}
}

func TestGroupSyncGivesTheErrorToAllOfTheRound(t *testing.T) {
	var g groupSync
	broken := errors.New("broken")
	inFirst, goOn := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.do("x", func() error { close(inFirst); <-goOn; return nil }); err != nil {
			t.Errorf("first = %v", err)
		}
	})
	<-inFirst
	for range 4 {
		wg.Go(func() {
			if err := g.do("x", func() error { return broken }); !errors.Is(err, broken) {
				t.Errorf("waiting call = %v, want the error", err)
			}
		})
	}
	close(goOn)
	wg.Wait()
}

// The two readings matter on file systems that keep entries by hash and hand
// them out in portions, so this runs on the disk.
func TestFolderReadingMissesNothingThatIsRenamed(t *testing.T) {
	const files = 3000
	dir := t.TempDir()
	path := func(i int, suffix string) string {
		return filepath.Join(dir, fmt.Sprintf("some-longer-name-%05d", i)+suffix)
	}
	for i := range files {
		if err := os.WriteFile(path(i, suffixUnfinalized), nil, fileMode); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var finished atomic.Bool
	wg.Go(func() {
		defer finished.Store(true)
		for i := range files {
			if err := os.Rename(path(i, suffixUnfinalized), path(i, suffixFinalized)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for !finished.Load() {
		entries, err := readFolder(dir)
		if err != nil || len(entries) != files {
			t.Errorf("saw %d of %d, %v", len(entries), files, err)
			break
		}
	}
	wg.Wait()
}

func TestOpenWithEndedContextFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, newRoot(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v, want context.Canceled", err)
	}
}
