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

// Send puts messages into the queue when the transaction commits. It reads all
// their rows in one call. The error is ErrExists if a key is in use,
// kv.ErrTooLarge beyond the limits, and ErrSendDisabled; the caller's function
// should return it, because what was written before it is still in tx.
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
	if err := q.closed(); errors.Is(err, ErrQueueNotFound) {
		return err // a service that has only stopped goes on to send
	}
	keys := make([][]byte, len(messages))
	for i := range messages {
		m := &messages[i]
		if len(m.Key) == 0 {
			return fmt.Errorf("%w: empty key", kv.ErrInvalid)
		}
		if len(m.Key) > MaxKeySize || len(m.Payload) > MaxPayloadSize {
			return fmt.Errorf("%w: key of %d bytes, payload of %d", kv.ErrTooLarge, len(m.Key), len(m.Payload))
		}
		keys[i] = m.Key
	}
	rows, err := q.rows(tx, keys)
	if err != nil {
		return err
	}
	now := q.s.clock.Now()
	entries := make([]entry, len(messages))
	sending := make(map[string]struct{}, len(messages))
	for i := range messages {
		m := &messages[i]
		sending[string(m.Key)] = struct{}{}
		if rows[i].Value != nil || len(sending) <= i {
			return fmt.Errorf("%w: %q", ErrExists, m.Key)
		}
		deliver := m.DeliverTime.UTC()
		if deliver.Before(now) {
			deliver = now
		}
		q.put(tx, m.Key, &record{deliver: deliver, due: deliver, payload: m.Payload})
		entries[i] = entry{key: string(m.Key), due: deliver, size: len(m.Payload) + len(m.Key)}
	}
	tx.AfterCommit(func(_ kv.Version, err error) { q.sent(entries, err) })
	return nil
}

// sent runs after a commit, or one that may have happened.
func (q *Queue) sent(entries []entry, err error) {
	if err == nil {
		q.counts.sent.Add(int64(len(entries)))
		q.s.meters.sent.Add(int64(len(entries)), q.s.meters.database, q.name)
	}
	now := q.s.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range entries {
		if e := &entries[i]; err != nil || !q.arrive(e, now) {
			q.lower(e.due)
		}
	}
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
	rows, err := q.rows(tx, keys)
	if err != nil {
		return 0, err
	}
	n := 0
	removed := make(map[string]struct{}, len(keys))
	for i, row := range rows {
		_, twice := removed[string(keys[i])]
		if row.Value == nil || twice {
			if demanded {
				return 0, fmt.Errorf("%w: %q", ErrNotFound, keys[i])
			}
			continue
		}
		r, err := decodeRecord(row.Value)
		if err != nil {
			return 0, fmt.Errorf("message %q: %w", keys[i], err)
		}
		q.remove(tx, keys[i], &r)
		removed[string(keys[i])] = struct{}{}
		n++
	}
	if n > 0 {
		tx.AfterCommit(func(v kv.Version, err error) { q.deleted(removed, counted, v, err) })
	}
	return n, nil
}

// deleted runs after a commit, or one that may have happened. Messages sent
// again in the same commit have its version and stay.
func (q *Queue) deleted(keys map[string]struct{}, counted bool, v kv.Version, err error) {
	if err == nil && counted {
		q.counts.acked.Add(int64(len(keys)))
		q.s.meters.acked.Add(int64(len(keys)), q.s.meters.database, q.name)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for k := range keys {
		e := q.known[k]
		switch {
		case e == nil:
		case e.state == fetching, e.state == ready && err != nil:
			// What was read may be the message that is gone, or the next one.
			q.forget(e)
			q.lower(e.due)
		case err == nil && e.version < v:
			q.forget(e)
		}
	}
}
