package storage

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// Staged says what became of the patches for a batch.
type Staged struct {
	Batch string // empty once the batch is published
	// Modified is the collection's timestamp, which a batch does not change until
	// it is published.
	Modified Timestamp
	// TooManyBytes and TooManyRecords are the ids that the batch had no room for.
	TooManyBytes, TooManyRecords []string
}

// batch is the value of a row in sync_batches: the sums of its staged rows.
type batch struct {
	records, bytes int64
}

func (b batch) encode() []byte {
	v := []byte{formatOne}
	v = binary.AppendUvarint(v, uint64(b.records))
	return binary.AppendUvarint(v, uint64(b.bytes))
}

func decodeBatch(row kv.Row) (batch, error) {
	v := valueReader{rest: row.Value}
	format := v.byte()
	b := batch{records: int64(v.uint()), bytes: int64(v.uint())}
	if v.bad || format != formatOne {
		return batch{}, fmt.Errorf("%w: row of a batch", kv.ErrCorrupt)
	}
	return b, nil
}

// StartBatch opens a batch and stages the patches in it. Nothing of it is
// visible to any reader.
func (s *Store) StartBatch(ctx context.Context, u User, collection string, patches []Patch, pre bso.Precondition) (Staged, error) {
	batchID, err := bso.NewBatchID(s.opts.Random)
	if err != nil {
		return Staged{}, err
	}
	id, err := s.assign(ctx, collection)
	if err != nil {
		return Staged{}, err
	}
	staged := Staged{Batch: batchID}
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		known := h.find(id) != nil
		c, err := grow(h, id)
		if err != nil {
			return false, err
		}
		if err := holds(pre, c.modified); err != nil {
			return false, err
		}
		staged.Modified = c.modified
		row := kv.Row{
			Key:       c.place(u).batchKey(staged.Batch),
			ExpiresAt: s.opts.Clock.Now().Add(BatchLifetime),
		}
		return !known, s.stage(ctx, tx, u, h, collection, stagingArea{c.place(u), row, batch{}}, patches, &staged)
	})
	return staged, err
}

// Append stages more patches in a batch. What they give goes over what earlier
// ones gave of the same records.
func (s *Store) Append(ctx context.Context, u User, collection, batchID string, patches []Patch, pre bso.Precondition) (Staged, error) {
	id, err := s.lookup(ctx, collection)
	if err != nil {
		return Staged{}, err
	}
	staged := Staged{Batch: batchID}
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		area, c, err := s.openBatch(tx, u, h, id, batchID, pre)
		if err != nil {
			return false, err
		}
		staged.Modified = c.modified
		return false, s.stage(ctx, tx, u, h, collection, area, patches, &staged)
	})
	return staged, err
}

// stagingArea is an open batch in a transaction.
type stagingArea struct {
	place place
	row   kv.Row
	batch batch
}

// openBatch reads the row of a batch, which is the guard of its staged rows. The
// precondition is on the collection and comes first.
func (s *Store) openBatch(tx *kv.Tx, u User, h *head, id uint32, batchID string, pre bso.Precondition) (stagingArea, *collection, error) {
	c := h.find(id)
	if c == nil {
		return stagingArea{}, nil, ErrNoBatch
	}
	if err := holds(pre, c.modified); err != nil {
		return stagingArea{}, nil, err
	}
	area := stagingArea{place: c.place(u)}
	var err error
	if area.row, err = tx.Get(SpaceBatches, area.place.batchKey(batchID)); err != nil {
		return stagingArea{}, nil, err
	}
	if !area.row.Exists() {
		return stagingArea{}, nil, ErrNoBatch
	}
	area.batch, err = decodeBatch(area.row)
	return area, c, err
}

