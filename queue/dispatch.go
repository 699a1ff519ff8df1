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

	// lookAround is how far behind the present a look at the ready index begins, and
	// how far ahead it goes on, where other processes send too. It makes up for
	// clocks that differ and for commits that become visible late.
	lookAround = 15 * time.Second
)

// wake makes whoever owns a shard look for messages due from t on.
func (q *Queue) wake(t time.Time) {
	q.mu.Lock()
	var elsewhere []int
	for i, sh := range q.shards {
		if sh != nil {
			sh.lower(t)
		} else {
			elsewhere = append(elsewhere, i)
		}
	}
	q.mu.Unlock()
	q.hint(elsewhere)
}

// arrive makes a message ready that was just sent, if nothing that is due before it
// may still be in the index and nobody can have removed it since. q.mu is held.
func (sh *shard) arrive(e *entry, now time.Time) bool {
	q := sh.q
	_, departed := q.departed[e.key]
	if departed || q.known[e.key] != nil || sh.behind(now) || e.due.After(now) || !sh.room(e) {
		return false
	}
	e.reported, e.shard = true, sh
	q.known[e.key] = e
	sh.makeReady(e)
	return true
}

// dispatch moves messages from the ready index to receivers until ctx ends.
//
// It depends on no signal: a signal only says where to look again, and that at
// once. Where other processes send, each look begins and ends so far from the present
// that it finds their messages, see lookAround. What was missed nevertheless is found
// by the keeper's audit.
func (sh *shard) dispatch(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, err := sh.fill(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, kv.ErrClosed) {
			return err
		}
		if err != nil {
			sh.q.s.log.Error("queue: reading ready messages failed", "queue", sh.q.name, "error", err)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-sh.more:
		}
	}
}

// fill reads messages that are due into the ready list, as far as there is room,
// and serves receivers. It returns after which time to come again.
func (sh *shard) fill(ctx context.Context) (time.Duration, error) {
	now := sh.q.s.clock.Now()
	start, wait, ok := sh.beginFill(now)
	if !ok {
		return wait, nil
	}
	found, next, err := sh.scanReady(ctx, start, now)
	if err != nil {
		sh.endFill(nil, nil, start, time.Time{})
		return wait, err
	}
	fresh, stop := sh.choose(found)
	rows, err := sh.readRows(ctx, fresh)
	if err != nil {
		sh.endFill(fresh, nil, start, time.Time{})
		return wait, err
	}
	var again time.Time
	switch {
	case stop != nil: // no room for it
		if bytes.Compare(stop, next.at) < 0 {
			next.at = stop
		}
	case next.more:
		wait = 0
	case next.due.IsZero():
		again = now.Add(wait)
	default:
		wait = min(wait, max(next.due.Sub(now), time.Millisecond))
		again = now.Add(wait)
	}
	sh.endFill(fresh, rows, next.at, again)
	return wait, nil
}

// beginFill decides where the dispatcher reads on. It returns false if there is
// no room, or nothing new and not yet time to look without a signal.
func (sh *shard) beginFill(now time.Time) (start []byte, wait time.Duration, ok bool) {
	q := sh.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(sh.ready) > sh.most()/2 || sh.readyBytes >= bufferBytes {
		q.handOut() // the lease of the shard may be valid again
		return nil, tick, false
	}
	if sh.holding && !now.Before(sh.holdEnd) {
		sh.holding = false
		sh.lowered = sh.prefix
	}
	if wait := sh.nextScan.Sub(now); sh.lowered == nil && wait > 0 && wait <= tick {
		return nil, wait, false
	}
	start, wait = sh.cursor, tick
	if !sh.nextScan.IsZero() && q.s.lookAround > 0 {
		start = earlier(start, sh.timePlace(now.Add(-q.s.lookAround)))
	}
	if sh.lowered != nil {
		start = earlier(start, sh.lowered)
	}
	sh.lowered = nil
	if sh.holding {
		wait = min(wait, sh.holdEnd.Sub(now))
		if floor := sh.timePlace(sh.opened.Add(1)); bytes.Compare(start, floor) < 0 {
			start = floor
		}
	}
	return start, wait, true
}

