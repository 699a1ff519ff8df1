package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
)

// Put creates or updates one record and returns the new timestamp. The
// precondition is on the record.
func (s *Store) Put(ctx context.Context, u User, collection string, p Patch, pre bso.Precondition) (Timestamp, error) {
	return s.write(ctx, u, collection, []Patch{p}, func(w *writer, old []stored) error {
		return holds(pre, old[0].record.Modified)
	})
}

// Post creates or updates records, all with one timestamp, which it returns. The
// ids are distinct. The precondition is on the collection. Without any record
// the collection still gets the timestamp.
func (s *Store) Post(ctx context.Context, u User, collection string, patches []Patch, pre bso.Precondition) (Timestamp, error) {
	return s.write(ctx, u, collection, patches, func(w *writer, old []stored) error {
		return holds(pre, w.collection.modified)
	})
}

// write applies patches to a collection if allowed, given what they meet, agrees.
func (s *Store) write(ctx context.Context, u User, collection string, patches []Patch, allowed func(w *writer, old []stored) error) (Timestamp, error) {
	id, err := s.assign(ctx, collection)
	if err != nil {
		return 0, err
	}
	var t Timestamp
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		c, err := grow(h, id)
		if err != nil {
			return false, err
		}
		w := writer{store: s, tx: tx, user: u, place: c.place(u), collection: c}
		old, err := w.load(patches)
		if err != nil {
			return false, err
		}
		if err := allowed(&w, old); err != nil {
			return false, err
		}
		if err := s.checkQuota(ctx, u, h, collection, 0); err != nil {
			return false, err
		}
		t = s.tick(h)
		w.apply(t, patches, old)
		return true, nil
	})
	return t, err
}

// grow returns the head's entry of a collection that is about to be written to.
func grow(h *head, id uint32) (*collection, error) {
	if h.find(id) == nil && len(h.collections) >= maxCollections {
		return nil, ErrTooManyCollections
	}
	return h.touch(id), nil
}

// checkQuota refuses when what is stored, plus pending bytes, has reached the
// quota.
func (s *Store) checkQuota(ctx context.Context, u User, h *head, name string, pending int64) error {
	if s.opts.QuotaBytes == 0 || h.bytes()+pending < s.opts.QuotaBytes {
		return nil
	}
	if h.expiring() {
		live, err := s.live(ctx, u, h)
		if err != nil {
			return err
		}
		if live.bytes()+pending < s.opts.QuotaBytes {
			return nil
		}
	}
	if s.opts.OverQuota == nil || s.opts.OverQuota(name) {
		return ErrOverQuota
	}
	return nil
}

// writer applies patches to one collection within a transaction.
type writer struct {
	store *Store
	tx    *kv.Tx
	user  User
	place place
	// collection is the head's entry, kept up to date.
	collection *collection
}

// stored is what the engine has under a record's key.
type stored struct {
	row kv.Row
	// record is zero if there is no row or it has expired: to the protocol an
	// expired record does not exist, although its row still takes space.
	record Record
	live   bool
}

// loadPiece is how many records are read at one time.
const loadPiece = 100

// rows reads the rows of the records that the patches are about. Changes of a few
// bytes can be about large records, so what is read is bounded by what a commit may
// write.
func (w *writer) rows(patches []Patch) ([]kv.Row, error) {
	all := make([]kv.Row, 0, len(patches))
	bytes := 0
	for piece := range slices.Chunk(patches, loadPiece) {
		refs := make([]kv.Ref, len(piece))
		for i := range piece {
			refs[i] = kv.Ref{Space: SpaceRecords, Key: w.place.recordKey(piece[i].ID), IncludeExpired: true}
		}
		rows, err := w.tx.GetAll(refs...)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			bytes += len(rows[i].Value)
		}
		if most := w.store.db.Limits().CommitBytes; bytes > most {
			return nil, fmt.Errorf("%w: records of %d bytes to change at once, at most %d", kv.ErrTooLarge, bytes, most)
		}
		all = append(all, rows...)
	}
	return all, nil
}

// load reads the records that the patches are about.
func (w *writer) load(patches []Patch) ([]stored, error) {
	rows, err := w.rows(patches)
	if err != nil {
		return nil, err
	}
	old := make([]stored, len(rows))
	for i, row := range rows {
		old[i].row = row
		if !row.Exists() {
			continue
		}
		rec, err := decodeRecord(patches[i].ID, row)
		if err != nil {
			return nil, err
		}
		old[i].record = rec
		if old[i].live = !row.Expired; !old[i].live {
			w.forget(&old[i])
			old[i].record = Record{}
		}
	}
	return old, nil
}

// apply writes the patches over what load found, with one timestamp for all.
func (w *writer) apply(t Timestamp, patches []Patch, old []stored) {
	// A lifetime counts from the clock, which t may be ahead of by a tick: a
	// record that lives for 0 seconds is never seen.
	now := w.store.opts.Clock.Now()
	for i := range patches {
		w.applyOne(t, now, &patches[i], &old[i])
	}
	w.collection.modified = t
}

