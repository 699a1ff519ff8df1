package blob

import (
	"context"
	"io"
	"time"
)

// Driver is one storage technology. Only Store calls it; what Store promises to
// its callers and a driver must keep is said here.
//
// Arguments are valid: names pass CheckName, sizes and offsets are not negative.
// All methods may be called concurrently, also for one name and also by several
// processes on the same store. They return soon after ctx has ended; after an
// error that is not a sentinel of this package, a change may or may not have
// happened. What a method reports as done is durable.
//
// Errors wrap the package's sentinels where one applies and name the step that
// failed; Store adds the operation and the name of the object.
type Driver interface {
	// URLPrefix is what the URLs of all objects begin with and no URL of another
	// store does: scheme, "://", bucket, "/". It is constant.
	URLPrefix() string

	// Put creates the object with Committed false and the given custom time, in
	// one step: nobody sees it without its whole content and its attributes. It
	// reads r up to io.EOF, which comes after exactly size bytes. If r returns an
	// error, or ctx ends, before all of r was read, there is no object afterwards
	// and the error wraps that of r or ctx.
	//
	// If the name is taken, Put changes nothing and returns ErrExists; it may do
	// so before it has read r. Of concurrent Puts of one name one succeeds.
	Put(ctx context.Context, name string, customTime time.Time, r io.Reader, size int64) error

	// Finalize sets Committed to true and the custom time to FinalizedTime, and
	// changes nothing else. It never creates an object: found is false if there
	// is none. A finalized object is found and stays as it is.
	Finalize(ctx context.Context, name string) (found bool, err error)

	// Get reads length bytes from offset on, fewer if the object ends before, up
	// to the end if length is -1. Length is never 0. An offset at or past the end
	// gives an empty reader, not an error. The attributes describe the object,
	// not the range. It returns ErrNotFound if there is no object, else the
	// caller must close the reader. A Delete during the read either lets it go on
	// or makes it fail; the reader never ends early with io.EOF.
	Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, Attrs, error)

	// Stat returns the attributes of the object, or ErrNotFound.
	Stat(ctx context.Context, name string) (Attrs, error)

	// Delete removes the object if cond holds, and reports whether it did.
	// Checking and removing are one step: a Finalize or a Put that comes between
	// keeps the object from being removed when cond no longer holds.
	Delete(ctx context.Context, name string, cond Condition) (removed bool, err error)

	// Copy creates dst as Put would, with the content of src, whatever the state
	// of src. It returns ErrNotFound if there is no src, ErrExists if dst is
	// taken. The names differ.
	Copy(ctx context.Context, src, dst string, customTime time.Time) error

	// List calls fn for the objects whose names begin with prefix and are greater
	// than after, in the order of the names' bytes, on the caller's goroutine,
	// until fn returns false. Prefix and after may be empty and need not be names
	// of objects. An object that exists all through the call is listed once; one
	// that comes, goes or changes meanwhile may be listed or not, in either
	// state. fn may call the driver.
	List(ctx context.Context, prefix, after string, fn func(Attrs) bool) error
}

// Condition limits a Delete. The zero value holds for every object.
type Condition struct {
	// Unfinalized: the object must not be finalized.
	Unfinalized bool

	// CustomTime, if not zero, must be the object's custom time. It tells an old
	// object from a new one of the same name.
	CustomTime time.Time
}

// Holds reports whether an object with the attributes a meets the condition.
func (c Condition) Holds(a Attrs) bool {
	if c.Unfinalized && a.Committed {
		return false
	}
	return c.CustomTime.IsZero() || c.CustomTime.Equal(a.CustomTime)
}