func earlier(a, b []byte) []byte {
	if bytes.Compare(a, b) <= 0 {
		return a
	}
	return b
}

// scanLimit bounds the index rows that one scan takes, known ones included.
const scanLimit = bufferCount

// place is where a scan of the ready index may go on, and when.
type place struct {
	at []byte
	// more: what is due may lie behind it.
	more bool
	// due is that of the first message in the future, zero if the scan did not
	// get that far.
	due time.Time
}

// scanReady reads the ready index from start to now, up to scanLimit rows. If other
// processes send, it goes on for a while, for messages that were due when they were
// sent, by a clock that is ahead.
func (sh *shard) scanReady(ctx context.Context, start []byte, now time.Time) ([]*entry, place, error) {
	var (
		q       = sh.q
		found   []*entry
		next    = place{at: sh.timePlace(now)}
		until   = now.Add(q.s.lookAround)
		scanned = kv.Range{Start: start, End: kv.PrefixEnd(sh.prefix), Limit: scanLimit}
		rows    = 0
	)
	err := q.s.db.Scan(ctx, readySpace, scanned, func(row kv.Row) bool {
		rows++
		due, k, err := q.splitTimeKey(row.Key)
		if err != nil {
			q.s.log.Error("queue: index row skipped", "queue", q.name, "error", err)
			return true
		}
		size, _, prompt := splitReadyValue(row.Value)
		if due.After(now) {
			late := due.After(until) || !prompt
			if late && next.due.IsZero() {
				next.due = due
			}
			if late {
				return !due.After(until)
			}
		} else if rows == scanLimit {
			next.at, next.more = append(bytes.Clone(row.Key), 0), true
		}
		found = append(found, &entry{shard: sh, key: string(k), due: due, size: size + len(k)})
		return true
	})
	return found, next, err
}

// choose notes the entries that nobody deals with yet as known, as far as there
// is room. stop is the place of the first for which there is none, nil if there
// is none such.
func (sh *shard) choose(found []*entry) (fresh []*entry, stop []byte) {
	q := sh.q
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range found {
		if old := q.known[e.key]; old != nil {
			if old.state != ready || !e.due.After(old.due) || q.s.lookAround == 0 {
				continue
			}
			q.forget(old) // another process has put a message in its place
		}
		if !sh.fetch(e) {
			return fresh, q.timeKey(e.due, []byte(e.key))
		}
		fresh = append(fresh, e)
	}
	return fresh, nil
}

func (sh *shard) readRows(ctx context.Context, entries []*entry) ([]kv.Row, error) {
	refs := make([]kv.Ref, len(entries))
	for i, e := range entries {
		refs[i] = sh.q.row([]byte(e.key))
	}
	return sh.q.s.get(ctx, refs)
}

// endFill makes the fetched messages ready; without rows it gives them up. The
// dispatcher goes on at next, or again at that time.
func (sh *shard) endFill(fresh []*entry, rows []kv.Row, next []byte, again time.Time) {
	sh.q.mu.Lock()
	defer sh.q.mu.Unlock()
	sh.cursor, sh.nextScan = next, again
	sh.load(fresh, rows)
}

// load makes those messages ready that have rows, and serves receivers. The
// others are forgotten; if that is for want of rows, they are looked for again.
// q.mu is held.
func (sh *shard) load(entries []*entry, rows []kv.Row) {
	q := sh.q
	for i, e := range entries {
		sh.fetchCount--
		sh.fetchBytes -= e.size
		switch {
		case q.known[e.key] != e: // acknowledged meanwhile
		case rows == nil:
			delete(q.known, e.key)
			sh.lower(e.due)
		case q.decode(e, rows[i]):
			sh.makeReady(e)
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
