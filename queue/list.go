package queue

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// Get reads a message in the caller's transaction, whether it is leased or not. It
// returns false if there is none with this key.
func (q *Queue) Get(tx *kv.Tx, k []byte) (Message, bool, error) {
	row, err := tx.Get(messageSpace, q.messageKey(k))
	if err == nil && row.Value == nil {
		return Message{}, false, nil
	}
	var r record
	if err == nil {
		r, err = decodeRecord(row.Value)
	}
	if err != nil {
		return Message{}, false, fmt.Errorf("queue: get %q from %q: %w", k, q.name, err)
	}
	r.payload = bytes.Clone(r.payload)
	return r.message(k), true, nil
}

// List returns up to n messages in the order of their keys, from the key start on
// and before end; a nil end means no bound. Leased ones are included.
func (q *Queue) List(ctx context.Context, start, end []byte, n int) ([]Message, error) {
	r := kv.Range{Start: q.messageKey(start), End: kv.PrefixEnd(q.prefix), Limit: n}
	if end != nil {
		r.End = q.messageKey(end)
	}
	var list []Message
	var bad error
	err := q.s.db.Scan(ctx, messageSpace, r, func(row kv.Row) bool {
		var rec record
		if rec, bad = decodeRecord(bytes.Clone(row.Value)); bad == nil {
			list = append(list, rec.message(bytes.Clone(row.Key[len(q.prefix):])))
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, fmt.Errorf("queue: list %q: %w", q.name, err)
	}
	return list, nil
}

// Peek returns up to n messages in the order in which they are due, leased ones and
// those due in the future included. It takes no leases.
func (q *Queue) Peek(ctx context.Context, n int) ([]Message, error) {
	var places []timePlace
	var err error
	for i := 0; i < len(q.shards) && err == nil; i++ {
		var some []timePlace
		some, err = q.scanTimes(ctx, readySpace, i, n, nil)
		places = append(places, some...)
	}
	var list []Message
	if err == nil {
		list, err = q.read(ctx, earliest(places, n))
	}
	if err != nil {
		return nil, fmt.Errorf("queue: peek into %q: %w", q.name, err)
	}
	return list, nil
}

// earliest returns the first n places in the order of time; of one shard they are in it
// already.
func earliest(places []timePlace, n int) []timePlace {
	slices.SortStableFunc(places, func(a, b timePlace) int {
		return cmp.Or(a.at.Compare(b.at), bytes.Compare(a.key, b.key))
	})
	return places[:min(n, len(places))]
}

// Oldest returns up to n messages, those with the earliest delivery times first,
// leased ones and those that rest after a lost lease included: what is stuck. It
// costs as much as what it returns.
func (q *Queue) Oldest(ctx context.Context, n int) ([]Message, error) {
	places, err := q.oldest(ctx, n)
	var list []Message
	if err == nil {
		list, err = q.read(ctx, places)
	}
	if err != nil {
		return nil, fmt.Errorf("queue: oldest of %q: %w", q.name, err)
	}
	return list, nil
}

// timePlace is a row of readySpace or movedSpace.
type timePlace struct {
	at  time.Time
	key []byte
}

// oldest returns places of the messages with the earliest delivery times.
func (q *Queue) oldest(ctx context.Context, n int) ([]timePlace, error) {
	var all []timePlace
	for i := range q.shards {
		some, err := q.oldestOf(ctx, i, n)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return earliest(all, n), nil
}

// oldestOf merges the messages of a shard that have been moved with its ready index,
// in which those that have not lie at their delivery times.
func (q *Queue) oldestOf(ctx context.Context, shard, n int) ([]timePlace, error) {
	moved, err := q.scanTimes(ctx, movedSpace, shard, n, nil)
	if err != nil {
		return nil, err
	}
	unmoved := 0
	fresh, err := q.scanTimes(ctx, readySpace, shard, 0, func(p timePlace, isMoved bool) (keep, goOn bool) {
		// What lies behind n older ones is not asked for. Before that place there
		// are at most n moved ones, because these are due after their delivery
		// times.
		if unmoved == n || len(moved) == n && p.at.After(moved[n-1].at) {
			return false, false
		}
		if !isMoved {
			unmoved++
		}
		return !isMoved, true
	})
	return append(moved, fresh...), err
}

// oldestTime is the delivery time of the oldest message in Unix nanoseconds, 0 if
// there is none.
func (q *Queue) oldestTime(ctx context.Context) (int64, error) {
	places, err := q.oldest(ctx, 1)
	if err != nil || len(places) == 0 {
		return 0, err
	}
	return places[0].at.UnixNano(), nil
}

// scanTimes reads up to limit rows of a shard in an index of times; 0 is no limit.
// choose, if not nil, says which to keep and whether to go on.
func (q *Queue) scanTimes(ctx context.Context, space string, shard, limit int, choose func(p timePlace, moved bool) (keep, goOn bool)) ([]timePlace, error) {
	r := kv.Prefix(q.shardPrefix(shard))
	r.Limit = limit
	var places []timePlace
	var bad error
	err := q.s.db.Scan(ctx, space, r, func(row kv.Row) bool {
		p := timePlace{}
		if p.at, p.key, bad = q.splitTimeKey(bytes.Clone(row.Key)); bad != nil {
			return false
		}
		keep, goOn := true, true
		if choose != nil {
			_, moved, _ := splitReadyValue(row.Value)
			keep, goOn = choose(p, moved)
		}
		if keep {
			places = append(places, p)
		}
		return goOn
	})
	if err == nil {
		err = bad
	}
	return places, err
}

// read returns the messages at places that still exist.
func (q *Queue) read(ctx context.Context, places []timePlace) ([]Message, error) {
	keys := make([][]byte, len(places))
	for i, p := range places {
		keys[i] = p.key
	}
	rows, err := q.s.get(ctx, q.refs(keys))
	if err != nil {
		return nil, err
	}
	var list []Message
	for i, row := range rows {
		if !row.Exists() {
			continue
		}
		r, err := decodeRecord(row.Value)
		if err != nil {
			return nil, fmt.Errorf("message %q: %w", keys[i], err)
		}
		list = append(list, r.message(keys[i]))
	}
	return list, nil
}
