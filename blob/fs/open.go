package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/holdfast-dev/holdfast/blob"
)

const (
	markerName  = "holdfast-objects"
	markerTitle = "holdfast object store, version "
	rootVersion = 1
)

// Driver is a blob.Driver on a folder. See the package comment for the layout.
type Driver struct {
	root    string
	objects string // the folder of all objects
	tmp     string // the folder of this process's unfinished Puts

	disk    *disk
	names   *nameLocks
	folders *folders
	buffers sync.Pool     // of *[]byte, bufferLen long
	temps   atomic.Uint64 // number of the last file in tmp

	tmpLock   *os.File
	ownerLock *os.File
	closed    atomic.Bool
}

var _ blob.Driver = (*Driver)(nil)

// Options adjusts Open. The zero value is ready to use.
type Options struct {
	// Logger gets a line if Open removes what crashed processes left. Default:
	// none.
	Logger *slog.Logger
	// Existing refuses a root where there is no store yet with ErrNoStore, instead
	// of making one: for who knows that there was one.
	Existing bool
}

// ErrNoStore says that a root that was to be a store is none.
var ErrNoStore = errors.New("there is no object store")

// Open opens the store in the folder root, and makes it if root does not exist
// or is empty. It refuses a folder with other contents, or one written by a
// newer version. The caller must Close the driver.
func Open(ctx context.Context, root string, opts Options) (*Driver, error) {
	d, err := open(ctx, root, opts, &disk{})
	if err != nil {
		return nil, fmt.Errorf("fs: open %s: %w", root, err)
	}
	return d, nil
}

func open(ctx context.Context, root string, opts Options, disk *disk) (*Driver, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if opts.Existing {
		if _, err := os.Stat(filepath.Join(root, markerName)); errors.Is(err, fs.ErrNotExist) {
			return nil, ErrNoStore
		}
	}
	if err := prepareRoot(root); err != nil {
		return nil, err
	}
	d := &Driver{root: root, objects: filepath.Join(root, "objects"), disk: disk}
	d.buffers.New = func() any { b := make([]byte, bufferLen); return &b }
	removed, err := d.acquire()
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if removed > 0 && opts.Logger != nil {
		opts.Logger.Info("removed files of unfinished uploads", "root", root, "removed", removed)
	}
	return d, nil
}

// acquire opens the locks and makes this process's folder for unfinished Puts.
// It returns how many files of dead processes it removed.
func (d *Driver) acquire() (removed int, err error) {
	lockDir, tmpDir := filepath.Join(d.root, "locks"), filepath.Join(d.root, "tmp")
	for _, dir := range []string{lockDir, tmpDir, d.objects} {
		if err := os.MkdirAll(dir, folderMode); err != nil {
			return 0, err
		}
	}
	if err := d.disk.syncDir(d.root); err != nil {
		return 0, err
	}
	if d.names, err = openNameLocks(lockDir); err != nil {
		return 0, err
	}
	if d.ownerLock, err = openLock(filepath.Join(lockDir, "owner")); err != nil {
		return 0, err
	}
	owner, err := tryFlock(d.ownerLock)
	if err != nil {
		return 0, err
	}
	d.folders = newFolders(d.disk, d.objects, owner)

	// A folder in tmp whose lock is free belongs to a dead process, because
	// making the folder and locking it happen under one more lock.
	gate, err := openLock(filepath.Join(lockDir, "tmp"))
	if err != nil {
		return 0, err
	}
	defer gate.Close() // which unlocks
	if err := flock(gate); err != nil {
		return 0, err
	}
	if removed, err = sweep(tmpDir); err != nil {
		return removed, err
	}
	if d.tmp, err = os.MkdirTemp(tmpDir, ""); err != nil {
		return removed, err
	}
	if d.tmpLock, err = openLock(filepath.Join(d.tmp, "lock")); err != nil {
		return removed, err
	}
	return removed, flock(d.tmpLock)
}

