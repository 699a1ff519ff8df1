package pebble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/kv"
)

// Get implements kv.Engine.
func (e *Engine) Get(ctx context.Context, refs []kv.Ref) (rows []kv.Row, err error) {
	defer e.survive(&err)
	rows, err = e.get(ctx, refs)
	if err != nil {
		return nil, fmt.Errorf("pebble: get: %w", e.explain(err))
	}
	return rows, nil
}

// getter is what a *pebble.DB and a *pebble.Snapshot have in common.
type getter interface {
	Get(key []byte) ([]byte, io.Closer, error)
}

func (e *Engine) get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	now := e.clock.Now()
	lookups, err := e.lookups(refs)
	if err != nil {
		return nil, err
	}
	var from getter = e.db
	if len(refs) > 1 {
		snapshot := e.db.NewSnapshot()
		defer snapshot.Close()
		from = snapshot
	}
	rows := make([]kv.Row, len(refs))
	for i := range refs {
		if err := e.getRow(ctx, from, &refs[i], &lookups[i], now, &rows[i]); err != nil {
			return nil, err
		}
	}
	// Only now: a failure is set before what it makes worthless can be seen.
	if err := e.failed(); err != nil {
		return nil, err
	}
	return rows, nil
}

// lookup is a row that is about to be read.
type lookup struct {
	place
	// remember: the memo is to learn what is read. Reads that include expired
	// rows are those of transactions, whose commits will ask for it.
	remember bool
	clock    uint64 // of the memo, before the read; only if remember
}

// lookups resolves the refs of a call.
func (e *Engine) lookups(refs []kv.Ref) ([]lookup, error) {
	size := 0
	for i := range refs {
		size += maxPrefixSize + len(refs[i].Key)
	}
	buf := make([]byte, 0, size) // never grows: places point into it
	found := make([]lookup, len(refs))
	var err error
	for i := range refs {
		l := &found[i]
		if buf, err = e.locate(&l.place, refs[i].Space, refs[i].Key, buf); err != nil {
			return nil, err
		}
		if l.remember = refs[i].IncludeExpired; l.remember {
			l.clock = e.memo.clock(l.hash)
		}
	}
	return found, nil
}

// getRow reads one row and waits until what it saw is durable.
func (e *Engine) getRow(ctx context.Context, from getter, ref *kv.Ref, l *lookup, now time.Time, row *kv.Row) error {
	b, closer, err := from.Get(l.key)
	switch {
	case errors.Is(err, pebbledb.ErrNotFound):
		row.Key = append([]byte(nil), ref.Key...)
		e.memo.learn(l, sighting{})
		if err := e.flights.awaitRemoval(ctx, l.hash); err != nil {
			return err
		}
		return e.settleSpace(l.space)
	case err != nil:
		return readError(err, ref.Space, ref.Key)
	}
	defer closer.Close()
	var h header
	if h.decode(b) != nil {
		return corruptRow(ref.Space, ref.Key)
	}
	if h.counts(now, ref.IncludeExpired) {
		buf := make([]byte, len(ref.Key)+len(h.value))
		n := copy(buf, ref.Key)
		copy(buf[n:], h.value)
		h.value = buf[n:]
		*row = h.row(buf[:n:n], now)
	} else {
		row.Key = append([]byte(nil), ref.Key...)
	}
	e.memo.learn(l, sighting{h.version, h.expires, h.hasExpiry})
	if err := e.flights.awaitVersion(ctx, h.version); err != nil {
		return err
	}
	return e.settleSpace(l.space)
}

func corruptRow(space string, key []byte) error {
	return fmt.Errorf("%w: row %q of space %s", kv.ErrCorrupt, key, space)
}

func readError(err error, space string, key []byte) error {
	return fmt.Errorf("row %q of space %s: %w", key, space, translate(err))
}

// Scan implements kv.Engine. It reads from one instant, and keeps what was
// stored then on disk while it runs.
func (e *Engine) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) (err error) {
	defer e.survive(&err)
	if err := e.scan(ctx, space, r, fn); err != nil {
		return fmt.Errorf("pebble: scan of space %s: %w", space, e.explain(err))
	}
	return nil
}

func (e *Engine) scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.space(space)
	if err != nil {
		return err
	}
	// All commits with versions below settled have ended before the scan begins.
	settled := e.flights.floor()
	if err := e.failed(); err != nil {
		return err
	}
	now := e.clock.Now()
	lower, upper := s.bounds(r)
	it, err := e.db.NewIterWithContext(ctx, &pebbledb.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return translate(err)
	}
	// Rows that flights remove are already absent from the iterator.
	if err := e.flights.awaitRemovals(ctx, s.id); err != nil {
		return errors.Join(err, it.Close())
	}
	if err := e.settleSpace(s); err != nil {
		return errors.Join(err, it.Close())
	}
	v := visitor{engine: e, space: s, r: r, now: now, settled: settled}
	err = v.visit(ctx, it, fn)
	if cerr := it.Close(); err == nil && cerr != nil {
		err = translate(cerr)
	}
	if err == nil {
		err = e.failed()
	}
	return err
}

func (s *space) bounds(r kv.Range) (lower, upper []byte) {
	lower = append(append(make([]byte, 0, len(s.rows)+len(r.Start)), s.rows...), r.Start...)
	if r.End == nil {
		return lower, kv.PrefixEnd(s.rows)
	}
	return lower, append(append(make([]byte, 0, len(s.rows)+len(r.End)), s.rows...), r.End...)
}

// checkEvery is how many rows a scan visits before it looks at its context.
const checkEvery = 256

// visitor takes one scan over its rows.
type visitor struct {
	engine  *Engine
	space   *space
	r       kv.Range
	now     time.Time
	settled kv.Version
}

func (v *visitor) visit(ctx context.Context, it *pebbledb.Iterator, fn func(kv.Row) bool) error {
	first, next := it.First, it.Next
	if v.r.Reverse {
		first, next = it.Last, it.Prev
	}
	visited, seen := 0, 0
	var h header
	for ok := first(); ok; ok = next() {
		if visited++; visited%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		key := it.Key()[len(v.space.rows):]
		if err := v.load(ctx, it, key, &h); err != nil {
			return err
		}
		if !h.counts(v.now, v.r.IncludeExpired) {
			continue
		}
		if seen++; !fn(h.row(key, v.now)) || seen == v.r.Limit {
			return nil
		}
	}
	return nil
}

// load reads the row that the iterator is at, and waits until it is durable.
func (v *visitor) load(ctx context.Context, it *pebbledb.Iterator, key []byte, h *header) error {
	b, err := it.ValueAndErr()
	if err != nil {
		return readError(err, v.space.Name, key)
	}
	if h.decode(b) != nil {
		return corruptRow(v.space.Name, key)
	}
	if h.version < v.settled {
		return nil
	}
	if err := v.engine.flights.awaitVersion(ctx, h.version); err != nil {
		return err
	}
	return v.engine.failed()
}
