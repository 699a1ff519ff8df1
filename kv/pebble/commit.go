package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/kv"
)

// place is a key of a transaction as it is stored.
type place struct {
	space *space
	key   []byte
	hash  uint64
}

// plan is a transaction made ready to lock.
type plan struct {
	checks, writes []place
	// locks is what sortLocks returned.
	locks []lockRef
	// few is room for the locks of a small transaction.
	few [8]lockRef
}

// Commit implements kv.Engine. A context that ends during the call has no effect
// once the locks are taken: the write is local and short.
func (e *Engine) Commit(ctx context.Context, t *kv.Txn) (v kv.Version, err error) {
	defer e.survive(&err)
	v, err = e.commit(ctx, t)
	if err != nil {
		return 0, fmt.Errorf("pebble: commit: %w", e.explain(err))
	}
	return v, nil
}

func (e *Engine) commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	e.catalogMu.RLock()
	defer e.catalogMu.RUnlock()
	var p plan
	if err := e.makePlan(t, &p); err != nil {
		return 0, err
	}
	e.locks.lock(p.locks)
	defer e.locks.unlock(p.locks)
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	now := e.clock.Now()
	if err := e.verify(t, &p, now); err != nil {
		return 0, err
	}
	if len(t.Writes) == 0 {
		return e.flights.next(now), nil
	}
	return e.write(t, &p, now)
}

// makePlan resolves the spaces and encodes the keys.
func (e *Engine) makePlan(t *kv.Txn, p *plan) error {
	size := 0
	for i := range t.Checks {
		size += maxPrefixSize + len(t.Checks[i].Key)
	}
	for i := range t.Writes {
		size += maxPrefixSize + len(t.Writes[i].Key)
	}
	buf := make([]byte, 0, size) // never grows: places point into it
	places := make([]place, len(t.Checks)+len(t.Writes))
	p.checks, p.writes = places[:len(t.Checks)], places[len(t.Checks):]
	p.locks = p.few[:0]
	if len(places) > len(p.few) {
		p.locks = make([]lockRef, 0, len(places))
	}
	var err error
	for i := range t.Checks {
		at := &p.checks[i]
		if buf, err = e.locate(at, t.Checks[i].Space, t.Checks[i].Key, buf); err != nil {
			return err
		}
		p.locks = append(p.locks, lockOf(at.hash, false))
	}
	for i := range t.Writes {
		at := &p.writes[i]
		if buf, err = e.locate(at, t.Writes[i].Space, t.Writes[i].Key, buf); err != nil {
			return err
		}
		p.locks = append(p.locks, lockOf(at.hash, true))
	}
	p.locks = sortLocks(p.locks)
	return nil
}

// locate appends a key as it is stored to buf.
func (e *Engine) locate(at *place, name string, key, buf []byte) ([]byte, error) {
	s, err := e.space(name)
	if err != nil {
		return nil, err
	}
	from := len(buf)
	buf = append(append(buf, s.rows...), key...)
	*at = place{space: s, key: buf[from:], hash: maphash.Bytes(e.seed, buf[from:])}
	return buf, nil
}

// verify compares the checks with the rows. What it reads is durable: no flight
// writes keys that are locked here.
func (e *Engine) verify(t *kv.Txn, p *plan, now time.Time) error {
	var conflict kv.ConflictError
	for i := range t.Checks {
		c := &t.Checks[i]
		v, err := e.versionOf(&p.checks[i], c, now)
		if err != nil {
			return err
		}
		if v != c.Version {
			conflict.Refs = append(conflict.Refs, kv.Ref{
				Space: c.Space, Key: slices.Clone(c.Key), IncludeExpired: c.IncludeExpired,
			})
		}
	}
	if len(conflict.Refs) > 0 {
		return &conflict
	}
	return nil
}

// versionOf returns the version of a row as the check c sees it.
func (e *Engine) versionOf(at *place, c *kv.Check, now time.Time) (kv.Version, error) {
	if seen, ok := e.memo.recall(at); ok {
		return seen.seenBy(c, now), nil
	}
	b, closer, err := e.db.Get(at.key)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, readError(err, c.Space, c.Key)
	}
	defer closer.Close()
	var h header
	if h.decode(b) != nil {
		return 0, corruptRow(c.Space, c.Key)
	}
	if !h.counts(now, c.IncludeExpired) {
		return 0, nil
	}
	return h.version, nil
}

// maxKeptBatch is up to what size the memory of a batch is used again.
const maxKeptBatch = 4 << 20

// write gives the transaction its version and makes it durable.
func (e *Engine) write(t *kv.Txn, p *plan, now time.Time) (v kv.Version, err error) {
	size := batchSize(t, p)
	if err := e.room.reserve(size); err != nil {
		return 0, err
	}
	f := newFlight(t, p)
	e.flights.begin(f, now)
	defer e.flights.end(f)
	defer func() { e.memo.wrote(t, p, v) }()
	if err := e.ceiling.raise(e.db, f.version); err != nil {
		return 0, err
	}
	b := e.db.NewBatch(pebbledb.WithInitialSizeBytes(size), pebbledb.WithMaxRetainedSizeBytes(maxKeptBatch))
	for i := range t.Writes {
		addWrite(b, &t.Writes[i], &p.writes[i], f.version, uint32(i))
	}
	if err := e.failed(); err != nil {
		return 0, err // nothing of the batch has reached Pebble
	}
	if err := e.apply(b); err != nil {
		return 0, err
	}
	if f.feed {
		e.trimSometimes(p, now)
	}
	return f.version, nil
}

func newFlight(t *kv.Txn, p *plan) *flight {
	f := &flight{}
	for i := range t.Writes {
		if id := p.writes[i].space.id; !slices.Contains(f.spaces, id) {
			f.spaces = append(f.spaces, id)
		}
		if t.Writes[i].Delete {
			f.deletes = append(f.deletes, p.writes[i].hash)
		}
		f.feed = f.feed || hasFeed(&t.Writes[i], p.writes[i].space)
	}
	slices.Sort(f.deletes)
	return f
}

// hasFeed: the options of a space may have changed since the caller looked.
func hasFeed(w *kv.Write, s *space) bool { return w.Feed != nil && s.FeedShards > 0 }

// maxPrefixSize bounds what idPrefix returns.
const maxPrefixSize = 1 + 9

// batchSize is an upper bound of the bytes that the batch will have.
func batchSize(t *kv.Txn, p *plan) int {
	const headerSize, opSize = 12, 1 + 5 + 5 // kind and two lengths
	n := headerSize
	for i := range t.Writes {
		w := &t.Writes[i]
		n += opSize + len(p.writes[i].key)
		if !w.Delete {
			n += rowSize(w)
		}
		if w.Feed != nil {
			n += opSize + maxPrefixSize + 1 + feedPlaceSize + feedEntrySize(w)
		}
	}
	return n
}

func addWrite(b *pebbledb.Batch, w *kv.Write, at *place, v kv.Version, index uint32) {
	// Operations of a batch in memory cannot fail.
	if w.Delete {
		_ = b.Delete(at.key, nil)
	} else {
		op := b.SetDeferred(len(at.key), rowSize(w))
		copy(op.Key, at.key)
		appendRow(op.Value[:0], w, v)
		_ = op.Finish()
	}
	if hasFeed(w, at.space) {
		shard := at.space.shardPrefix(shardOf(w.Key, at.space.FeedShards))
		op := b.SetDeferred(len(shard)+feedPlaceSize, feedEntrySize(w))
		feedPlace{v, index}.append(append(op.Key[:0], shard...))
		appendFeedEntry(op.Value[:0], w)
		_ = op.Finish()
	}
}
