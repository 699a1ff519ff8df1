package storage

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// Item is a record's place in an order.
type Item struct {
	ID           string
	Modified     Timestamp
	SortIndex    int32
	HasSortIndex bool
	size         int
}

// Cursor returns the position of the item in an order.
func (it Item) Cursor(sort bso.Sort) bso.Cursor {
	c := bso.Cursor{Sort: sort, ID: it.ID}
	switch {
	case sort != bso.Index:
		c.Modified = it.Modified
	case it.HasSortIndex:
		c.SortIndex = &it.SortIndex
	}
	return c
}

// Listing is the answer to a query: one consistent cut of a collection.
type Listing struct {
	// Modified is the collection's timestamp, 0 if it does not exist.
	Modified Timestamp
	Items    []Item
	// More tells that further records match behind the last item.
	More bool

	store *Store
	user  User
	place place
	// records are those of Items, if they were read together with them.
	records []Record
}

// Sizes that decide how a listing is read.
const (
	// loadBytes is up to what size a collection is read and sorted in memory.
	loadBytes = 4 << 20
	// chunkBytes and chunkRecords bound what Records hands out at once.
	chunkBytes   = 4 << 20
	chunkRecords = 256
	// idsAtOnce is how many of the records named in a query are read together,
	// whatever their sizes.
	idsAtOnce = 10
	// listAttempts is how often a listing is begun anew because the collection
	// changed meanwhile.
	listAttempts = 8
)

// List answers a query. A collection that does not exist is empty. ErrChanged
// means that the collection is written to so often that no attempt found it at
// rest.
func (s *Store) List(ctx context.Context, u User, name string, q bso.Query) (*Listing, error) {
	id, err := s.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	for range listAttempts {
		h, err := s.head(ctx, u)
		if err != nil {
			return nil, err
		}
		c := h.find(id)
		if !c.exists() {
			return &Listing{store: s}, nil
		}
		l := &Listing{Modified: c.modified, store: s, user: u, place: c.place(u)}
		if q.Limit != nil && *q.Limit == 0 {
			return l, nil
		}
		if err := l.read(ctx, c, q); err != nil {
			return nil, fmt.Errorf("list collection: %w", err)
		}
		if err := l.Check(ctx); err != ErrChanged {
			return l, err
		}
	}
	return nil, ErrChanged
}

// Check returns ErrChanged if the collection has changed since List began, so
// that what Records handed out may not be one consistent cut. Listings that were
// read as a whole need no check after List.
func (l *Listing) Check(ctx context.Context) error {
	if l.place.life == 0 {
		return nil
	}
	h, err := l.store.head(ctx, l.user)
	if err != nil {
		return err
	}
	c := h.find(l.place.collection)
	if c == nil || c.life != l.place.life || c.modified != l.Modified {
		return ErrChanged
	}
	return nil
}

func (l *Listing) read(ctx context.Context, c *collection, q bso.Query) error {
	whole := q.Full && q.Newer == nil && q.Older == nil && q.Limit == nil && c.bytes <= loadBytes
	switch {
	case q.IDs != nil:
		return l.readIDs(ctx, q)
	case q.Sort == bso.Index || whole:
		return l.readAll(ctx, c, q)
	default:
		return l.readOrder(ctx, q)
	}
}

// readOrder lists along sync_bso_order.
func (l *Listing) readOrder(ctx context.Context, q bso.Query) error {
	prefix := l.place.prefix()
	r := kv.Prefix(prefix)
	if q.Newer != nil {
		r.Start = key.AppendUint(slices.Clone(prefix), uint64(*q.Newer)+1)
	}
	if q.Older != nil {
		r.End = key.AppendUint(slices.Clone(prefix), uint64(*q.Older))
	}
	if q.Sort == bso.Newest {
		r.Reverse = true
		if q.After != nil {
			r.End = minKey(r.End, l.place.orderKey(q.After.Modified, q.After.ID))
		}
	} else if q.After != nil {
		r.Start = maxKey(r.Start, append(l.place.orderKey(q.After.Modified, q.After.ID), 0))
	}
	if q.Limit != nil {
		r.Limit = int(*q.Limit) + 1
	}
	var bad error
	err := l.store.db.Scan(ctx, spaceOrder, r, func(row kv.Row) bool {
		var it Item
		if it.Modified, it.ID, bad = readOrder(row.Key[len(prefix):]); bad != nil {
			return false
		}
		size, _ := binary.Uvarint(row.Value)
		it.size = int(size)
		l.Items = append(l.Items, it)
		return true
	})
	if err := firstError(err, bad); err != nil {
		return err
	}
	l.cut(q.Limit)
	return nil
}

func minKey(a, b []byte) []byte {
	if string(a) < string(b) {
		return a
	}
	return b
}

func maxKey(a, b []byte) []byte {
	if string(a) > string(b) {
		return a
	}
	return b
}

// cut ends a listing at its limit.
func (l *Listing) cut(limit *uint32) {
	if limit != nil && int64(len(l.Items)) > int64(*limit) {
		l.Items, l.More = l.Items[:*limit], true
		if l.records != nil {
			l.records = l.records[:*limit]
		}
	}
}