func (w *writer) applyOne(t Timestamp, now time.Time, p *Patch, old *stored) {
	rec := old.record
	rec.ID = p.ID
	expires := time.Time{}
	if old.live {
		expires = old.row.ExpiresAt
		w.forget(old)
	}
	if !old.live || p.HasPayload || p.HasSortIndex {
		rec.Modified = t
	}
	if p.HasPayload {
		rec.Payload, rec.Link, rec.Size = p.inline(), p.Link, int(p.size())
	}
	if p.HasSortIndex {
		rec.SortIndex, rec.HasSortIndex = p.SortIndex, true
	}
	if p.HasTTL {
		expires = now.Add(time.Duration(p.TTL) * time.Second)
	}
	w.tx.Put(kv.Write{
		Space: SpaceRecords, Key: old.row.Key, Value: rec.encode(w.user), Link: rec.Link, ExpiresAt: expires,
	})
	w.tx.Put(kv.Write{
		Space: spaceOrder, Key: w.place.orderKey(rec.Modified, rec.ID),
		Value: binary.AppendUvarint(nil, uint64(rec.Size)), ExpiresAt: expires,
	})
	w.collection.count++
	w.collection.bytes += int64(rec.Size)
	if !expires.IsZero() {
		w.collection.expiring++
	}
}

// forget takes a row out of the sums of its collection and out of the order.
// Whoever calls it writes or deletes the row itself.
func (w *writer) forget(old *stored) {
	w.collection.count--
	w.collection.bytes -= int64(old.record.Size)
	if !old.row.ExpiresAt.IsZero() {
		w.collection.expiring--
	}
	w.tx.Delete(spaceOrder, w.place.orderKey(old.record.Modified, old.record.ID))
}

// remove deletes the rows of live records and reports how many there were.
func (w *writer) remove(old []stored) int {
	n := 0
	for i := range old {
		if old[i].live {
			w.forget(&old[i])
		}
		if old[i].row.Exists() {
			w.tx.Delete(SpaceRecords, old[i].row.Key)
		}
		if old[i].live {
			n++
		}
	}
	return n
}

// Delete removes one record and returns the new timestamp of its collection. The
// precondition is on the record.
func (s *Store) Delete(ctx context.Context, u User, collection, record string, pre bso.Precondition) (Timestamp, error) {
	id, err := s.lookup(ctx, collection)
	if err != nil {
		return 0, err
	}
	var t Timestamp
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		c := h.find(id)
		if !c.exists() {
			return false, ErrNotFound
		}
		w := writer{store: s, tx: tx, user: u, place: c.place(u), collection: c}
		old, err := w.load([]Patch{{Update: bso.Update{ID: record}}})
		if err != nil {
			return false, err
		}
		if !old[0].live {
			return false, ErrNotFound
		}
		if err := holds(pre, old[0].record.Modified); err != nil {
			return false, err
		}
		w.remove(old)
		t = s.tick(h)
		c.modified = t
		return true, nil
	})
	return t, err
}

// DeleteSome removes the records that exist of those named. The collection stays
// and gets the timestamp returned. The precondition is on the collection. If
// there is no such collection nothing happens, and the timestamp is what it would
// have been.
func (s *Store) DeleteSome(ctx context.Context, u User, collection string, records []string, pre bso.Precondition) (Timestamp, error) {
	id, err := s.lookup(ctx, collection)
	if err != nil {
		return 0, err
	}
	var t Timestamp
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		c := h.find(id)
		if !c.exists() {
			t = s.tick(h)
			return false, nil
		}
		if err := holds(pre, c.modified); err != nil {
			return false, err
		}
		patches := make([]Patch, 0, len(records))
		seen := make(map[string]struct{}, len(records))
		for _, r := range records {
			if _, twice := seen[r]; !twice {
				seen[r] = struct{}{}
				patches = append(patches, Patch{Update: bso.Update{ID: r}})
			}
		}
		w := writer{store: s, tx: tx, user: u, place: c.place(u), collection: c}
		old, err := w.load(patches)
		if err != nil {
			return false, err
		}
		w.remove(old)
		t = s.tick(h)
		c.modified = t
		return true, nil
	})
	return t, err
}

// DeleteCollection removes a collection with its records and batches. The
// storage's timestamp becomes the one returned. The precondition is on the
// collection. Deleting a collection that does not exist changes nothing.
func (s *Store) DeleteCollection(ctx context.Context, u User, name string, pre bso.Precondition) (Timestamp, error) {
	id, err := s.lookup(ctx, name)
	if err != nil {
		return 0, err
	}
	var t Timestamp
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		c := h.find(id)
		if c == nil {
			t = s.tick(h)
			return false, nil
		}
		if err := holds(pre, c.modified); err != nil {
			return false, err
		}
		if err := s.sendPurge(tx, u, []collection{*c}); err != nil {
			return false, err
		}
		t = s.tick(h)
		if c.exists() {
			h.tombstone = t
		}
		h.remove(id)
		return true, nil
	})
	return t, err
}

// DeleteAll removes everything that a user has; the storage is then as if it had
// never been used. The precondition is on the storage.
func (s *Store) DeleteAll(ctx context.Context, u User, pre bso.Precondition) (Timestamp, error) {
	var t Timestamp
	err := s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		if err := holds(pre, h.modified()); err != nil {
			return false, err
		}
		t = s.tick(h)
		if len(h.collections) == 0 && h.tombstone == 0 {
			return false, nil
		}
		if err := s.sendPurge(tx, u, h.collections); err != nil {
			return false, err
		}
		h.collections, h.tombstone = nil, 0
		return true, nil
	})
	if err != nil {
		return 0, fmt.Errorf("delete storage: %w", err)
	}
	return t, nil
}
