package storage

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-dev/holdfast/kv"
)

// purgeChunk is how many rows one transaction of the purge, or of the removal of
// an expired batch, deletes. It keeps commits small on every engine: a record is
// up to five rows with its expiry and its change record.
const purgeChunk = 100

// purgeMessage names the lives of collections that nobody can reach any more.
type purgeMessage struct {
	Places [][]byte `json:"places"` // prefixes of keys
}

func (s *Store) sendPurge(tx *kv.Tx, u User, dead []collection) error {
	if len(dead) == 0 {
		return nil
	}
	var m purgeMessage
	for _, c := range dead {
		m.Places = append(m.Places, c.place(u).prefix())
	}
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode purge: %w", err)
	}
	return s.opts.SendPurge(tx, body)
}

// Purge removes some of the rows that a purge message names, in one transaction,
// and reports whether more may be left. It can be repeated.
func (s *Store) Purge(ctx context.Context, message []byte) (more bool, err error) {
	var m purgeMessage
	if err := json.Unmarshal(message, &m); err != nil {
		return false, fmt.Errorf("decode purge: %w", err)
	}
	for _, prefix := range m.Places {
		if len(prefix) == 0 {
			return false, fmt.Errorf("decode purge: empty place")
		}
		for _, space := range []string{SpaceRecords, spaceOrder, SpaceStaged, SpaceBatches} {
			n, err := s.purgeSome(ctx, space, prefix)
			if err != nil {
				return false, fmt.Errorf("purge %s: %w", space, err)
			}
			if n > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s *Store) purgeSome(ctx context.Context, space string, prefix []byte) (int, error) {
	r := kv.Prefix(prefix)
	r.Limit, r.IncludeExpired = purgeChunk, true
	var keys [][]byte
	err := s.db.Scan(ctx, space, r, func(row kv.Row) bool {
		keys = append(keys, append([]byte(nil), row.Key...))
		return true
	})
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	_, err = s.db.Update(ctx, func(tx *kv.Tx) error {
		for _, k := range keys {
			tx.Delete(space, k)
		}
		return nil
	})
	return len(keys), err
}

// removeExpiredRecord deletes an expired row of bsos within the sweeper's
// transaction. No timestamp changes.
func removeExpiredRecord(tx *kv.Tx, _ string, row kv.Row) (more bool, err error) {
	p, id, err := readRecordKey(row.Key)
	if err != nil {
		return false, fmt.Errorf("expired record: %w", err)
	}
	rec, err := decodeRecord(id, row)
	if err != nil {
		return false, err
	}
	headKey := p.storage[:]
	headRow, err := tx.Get(spaceHeads, headKey)
	if err != nil {
		return false, err
	}
	h, err := decodeHead(headRow)
	if err != nil {
		return false, err
	}
	tx.Delete(SpaceRecords, row.Key)
	c := h.find(p.collection)
	if c == nil || c.life != p.life {
		tx.Delete(spaceOrder, p.orderKey(rec.Modified, id))
		return false, nil // of a deleted collection that the purge has not reached
	}
	w := writer{tx: tx, place: p, collection: c}
	w.forget(&stored{row: row, record: rec})
	tx.Put(kv.Write{Space: spaceHeads, Key: headKey, Value: h.encode()})
	return false, nil
}

// removeExpiredBatch deletes some of the staged rows of an expired batch, and the
// batch itself once none is left, within the sweeper's transaction. It reports
// whether there is more to do in a further transaction.
func removeExpiredBatch(tx *kv.Tx, _ string, row kv.Row) (more bool, err error) {
	tx.SetTag("") // the links of staged rows are released as by any delete
	r := kv.Prefix(row.Key)
	r.Limit = purgeChunk
	var keys [][]byte
	guard := kv.Ref{Space: SpaceBatches, Key: row.Key}
	err = tx.Scan(guard, SpaceStaged, r, func(staged kv.Row) bool {
		keys = append(keys, staged.Key)
		return true
	})
	if err != nil {
		return false, err
	}
	for _, k := range keys {
		tx.Delete(SpaceStaged, k)
	}
	if len(keys) == purgeChunk {
		return true, nil
	}
	tx.Delete(SpaceBatches, row.Key)
	return false, nil
}
