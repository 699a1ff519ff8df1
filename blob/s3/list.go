package s3

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/holdfast-dev/holdfast/blob"
)

const pageLen = 1000 // the most that the stores send

// item is an object as a list shows it.
type item struct {
	key, etag string
	size      int64
	changed   time.Time
}

// pager reads keys in order, page by page.
type pager struct {
	d             *Driver
	prefix, after string
	items         []item    // of the current page that are still to come
	end           bool      // there are no further pages
	now           time.Time // by the store's clock, of the current page
}

// next returns the next item; false after the last.
func (p *pager) next(ctx context.Context) (item, bool, error) {
	if err := p.fill(ctx); err != nil || len(p.items) == 0 {
		return item{}, false, err
	}
	it := p.items[0]
	p.items = p.items[1:]
	p.after = it.key
	return it, true, nil
}

// seek goes on after the key.
func (p *pager) seek(after string) { p.after, p.items, p.end = after, nil, false }

// fill makes sure that there are items unless there are no more.
func (p *pager) fill(ctx context.Context) error {
	for len(p.items) == 0 && !p.end {
		in := &s3.ListObjectsV2Input{
			Bucket: p.d.bucket, MaxKeys: aws.Int32(pageLen), EncodingType: types.EncodingTypeUrl,
		}
		if p.prefix != "" {
			in.Prefix = aws.String(p.prefix)
		}
		if p.after != "" {
			in.StartAfter = aws.String(p.after)
		}
		out, err := p.d.client.ListObjectsV2(ctx, in)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		p.end = !aws.ToBool(out.IsTruncated)
		p.now, _ = middleware.GetServerTime(out.ResultMetadata) // without one, nothing is old
		for _, c := range out.Contents {
			key, err := url.QueryUnescape(aws.ToString(c.Key))
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			p.items = append(p.items, item{key: key, etag: aws.ToString(c.ETag), size: aws.ToInt64(c.Size), changed: aws.ToTime(c.LastModified)})
		}
	}
	return nil
}

// names is the pager of content: it passes over our own keys.
type names struct{ pager }

func (d *Driver) names(prefix, after string) *names {
	return &names{pager{d: d, prefix: keyOf(prefix), after: keyOf(after)}}
}

// page returns the next objects, and their names in order. It may be empty before the
// end.
func (n *names) page(ctx context.Context) (page []item, more bool, err error) {
	if err := n.fill(ctx); err != nil {
		return nil, false, err
	}
	for len(n.items) > 0 {
		it, _, err := n.next(ctx)
		if err != nil {
			return nil, false, err
		}
		if _, ok := nameOf(it.key); ok {
			page = append(page, it)
			continue
		}
		if it.key < namePrefix {
			n.seek(beforeNames)
		} else {
			n.seek(afterOwn)
		}
	}
	return page, !n.end, nil
}

// List implements blob.Driver.
func (d *Driver) List(ctx context.Context, prefix, after string, fn func(blob.Attrs) bool) error {
	if len(keyOf(prefix)) > maxKeyLen {
		return ctx.Err() // no name is that long, and the store would refuse it
	}
	content, marks := d.names(prefix, after), d.marks(prefix, after)
	for more := true; more; {
		var page []item
		var err error
		if page, more, err = content.page(ctx); err != nil {
			return err
		}
		last := ""
		if more && len(page) > 0 {
			last, _ = nameOf(page[len(page)-1].key)
		}
		if more && last == "" {
			continue
		}
		found, err := marks.upTo(ctx, last, more)
		if err != nil {
			return err
		}
		stopped, err := d.visit(ctx, page, found, fn)
		if err != nil {
			return err
		}
		d.tidy(ctx, found, marks.now)
		if stopped {
			return nil
		}
	}
	return nil
}

// visit calls fn for the objects of a page until it returns false, and takes the marks
// of the page out of those that were found.
func (d *Driver) visit(ctx context.Context, page []item, found map[string]item, fn func(blob.Attrs) bool) (stopped bool, err error) {
	marks := make([]item, len(page)) // of the objects of the page
	for i, it := range page {
		name, _ := nameOf(it.key)
		marks[i] = found[name]
		delete(found, name)
	}
	for i, it := range page {
		attrs, err := d.listed(ctx, it, marks[i])
		if errors.Is(err, blob.ErrNotFound) {
			continue
		}
		if err != nil {
			return false, err
		}
		if !fn(attrs) {
			return true, nil
		}
	}
	return false, nil
}

// listed returns the attributes of an object in a list, or blob.ErrNotFound. What its
// mark in the list of marks, if it was found there, does not tell is looked up.
func (d *Driver) listed(ctx context.Context, it, m item) (blob.Attrs, error) {
	name, _ := nameOf(it.key)
	_, _, etagHash, ok := markedName(m.key)
	// A mark is younger than its object. The times are those of the store.
	if ok && etagHash == hashOf(it.etag)[:etagHashLen] && !m.changed.Before(it.changed) && stateOf(m.size) == finalized {
		return object{name: name, size: it.size}.attrs(finalized), nil
	}
	o, err := d.head(ctx, name)
	if errors.Is(err, errGone) {
		return blob.Attrs{}, blob.ErrNotFound
	}
	if err != nil {
		return blob.Attrs{}, err
	}
	mark, err := d.existing(ctx, o)
	if errors.Is(err, blob.ErrNotFound) {
		// A removal is under way, or was left half done.
		if err := d.erase(ctx, o); err != nil {
			d.log.Debug("a removed object is left behind", "error", err)
		}
		return blob.Attrs{}, err
	}
	return o.attrs(mark.state), err
}

// marks is the pager of marks.
type marks struct{ pager }

func (d *Driver) marks(prefix, after string) *marks {
	m := &marks{pager{d: d, prefix: markPrefix + prefix}}
	if after != "" {
		m.after = markPrefix + after + lastMark
	}
	if len(m.prefix) > maxKeyLen || len(m.after) > maxKeyLen {
		m.end = true // names as long have no marks there
	}
	return m
}

// upTo returns the marks, by name, that come before or with those of the name last, or
// all that are left. The order of marks is that of names but for names of which one
// continues the other with a space or less; those may be missed, which costs requests.
func (m *marks) upTo(ctx context.Context, last string, limited bool) (map[string]item, error) {
	found := map[string]item{}
	bound := markPrefix + last + lastMark
	for {
		if err := m.fill(ctx); err != nil {
			return nil, err
		}
		if len(m.items) == 0 || limited && m.items[0].key > bound {
			return found, nil
		}
		it, _, err := m.next(ctx)
		if err != nil {
			return nil, err
		}
		if name, _, _, ok := markedName(it.key); ok {
			found[name] = it
		}
	}
}

// markAge is how long a mark stays after its object. It must exceed by far the time
// that a Finalize or a Delete may take: a late one finds the mark and gives way.
const markAge = 24 * time.Hour

// tidy deletes the old ones of the marks whose object is gone. What fails is left to
// the next List.
func (d *Driver) tidy(ctx context.Context, orphans map[string]item, now time.Time) {
	for name, it := range orphans {
		if it.changed.Add(markAge).After(now) {
			continue
		}
		_, id, _, _ := markedName(it.key)
		o, err := d.head(ctx, name)
		if errors.Is(err, errGone) || err == nil && o.id != id {
			_, err = d.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: d.bucket, Key: aws.String(it.key)})
		}
		if err != nil {
			d.log.Debug("an old mark is left behind", "error", err)
			return
		}
	}
}
