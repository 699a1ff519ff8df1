package blob

import (
	"context"
	"errors"
	"io"
	"time"
)

// MaxNameLen is the greatest length of an object's name in bytes. It is the
// limit of both GCS and S3.
const MaxNameLen = 1024

// UnfinalizedLifetime is how long after its custom time an object that was
// never finalized disappears. It must exceed by far the longest time between an
// upload and the Finalize that follows its commit.
const UnfinalizedLifetime = 30 * 24 * time.Hour

// FinalizedTime is the custom time of every finalized object. Rules of a bucket
// cannot look at metadata, only at the custom time; one this far ahead is never
// reached. (The year 9999 would not fit into 64-bit nanoseconds.)
var FinalizedTime = time.Date(2200, time.December, 31, 23, 59, 59, 0, time.UTC)

var (
	// ErrNotFound says that there is no object of that name.
	ErrNotFound = errors.New("object not found")

	// ErrExists says that there is an object of that name already.
	ErrExists = errors.New("object exists already")

	// ErrCorrupt says that stored bytes are not those that were put. Reading
	// again does not help.
	ErrCorrupt = errors.New("object is corrupt")

	// ErrWrongSize says that the reader given to Put had fewer or more bytes
	// than announced.
	ErrWrongSize = errors.New("content differs from the announced size")

	// ErrInvalidName says that a name breaks the rules of CheckName.
	ErrInvalidName = errors.New("invalid object name")

	// ErrInvalidRange says that an offset or a length is negative.
	ErrInvalidRange = errors.New("invalid range")

	// ErrInvalidURL says that a URL is malformed or has no valid name.
	ErrInvalidURL = errors.New("invalid object URL")

	// ErrForeignURL says that a URL is well formed but belongs to another store:
	// the scheme or the bucket differs.
	ErrForeignURL = errors.New("URL belongs to another object store")
)

// Attrs describes an object. It is a plain value: a change to it changes
// nothing else.
type Attrs struct {
	Name string
	Size int64 // bytes of content

	// Committed says whether the object is finalized.
	Committed bool

	// CustomTime is when the object was created, in UTC and in whole
	// milliseconds, or FinalizedTime once it is finalized.
	CustomTime time.Time

	// CRC32C is the Castagnoli checksum of the content, valid if HasCRC32C.
	// List may leave it out, and a store that knows none always does.
	CRC32C    uint32
	HasCRC32C bool
}

// Uploader is what the writer of new objects needs. It cannot remove an object
// that has been finalized. Methods are those of Store.
type Uploader interface {
	Put(ctx context.Context, name string, r io.Reader, size int64) error
	Discard(ctx context.Context, name string) (removed bool, err error)
	URL(name string) string
	Name(url string) (string, error)
}

// Reader is what needs to see objects but not to change them. Methods are those
// of Store.
type Reader interface {
	Get(ctx context.Context, name string) (io.ReadCloser, Attrs, error)
	GetRange(ctx context.Context, name string, offset, length int64) (io.ReadCloser, Attrs, error)
	Stat(ctx context.Context, name string) (Attrs, error)
	List(ctx context.Context, prefix, after string, fn func(Attrs) bool) error
	URL(name string) string
	Name(url string) (string, error)
}

// Finisher is what decides the fate of objects, by a record that authorizes it.
// Methods are those of Store.
type Finisher interface {
	Finalize(ctx context.Context, name string) (found bool, err error)
	Delete(ctx context.Context, name string) (found bool, err error)
	Name(url string) (string, error)
}

var (
	_ Uploader = (*Store)(nil)
	_ Reader   = (*Store)(nil)
	_ Finisher = (*Store)(nil)
)
