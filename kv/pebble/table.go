package pebble

import (
	"bufio"
	"errors"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// isTable reports whether a file holds rows that left the log: a table, or values
// separated from one.
func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

// tableFile gathers what is written to a table. Pebble writes each block on its own,
// in two pieces, and a system call for so little costs several times as much a byte.
// A table is not read before it has been synced.
type tableFile struct {
	vfs.File
	buf *bufio.Writer
	// given is how many bytes there are in the file and in buf.
	given int64
}

// tableBuffers have a size that divides that of Pebble's periodic syncs.
var tableBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 256<<10) }}

func newTableFile(f vfs.File) *tableFile {
	buf := tableBuffers.Get().(*bufio.Writer)
	buf.Reset(f)
	return &tableFile{File: f, buf: buf}
}

func (f *tableFile) Write(p []byte) (int, error) {
	n, err := f.buf.Write(p)
	f.given += int64(n)
	return n, err
}

func (f *tableFile) Sync() error { return errors.Join(f.buf.Flush(), f.File.Sync()) }

func (f *tableFile) SyncData() error { return errors.Join(f.buf.Flush(), f.File.SyncData()) }

// SyncTo is asked for parts well behind the end, which are in the file already.
func (f *tableFile) SyncTo(length int64) (full bool, err error) {
	if length > f.given-int64(f.buf.Buffered()) {
		err = f.buf.Flush()
	}
	if err == nil {
		full, err = f.File.SyncTo(length)
	}
	return full, err
}

func (f *tableFile) Close() error {
	err := errors.Join(f.buf.Flush(), f.File.Close())
	f.buf.Reset(nil)
	tableBuffers.Put(f.buf)
	return err
}
