package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/metrics"
)

// Errors that callers tell apart. They wrap the store's.
var (
	// ErrUnavailable: the object store failed or did not answer in time. A later
	// try may succeed.
	ErrUnavailable = errors.New("object store is unavailable")
	// ErrMissing: a link points at nothing. Every such error is a *MissingError.
	ErrMissing = errors.New("object is missing")
	// ErrUnreadable: an object is not what was written: its checksum is wrong, or
	// it is no UTF-8 text.
	ErrUnreadable = errors.New("object is unreadable")
)

// MissingError names a link that points at nothing.
type MissingError struct{ Link string }

func (e *MissingError) Error() string { return ErrMissing.Error() + ": " + e.Link }

// Is reports whether target is ErrMissing.
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

// Options adjusts an Offloader. The zero value is ready to use, but for the clock
// and the source of random bytes.
type Options struct {
	// Concurrency is how many objects one call transfers at a time. Default: 4.
	Concurrency int
	// Timeout bounds one call. It must be far below the 30 days after which an
	// unfinalized object disappears. Default: 1 minute.
	Timeout time.Duration
	// Clock measures transfers.
	Clock clock.Clock
	// Random makes the names of objects unique. It must be safe for concurrent
	// use.
	Random io.Reader
	// Metrics gets the metrics storage.gcs.payload.*.
	Metrics *metrics.Registry
	// Log gets a line for what could not be cleaned up. Default: none.
	Log *slog.Logger
}

const (
	defaultConcurrency = 4
	defaultTimeout     = time.Minute
)

// Offloader transfers payloads. It is safe for concurrent use.
type Offloader struct {
	objects blob.Uploader
	reader  blob.Reader
	opts    Options
	meters  meters
}

// New returns an Offloader on an object store, which is usually both arguments.
func New(objects blob.Uploader, reader blob.Reader, opts Options) *Offloader {
	if opts.Concurrency <= 0 {
		opts.Concurrency = defaultConcurrency
	}
	if opts.Timeout <= 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Offloader{objects: objects, reader: reader, opts: opts, meters: newMeters(opts.Metrics)}
}

// Payload is something to upload.
type Payload struct {
	// Prefix is the object's name up to the last segment, which Upload adds.
	Prefix string
	Data   []byte
}

// Uploads are the objects of one commit.
type Uploads struct {
	o       *Offloader
	handler string
	names   []string // of the payloads, in their order
}

// Links returns the URLs of the objects, in the order of the payloads.
func (u *Uploads) Links() []string {
	links := make([]string, len(u.names))
	for i, name := range u.names {
		links[i] = u.o.objects.URL(name)
	}
	return links
}

// Upload writes each payload to an object of a new name, several at a time. The
// first failure ends it: what was uploaded is discarded, and the error wraps
// ErrUnavailable unless ctx has ended. handler is the tag of the metrics. The
// payloads must not change until Upload returns.
func (o *Offloader) Upload(ctx context.Context, handler string, payloads []Payload) (*Uploads, error) {
	began := o.opts.Clock.Now()
	u := &Uploads{o: o, handler: handler, names: make([]string, len(payloads))}
	for i, p := range payloads {
		id, err := uuid.NewRandomFromReader(o.opts.Random)
		if err != nil {
			return nil, fmt.Errorf("offload: name an object: %w", err)
		}
		u.names[i] = p.Prefix + "/" + id.String()
	}
	if begun, err := o.putAll(ctx, u.names, payloads); err != nil {
		u.discard(ctx, u.names[:begun])
		return nil, classify(ctx, "upload", err)
	}
	o.meters.batch.Observe(o.opts.Clock.Now().Sub(began), "upload", handler)
	return u, nil
}

// putAll writes the objects in their order, and stops after the first failure. It
// returns how many it has begun: these may exist, whatever became of the call.
func (o *Offloader) putAll(ctx context.Context, names []string, payloads []Payload) (begun int, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.opts.Timeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.opts.Concurrency)
	for i, p := range payloads {
		if ctx.Err() != nil {
			break
		}
		begun++
		group.Go(func() error { return o.put(ctx, names[i], p.Data) })
	}
	err = group.Wait()
	if err == nil && begun < len(payloads) {
		err = ctx.Err()
	}
	return begun, err
}

func (o *Offloader) put(ctx context.Context, name string, data []byte) error {
	began := o.opts.Clock.Now()
	err := o.objects.Put(ctx, name, bytes.NewReader(data), int64(len(data)))
	o.meters.upload.Observe(o.opts.Clock.Now().Sub(began), result(err))
	if err == nil {
		o.meters.uploadBytes.Add(int64(len(data)))
	}
	return err
}

// Settle ends an upload after its commit, whose error it is given. If the commit
// certainly did not happen the objects are removed; if it did, or if nobody knows,
// they stay. It works on when ctx has ended, for a bounded time. An object that
// cannot be removed is left to the store's lifecycle.
func (u *Uploads) Settle(ctx context.Context, commit error) {
	if commit != nil && !errors.Is(commit, kv.ErrUnknownOutcome) {
		u.discard(ctx, u.names)
	}
}

// Discard removes the object of one payload whose link was not committed although
// the commit happened.
func (u *Uploads) Discard(ctx context.Context, payload int) {
	u.discard(ctx, u.names[payload:payload+1])
}

func (u *Uploads) discard(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.o.opts.Timeout)
	defer cancel()
	var wg sync.WaitGroup
	slots := make(chan struct{}, u.o.opts.Concurrency)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if _, err := u.o.objects.Discard(ctx, name); err != nil {
				u.o.meters.cleanup.Add(1, u.handler, "failure", "gcs_error")
				u.o.opts.Log.Warn("an uploaded object could not be removed; the lifecycle will", "object", name, "error", err)
				return
			}
			u.o.meters.cleanup.Add(1, u.handler, "success", "")
		})
	}
	wg.Wait()
}

// classify wraps a failed transfer. ctx is the caller's: if it has ended, nothing is
// said about the store.
func classify(ctx context.Context, op string, err error) error {
	known := ctx.Err() != nil
	for _, target := range []error{ErrMissing, ErrUnreadable, blob.ErrForeignURL, blob.ErrInvalidURL, blob.ErrInvalidName} {
		known = known || errors.Is(err, target)
	}
	if known {
		return fmt.Errorf("offload: %s: %w", op, err)
	}
	return fmt.Errorf("offload: %s: %w: %w", op, ErrUnavailable, err)
}
