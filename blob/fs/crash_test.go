package fs

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
)

// openWith opens root with a hook on each step.
func openWith(t *testing.T, root string, before func(step, path string) error) *Driver {
	t.Helper()
	d, err := open(t.Context(), root, Options{}, &disk{before: before})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// kill lets go of what the kernel releases when a process dies.
func kill(t *testing.T, d *Driver) {
	t.Helper()
	d.closed.Store(true)
	if err := errors.Join(d.tmpLock.Close(), d.ownerLock.Close(), d.names.close()); err != nil {
		t.Fatal(err)
	}
}

// storyOp is one operation of the story that is told with faults; want is the
// state of its object once it has succeeded.
type storyOp struct {
	title string
	run   func(ctx context.Context, s *blob.Store) error
	name  string
	want  string // "", or content and state
}

func putOp(name, content string) storyOp {
	return storyOp{"put " + name, func(ctx context.Context, s *blob.Store) error {
		return s.Put(ctx, name, strings.NewReader(content), int64(len(content)))
	}, name, content + " false"}
}

func boolOp(title, name, want string, op func(*blob.Store, context.Context, string) (bool, error)) storyOp {
	return storyOp{title + " " + name, func(ctx context.Context, s *blob.Store) error {
		_, err := op(s, ctx, name)
		return err
	}, name, want}
}

func story() []storyOp {
	big := strings.Repeat("0123456789", 60_000) // more than one buffer
	return []storyOp{
		putOp("a/b/c", "first"),
		putOp("a/b/d", big),
		boolOp("finalize", "a/b/c", "first true", (*blob.Store).Finalize),
		putOp("a/x", "second"),
		{"copy", func(ctx context.Context, s *blob.Store) error { return s.Copy(ctx, "a/b/d", "z/z/z") }, "z/z/z", big + " false"},
		boolOp("discard", "a/b/d", "", (*blob.Store).Discard),
		boolOp("delete", "a/b/c", "", (*blob.Store).Delete),
		putOp("a/b/e", "third"), // in a folder that was removed
		boolOp("delete", "a/x", "", (*blob.Store).Delete),
	}
}

// stateOf returns the objects of the store as "content state" by name, and fails
// the test if one of them is not whole.
func stateOf(t *testing.T, s *blob.Store) map[string]string {
	t.Helper()
	state := map[string]string{}
	err := s.List(t.Context(), "", "", func(a blob.Attrs) bool {
		r, attrs, err := s.Get(t.Context(), a.Name)
		if err != nil {
			t.Errorf("listed object %q: %v", a.Name, err)
			return true
		}
		content, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Errorf("listed object %q: %v", a.Name, err)
		}
		state[a.Name] = fmt.Sprintf("%s %v", content, attrs.Committed)
		return true
	})
	if err != nil {
		t.Error(err)
	}
	return state
}

// tell runs the story up to the first error and returns what must be there
// afterwards and, if there was an error, the name that may be in either state.
func tell(ctx context.Context, s *blob.Store) (want map[string]string, open string, err error) {
	want = map[string]string{}
	for _, op := range story() {
		if err := op.run(ctx, s); err != nil {
			return want, op.name, fmt.Errorf("%s: %w", op.title, err)
		}
		if want[op.name] = op.want; op.want == "" {
			delete(want, op.name)
		}
	}
	return want, "", nil
}

// wantState compares the store with what must be there, except for one name.
func wantState(t *testing.T, s *blob.Store, want map[string]string, open string) {
	t.Helper()
	got := stateOf(t, s)
	delete(got, open)
	want = maps.Clone(want)
	delete(want, open)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%.2000s", diff)
	}
}

func TestKilledAtEveryStepLeavesOnlyWholeObjects(t *testing.T) {
	crash := errors.New("killed")
	for n := 0; ; n++ {
		root := newRoot(t)
		steps, armed := 0, false
		d := openWith(t, root, func(step, path string) error {
			if armed {
				steps++
			}
			if steps > n {
				return crash
			}
			return nil
		})
		armed = true
		want, open, err := tell(t.Context(), blob.New(d, blob.Options{}))
		kill(t, d)
		again := openTest(t, root)
		wantState(t, blob.New(again, blob.Options{}), want, open)
		files, globErr := filepath.Glob(filepath.Join(root, "tmp", "*", "*"))
		if globErr != nil || !slices.Equal(files, []string{filepath.Join(again.tmp, "lock")}) {
			t.Errorf("tmp has %v, %v; want only the lock of the new process", files, globErr)
		}
		if t.Failed() {
			t.Fatalf("killed at step %d: %v", n, err)
		}
		if err == nil {
			t.Logf("%d steps", n)
			return
		}
	}
}

