package fs

import (
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// lockStripes is how many locks names share. Locks are held for a few system
// calls and never during a sync, so contention is no concern.
const lockStripes = 32

// nameLocks excludes changes of one name from each other: in this process by a
// mutex, from other processes by a lock on a file. With it, "is the name free in
// both states" and "rename into place" are one step, as are "does the condition
// hold" and "remove".
type nameLocks struct {
	stripes [lockStripes]struct {
		mu   sync.Mutex
		file *os.File
	}
}

// openLock opens a file to lock, and makes it if needed.
func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
}

func openNameLocks(folder string) (*nameLocks, error) {
	l := &nameLocks{}
	for i := range l.stripes {
		f, err := openLock(filepath.Join(folder, strconv.Itoa(i)))
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.stripes[i].file = f
	}
	return l, nil
}

// with runs fn while it holds the lock of name.
func (l *nameLocks) with(name string, fn func() error) error {
	// All processes must agree, hence no seeded hash.
	s := &l.stripes[crc32.ChecksumIEEE([]byte(name))%lockStripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := flock(s.file); err != nil {
		return err
	}
	return errors.Join(fn(), funlock(s.file))
}

func (l *nameLocks) close() error {
	var errs []error
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		if s.file != nil {
			errs = append(errs, s.file.Close())
		}
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}
