package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
)

// Store is a store of objects. It validates all input, measures and checks
// content on its way in and out, and leaves the rest to its driver. Methods may
// be called concurrently.
//
// Errors name the operation and the object, and wrap a sentinel of this package
// where the caller has something to decide. After any other error (a network, a
// disk, the end of ctx) a change may or may not have been made.
type Store struct {
	driver Driver
	clock  clock.Clock
	prefix string
}

// Options adjusts a Store. The zero value is ready to use.
type Options struct {
	// Clock gives new objects their custom time. Default: clock.System.
	Clock clock.Clock
}

// New returns a Store of the driver's objects. The Store has nothing to close;
// the driver stays its opener's to close after the last use of the Store.
func New(driver Driver, opts Options) *Store {
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	return &Store{driver: driver, clock: opts.Clock, prefix: driver.URLPrefix()}
}

// URL returns the URL of the object of that name, whether or not it exists.
func (s *Store) URL(name string) string { return s.prefix + name }

// Name returns the name in a URL of this store. The error wraps ErrForeignURL if
// the URL belongs to another store, ErrInvalidURL if it is malformed.
func (s *Store) Name(url string) (string, error) {
	name, err := nameOf(s.prefix, url)
	if err != nil {
		// A URL is at most a prefix and a name; anything longer is noise.
		return "", fmt.Errorf("blob: %.1200q: %w", url, err)
	}
	return name, nil
}

// Put creates an object of exactly size bytes, read from r. The object is
// unfinalized and has the present as custom time. It appears only when it is
// complete; when Put returns nil it is durable.
//
// Put never replaces: if the name is taken, it returns ErrExists, possibly
// without having read r. It does not retry. A name is meant for one upload, so
// a caller that repeats a Put whose outcome it does not know, under the same
// fresh name, may take ErrExists as success.
//
// If r has another number of bytes than size (ErrWrongSize), fails, or ctx ends
// first, there is no object. After any other error there may be one: Discard
// it, or leave it to the lifecycle.
func (s *Store) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	err := s.put(ctx, name, r, size)
	return wrap("put", name, err)
}

func (s *Store) put(ctx context.Context, name string, r io.Reader, size int64) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("%w: %d bytes announced", ErrWrongSize, size)
	}
	content := &exactReader{ctx: ctx, r: r, left: size}
	if size == 0 {
		// Drivers may well not read what is said to be empty.
		if err := content.expectEnd(); err != nil {
			return err
		}
	}
	return s.driver.Put(ctx, name, s.now(), content, size)
}

// Finalize makes the object permanent: Committed becomes true, the custom time
// FinalizedTime. It reports whether there is such an object; it never creates
// one and never changes content. It may be repeated.
func (s *Store) Finalize(ctx context.Context, name string) (found bool, err error) {
	if err = check(ctx, name); err == nil {
		found, err = s.driver.Finalize(ctx, name)
	}
	return found, wrap("finalize", name, err)
}

// Get returns a reader of the whole content and the attributes of the object,
// or ErrNotFound. The caller must close the reader.
//
// The content is trustworthy only when the reader has returned io.EOF: by then
// its length and, if the store knows one, its checksum were compared, and a
// difference is reported as ErrCorrupt in place of io.EOF. Reads fail once ctx
// has ended.
func (s *Store) Get(ctx context.Context, name string) (io.ReadCloser, Attrs, error) {
	r, attrs, err := s.get(ctx, name, 0, -1)
	return r, attrs, wrap("get", name, err)
}

// GetRange is like Get for the length bytes from offset on, or fewer if the
// object ends before; length -1 means up to the end. A range at or past the end
// is empty. The attributes are those of the whole object. Unless the range is
// the whole object, only its length is verified.
func (s *Store) GetRange(ctx context.Context, name string, offset, length int64) (io.ReadCloser, Attrs, error) {
	r, attrs, err := s.get(ctx, name, offset, length)
	return r, attrs, wrap("get range of", name, err)
}

func (s *Store) get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, Attrs, error) {
	if err := check(ctx, name); err != nil {
		return nil, Attrs{}, err
	}
	if offset < 0 || length < -1 {
		return nil, Attrs{}, fmt.Errorf("%w: offset %d, length %d", ErrInvalidRange, offset, length)
	}
	if length == 0 {
		attrs, err := s.driver.Stat(ctx, name)
		if err != nil {
			return nil, Attrs{}, err
		}
		return io.NopCloser(strings.NewReader("")), attrs, nil
	}
	r, attrs, err := s.driver.Get(ctx, name, offset, length)
	if err != nil {
		return nil, Attrs{}, err
	}
	return newVerifier(ctx, r, attrs, offset, length), attrs, nil
}

// Stat returns the attributes of the object, or ErrNotFound.
func (s *Store) Stat(ctx context.Context, name string) (Attrs, error) {
	attrs, err := Attrs{}, check(ctx, name)
	if err == nil {
		attrs, err = s.driver.Stat(ctx, name)
	}
	return attrs, wrap("stat", name, err)
}

// Delete removes the object in whatever state, and reports whether there was
// one. Only who has a record that authorizes it may delete a finalized object.
func (s *Store) Delete(ctx context.Context, name string) (found bool, err error) {
	return s.remove(ctx, "delete", name, Condition{})
}

// Discard removes the object if it is not finalized, and reports whether it did:
// false means that there is no object, or that it is finalized and stays. Of a
// Discard and a Finalize at the same time exactly one takes effect.
func (s *Store) Discard(ctx context.Context, name string) (removed bool, err error) {
	return s.remove(ctx, "discard", name, Condition{Unfinalized: true})
}

func (s *Store) remove(ctx context.Context, op, name string, cond Condition) (removed bool, err error) {
	if err = check(ctx, name); err == nil {
		removed, err = s.driver.Delete(ctx, name, cond)
	}
	return removed, wrap(op, name, err)
}

// Copy creates the object dst with the content of src. Like one that was put,
// dst is unfinalized and has the present as custom time, whatever src has. It
// returns ErrNotFound if there is no src and ErrExists if dst is taken. Errors
// leave what errors of Put leave.
func (s *Store) Copy(ctx context.Context, src, dst string) error {
	err := s.copy(ctx, src, dst)
	if err != nil {
		return fmt.Errorf("blob: copy %q to %q: %w", src, dst, err)
	}
	return nil
}

func (s *Store) copy(ctx context.Context, src, dst string) error {
	if err := errors.Join(check(ctx, src), CheckName(dst)); err != nil {
		return err
	}
	if src == dst {
		if _, err := s.driver.Stat(ctx, src); err != nil {
			return err
		}
		return ErrExists
	}
	return s.driver.Copy(ctx, src, dst, s.now())
}

// List calls fn for the objects whose names begin with prefix and are greater
// than after, in the order of the names' bytes, on the caller's goroutine, until
// fn returns false. Both strings may be empty. fn may use the Store, to delete
// what it sees for example.
//
// An object that exists all through the call is listed once; one that comes,
// goes or changes meanwhile may be listed or not, in either state.
func (s *Store) List(ctx context.Context, prefix, after string, fn func(Attrs) bool) error {
	err := errors.Join(ctx.Err(), checkText(prefix), checkText(after))
	if err == nil {
		err = s.driver.List(ctx, prefix, after, fn)
	}
	return wrap("list objects under", prefix, err)
}

// now is the custom time of a new object. Milliseconds are what every store can
// keep.
func (s *Store) now() time.Time { return s.clock.Now().UTC().Truncate(time.Millisecond) }

func check(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return ctx.Err()
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("blob: %s %.1100q: %w", op, name, err)
}
