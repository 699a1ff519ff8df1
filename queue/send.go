package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// Outgoing is a message to send.
type Outgoing struct {
	// Key has 1 to MaxKeySize bytes and must not be in use in the queue.
	Key []byte
	// Payload has up to MaxPayloadSize bytes.
	Payload []byte
	// DeliverTime is from when on the message may be delivered, to the
	// nanosecond. The zero time and times past are replaced by the present.
	DeliverTime time.Time
}

// Send puts messages into the queue when the transaction commits. The error is
// ErrExists if a key is in use, kv.ErrTooLarge beyond the limits, and
// ErrSendDisabled; the caller's function should return it, because what was written
// before it is still in tx. Update's first attempt takes for granted that no key is
// in use and reads nothing.
func (q *Queue) Send(tx *kv.Tx, messages ...Outgoing) error {
	if err := q.send(tx, messages); err != nil {
		return fmt.Errorf("queue: send to %q: %w", q.name, err)
	}
	return nil
}

func (q *Queue) send(tx *kv.Tx, messages []Outgoing) error {
	if q.settings.Load().DisableSend {
		return ErrSendDisabled
	}
	q.mu.Lock()
	closed, departures := q.err, q.departures
	q.mu.Unlock()
	if errors.Is(closed, ErrQueueNotFound) {
		return closed // a service that has only stopped goes on to send
	}
	refs := make([]kv.Ref, len(messages))
	for i := range messages {
		m := &messages[i]
		if len(m.Key) == 0 {
			return fmt.Errorf("%w: empty key", kv.ErrInvalid)
		}
		if len(m.Key) > MaxKeySize || len(m.Payload) > MaxPayloadSize {
			return fmt.Errorf("%w: key of %d bytes, payload of %d", kv.ErrTooLarge, len(m.Key), len(m.Payload))
		}
		refs[i] = q.row(m.Key)
	}
	absent := expectAbsent(tx, refs)
	if !absent {
		if _, err := tx.GetAll(refs...); err != nil {
			return err
		}
	}
	now := q.s.clock.Now()
	entries := make([]entry, len(messages))
	for i := range messages {
		m := &messages[i]
		if !absent {
			// Read above, or written: a key may occur twice.
			row, err := tx.Get(refs[i].Space, refs[i].Key)
			if err != nil {
				return err
			}
			if row.Value != nil {
				return fmt.Errorf("%w: %q", ErrExists, m.Key)
			}
		}
		deliver := m.DeliverTime.UTC()
		prompt := !deliver.After(now)
		if prompt {
			deliver = now
		}
		e := &entries[i]
		*e = entry{key: string(m.Key), due: deliver, size: len(m.Payload) + len(m.Key)}
		e.record = record{deliver: deliver, due: deliver, payload: m.Payload, prompt: prompt}
		q.put(tx, refs[i], &e.record)
	}
	tx.AfterCommit(func(v kv.Version, err error) { q.sent(entries, departures, v, err) })
	return nil
}

// expectAbsent makes tx expect that no row of refs exists. It reports whether tx does
// so for all; it does not if one occurs twice.
func expectAbsent(tx *kv.Tx, refs []kv.Ref) bool {
	for i := range refs {
		if !tx.Expect(refs[i].Space, refs[i].Key, 0) {
			return false
		}
	}
	return true
}

// sent runs after a commit, or one that may have happened. departures is what
// Queue.departures was before.
func (q *Queue) sent(entries []entry, departures uint64, v kv.Version, err error) {
	if err == nil {
		q.counts.sent.Add(int64(len(entries)))
		q.s.meters.sent.Add(int64(len(entries)), q.s.meters.database, q.name)
	}
	now := q.s.clock.Now()
	q.mu.Lock()
	var elsewhere []int
	for i := range entries {
		e := &entries[i]
		e.version = v
		sh := q.shardOf(e.key)
		switch {
		case sh == nil:
			elsewhere = append(elsewhere, q.shardNumber([]byte(e.key)))
		case err != nil || departures != q.departures || !sh.arrive(e, now):
			sh.lower(e.due)
		}
	}
	q.handOut()
	q.mu.Unlock()
	q.hint(elsewhere)
}

