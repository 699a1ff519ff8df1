package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-dev/holdfast/blob"
)

// Keys of metadata.
const (
	metaID      = "incarnation"
	metaCreated = "created"
	metaCRC     = "crc32c"
	metaBy      = "by"

	createdFormat = "2006-01-02T15:04:05.000Z" // UTC, to the millisecond
)

// objectOf puts together what the headers of a GET or HEAD say. Content of another
// writer has no metadata of ours: its ETag is its incarnation, and the time of its
// last change that of its creation.
func objectOf(name string, metadata map[string]string, etag *string, size int64, changed *time.Time) object {
	o := object{name: name, id: metadata[metaID], etag: aws.ToString(etag), size: size}
	if len(o.id) != idLen {
		o.id = strings.ToUpper(hashOf(o.etag))[:idLen]
	}
	var err error
	if o.created, err = time.Parse(createdFormat, metadata[metaCreated]); err != nil {
		o.created = aws.ToTime(changed).UTC().Truncate(time.Millisecond)
	}
	crc, err := strconv.ParseUint(metadata[metaCRC], 16, 32)
	o.crc, o.hasCRC = uint32(crc), err == nil
	return o
}

// Put implements blob.Driver.
func (d *Driver) Put(ctx context.Context, name string, customTime time.Time, r io.Reader, size int64) error {
	key := keyOf(name)
	if len(key) > maxKeyLen {
		return fmt.Errorf("%w: one that begins with %s is at most %d bytes long", blob.ErrInvalidName, ownPrefix, maxKeyLen-len(key)+len(name))
	}
	id := rand.Text()
	in := &s3.PutObjectInput{
		Bucket: d.bucket, Key: aws.String(key), IfNoneMatch: aws.String("*"),
		ContentType: aws.String("application/octet-stream"),
		Metadata:    map[string]string{metaID: id, metaCreated: customTime.UTC().Format(createdFormat)},
	}
	if size > d.buffer {
		return d.putStream(ctx, name, id, in, r, size)
	}
	content, err := readAll(r, size)
	if err != nil {
		return err
	}
	sum := blob.NewCRC32C()
	sum.Write(content) // a hash never fails
	in.Metadata[metaCRC] = strconv.FormatUint(uint64(sum.Sum32()), 16)
	for range tries {
		in.Body = bytes.NewReader(content)
		_, err := d.client.PutObject(ctx, in)
		if err == nil {
			return nil
		}
		if !refused(err) {
			return fmt.Errorf("upload: %w", err)
		}
		free, err := d.free(ctx, name, id)
		if err != nil || !free {
			return err
		}
	}
	return errBusy
}

// readAll reads exactly size bytes and the end of r.
func readAll(r io.Reader, size int64) ([]byte, error) {
	content := make([]byte, size)
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, err
	}
	var none [1]byte
	switch n, err := io.ReadFull(r, none[:]); {
	case n > 0:
		return nil, blob.ErrWrongSize
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return content, nil
}

// free reports whether a Put that was refused can try again, because the name is free
// by now. It returns blob.ErrExists if it is not, and false if it was the same Put
// that took it: an answer was lost, and the request repeated.
func (d *Driver) free(ctx context.Context, name, id string) (bool, error) {
	o, err := d.head(ctx, name)
	if errors.Is(err, errGone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if o.id == id {
		return false, nil
	}
	m, err := d.markOf(ctx, o)
	if err != nil {
		return false, err
	}
	if m.state != removed {
		return false, blob.ErrExists
	}
	return true, d.erase(ctx, o)
}

// putStream sends content that does not fit into memory. It cannot be sent again, so
// what can be found out before is.
func (d *Driver) putStream(ctx context.Context, name, id string, in *s3.PutObjectInput, r io.Reader, size int64) error {
	if _, err := d.free(ctx, name, id); err != nil {
		return err
	}
	source := &remembering{ctx: ctx, r: r}
	in.Body, in.ContentLength = source, aws.Int64(size)
	// A signature of the content would need it twice.
	_, err := d.client.PutObject(ctx, in, func(o *s3.Options) {
		o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
		o.Retryer = aws.NopRetryer{}
	})
	switch {
	case source.err != nil:
		return source.err
	case err == nil:
		return nil
	case refused(err):
		if free, err := d.free(ctx, name, id); err != nil || !free {
			return err
		}
	}
	return fmt.Errorf("upload: %w", cmp.Or(ctx.Err(), err))
}

// remembering keeps the error of a reader apart from that of the request. Once ctx has
// ended it hands out nothing more, so that the request stays incomplete.
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

// Get implements blob.Driver.
func (d *Driver) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, blob.Attrs, error) {
	out, err := d.client.GetObject(ctx, &s3.GetObjectInput{Bucket: d.bucket, Key: aws.String(keyOf(name)), Range: rangeOf(offset, length)})
	switch {
	case codeOf(err) == "InvalidRange":
		o, m, err := d.look(ctx, name)
		if err == nil && offset < o.size {
			err = errBusy // it is another object by now
		}
		if err != nil {
			return nil, blob.Attrs{}, err
		}
		return io.NopCloser(strings.NewReader("")), o.attrs(m.state), nil
	case notFound(err):
		return nil, blob.Attrs{}, d.missing(ctx)
	case err != nil:
		return nil, blob.Attrs{}, fmt.Errorf("open: %w", err)
	}
	size, err := sizeOf(out)
	if err != nil {
		return nil, blob.Attrs{}, errors.Join(err, out.Body.Close())
	}
	o := objectOf(name, out.Metadata, out.ETag, size, out.LastModified)
	m, err := d.existing(ctx, o)
	if err != nil {
		return nil, blob.Attrs{}, errors.Join(err, out.Body.Close())
	}
	return out.Body, o.attrs(m.state), nil
}

// rangeOf returns the Range header, or nil for the whole object.
func rangeOf(offset, length int64) *string {
	switch end := offset + length - 1; {
	case offset == 0 && length == -1:
		return nil
	case length == -1, end < offset: // the sum may be too large for its type
		return aws.String(fmt.Sprintf("bytes=%d-", offset))
	default:
		return aws.String(fmt.Sprintf("bytes=%d-%d", offset, end))
	}
}

// sizeOf returns the size of the whole object.
func sizeOf(out *s3.GetObjectOutput) (int64, error) {
	if out.ContentRange == nil {
		return aws.ToInt64(out.ContentLength), nil
	}
	_, total, _ := strings.Cut(*out.ContentRange, "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("open: invalid Content-Range %q", *out.ContentRange)
	}
	return size, nil
}

// checker compares what was read with the checksum, at the end.
type checker struct {
	r   io.Reader
	sum hash.Hash32
	crc uint32
}

// checked returns r, with blob.ErrCorrupt in place of io.EOF if its content has
// another checksum than the attributes.
func checked(r io.Reader, a blob.Attrs) io.Reader {
	if !a.HasCRC32C {
		return r
	}
	return &checker{r: r, sum: blob.NewCRC32C(), crc: a.CRC32C}
}

func (c *checker) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sum.Write(p[:n]) // a hash never fails
	if errors.Is(err, io.EOF) && c.sum.Sum32() != c.crc {
		err = fmt.Errorf("%w: checksum %08x, expected %08x", blob.ErrCorrupt, c.sum.Sum32(), c.crc)
	}
	return n, err
}
