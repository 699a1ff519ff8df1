package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-dev/holdfast/blob"
)

// object is the content of a name in one incarnation.
type object struct {
	name    string
	id      string // of the incarnation
	etag    string
	size    int64
	created time.Time
	crc     uint32
	hasCRC  bool
}

// state is what a mark says. The texts differ in length, which is what lists show.
type state string

const (
	unmarked  state = ""
	finalized state = "finalized"
	removed   state = "removed"
)

// mark is the mark of an object.
type mark struct {
	state state
	etag  string
	by    string // random, of the removal that wrote it
}

// attrs translates what the contract shows of an object.
func (o object) attrs(s state) blob.Attrs {
	a := blob.Attrs{Name: o.name, Size: o.size, CustomTime: o.created, CRC32C: o.crc, HasCRC32C: o.hasCRC}
	if s == finalized {
		a.Committed, a.CustomTime = true, blob.FinalizedTime
	}
	return a
}

// head returns the content of a name, or errGone.
func (d *Driver) head(ctx context.Context, name string) (object, error) {
	out, err := d.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: d.bucket, Key: aws.String(keyOf(name))})
	if notFound(err) {
		return object{}, errGone
	}
	if err != nil {
		return object{}, fmt.Errorf("look: %w", err)
	}
	return objectOf(name, out.Metadata, out.ETag, aws.ToInt64(out.ContentLength), out.LastModified), nil
}

// errGone says that there is no content of that name, if there is a bucket.
var errGone = errors.New("no such key")

// markOf returns the mark of an object.
func (d *Driver) markOf(ctx context.Context, o object) (mark, error) {
	key := markKey(o.name, o.id, o.etag)
	out, err := d.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: d.bucket, Key: aws.String(key)})
	if notFound(err) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, fmt.Errorf("look at the mark: %w", err)
	}
	m := mark{state: stateOf(aws.ToInt64(out.ContentLength)), etag: aws.ToString(out.ETag), by: out.Metadata[metaBy]}
	if m.state == unmarked {
		return mark{}, fmt.Errorf("%w: the mark %q has %d bytes", blob.ErrCorrupt, key, aws.ToInt64(out.ContentLength))
	}
	return m, nil
}

// stateOf returns the state whose text has that many bytes.
func stateOf(size int64) state {
	for _, s := range []state{finalized, removed} {
		if size == int64(len(s)) {
			return s
		}
	}
	return unmarked
}

// write writes a mark of an object that has the mark m, and reports whether it did:
// false means that the mark is another one by now.
func (d *Driver) write(ctx context.Context, o object, m mark, s state, by string) (bool, error) {
	in := &s3.PutObjectInput{
		Bucket: d.bucket, Key: aws.String(markKey(o.name, o.id, o.etag)),
		Body: strings.NewReader(string(s)),
	}
	if by != "" {
		in.Metadata = map[string]string{metaBy: by}
	}
	if m.state == unmarked {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = aws.String(m.etag)
	}
	_, err := d.client.PutObject(ctx, in)
	switch {
	case err == nil:
		return true, nil
	case refused(err), notFound(err) && m.state != unmarked && codeOf(err) != "NoSuchBucket":
		return false, nil
	}
	return false, fmt.Errorf("mark as %s: %w", s, err)
}

// erase deletes the content of an object that is marked as removed. The mark stays for
// a while: see the package comment.
func (d *Driver) erase(ctx context.Context, o object) error {
	// The ETag spares, where the store knows such a condition, a new object of the
	// name. Not found or another one: somebody else was faster.
	_, err := d.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: d.bucket, Key: aws.String(keyOf(o.name)), IfMatch: aws.String(o.etag)})
	if err != nil && !refused(err) && !notFound(err) {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}
