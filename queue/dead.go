package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// DeadLetter is a message that had its last attempt.
type DeadLetter struct {
	// ID names the dead letter in its queue. It is not printable. Another
	// message that dies under the same key gets another one.
	ID []byte
	// Message is what died. Due means nothing any more.
	Message Message
	// Died is when it lost its last lease.
	Died time.Time
}

func (q *Queue) deadKey(id []byte) []byte { return q.messageKey(id) }

// bury writes a dead letter.
func (q *Queue) bury(tx *kv.Tx, k []byte, v kv.Version, r *record, now time.Time) {
	id := key.AppendUint(key.AppendBytes(nil, k), uint64(v))
	value := append(appendTime(nil, now), r.encode()...)
	tx.Put(kv.Write{Space: deadSpace, Key: q.deadKey(id), Value: value})
}

func decodeDead(id, value []byte) (DeadLetter, error) {
	ids := key.NewReader(id)
	k := ids.Bytes()
	ids.Uint()
	d := decoder{rest: value}
	died := d.time()
	r, err := decodeRecord(d.rest)
	if err == nil {
		err = ids.Done()
	}
	if err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter %q: %w", id, err)
	}
	return DeadLetter{ID: id, Message: r.message(k), Died: died}, nil
}

// countDead adds n to the number of dead letters.
func (q *Queue) countDead(tx *kv.Tx, n int) error {
	if n == 0 {
		return nil
	}
	var count int64
	if _, err := catalogGet(tx, deadCountKey(q.number), &count); err != nil {
		return err
	}
	count += int64(n)
	tx.AfterCommit(func(_ kv.Version, err error) {
		if err == nil {
			q.counts.dead.Store(count)
		}
	})
	return catalogPut(tx, deadCountKey(q.number), count)
}

// deadLetters returns the number of dead letters.
func (q *Queue) deadLetters(ctx context.Context) (int64, error) {
	row, err := q.s.db.GetOne(ctx, catalogSpace, deadCountKey(q.number))
	if err != nil || !row.Exists() {
		return 0, err
	}
	var count int64
	return count, catalogDecode(row, &count)
}

// DeadLetters returns up to n dead letters in the order of their IDs, those behind
// after; nil is the beginning. Their payloads are in memory together.
func (q *Queue) DeadLetters(ctx context.Context, after []byte, n int) ([]DeadLetter, error) {
	letters, err := q.scanDead(ctx, after, n, math.MaxInt)
	if err != nil {
		return nil, fmt.Errorf("queue: dead letters of %q: %w", q.name, err)
	}
	return letters, nil
}

// scanDead ends after n letters, or when their payloads have size bytes.
func (q *Queue) scanDead(ctx context.Context, after []byte, n, size int) ([]DeadLetter, error) {
	r := kv.Prefix(q.prefix)
	if len(after) > 0 {
		r.Start = append(q.deadKey(after), 0)
	}
	r.Limit = n
	var letters []DeadLetter
	var bad error
	err := q.s.db.Scan(ctx, deadSpace, r, func(row kv.Row) bool {
		letter, err := decodeDead(bytes.Clone(row.Key[len(q.prefix):]), bytes.Clone(row.Value))
		if err != nil {
			bad = err
			return false
		}
		letters = append(letters, letter)
		size -= len(letter.Message.Payload)
		return size > 0
	})
	return letters, errors.Join(err, bad)
}

// Redrive sends a dead letter again, as a new message with the same key and payload
// that is due at once. The error is ErrNotFound if there is no such dead letter,
// and ErrExists if a message with its key is in the queue.
func (q *Queue) Redrive(ctx context.Context, id []byte) error {
	taken, missing, err := q.takeDead(ctx, [][]byte{id}, true)
	switch {
	case err != nil:
	case missing > 0:
		err = ErrNotFound
	case taken == 0:
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("queue: redrive in %q: %w", q.name, err)
	}
	return nil
}

// RedriveAll sends all dead letters again that died before the call, in many
// commits, and returns how many. It leaves those alone whose key is in the queue.
func (q *Queue) RedriveAll(ctx context.Context) (int, error) {
	n, err := q.takeAllDead(ctx, true)
	if err != nil {
		return n, fmt.Errorf("queue: redrive all in %q: %w", q.name, err)
	}
	return n, nil
}

// DropDead deletes a dead letter for good. The error is ErrNotFound if there is no
// such dead letter.
func (q *Queue) DropDead(ctx context.Context, id []byte) error {
	_, missing, err := q.takeDead(ctx, [][]byte{id}, false)
	if err == nil && missing > 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("queue: drop dead letter of %q: %w", q.name, err)
	}
	return nil
}

// DropAllDead deletes all dead letters that died before the call, in many commits,
// and returns how many.
func (q *Queue) DropAllDead(ctx context.Context) (int, error) {
	n, err := q.takeAllDead(ctx, false)
	if err != nil {
		return n, fmt.Errorf("queue: drop all dead letters of %q: %w", q.name, err)
	}
	return n, nil
}

func (q *Queue) takeAllDead(ctx context.Context, redrive bool) (int, error) {
	begin := q.s.clock.Now()
	var after []byte
	total := 0
	for {
		letters, err := q.scanDead(ctx, after, settleCount, settleBytes)
		if err != nil || len(letters) == 0 {
			return total, err
		}
		var ids [][]byte
		for _, l := range letters {
			if !l.Died.After(begin) {
				ids = append(ids, l.ID)
			}
		}
		taken, _, err := q.takeDead(ctx, ids, redrive)
		if err != nil {
			return total, err
		}
		total += taken
		after = letters[len(letters)-1].ID
	}
}

// takeDead removes dead letters and, if asked, sends them again, but for those
// whose key is in use. It returns how many it took and how many did not exist.
func (q *Queue) takeDead(ctx context.Context, ids [][]byte, redrive bool) (taken, missing int, err error) {
	_, err = q.s.db.Update(ctx, func(tx *kv.Tx) error {
		taken, missing = 0, 0
		refs := make([]kv.Ref, len(ids))
		for i, id := range ids {
			refs[i] = kv.Ref{Space: deadSpace, Key: q.deadKey(id)}
		}
		rows, err := tx.GetAll(refs...)
		if err != nil {
			return err
		}
		now := q.s.clock.Now()
		for i, row := range rows {
			if !row.Exists() {
				missing++
				continue
			}
			if redrive {
				ok, err := q.revive(tx, ids[i], row.Value, now)
				if err != nil {
					return err
				}
				if !ok {
					continue
				}
			}
			tx.Delete(deadSpace, refs[i].Key)
			taken++
		}
		if redrive && taken > 0 {
			tx.AfterCommit(func(kv.Version, error) { q.wake(now) })
		}
		return q.countDead(tx, -taken)
	})
	return taken, missing, err
}

func (q *Queue) revive(tx *kv.Tx, id, value []byte, now time.Time) (bool, error) {
	letter, err := decodeDead(id, value)
	if err != nil {
		return false, err
	}
	ref := q.row(letter.Message.Key)
	row, err := tx.Get(ref.Space, ref.Key)
	if err != nil || row.Value != nil {
		return false, err
	}
	q.put(tx, ref, &record{deliver: now, due: now, payload: letter.Message.Payload, prompt: true})
	return true, nil
}
