package offload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/metrics"
)

// Resolve returns the payloads behind links, in their order, several at a time.
// The first failure ends it. A link of another store is refused with
// blob.ErrForeignURL and never followed.
//
// Between the read of a row and its Resolve the row may get another link and the
// old object may be removed. So who gets a *MissingError reads the row again: if it
// has another link now, or is gone, nothing is wrong.
func (o *Offloader) Resolve(ctx context.Context, links []string) ([][]byte, error) {
	began := o.opts.Clock.Now()
	bounded, cancel := context.WithTimeout(ctx, o.opts.Timeout)
	defer cancel()
	group, groupCtx := errgroup.WithContext(bounded)
	group.SetLimit(o.opts.Concurrency)
	payloads := make([][]byte, len(links))
	for i, link := range links {
		group.Go(func() error {
			if err := groupCtx.Err(); err != nil {
				return err
			}
			var err error
			payloads[i], err = o.get(groupCtx, link)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, classify(ctx, "download", err)
	}
	o.meters.batch.Observe(o.opts.Clock.Now().Sub(began), "download", "")
	return payloads, nil
}

func (o *Offloader) get(ctx context.Context, link string) ([]byte, error) {
	name, err := o.reader.Name(link)
	if err != nil {
		return nil, err
	}
	began := o.opts.Clock.Now()
	data, err := o.read(ctx, name)
	o.meters.download.Observe(o.opts.Clock.Now().Sub(began), result(err))
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil, &MissingError{Link: link}
	case errors.Is(err, blob.ErrCorrupt):
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	case err != nil:
		return nil, err
	case !utf8.Valid(data):
		return nil, fmt.Errorf("%w: %s is not UTF-8", ErrUnreadable, link)
	}
	o.meters.downloadBytes.Add(int64(len(data)))
	return data, nil
}

// read returns the whole content of an object; its length and checksum are checked.
func (o *Offloader) read(ctx context.Context, name string) ([]byte, error) {
	r, attrs, err := o.reader.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	data := make([]byte, attrs.Size)
	if _, err = io.ReadFull(r, data); err == nil {
		// The checksum is known to be right once the end has been seen.
		if _, err = io.ReadFull(r, make([]byte, 1)); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	return data, errors.Join(err, r.Close())
}

// meters are the metrics under their names in the public service.
type meters struct {
	upload, download, batch             *metrics.Timer
	uploadBytes, downloadBytes, cleanup *metrics.Counter
}

func newMeters(r *metrics.Registry) meters {
	r = r.Group("syncstorage")
	const payload = "storage.gcs.payload."
	return meters{
		upload:        r.Timer(payload+"upload", "result"),
		download:      r.Timer(payload+"download", "result"),
		batch:         r.Timer(payload+"batch", "op", "handler"),
		uploadBytes:   r.Counter(payload + "upload.bytes"),
		downloadBytes: r.Counter(payload + "download.bytes"),
		cleanup:       r.Counter(payload+"cleanup", "handler", "result", "reason"),
	}
}

func result(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.Is(err, blob.ErrNotFound):
		return "not_found"
	}
	return "error"
}
