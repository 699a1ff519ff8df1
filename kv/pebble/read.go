package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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

func (e *Engine) get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	r := reading{engine: e, ctx: ctx, now: e.clock.Now(), refs: refs, rows: make([]kv.Row, len(refs))}
	var err error
	if r.lookups, err = e.lookups(refs); err != nil {
		return nil, err
	}
	if len(refs) == 1 {
		err = r.one()
	} else {
		err = r.many()
	}
	if err != nil {
		return nil, err
	}
	// Only now: a failure is set before what it makes worthless can be seen.
	if err := e.failed(); err != nil {
		return nil, err
	}
	return r.rows, nil
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

// reading is one call of Get.
type reading struct {
	engine  *Engine
	ctx     context.Context
	now     time.Time
	refs    []kv.Ref
	lookups []lookup
	rows    []kv.Row
}

// one reads a single row, for which making an iterator would not pay.
func (r *reading) one() error {
	b, closer, err := r.engine.db.Get(r.lookups[0].key)
	switch {
	case errors.Is(err, pebbledb.ErrNotFound):
		return r.absent(0)
	case err != nil:
		return readError(err, r.refs[0].Space, r.refs[0].Key)
	}
	defer closer.Close()
	return r.found(0, b)
}

// many reads rows through one iterator, which is one instant, and in the order of
// their keys, so that it only goes forward and neighbours share what it has loaded.
func (r *reading) many() error {
	order := make([]int, len(r.refs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return bytes.Compare(r.lookups[i].key, r.lookups[j].key) })
	last := r.lookups[order[len(order)-1]].key
	it, err := r.engine.db.NewIterWithContext(r.ctx, &pebbledb.IterOptions{
		LowerBound: r.lookups[order[0]].key,
		UpperBound: append(slices.Clone(last), 0),
		// Many of the keys that transactions look for do not exist.
		UseL6Filters: true,
	})
	if err != nil {
		return translate(err)
	}
	err = r.seekAll(it, order)
	if cerr := it.Close(); err == nil && cerr != nil {
		err = translate(cerr)
	}
	return err
}

func (r *reading) seekAll(it *pebbledb.Iterator, order []int) error {
	for _, i := range order {
		if err := r.seek(it, i); err != nil {
			return err
		}
	}
	return nil
}

func (r *reading) seek(it *pebbledb.Iterator, i int) error {
	var b []byte
	ok := it.SeekPrefixGE(r.lookups[i].key) // keys are their own prefixes
	err := it.Error()
	if ok {
		b, err = it.ValueAndErr()
	}
	switch {
	case err != nil:
		return readError(err, r.refs[i].Space, r.refs[i].Key)
	case !ok:
		return r.absent(i)
	}
	return r.found(i, b)
}

// absent notes that there is no row, and waits until that is durable.
func (r *reading) absent(i int) error {
	l := &r.lookups[i]
	r.rows[i].Key = slices.Clone(r.refs[i].Key)
	r.engine.memo.learn(l, sighting{})
	if err := r.engine.flights.awaitRemoval(r.ctx, l.hash); err != nil {
		return err
	}
	return r.engine.settleSpace(l.space)
}

// found takes a row as it is stored, and waits until it is durable.
func (r *reading) found(i int, b []byte) error {
	ref, l, row := &r.refs[i], &r.lookups[i], &r.rows[i]
	var h header
	if h.decode(b) != nil {
		return corruptRow(ref.Space, ref.Key)
	}
	if h.counts(r.now, ref.IncludeExpired) {
		buf := make([]byte, len(ref.Key)+len(h.value))
		n := copy(buf, ref.Key)
		copy(buf[n:], h.value)
		h.value = buf[n:]
		*row = h.row(buf[:n:n], r.now)
	} else {
		row.Key = slices.Clone(ref.Key)
	}
	r.engine.memo.learn(l, sighting{h.version, h.expires, h.hasExpiry})
	if err := r.engine.flights.awaitVersion(r.ctx, h.version); err != nil {
		return err
	}
	return r.engine.settleSpace(l.space)
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
