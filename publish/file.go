package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// FilePositions keeps positions in a file, for one machine. A file beside it, with
// ".lock" at its end, says that somebody uses it: where the system has no such
// locks, several Publishers on one file publish everything twice.
type FilePositions struct {
	path, stream string

	mu   sync.Mutex // guards what follows
	lock *os.File   // while claimed
	all  map[string]Position
}

// fileContent is what the file holds.
type fileContent struct {
	Stream    string
	Positions map[string]Position
}

// OpenFile returns the positions in the file of that path, which need not exist.
// Those of another stream are refused.
func OpenFile(path, stream string) *FilePositions { return &FilePositions{path: path, stream: stream} }

// Claim implements Positions. The claim ends with the process at the latest.
func (f *FilePositions) Claim(_ context.Context, lease time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case lease <= 0 && f.lock != nil:
		err := f.lock.Close()
		f.lock = nil
		return true, err
	case lease <= 0 || f.lock != nil:
		return true, nil
	}
	lock, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, fmt.Errorf("publish: lock the positions: %w", err)
	}
	mine, err := tryFlock(lock)
	if err != nil || !mine {
		return false, errors.Join(err, lock.Close())
	}
	f.lock, f.all = lock, nil
	return true, nil
}

// Load implements Positions.
func (f *FilePositions) Load(context.Context) ([]Position, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(); err != nil {
		return nil, err
	}
	positions := make([]Position, 0, len(f.all))
	for _, p := range f.all {
		positions = append(positions, p)
	}
	return positions, nil
}

func (f *FilePositions) load() error {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.all = map[string]Position{}
		return nil
	}
	if err != nil {
		return fmt.Errorf("publish: read the positions: %w", err)
	}
	var c fileContent
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%w: the positions in %s cannot be read: %w", ErrRefused, f.path, err)
	}
	if c.Stream != f.stream {
		return fmt.Errorf("%w: the positions in %s are those of %s, not of %s", ErrRefused, f.path, c.Stream, f.stream)
	}
	f.all = c.Positions
	if f.all == nil {
		f.all = map[string]Position{}
	}
	return nil
}

// Save implements Positions. What it has written survives a crash of the machine.
func (f *FilePositions) Save(_ context.Context, positions []Position, forget []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return ErrDeposed
	}
	if f.all == nil {
		if err := f.load(); err != nil {
			return err
		}
	}
	for _, p := range positions {
		f.all[p.Token] = p
	}
	for _, token := range forget {
		delete(f.all, token)
	}
	return f.write()
}

// Reset implements Positions.
func (f *FilePositions) Reset(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return ErrDeposed
	}
	f.all = map[string]Position{}
	return f.write()
}

// write replaces the file in one step.
func (f *FilePositions) write() (err error) {
	data, err := json.MarshalIndent(fileContent{f.stream, f.all}, "", "\t")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("publish: write the positions: %w", err)
		}
	}()
	next, err := os.OpenFile(f.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = next.Write(data)
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	if err := os.Rename(next.Name(), f.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(f.path))
}