// Ack acknowledges messages: they are removed when the transaction commits. Whether
// a lease lives, and whose, does not matter. The error is ErrNotFound if one of
// them does not exist; then the caller's function should return it, so that
// nothing is committed. At most one transaction ever acknowledges a message.
func (q *Queue) Ack(tx *kv.Tx, keys ...[]byte) error {
	_, err := q.delete(tx, keys, true, true)
	if err != nil {
		return fmt.Errorf("queue: acknowledge in %q: %w", q.name, err)
	}
	return nil
}

// AckExisting acknowledges those messages that exist, and returns how many.
func (q *Queue) AckExisting(tx *kv.Tx, keys ...[]byte) (int, error) {
	n, err := q.delete(tx, keys, false, true)
	if err != nil {
		return 0, fmt.Errorf("queue: acknowledge in %q: %w", q.name, err)
	}
	return n, nil
}

// Remove deletes those messages that exist, and returns how many. It does what
// AckExisting does but is not counted as acknowledgement: for messages that go
// because something else goes.
func (q *Queue) Remove(tx *kv.Tx, keys ...[]byte) (int, error) {
	n, err := q.delete(tx, keys, false, false)
	if err != nil {
		return 0, fmt.Errorf("queue: remove from %q: %w", q.name, err)
	}
	return n, nil
}

// delete removes the messages of keys. All must exist if demanded.
func (q *Queue) delete(tx *kv.Tx, keys [][]byte, demanded, counted bool) (int, error) {
	refs := q.refs(keys)
	records, expected := q.expectKnown(tx, keys, refs)
	if !expected {
		if _, err := tx.GetAll(refs...); err != nil {
			return 0, err
		}
	}
	removed := make([][]byte, 0, len(keys))
	for i, ref := range refs {
		if !expected {
			// Read above, or removed: a key may occur twice.
			row, err := tx.Get(ref.Space, ref.Key)
			if err != nil {
				return 0, err
			}
			if row.Value == nil {
				if demanded {
					return 0, fmt.Errorf("%w: %q", ErrNotFound, keys[i])
				}
				continue
			}
			if records[i], err = decodeRecord(row.Value); err != nil {
				return 0, fmt.Errorf("message %q: %w", keys[i], err)
			}
		}
		q.remove(tx, ref, &records[i])
		removed = append(removed, keys[i])
	}
	if !expected {
		q.departing(removed) // what tx itself has sent is reported before it is removed
	}
	if len(removed) > 0 {
		tx.AfterCommit(func(v kv.Version, err error) { q.deleted(removed, counted, v, err) })
	}
	return len(removed), nil
}

// expectKnown makes tx expect that the messages of keys are stored as they are in
// memory, and returns them. It reports whether tx does so for all; it does not if one
// occurs twice.
func (q *Queue) expectKnown(tx *kv.Tx, keys [][]byte, refs []kv.Ref) ([]record, bool) {
	records := make([]record, len(keys))
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, k := range keys {
		e := q.known[string(k)]
		if e == nil || e.state == fetching || !tx.Expect(refs[i].Space, refs[i].Key, e.version) {
			return records, false
		}
		records[i] = e.record
	}
	return records, true
}

// deleted runs after a commit, or one that may have happened. Messages sent
// again in the same commit have its version and stay.
func (q *Queue) deleted(keys [][]byte, counted bool, v kv.Version, err error) {
	if err == nil && counted {
		q.counts.acked.Add(int64(len(keys)))
		q.s.meters.acked.Add(int64(len(keys)), q.s.meters.database, q.name)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		e := q.known[string(k)]
		switch {
		case e == nil:
			q.depart(string(k))
		case e.state == fetching, e.state == ready && err != nil:
			// What was read may be the message that is gone, or the next one.
			q.forget(e)
			e.shard.lower(e.due)
		case err == nil && e.version < v:
			q.forget(e)
		case err != nil:
			// The next message of this key may be sent, and removed before the report.
			e.reported = false
		}
	}
}
