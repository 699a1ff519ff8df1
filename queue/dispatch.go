package queue

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

const (
	// bufferCount and bufferBytes bound what waits in memory for receivers; one
	// message is allowed whatever its size. The dispatcher reads on when half
	// of the count is free.
	bufferCount = 1024
	bufferBytes = 4 << 20

	// tick is how long a loop waits at most. It covers messages of other
	// processes, clocks that jump, and errors of the engine.
	tick = time.Second
)

// wake makes the dispatcher look for messages due from t on.
func (q *Queue) wake(t time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lower(t)
}

// lower is wake with q.mu held.
func (q *Queue) lower(t time.Time) {
	if at := q.timeKey(t, nil); q.lowered == nil || bytes.Compare(at, q.lowered) < 0 {
		q.lowered = at
	}
	signal(q.more)
}

// arrive makes a message ready that was just sent, if nothing that is due before it
// may still be in the index and nobody can have removed it since. q.mu is held.
func (q *Queue) arrive(e *entry, now time.Time) bool {
	_, departed := q.departed[e.key]
	if departed || q.known[e.key] != nil || q.behind(now) || e.due.After(now) || !q.room(e) {
		return false
	}
	e.reported = true
	q.known[e.key] = e
	q.makeReady(e)
	return true
}

// behind reports whether messages that are due may lie in the ready index where the
// dispatcher has not looked. q.mu is held.
func (q *Queue) behind(now time.Time) bool { return q.lowered != nil || !now.Before(q.nextScan) }

// dispatch moves messages from the ready index to receivers until ctx ends.
//
// It depends on no signal: a signal only says where to look again, and that at
// once. What was missed, because a commit became visible late or happened in
// another process, is found by the keeper's audit.
func (q *Queue) dispatch(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, err := q.fill(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, kv.ErrClosed) {
			return err
		}
		if err != nil {
			q.s.log.Error("queue: reading ready messages failed", "queue", q.name, "error", err)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-q.more:
		}
	}
}

// fill reads messages that are due into the ready list, as far as there is room,
// and serves receivers. It returns after which time to come again.
func (q *Queue) fill(ctx context.Context) (time.Duration, error) {
	now := q.s.clock.Now()
	start, wait, ok := q.beginFill(now)
	if !ok {
		return wait, nil
	}
	found, next, err := q.scanReady(ctx, start, now)
	if err != nil {
		q.endFill(nil, nil, start, time.Time{})
		return wait, err
	}
	fresh, stop := q.choose(found)
	rows, err := q.readRows(ctx, fresh)
	if err != nil {
		q.endFill(fresh, nil, start, time.Time{})
		return wait, err
	}
	var again time.Time
	switch {
	case stop != nil: // no room for it
		next.at = stop
	case len(found) == scanLimit:
		wait = 0
	case next.due.IsZero():
		again = now.Add(wait)
	default:
		wait = min(wait, max(next.due.Sub(now), time.Millisecond))
		again = now.Add(wait)
	}
	q.endFill(fresh, rows, next.at, again)
	return wait, nil
}

// beginFill decides where the dispatcher reads on. It returns false if there is
// no room, or nothing new and not yet time to look without a signal.
func (q *Queue) beginFill(now time.Time) (start []byte, wait time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ready) > bufferCount/2 || q.readyBytes >= bufferBytes {
		return nil, tick, false
	}
	if q.holding && !now.Before(q.holdEnd) {
		q.holding = false
		q.lowered = q.prefix
	}
	if wait := q.nextScan.Sub(now); q.lowered == nil && wait > 0 && wait <= tick {
		return nil, wait, false
	}
	start, wait = q.cursor, tick
	if q.lowered != nil && bytes.Compare(q.lowered, start) < 0 {
		start = q.lowered
	}
	q.lowered = nil
	if q.holding {
		wait = min(wait, q.holdEnd.Sub(now))
		if floor := q.timeKey(q.s.opened.Add(1), nil); bytes.Compare(start, floor) < 0 {
			start = floor
		}
	}
	return start, wait, true
}

// scanLimit bounds the index rows that one scan takes, known ones included.
const scanLimit = bufferCount

// place is where a scan of the ready index may go on, and when.
type place struct {
	at []byte
	// due is that of the first message in the future, zero if the scan did not
	// get that far.
	due time.Time
}

// scanReady reads the ready index from start to now, up to scanLimit rows.
func (q *Queue) scanReady(ctx context.Context, start []byte, now time.Time) ([]*entry, place, error) {
	var (
		found   []*entry
		next    = place{at: q.timeKey(now, nil)}
		scanned = kv.Range{Start: start, End: kv.PrefixEnd(q.prefix), Limit: scanLimit}
	)
	err := q.s.db.Scan(ctx, readySpace, scanned, func(row kv.Row) bool {
		due, k, err := q.splitTimeKey(row.Key)
		if err != nil {
			q.s.log.Error("queue: index row skipped", "queue", q.name, "error", err)
			return true
		}
		if due.After(now) {
			next.due = due
			return false
		}
		size, _ := splitReadyValue(row.Value)
		found = append(found, &entry{key: string(k), due: due, size: size + len(k)})
		if len(found) == scanLimit {
			next.at = append(bytes.Clone(row.Key), 0)
		}
		return true
	})
	return found, next, err
}

// choose notes the entries that nobody deals with yet as known, as far as there
// is room. stop is the place of the first for which there is none, nil if there
// is none such.
func (q *Queue) choose(found []*entry) (fresh []*entry, stop []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range found {
		if q.known[e.key] != nil {
			continue
		}
		if !q.fetch(e) {
			return fresh, q.timeKey(e.due, []byte(e.key))
		}
		fresh = append(fresh, e)
	}
	return fresh, nil
}

func (q *Queue) readRows(ctx context.Context, entries []*entry) ([]kv.Row, error) {
	refs := make([]kv.Ref, len(entries))
	for i, e := range entries {
		refs[i] = q.row([]byte(e.key))
	}
	return q.s.get(ctx, refs)
}

// endFill makes the fetched messages ready; without rows it gives them up. The
// dispatcher goes on at next, or again at that time.
func (q *Queue) endFill(fresh []*entry, rows []kv.Row, next []byte, again time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cursor, q.nextScan = next, again
	q.load(fresh, rows)
}

// load makes those messages ready that have rows, and serves receivers. The
// others are forgotten; if that is for want of rows, they are looked for again.
// q.mu is held.
func (q *Queue) load(entries []*entry, rows []kv.Row) {
	for i, e := range entries {
		q.fetchCount--
		q.fetchBytes -= e.size
		switch {
		case q.known[e.key] != e: // acknowledged meanwhile
		case rows == nil:
			delete(q.known, e.key)
			q.lower(e.due)
		case q.decode(e, rows[i]):
			q.makeReady(e)
		default:
			delete(q.known, e.key)
		}
	}
	q.handOut()
}

// decode fills e from its row. It returns false if the message is gone or due at
// another time: who changed it has sent or will send a signal.
func (q *Queue) decode(e *entry, row kv.Row) bool {
	if !row.Exists() {
		return false
	}
	r, err := decodeRecord(row.Value)
	if err != nil {
		q.s.log.Error("queue: message cannot be read", "queue", q.name, "key", e.key, "error", err)
		return false
	}
	if !bytes.Equal(q.timeKey(r.due, nil), q.timeKey(e.due, nil)) {
		return false
	}
	e.version, e.record, e.due = row.Version, r, r.due
	e.size = len(r.payload) + len(e.key)
	return true
}
