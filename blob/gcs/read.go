package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"

	"github.com/holdfast-dev/holdfast/blob"
)

// attrsOf translates the attributes. See the package comment on foreign objects.
func attrsOf(a *storage.ObjectAttrs) blob.Attrs {
	b := blob.Attrs{Name: a.Name, Size: a.Size, CRC32C: a.CRC32C, HasCRC32C: true}
	switch {
	case a.Metadata[metaCommitted] == committedYes || !a.CustomTime.Before(blob.FinalizedTime):
		b.Committed, b.CustomTime = true, blob.FinalizedTime
	case a.CustomTime.IsZero():
		b.CustomTime = a.Created.UTC().Truncate(time.Millisecond)
	default:
		b.CustomTime = exact(a)
	}
	return b
}

// exact returns the custom time, to the millisecond if the metadata have the same
// second: the client cuts off what is below a second.
func exact(a *storage.ObjectAttrs) time.Time {
	created, err := time.Parse(createdFormat, a.Metadata[metaCreated])
	if err == nil && created.Truncate(time.Second).Equal(a.CustomTime.Truncate(time.Second)) {
		return created
	}
	return a.CustomTime.UTC().Truncate(time.Millisecond)
}

// Stat implements blob.Driver.
func (d *Driver) Stat(ctx context.Context, name string) (blob.Attrs, error) {
	attrs, err := d.bucket.Object(name).Attrs(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) {
		return blob.Attrs{}, d.missing(ctx)
	}
	if err != nil {
		return blob.Attrs{}, fmt.Errorf("read attributes: %w", err)
	}
	return attrsOf(attrs), nil
}

// Get implements blob.Driver.
func (d *Driver) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, blob.Attrs, error) {
	o := d.bucket.Object(name)
	if offset == 0 && length == -1 {
		return d.getWhole(ctx, o, name)
	}
	attrs, err := o.Attrs(ctx)
	if err != nil {
		return nil, blob.Attrs{}, d.getError(ctx, "read attributes", err)
	}
	if offset >= attrs.Size {
		return io.NopCloser(strings.NewReader("")), attrsOf(attrs), nil
	}
	r, err := o.Generation(attrs.Generation).ReadCompressed(true).NewRangeReader(ctx, offset, length)
	if err != nil {
		return nil, blob.Attrs{}, d.getError(ctx, "open", err)
	}
	return r, attrsOf(attrs), nil
}

// getWhole reads the whole object. The headers of the answer tell all about a
// finalized object; the custom time of others is not in them.
func (d *Driver) getWhole(ctx context.Context, o *storage.ObjectHandle, name string) (io.ReadCloser, blob.Attrs, error) {
	// From the first answer on, the reader sticks to its generation.
	r, err := o.ReadCompressed(true).NewReader(ctx)
	if err != nil {
		return nil, blob.Attrs{}, d.getError(ctx, "open", err)
	}
	told := r.Attrs.CRC32C != 0 || r.Attrs.Size == 0
	if told && committed(r.Metadata()) {
		return r, blob.Attrs{
			Name: name, Size: r.Attrs.Size, Committed: true, CustomTime: blob.FinalizedTime,
			CRC32C: r.Attrs.CRC32C, HasCRC32C: true,
		}, nil
	}
	attrs, err := o.Generation(r.Attrs.Generation).Attrs(ctx)
	if err != nil {
		return nil, blob.Attrs{}, errors.Join(d.getError(ctx, "read attributes", err), r.Close())
	}
	return r, attrsOf(attrs), nil
}

// committed looks into metadata that came as headers, whose case is lost.
func committed(metadata map[string]string) bool {
	for key, value := range metadata {
		if strings.EqualFold(key, metaCommitted) {
			return value == committedYes
		}
	}
	return false
}

func (d *Driver) getError(ctx context.Context, step string, err error) error {
	if errors.Is(err, storage.ErrObjectNotExist) || statusOf(err) == http.StatusNotFound {
		return d.missing(ctx)
	}
	return fmt.Errorf("%s: %w", step, err)
}

const pageLen = 1000 // the most that the service sends

// List implements blob.Driver.
func (d *Driver) List(ctx context.Context, prefix, after string, fn func(blob.Attrs) bool) error {
	if len(prefix) > blob.MaxNameLen {
		return ctx.Err() // no name is that long, and the service would refuse it
	}
	q := &storage.Query{Prefix: prefix, StartOffset: after, Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection([]string{"Name", "Size", "CustomTime", "Created", "Metadata", "CRC32C"}); err != nil {
		return err
	}
	it := d.bucket.Objects(ctx, q)
	it.PageInfo().MaxSize = pageLen
	for {
		attrs, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		// The offset is where the list starts, not what it comes after.
		if attrs.Name > after && !fn(attrsOf(attrs)) {
			return nil
		}
	}
}
