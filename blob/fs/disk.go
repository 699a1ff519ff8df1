package fs

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	folderMode = 0o700
	fileMode   = 0o600
)

// disk makes all changes to the file system, one method for each kind of step,
// so that tests can fail or stop the driver at each of them and see their order.
type disk struct {
	// before, if set, is called with each step; an error takes its place.
	before func(step, path string) error

	syncs groupSync
}

func (d *disk) step(step, path string) error {
	if d.before == nil {
		return nil
	}
	return d.before(step, path)
}

func (d *disk) create(path string) (*os.File, error) {
	if err := d.step("create", path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
}

func (d *disk) writeAt(f *os.File, b []byte, offset int64) error {
	if err := d.step("write", f.Name()); err != nil {
		return err
	}
	_, err := f.WriteAt(b, offset)
	return err
}

func (d *disk) sync(f *os.File) error {
	if err := d.step("sync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (d *disk) rename(from, to string) error {
	if err := d.step("rename", to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (d *disk) remove(path string) error {
	if err := d.step("remove", path); err != nil {
		return err
	}
	return os.Remove(path)
}

// mkdir makes one folder; one that exists is fine.
func (d *disk) mkdir(path string) error {
	if err := d.step("mkdir", path); err != nil {
		return err
	}
	err := os.Mkdir(path, folderMode)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// rmdir removes the folder if it is empty, and reports whether it did.
func (d *disk) rmdir(path string) bool {
	return d.step("rmdir", path) == nil && syscall.Rmdir(path) == nil
}

// syncDir makes the entries of the folder durable as they are at the time of the
// call, or, if it is gone, the entries of the nearest parent that is not: that
// is where its removal is recorded.
func (d *disk) syncDir(path string) error {
	for {
		err := d.syncs.do(path, func() error { return d.fsyncDir(path) })
		parent := filepath.Dir(path)
		if !errors.Is(err, os.ErrNotExist) || parent == path {
			return err
		}
		path = parent
	}
}

func (d *disk) fsyncDir(path string) error {
	if err := d.step("sync folder", path); err != nil {
		return err
	}
	return syncFolder(path)
}

// groupSync lets calls for the same folder share their work: while one sync of a
// folder runs, all that come wait for the next one, which begins after them and
// therefore covers what they did.
type groupSync struct {
	mu      sync.Mutex
	folders map[string]*folderSync // guarded by mu; only folders with calls
}

type folderSync struct {
	running *syncRound // may be nil
	waiting *syncRound // may be nil; only if running is not
}

type syncRound struct {
	done chan struct{}
	err  error // valid after done
}

// do returns the error of a run of fn that began after do was called.
func (g *groupSync) do(path string, fn func() error) error {
	g.mu.Lock()
	if g.folders == nil {
		g.folders = map[string]*folderSync{}
	}
	f := g.folders[path]
	if f == nil {
		f = &folderSync{}
		g.folders[path] = f
	}
	switch {
	case f.running == nil:
		f.running = &syncRound{done: make(chan struct{})}
		g.mu.Unlock()
		return g.run(path, f, f.running, fn)
	case f.waiting == nil:
		// The first to wait leads the next round.
		round, before := &syncRound{done: make(chan struct{})}, f.running
		f.waiting = round
		g.mu.Unlock()
		<-before.done
		return g.run(path, f, round, fn)
	default:
		round := f.waiting
		g.mu.Unlock()
		<-round.done
		return round.err
	}
}

// run runs fn for the round and hands over to the round after it.
func (g *groupSync) run(path string, f *folderSync, round *syncRound, fn func() error) error {
	round.err = errors.New("sync did not end") // should fn not return
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		close(round.done)
		f.running, f.waiting = f.waiting, nil
		if f.running == nil {
			delete(g.folders, path)
		}
	}()
	round.err = fn()
	return round.err
}