func TestFailureOfAnyStepIsReportedAndLeavesNothingHalfDone(t *testing.T) {
	for n := 0; ; n++ {
		steps, armed, failed := 0, false, ""
		d := openWith(t, newRoot(t), func(step, path string) error {
			if !armed {
				return nil
			}
			if steps++; steps == n+1 {
				failed = step
				return &os.PathError{Op: step, Path: path, Err: syscall.ENOSPC}
			}
			return nil
		})
		armed = true
		s := blob.New(d, blob.Options{})
		want, open, err := tell(t.Context(), s)
		if failed == "" {
			return
		}
		bestEffort := failed == "rmdir"
		if !bestEffort && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("step %d (%s): error is %v, want ENOSPC", n, failed, err)
		}
		wantState(t, s, want, open)
		if before := []string{"create", "write", "sync", "mkdir"}; slices.Contains(before, failed) {
			if got, ok := stateOf(t, s)[open]; ok && want[open] != got {
				t.Errorf("step %d (%s): failed Put left %.40q", n, failed, got)
			}
		}
		if files, globErr := filepath.Glob(filepath.Join(d.tmp, "[0-9]*")); globErr != nil || len(files) > 0 {
			t.Errorf("step %d (%s): left in tmp: %v, %v", n, failed, files, globErr)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// platter is what a power failure leaves of the objects folder: of each folder
// the entries at its last sync, of each file its bytes at its last sync. It
// looks at the moment before each step.
type platter struct {
	content map[uint64][]byte            // of files, by inode
	entries map[uint64]map[string]uint64 // of folders, by inode: inode by name
}

func (p *platter) note(step, path string) {
	switch step {
	case "sync":
		if content, err := os.ReadFile(path); err == nil {
			p.content[inode(path)] = content
		}
	case "sync folder":
		files, err := os.ReadDir(path)
		if err != nil {
			return
		}
		entries := map[string]uint64{}
		for _, f := range files {
			entries[f.Name()] = inode(filepath.Join(path, f.Name()))
		}
		p.entries[inode(path)] = entries
	}
}

func inode(path string) uint64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// restore writes what is on the platter of a folder to the folder to.
func (p *platter) restore(t *testing.T, folder uint64, to string) {
	t.Helper()
	for name, number := range p.entries[folder] {
		path := filepath.Join(to, name)
		if e, _ := parseEntry(name); !e.folder {
			if err := os.WriteFile(path, p.content[number], fileMode); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(path, folderMode); err != nil {
			t.Fatal(err)
		}
		p.restore(t, number, path)
	}
}

func TestPowerFailureAtAnyStepKeepsWhatWasReported(t *testing.T) {
	for n := 0; ; n++ {
		power := errors.New("power failed")
		root := newRoot(t)
		p := &platter{content: map[uint64][]byte{}, entries: map[uint64]map[string]uint64{}}
		steps, armed := 0, false
		d := openWith(t, root, func(step, path string) error {
			if !armed {
				return nil
			}
			if steps++; steps > n {
				return power
			}
			p.note(step, path)
			return nil
		})
		armed = true
		want, open, err := tell(t.Context(), blob.New(d, blob.Options{}))
		kill(t, d)

		after := openTest(t, newRoot(t))
		p.restore(t, inode(d.objects), after.objects)
		wantState(t, blob.New(after, blob.Options{}), want, open)
		if t.Failed() {
			t.Fatalf("power failed at step %d: %v", n, err)
		}
		if err == nil {
			return
		}
	}
}

// tracer records steps, with paths relative to root.
type tracer struct {
	root  string
	trace []string
	fail  string // this step fails
}

func (tr *tracer) before(step, path string) error {
	rel, err := filepath.Rel(tr.root, path)
	if strings.HasPrefix(rel, "tmp/") {
		rel = "tmp"
	}
	tr.trace = append(tr.trace, step+" "+rel)
	if step == tr.fail {
		err = syscall.EIO
	}
	return err
}

// expect compares the steps since the last call.
func (tr *tracer) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, tr.trace); diff != "" {
		t.Errorf("%s: steps (-want +got):\n%s", what, diff)
	}
	tr.trace = nil
}

func newTraced(t *testing.T, root string) (*tracer, *blob.Store) {
	t.Helper()
	tr := &tracer{root: root}
	d := openWith(t, root, tr.before)
	t.Cleanup(func() { d.Close() })
	tr.trace = nil
	return tr, blob.New(d, blob.Options{})
}

func putOne(t *testing.T, s *blob.Store, name string) {
	t.Helper()
	if err := s.Put(t.Context(), name, strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
}

func TestPutSyncsFileBeforeRenameAndFolderAfter(t *testing.T) {
	tr, s := newTraced(t, newRoot(t))
	putOne(t, s, "a/b/c/d")
	tr.expect(t, "first put", "create tmp", "write tmp", "sync tmp", "rename objects/a.d/b.d/c+d.u",
		"mkdir objects/a.d", "mkdir objects/a.d/b.d", "rename objects/a.d/b.d/c+d.u",
		"sync folder objects/a.d/b.d", "sync folder objects", "sync folder objects/a.d")
	putOne(t, s, "a/b/e")
	tr.expect(t, "second put", "create tmp", "write tmp", "sync tmp", "rename objects/a.d/b.d/e.u", "sync folder objects/a.d/b.d")
	if _, err := s.Finalize(t.Context(), "a/b/e"); err != nil {
		t.Fatal(err)
	}
	tr.expect(t, "finalize", "rename objects/a.d/b.d/e.f", "sync folder objects/a.d/b.d")
	if _, err := s.Delete(t.Context(), "a/b/e"); err != nil {
		t.Fatal(err)
	}
	tr.expect(t, "delete", "remove objects/a.d/b.d/e.u", "remove objects/a.d/b.d/e.f", "sync folder objects/a.d/b.d", "rmdir objects/a.d/b.d")
}

func TestRepeatedCallsMakeDurableWhatFailedOnesLeft(t *testing.T) {
	tr, s := newTraced(t, newRoot(t))
	tr.fail = "sync folder"
	if err := s.Put(t.Context(), "a", strings.NewReader("x"), 1); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Put = %v, want EIO", err)
	}
	if err := s.Put(t.Context(), "a", strings.NewReader("x"), 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("repeated Put = %v, want EIO as long as the object is not durable", err)
	}
	tr.fail, tr.trace = "", nil
	if err := s.Put(t.Context(), "a", strings.NewReader("x"), 1); !errors.Is(err, blob.ErrExists) {
		t.Errorf("repeated Put = %v, want ErrExists", err)
	}
	tr.expect(t, "repeated put", "sync folder objects")
	for range 2 {
		if found, err := s.Finalize(t.Context(), "a"); !found || err != nil {
			t.Errorf("Finalize = %v, %v", found, err)
		}
		if tr.trace[len(tr.trace)-1] != "sync folder objects" {
			t.Errorf("finalize did not sync: %v", tr.trace)
		}
	}
	for range 2 {
		if _, err := s.Delete(t.Context(), "a"); err != nil {
			t.Errorf("Delete = %v", err)
		}
		if tr.trace[len(tr.trace)-1] != "sync folder objects" {
			t.Errorf("delete did not sync: %v", tr.trace)
		}
	}
}

func TestSecondProcessTrustsNoFolderAndRemovesNone(t *testing.T) {
	root := newRoot(t)
	openTest(t, root)
	tr, s := newTraced(t, root)
	putOne(t, s, "a/b/c")
	tr.trace = nil
	putOne(t, s, "a/b/d")
	tr.expect(t, "put", "create tmp", "write tmp", "sync tmp", "rename objects/a.d/b.d/d.u",
		"sync folder objects/a.d/b.d", "sync folder objects", "sync folder objects/a.d")
	for _, name := range []string{"a/b/c", "a/b/d"} {
		if _, err := s.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "objects", "a.d", "b.d")); err != nil {
		t.Errorf("the folder went: %v", err)
	}
}

