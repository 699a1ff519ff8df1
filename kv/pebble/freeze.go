package pebble

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// freezer is a file system that fails like a crash. The first change that the
// file system below refuses is remembered as the failure. From then on no change
// reaches the disk any more, and none is reported as failed either.
//
// Pebble cannot go on after a failed write to its log or manifest: it ends the
// process, or panics with its locks held. Behind a freezer it never sees such a
// failure. Whoever has called Pebble asks for the failure afterwards; it is set
// before the call that depends on the refused change returns.
type freezer struct {
	vfs.FS
	failure atomic.Pointer[error]
}

// fail remembers the first failure.
func (z *freezer) fail(err error) { z.failure.CompareAndSwap(nil, &err) }

func (z *freezer) err() error {
	if err := z.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// change makes a change unless the disk is frozen.
func (z *freezer) change(f func() error) error {
	if z.failure.Load() == nil {
		if err := f(); err != nil {
			z.fail(err)
		}
	}
	return nil
}

// open opens a file for writing. Once frozen it is a file that goes nowhere.
func (z *freezer) open(f func() (vfs.File, error)) (vfs.File, error) {
	if z.failure.Load() == nil {
		file, err := f()
		if err == nil {
			return &freezerFile{File: file, z: z}, nil
		}
		z.fail(err)
	}
	return &freezerFile{File: vfs.NewMemFile(nil), z: z}, nil
}

func (z *freezer) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := z.open(func() (vfs.File, error) { return z.FS.Create(name, c) })
	if err == nil && isTable(name) {
		f = newTableFile(f)
	}
	return f, err
}

func (z *freezer) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return z.open(func() (vfs.File, error) { return z.FS.OpenReadWrite(name, c, opts...) })
}

func (z *freezer) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return z.open(func() (vfs.File, error) { return z.FS.ReuseForWrite(oldname, newname, c) })
}

// OpenDir is for syncing the folder.
func (z *freezer) OpenDir(name string) (vfs.File, error) {
	return z.open(func() (vfs.File, error) { return z.FS.OpenDir(name) })
}

func (z *freezer) Link(oldname, newname string) error {
	return z.change(func() error { return z.FS.Link(oldname, newname) })
}

func (z *freezer) Rename(oldname, newname string) error {
	return z.change(func() error { return z.FS.Rename(oldname, newname) })
}

func (z *freezer) MkdirAll(dir string, perm os.FileMode) error {
	return z.change(func() error { return z.FS.MkdirAll(dir, perm) })
}

func (z *freezer) Remove(name string) error {
	return z.change(func() error { return unlessGone(z.FS.Remove(name)) })
}

func (z *freezer) RemoveAll(name string) error {
	return z.change(func() error { return unlessGone(z.FS.RemoveAll(name)) })
}

func (z *freezer) Unwrap() vfs.FS { return z.FS }

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// freezerFile is a file open for writing.
type freezerFile struct {
	vfs.File
	z *freezer
}

// Write counts p as written whatever happens: see freezer.
func (f *freezerFile) Write(p []byte) (int, error) {
	n := len(p)
	return n, f.z.change(func() error { _, err := f.File.Write(p); return err })
}

func (f *freezerFile) WriteAt(p []byte, off int64) (int, error) {
	n := len(p)
	return n, f.z.change(func() error { _, err := f.File.WriteAt(p, off); return err })
}

// Preallocate is a hint that not every file system takes.
func (f *freezerFile) Preallocate(off, n int64) error {
	if f.z.failure.Load() == nil {
		_ = f.File.Preallocate(off, n)
	}
	return nil
}

func (f *freezerFile) Sync() error { return f.z.change(f.File.Sync) }

func (f *freezerFile) SyncData() error { return f.z.change(f.File.SyncData) }

func (f *freezerFile) SyncTo(n int64) (full bool, err error) {
	err = f.z.change(func() (err error) { full, err = f.File.SyncTo(n); return err })
	return full, err
}

// Close may be the call that reports a failed write.
func (f *freezerFile) Close() error {
	if err := f.File.Close(); err != nil {
		f.z.fail(err)
	}
	return nil
}