// Close releases the locks. It must not be called while other calls run; calls
// after it fail.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	var errs []error
	if d.tmp != "" {
		errs = append(errs, os.RemoveAll(d.tmp))
	}
	for _, f := range []*os.File{d.tmpLock, d.ownerLock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if d.names != nil {
		errs = append(errs, d.names.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("fs: close %s: %w", d.root, err)
	}
	return nil
}

// present returns an error if the store itself is gone: its folder was removed, or
// the disk that it is on was unmounted. Nobody may then be told that an object does
// not exist, because a change record whose object does not exist is done with.
func (d *Driver) present() error {
	if _, err := os.Stat(filepath.Join(d.root, markerName)); err != nil {
		return fmt.Errorf("the store is gone: %w", err)
	}
	return nil
}

// unlessGone returns err, but blob.ErrNotFound only of a store that is there.
func (d *Driver) unlessGone(err error) error {
	if !errors.Is(err, blob.ErrNotFound) {
		return err
	}
	return cmp.Or(d.present(), err)
}

// prepareRoot makes sure that root is a folder with a marker of our version.
func prepareRoot(root string) error {
	info, err := os.Stat(root)
	switch {
	case err == nil && !info.IsDir():
		return errors.New("it is not a folder")
	case errors.Is(err, fs.ErrNotExist):
		if err := makeRoot(root); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	marker := filepath.Join(root, markerName)
	text, err := os.ReadFile(marker)
	if errors.Is(err, fs.ErrNotExist) {
		foreign := checkEmpty(root)
		if foreign == nil {
			foreign = writeMarker(root, marker)
		}
		// What is there may come from another process that makes the store at this
		// moment. Then there is a marker by now, because it comes first.
		if text, err = os.ReadFile(marker); errors.Is(err, fs.ErrNotExist) {
			err = foreign
		}
	}
	if err != nil {
		return err
	}
	return checkMarker(string(text))
}

// makeRoot makes the folder and its parents durable.
func makeRoot(root string) error {
	if err := os.MkdirAll(root, folderMode); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(root))
}

func checkMarker(text string) error {
	number, ok := strings.CutPrefix(text, markerTitle)
	version, err := strconv.Atoi(strings.TrimSpace(number))
	if !ok || err != nil || version < 1 {
		return fmt.Errorf("%s in it is not a marker of an object store", markerName)
	}
	if version > rootVersion {
		return fmt.Errorf("it was written by a newer version of Holdfast: format %d, this one knows up to %d", version, rootVersion)
	}
	return nil
}

// checkEmpty refuses to settle in a folder that serves something else.
func checkEmpty(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		// Another process may be making the store at this moment.
		ours := e.Name() == markerName || strings.HasPrefix(e.Name(), "."+markerName)
		if !ours && e.Name() != "lost+found" {
			return fmt.Errorf("it is neither empty nor an object store: it contains %q but no file %s", e.Name(), markerName)
		}
	}
	return nil
}

// writeMarker creates the marker whole, unless another process was faster.
func writeMarker(root, marker string) error {
	f, err := os.CreateTemp(root, "."+markerName)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // if it fails, checkEmpty ignores the file
	_, err = fmt.Fprintf(f, "%s%d\n", markerTitle, rootVersion)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), marker); err != nil {
		return err
	}
	return syncFolder(root)
}

// sweep removes the folders of dead processes in tmp and returns how many files
// of unfinished Puts were in them.
func sweep(tmpDir string) (removed int, err error) {
	dirs, err := os.ReadDir(tmpDir)
	if err != nil {
		return 0, err
	}
	for _, e := range dirs {
		n, err := sweepOne(filepath.Join(tmpDir, e.Name()))
		removed += n
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

func sweepOne(dir string) (removed int, err error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err == nil {
		defer lock.Close()
		dead, err := tryFlock(lock)
		if err != nil || !dead {
			return 0, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		if f.Name() != "lock" {
			removed++
		}
	}
	return removed, os.RemoveAll(dir)
}