// TestChangesExcludeOtherProcesses looks from outside whether the name of an object is
// locked whenever it changes.
func TestChangesExcludeOtherProcesses(t *testing.T) {
	const name = "a"
	root := newRoot(t)
	stripe := filepath.Join(root, "locks", strconv.Itoa(int(crc32.ChecksumIEEE([]byte(name))%lockStripes)))
	var steps []string
	d := openWith(t, root, func(step, path string) error {
		if step != "rename" && step != "remove" {
			return nil
		}
		steps = append(steps, step)
		other, err := openLock(stripe)
		if err != nil {
			return err
		}
		defer other.Close()
		if got, err := tryFlock(other); got || err != nil {
			t.Errorf("another process gets the lock before the %s of %s (%v)", step, path, err)
		}
		return nil
	})
	defer d.Close()
	s := blob.New(d, blob.Options{})
	steps = nil // those of Open
	if err := s.Put(t.Context(), name, strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
	_, err := s.Finalize(t.Context(), name)
	_, deleted := s.Delete(t.Context(), name)
	if err := errors.Join(err, deleted); err != nil {
		t.Fatal(err)
	}
	// Delete looks for the object in both states.
	if diff := cmp.Diff([]string{"rename", "rename", "remove", "remove"}, steps); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestCopyEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	copying, writes := false, 0
	d := openWith(t, newRoot(t), func(step, _ string) error {
		if copying && step == "write" {
			writes++
			cancel()
		}
		return nil
	})
	defer d.Close()
	s := blob.New(d, blob.Options{})
	const size = 3 * bufferLen
	if err := s.Put(ctx, "a", strings.NewReader(strings.Repeat("x", size)), size); err != nil {
		t.Fatal(err)
	}
	copying = true
	if err := s.Copy(ctx, "a", "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy = %v, want %v", err, context.Canceled)
	}
	if writes != 1 {
		t.Errorf("%d writes, want none after the end of the context", writes)
	}
}
