package fs

import (
	"path/filepath"
	"slices"
	"sync"
)

// maxKnownFolders bounds the memory of folders. When it is reached everything is
// forgotten, which costs a sync for each folder in use.
const maxKnownFolders = 1 << 16

// folders makes, syncs and removes the folders below objects.
//
// An object is durable only if its folder is an entry of a synced parent, and so
// on up. Syncing all parents for each object would double the cost of a Put, so
// folders that are known to be durable are remembered. The knowledge is sound
// because nobody but the owner of the root removes folders, and the owner
// forgets what it removes; a process that is not the owner remembers nothing.
type folders struct {
	disk  *disk
	top   string // objects: made durable by Open, never removed
	owner bool

	mu       sync.Mutex
	durable  map[string]struct{} // guarded by mu
	removals uint64              // guarded by mu; folders removed so far
}

func newFolders(disk *disk, top string, owner bool) *folders {
	return &folders{disk: disk, top: top, owner: owner, durable: map[string]struct{}{}}
}

// parents returns dir and the folders above it, below top, the uppermost first.
func (f *folders) parents(dir string) []string {
	var dirs []string
	for len(dir) > len(f.top) {
		dirs = append(dirs, dir)
		dir = filepath.Dir(dir)
	}
	slices.Reverse(dirs)
	return dirs
}

// create makes dir and the folders above it.
func (f *folders) create(dir string) error {
	for _, dir := range f.parents(dir) {
		if err := f.disk.mkdir(dir); err != nil {
			return err
		}
	}
	return nil
}

// settle makes durable what is in dir now, and dir itself. The caller knows that
// dir is not empty, so nobody can remove it meanwhile unless what the caller
// cares for is removed as well.
func (f *folders) settle(dir string) error {
	if err := f.disk.syncDir(dir); err != nil {
		return err
	}
	for _, dir := range f.parents(dir) {
		known, removals := f.known(dir)
		if known {
			continue
		}
		if err := f.disk.syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
		f.remember(dir, removals)
	}
	return nil
}

func (f *folders) known(dir string) (known bool, removals uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known = f.durable[dir]
	return known, f.removals
}

// remember notes that dir is durable, unless a folder was removed since: it may
// have been this one, and the one that has its name now may be another.
func (f *folders) remember(dir string, removals uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.owner || f.removals != removals {
		return
	}
	if len(f.durable) >= maxKnownFolders {
		clear(f.durable)
	}
	f.durable[dir] = struct{}{}
}

// prune removes dir and the folders above it as far as they are empty. It does
// its best; an empty folder does no harm.
func (f *folders) prune(dir string) {
	for f.owner && dir != f.top && f.removeEmpty(dir) {
		dir = filepath.Dir(dir)
	}
}

// removeEmpty holds the mutex all along, so that who makes the folder anew finds
// it forgotten.
func (f *folders) removeEmpty(dir string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.disk.rmdir(dir) {
		return false
	}
	delete(f.durable, dir)
	f.removals++
	return true
}