// readIDs lists the records named. It keeps their payloads if these are few bytes,
// else [Listing.Records] reads them again, a chunk at a time.
func (l *Listing) readIDs(ctx context.Context, q bso.Query) error {
	ids := slices.Clone(q.IDs)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	refs := make([]kv.Ref, len(ids))
	for i, id := range ids {
		refs[i] = kv.Ref{Space: SpaceRecords, Key: l.place.recordKey(id)}
	}
	found := make([]Record, 0, len(ids))
	size, keep := 0, true
	for from := 0; from < len(refs); from += idsAtOnce {
		to := min(from+idsAtOnce, len(refs))
		rows, err := l.store.db.Get(ctx, refs[from:to]...)
		if err != nil {
			return err
		}
		for i, row := range rows {
			if !row.Exists() {
				continue
			}
			rec, err := decodeRecord(ids[from+i], row)
			if err != nil {
				return err
			}
			size += len(rec.Payload)
			found = append(found, rec)
		}
		if keep = q.Full && size <= loadBytes; !keep {
			for i := range found {
				found[i].Payload = nil
			}
		}
	}
	l.arrange(found, q)
	if !keep {
		l.records = nil
	}
	return nil
}

// readAll goes through the whole collection and sorts in memory: the records
// themselves if they fit, else only their items.
func (l *Listing) readAll(ctx context.Context, c *collection, q bso.Query) error {
	keep := q.Full && c.bytes <= loadBytes
	found := make([]Record, 0, c.count)
	var arena []byte
	if keep {
		arena = make([]byte, 0, c.bytes)
	}
	prefix := l.place.prefix()
	var bad error
	err := l.store.db.Scan(ctx, SpaceRecords, kv.Prefix(prefix), func(row kv.Row) bool {
		r := key.NewReader(row.Key[len(prefix):])
		id := r.String()
		var rec Record
		if bad = r.Done(); bad == nil {
			rec, bad = decodeRecord(id, row)
		}
		if bad != nil {
			return false
		}
		from := len(arena)
		if keep {
			arena = append(arena, rec.Payload...)
		}
		rec.Payload = arena[from:]
		found = append(found, rec)
		return true
	})
	if err := firstError(err, bad); err != nil {
		return err
	}
	l.arrange(found, q)
	if !keep {
		l.records = nil
	}
	return nil
}

// arrange filters, sorts and cuts records by a query.
func (l *Listing) arrange(found []Record, q bso.Query) {
	var after *Item
	if q.After != nil {
		after = &Item{ID: q.After.ID, Modified: q.After.Modified}
		if q.After.SortIndex != nil {
			after.SortIndex, after.HasSortIndex = *q.After.SortIndex, true
		}
	}
	found = slices.DeleteFunc(found, func(r Record) bool {
		return q.Newer != nil && r.Modified <= *q.Newer || q.Older != nil && r.Modified >= *q.Older ||
			after != nil && compareItems(q.Sort, r.item(), *after) <= 0
	})
	slices.SortFunc(found, func(a, b Record) int { return compareItems(q.Sort, a.item(), b.item()) })
	l.records = found
	l.Items = make([]Item, len(found))
	for i := range found {
		l.Items[i] = found[i].item()
	}
	l.cut(q.Limit)
}

func (r *Record) item() Item {
	return Item{ID: r.ID, Modified: r.Modified, SortIndex: r.SortIndex, HasSortIndex: r.HasSortIndex, size: r.Size}
}

func compareItems(sort bso.Sort, a, b Item) int {
	switch sort {
	case bso.Oldest:
		return cmp.Or(cmp.Compare(a.Modified, b.Modified), cmp.Compare(a.ID, b.ID))
	case bso.Index:
		if a.HasSortIndex != b.HasSortIndex {
			if a.HasSortIndex {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.SortIndex, a.SortIndex), cmp.Compare(a.ID, b.ID))
	default:
		return cmp.Or(cmp.Compare(b.Modified, a.Modified), cmp.Compare(b.ID, a.ID))
	}
}

// Whole reports whether the records were read together with the items, so that
// they are one consistent cut without a further Check.
func (l *Listing) Whole() bool { return l.records != nil || len(l.Items) == 0 }

// Records hands out the records of a listing in order, in chunks of bounded size
// (of payloads, wherever these are), until fn returns an error, which it
// returns. ErrChanged if a record is not what the listing says any more.
func (l *Listing) Records(ctx context.Context, fn func([]Record) error) error {
	for from := 0; from < len(l.Items); {
		to, size := from, 0
		for to < len(l.Items) && to-from < chunkRecords && (to == from || size+l.Items[to].size <= chunkBytes) {
			size += l.Items[to].size
			to++
		}
		chunk, err := l.chunk(ctx, from, to)
		if err != nil {
			return err
		}
		if err := fn(chunk); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (l *Listing) chunk(ctx context.Context, from, to int) ([]Record, error) {
	if l.records != nil {
		return l.records[from:to], nil
	}
	refs := make([]kv.Ref, to-from)
	for i, it := range l.Items[from:to] {
		refs[i] = kv.Ref{Space: SpaceRecords, Key: l.place.recordKey(it.ID)}
	}
	rows, err := l.store.db.Get(ctx, refs...)
	if err != nil {
		return nil, err
	}
	records := make([]Record, 0, len(rows))
	for i, row := range rows {
		it := &l.Items[from+i]
		if !row.Exists() {
			continue // expired meanwhile, or changed, which Check finds
		}
		rec, err := decodeRecord(it.ID, row)
		if err != nil {
			return nil, err
		}
		if rec.Modified != it.Modified {
			return nil, ErrChanged
		}
		records = append(records, rec)
	}
	return records, nil
}