// stage writes patches into a batch, as far as it has room for them.
func (s *Store) stage(ctx context.Context, tx *kv.Tx, u User, h *head, collection string, area stagingArea, patches []Patch, out *Staged) error {
	out.TooManyBytes, out.TooManyRecords = nil, nil
	refs := make([]kv.Ref, len(patches))
	for i := range patches {
		refs[i] = kv.Ref{Space: SpaceStaged, Key: area.place.stagedKey(out.Batch, patches[i].ID)}
	}
	rows, err := tx.GetAll(refs...)
	if err != nil {
		return err
	}
	b := area.batch
	for i, p := range patches {
		before := Patch{Update: bso.Update{ID: p.ID}}
		if rows[i].Exists() {
			if before, err = decodeStaged(p.ID, rows[i]); err != nil {
				return err
			}
		}
		after := before
		after.merge(p)
		if !s.admit(&b, rows[i].Exists(), before.size(), &after, out) {
			continue
		}
		tx.Put(kv.Write{
			Space: SpaceStaged, Key: refs[i].Key, Value: after.encodeStaged(u), Link: after.Link,
		})
	}
	// Usage with what the batch now holds, as if it were published.
	if err := s.checkQuota(ctx, u, h, collection, b.bytes); err != nil {
		return err
	}
	tx.Put(kv.Write{Space: SpaceBatches, Key: area.row.Key, Value: b.encode(), ExpiresAt: area.row.ExpiresAt})
	return nil
}

// admit counts a patch as staged, in place of one of some size if there is one
// already, or notes that the batch has no room for it.
func (s *Store) admit(b *batch, replaces bool, size int64, p *Patch, out *Staged) bool {
	grown := batch{records: b.records, bytes: b.bytes + p.size() - size}
	if !replaces {
		grown.records++
	}
	switch {
	case grown.bytes > s.opts.MaxBatchBytes:
		out.TooManyBytes = append(out.TooManyBytes, p.ID)
		return false
	case grown.records > s.opts.MaxBatchRecords:
		out.TooManyRecords = append(out.TooManyRecords, p.ID)
		return false
	}
	*b = grown
	return true
}

// CommitBatch publishes a batch together with further patches, as far as it has
// room for them, which go over the staged ones field by field. Modified of what it
// returns is the timestamp of all of them.
func (s *Store) CommitBatch(ctx context.Context, u User, collection, batchID string, patches []Patch, pre bso.Precondition) (Staged, error) {
	id, err := s.lookup(ctx, collection)
	if err != nil {
		return Staged{}, err
	}
	var out Staged
	err = s.update(ctx, u, func(tx *kv.Tx, h *head) (bool, error) {
		tx.SetTag(CommitTag)
		area, c, err := s.openBatch(tx, u, h, id, batchID, pre)
		if err != nil {
			return false, err
		}
		if err := s.checkQuota(ctx, u, h, collection, 0); err != nil {
			return false, err
		}
		all, err := s.takeStaged(tx, area)
		if err != nil {
			return false, err
		}
		out = Staged{}
		all = s.addToStaged(area.batch, all, patches, &out)
		w := writer{store: s, tx: tx, user: u, place: area.place, collection: c}
		old, err := w.load(all)
		if err != nil {
			return false, err
		}
		out.Modified = s.tick(h)
		w.apply(out.Modified, all, old)
		tx.Delete(SpaceBatches, area.row.Key)
		return true, nil
	})
	return out, err
}

// takeStaged reads the staged rows of a batch and deletes them.
func (s *Store) takeStaged(tx *kv.Tx, area stagingArea) ([]Patch, error) {
	var patches []Patch
	var keys [][]byte
	var bad error
	prefix := area.row.Key // a staged key is its batch's key and the record id
	guard := kv.Ref{Space: SpaceBatches, Key: area.row.Key}
	err := tx.Scan(guard, SpaceStaged, kv.Prefix(prefix), func(row kv.Row) bool {
		r := key.NewReader(row.Key[len(prefix):])
		id := r.String()
		var p Patch
		if bad = r.Done(); bad == nil {
			p, bad = decodeStaged(id, row)
		}
		patches = append(patches, p)
		keys = append(keys, row.Key)
		return bad == nil
	})
	if err != nil || bad != nil {
		return nil, fmt.Errorf("read batch: %w", firstError(err, bad))
	}
	for _, k := range keys {
		tx.Delete(SpaceStaged, k)
	}
	return patches, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// addToStaged lays later patches over those of a batch of the same records.
func (s *Store) addToStaged(b batch, staged, later []Patch, out *Staged) []Patch {
	at := make(map[string]int, len(staged))
	for i := range staged {
		at[staged[i].ID] = i
	}
	for _, p := range later {
		i, ok := at[p.ID]
		if !ok {
			if s.admit(&b, false, 0, &p, out) {
				staged = append(staged, p)
			}
			continue
		}
		after := staged[i]
		after.merge(p)
		if s.admit(&b, true, staged[i].size(), &after, out) {
			staged[i] = after
		}
	}
	return staged
}
