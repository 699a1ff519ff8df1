package gcs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-dev/holdfast/blob"
)

// Keys and values of the metadata. The first is a contract with other programs.
const (
	metaCommitted = "committed"
	metaUpload    = "upload"
	metaCreated   = "created"

	committedYes = "true"
	committedNo  = "false"

	// createdFormat is that of metaCreated: in UTC, to the millisecond.
	createdFormat = "2006-01-02T15:04:05.000Z"

	contentType = "application/octet-stream"
)

// newborn returns the attributes of a new object, and the random number in them.
func newborn(customTime time.Time) (storage.ObjectAttrs, string) {
	upload := rand.Text()
	return storage.ObjectAttrs{
		ContentType: contentType,
		CustomTime:  customTime,
		Metadata: map[string]string{
			metaCommitted: committedNo,
			metaUpload:    upload,
			metaCreated:   customTime.UTC().Format(createdFormat),
		},
	}, upload
}

// Put implements blob.Driver.
func (d *Driver) Put(ctx context.Context, name string, customTime time.Time, r io.Reader, size int64) error {
	// Ending this context is the only way to drop an upload that is half sent.
	uploading, drop := context.WithCancel(ctx)
	defer drop()
	free := d.bucket.Object(name).If(storage.Conditions{DoesNotExist: true})
	w := free.Retryer(storage.WithErrorFunc(limitedRetry())).NewWriter(uploading)
	attrs, upload := newborn(customTime)
	w.ObjectAttrs = attrs
	w.Name = name
	// Content shorter than a chunk is one request, and only needs a chunk as long.
	w.ChunkSize = int(min(d.chunk, roundUp(size+1)))

	source := &remembering{ctx: ctx, r: r}
	_, err := io.Copy(w, source)
	if source.err != nil {
		drop()
		// The writer's own error says no more, and waiting for it is the point.
		_ = w.Close()
		return source.err
	}
	// After an error of Copy, Close returns the writer's error and creates nothing.
	if closed := w.Close(); closed != nil {
		err = closed
	}
	return d.settle(ctx, "upload", name, upload, err)
}

// limitedRetry decides about repetitions within one upload. The client's own rule for
// uploads knows no limit, and gives up when a connection ends without an answer.
func limitedRetry() func(error) bool {
	left := retryTries - 1
	return func(err error) bool {
		if left == 0 || !storage.ShouldRetry(err) {
			return false
		}
		left--
		return true
	}
}

// remembering keeps the error of a reader apart from that of a writer. Once ctx has
// ended it hands out nothing more, so that the upload stays incomplete.
type remembering struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (r *remembering) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if ended := r.ctx.Err(); ended != nil {
		n, err = 0, ended
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// settle returns what the error of a request that creates an object means. If the
// name is taken, it may be by this very request: an answer was lost and the client
// tried again.
func (d *Driver) settle(ctx context.Context, step, name, upload string, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%s: %w", step, ended)
	}
	if statusOf(err) != http.StatusPreconditionFailed {
		return fmt.Errorf("%s: %w", step, err)
	}
	attrs, err := d.bucket.Object(name).Attrs(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) {
		return blob.ErrExists // and was deleted since
	}
	if err != nil {
		return fmt.Errorf("%s: look who took the name: %w", step, err)
	}
	if attrs.Metadata[metaUpload] == upload {
		return nil
	}
	return blob.ErrExists
}

// Copy implements blob.Driver. The content does not leave the service.
func (d *Driver) Copy(ctx context.Context, src, dst string, customTime time.Time) error {
	attrs, upload := newborn(customTime)
	copier := d.bucket.Object(dst).If(storage.Conditions{DoesNotExist: true}).CopierFrom(d.bucket.Object(src))
	copier.ObjectAttrs = attrs
	_, err := copier.Run(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) || statusOf(err) == http.StatusNotFound {
		return d.missing(ctx)
	}
	err = d.settle(ctx, "copy", dst, upload, err)
	if errors.Is(err, blob.ErrExists) {
		// The service need not have looked at the source.
		if _, statErr := d.Stat(ctx, src); errors.Is(statErr, blob.ErrNotFound) {
			return statErr
		}
	}
	return err
}

// Finalize implements blob.Driver. It needs no precondition: a Discard has one that
// this breaks, and repeating it changes nothing.
func (d *Driver) Finalize(ctx context.Context, name string) (found bool, err error) {
	o := d.bucket.Object(name).Retryer(storage.WithPolicy(storage.RetryAlways))
	_, err = o.Update(ctx, storage.ObjectAttrsToUpdate{
		CustomTime: blob.FinalizedTime,
		Metadata:   map[string]string{metaCommitted: committedYes},
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, storage.ErrObjectNotExist):
		return false, d.present(ctx)
	case statusOf(err) == http.StatusBadRequest:
		// The custom time would move backwards: an older writer finalized it with a
		// later one.
		attrs, statErr := d.Stat(ctx, name)
		if errors.Is(statErr, blob.ErrNotFound) {
			return false, nil
		}
		if statErr == nil && attrs.Committed {
			return true, nil
		}
	}
	return false, fmt.Errorf("patch: %w", err)
}

// deleteTries is how often Delete looks again because the object changed meanwhile.
// Only a Finalize or a new object of the name can be the cause.
const deleteTries = 10

// Delete implements blob.Driver.
func (d *Driver) Delete(ctx context.Context, name string, cond blob.Condition) (removed bool, err error) {
	for range deleteTries {
		attrs, err := d.bucket.Object(name).Attrs(ctx)
		if errors.Is(err, storage.ErrObjectNotExist) {
			return false, d.present(ctx)
		}
		if err != nil {
			return false, fmt.Errorf("look before deletion: %w", err)
		}
		if !cond.Holds(attrsOf(attrs)) {
			return false, nil
		}
		seen := storage.Conditions{GenerationMatch: attrs.Generation}
		if cond != (blob.Condition{}) {
			seen.MetagenerationMatch = attrs.Metageneration
		}
		removed, changed, err := d.deleteSeen(ctx, name, seen)
		if err != nil || !changed {
			return removed, err
		}
	}
	return false, errors.New("delete: the object keeps changing")
}

// deleteSeen deletes the object in the state that was seen.
func (d *Driver) deleteSeen(ctx context.Context, name string, seen storage.Conditions) (removed, changed bool, err error) {
	repeated := false
	o := d.bucket.Object(name).If(seen).Retryer(storage.WithErrorFunc(func(err error) bool {
		again := storage.ShouldRetry(err)
		repeated = repeated || again
		return again
	}))
	err = o.Delete(ctx)
	switch {
	case err == nil:
		return true, false, nil
	case errors.Is(err, storage.ErrObjectNotExist):
		// It was there a moment ago. If an answer was lost, that was ours.
		return repeated, false, nil
	case statusOf(err) == http.StatusPreconditionFailed:
		return false, true, nil
	}
	return false, false, fmt.Errorf("delete: %w", err)
}
