package storage

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
)

// Info describes a storage.
type Info struct {
	// Modified is the storage's timestamp, 0 if it is empty.
	Modified    Timestamp
	Collections []CollectionInfo
}

// CollectionInfo describes a collection that exists.
type CollectionInfo struct {
	Name     string
	Modified Timestamp
	// Count is the number of live records and Bytes the sum of their payload
	// lengths. Only Usage sets them.
	Count, Bytes int64
}

// Info returns the timestamps of a storage and its collections.
func (s *Store) Info(ctx context.Context, u User) (Info, error) {
	h, err := s.head(ctx, u)
	if err != nil {
		return Info{}, err
	}
	return s.info(ctx, h)
}

func (s *Store) info(ctx context.Context, h *head) (Info, error) {
	info := Info{Modified: h.modified()}
	for i := range h.collections {
		c := &h.collections[i]
		if !c.exists() {
			continue
		}
		name, err := s.name(ctx, c.id)
		if err != nil {
			return Info{}, err
		}
		info.Collections = append(info.Collections, CollectionInfo{Name: name, Modified: c.modified, Count: c.count, Bytes: c.bytes})
	}
	return info, nil
}

// Usage returns a storage with the counts and sizes of its collections, at one
// instant. ErrChanged means that it is written to so often that no attempt found
// it at rest.
func (s *Store) Usage(ctx context.Context, u User) (Info, error) {
	for range listAttempts {
		row, h, err := s.headRow(ctx, u)
		if err != nil {
			return Info{}, err
		}
		if !h.expiring() {
			return s.info(ctx, h)
		}
		live, err := s.live(ctx, u, h)
		if err != nil {
			return Info{}, err
		}
		// All writes to the collections change the head.
		now, _, err := s.headRow(ctx, u)
		if err != nil {
			return Info{}, err
		}
		if now.Version == row.Version {
			return s.info(ctx, live)
		}
	}
	return Info{}, ErrChanged
}

// live returns a copy of h with the sums of live records only; those in h include
// expired ones that have not been removed yet.
func (s *Store) live(ctx context.Context, u User, h *head) (*head, error) {
	live := *h
	live.collections = slices.Clone(h.collections)
	for i := range live.collections {
		c := &live.collections[i]
		if c.expiring == 0 {
			continue
		}
		c.count, c.bytes = 0, 0
		prefix := c.place(u).prefix()
		err := s.db.Scan(ctx, spaceOrder, kv.Prefix(prefix), func(row kv.Row) bool {
			size, _ := binary.Uvarint(row.Value)
			c.count++
			c.bytes += int64(size)
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return &live, nil
}

// Get returns one record, or ErrNotFound.
func (s *Store) Get(ctx context.Context, u User, collection, record string) (Record, error) {
	id, err := s.lookup(ctx, collection)
	if err != nil {
		return Record{}, err
	}
	h, err := s.head(ctx, u)
	if err != nil {
		return Record{}, err
	}
	c := h.find(id)
	if !c.exists() {
		return Record{}, ErrNotFound
	}
	row, err := s.db.GetOne(ctx, SpaceRecords, c.place(u).recordKey(record))
	if err != nil {
		return Record{}, err
	}
	if !row.Exists() {
		return Record{}, ErrNotFound
	}
	return decodeRecord(record, row)
}

// CheckWrite evaluates, without writing, what a write with uploads would fail
// on: the precondition on the collection or, if record is not empty, on the
// record; the existence of the batch, if one is named; and the quota, with the
// bytes that a new batch begins with. The transaction of the write checks them
// again.
func (s *Store) CheckWrite(ctx context.Context, u User, collection, record, batchID string, staged int64, pre bso.Precondition) error {
	id, err := s.lookup(ctx, collection)
	if err != nil {
		return err
	}
	h, err := s.head(ctx, u)
	if err != nil {
		return err
	}
	var modified Timestamp
	c := h.find(id)
	if c != nil {
		modified = c.modified
	}
	if record != "" {
		rec, err := s.Get(ctx, u, collection, record)
		if err != nil && err != ErrNotFound {
			return err
		}
		modified = rec.Modified
	}
	if err := holds(pre, modified); err != nil {
		return err
	}
	if batchID != "" {
		if c == nil {
			return ErrNoBatch
		}
		row, err := s.db.GetOne(ctx, SpaceBatches, c.place(u).batchKey(batchID))
		if err != nil {
			return err
		}
		if !row.Exists() {
			return ErrNoBatch
		}
	}
	return s.checkQuota(ctx, u, h, collection, staged)
}
