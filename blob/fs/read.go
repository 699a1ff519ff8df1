package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/blob"
)

// content reads a part of an object's file.
type content struct {
	io.Reader
	file *os.File
}

func (c *content) Close() error { return c.file.Close() }

// Get implements blob.Driver. The reader keeps the file open, so a Delete does
// not disturb it.
func (d *Driver) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, blob.Attrs, error) {
	if err := ctx.Err(); err != nil {
		return nil, blob.Attrs{}, err
	}
	f, attrs, err := openObject(d.locate(name), name)
	if err != nil {
		return nil, blob.Attrs{}, d.unlessGone(err)
	}
	offset = min(offset, attrs.Size)
	rest := attrs.Size - offset
	if length >= 0 {
		rest = min(rest, length)
	}
	return &content{Reader: io.NewSectionReader(f, headerLen+offset, rest), file: f}, attrs, nil
}

// Stat implements blob.Driver.
func (d *Driver) Stat(ctx context.Context, name string) (blob.Attrs, error) {
	if err := ctx.Err(); err != nil {
		return blob.Attrs{}, err
	}
	attrs, err := statObject(d.locate(name), name)
	return attrs, d.unlessGone(err)
}

func statObject(at location, name string) (blob.Attrs, error) {
	f, attrs, err := openObject(at, name)
	if err != nil {
		return blob.Attrs{}, err
	}
	return attrs, f.Close()
}

// openObject looks for the unfinalized file first: an object that is finalized
// in between is then found under its other name, and never missed.
func openObject(at location, name string) (*os.File, blob.Attrs, error) {
	f, attrs, err := openFile(at.unfinalized(), name, false)
	if errors.Is(err, fs.ErrNotExist) {
		f, attrs, err = openFile(at.finalized(), name, true)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, blob.Attrs{}, blob.ErrNotFound
	}
	return f, attrs, err
}

func openFile(path, name string, finalized bool) (*os.File, blob.Attrs, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, blob.Attrs{}, err
	}
	h, err := readHeader(f)
	if err != nil {
		return nil, blob.Attrs{}, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return f, h.attrs(name, finalized), nil
}

func readHeader(f *os.File) (header, error) {
	info, err := f.Stat()
	if err != nil {
		return header{}, err
	}
	var buf [headerLen]byte
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return header{}, err
	}
	return parseHeader(buf[:n], info.Size())
}

// listing is one List.
type listing struct {
	driver        *Driver
	ctx           context.Context
	prefix, after string
	fn            func(blob.Attrs) bool
}

// errStopped says that fn returned false.
var errStopped = errors.New("listing stopped")

// List implements blob.Driver. It holds the names of one folder at a time in
// memory, and of the folders above it. A file with a corrupt header is listed
// with what is known, its size and state, and a zero custom time if it is not
// finalized; one spoilt object must not hide the others.
func (d *Driver) List(ctx context.Context, prefix, after string, fn func(blob.Attrs) bool) error {
	l := &listing{driver: d, ctx: ctx, prefix: prefix, after: after, fn: fn}
	err := l.walk(d.objects, "")
	if err == nil {
		err = d.present() // else what was not listed may exist all the same
	}
	if errors.Is(err, errStopped) {
		return nil
	}
	return err
}

// walk lists the folder; the names of all objects in it begin with base.
func (l *listing) walk(dir, base string) error {
	entries, err := readFolder(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		name := base + e.key
		switch {
		case e.folder && l.mayHold(name):
			err = l.walk(filepath.Join(dir, e.file), name)
		case !e.folder && name > l.after && strings.HasPrefix(name, l.prefix):
			err = l.visit(dir, e, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayHold reports whether a folder of names that begin with base can have any
// that are asked for.
func (l *listing) mayHold(base string) bool {
	if !strings.HasPrefix(base, l.prefix) && !strings.HasPrefix(l.prefix, base) {
		return false
	}
	return base > l.after || strings.HasPrefix(l.after, base)
}

func (l *listing) visit(dir string, e entry, name string) error {
	if (location{dir: dir, base: e.file[:len(e.file)-suffixLen]}) != l.driver.locate(name) {
		return nil // not where we would have put it: not ours
	}
	attrs, err := l.driver.Stat(l.ctx, name)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil // removed meanwhile
	case errors.Is(err, blob.ErrCorrupt):
		info, err := os.Stat(filepath.Join(dir, e.file))
		if err != nil {
			return nil // removed or finalized meanwhile, and not readable before
		}
		finalized := strings.HasSuffix(e.file, suffixFinalized)
		attrs = header{size: max(info.Size()-headerLen, 0)}.attrs(name, finalized)
		attrs.HasCRC32C = false
	case err != nil:
		return err
	}
	if !l.fn(attrs) {
		return errStopped
	}
	return nil
}

// readFolder returns what is in the folder in the order of keys, an object once
// even if it is there in both states. A folder that is gone is empty.
//
// It reads the folder twice and takes all it has seen, because a file that is
// renamed during the reading may be missed under both names. An object is
// renamed once in its life, so one of the two readings sees it.
func readFolder(dir string) ([]entry, error) {
	var entries []entry
	for range 2 {
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files, err := f.Readdirnames(-1)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // removed, hence empty, between the opening and the reading
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		for _, file := range files {
			if e, ok := parseEntry(file); ok {
				entries = append(entries, e)
			}
		}
	}
	// Folders of segments have a slash at the end of the key; continued folders
	// have longer keys than any file beside them. So keys differ.
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	return slices.CompactFunc(entries, func(a, b entry) bool { return a.key == b.key && a.folder == b.folder }), nil
}
