package kv

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// Tx is one attempt of Update: what it reads or expects is recorded as checks, what
// it writes is buffered until the commit. A Tx belongs to one goroutine and is dead
// once Update's function has returned.
type Tx struct {
	db   *DB
	ctx  context.Context
	tag  string
	rows []txRow
	// writes are in the order in which their keys were first written.
	writes []Write
	// fewRows and fewWrites are room for those of a small transaction.
	fewRows   [4]txRow
	fewWrites [4]Write
	// index finds rows by the hash of space and key once there are more than a
	// few: the place of the youngest row with that hash, whose next is the one
	// before it.
	index map[uint64]int32
	seed  maphash.Seed
	after []func(Version, error)
	// first: no attempt has failed before.
	first bool
	// scanned: a range was read, at other instants than its guard.
	scanned bool
	// expected: a row is expected; refuted: one was read that is not as expected.
	expected, refuted bool
}

// txRow is a key that the transaction has read, expected or written.
type txRow struct {
	space          string
	key            []byte
	read, expected bool
	// seen is the row as it was read, expired or not. If it is only expected, no
	// more than its version is set.
	seen Row
	// write is the row's place in Tx.writes, -1 if it is not written.
	write int32
	next  int32 // with the same hash, -1 if there is none
}

// Backoff between attempts of Update: the first wait is about retryFirst, each
// further one twice as long, up to retryMost, all jittered.
const (
	retryFirst = 500 * time.Microsecond
	retryMost  = 50 * time.Millisecond
)

// Update runs fn in a transaction: what fn read through tx still held when its
// writes were committed, all at one instant. If it did not hold any more, fn runs
// again with a fresh Tx, after a jittered wait, until ctx ends; so fn must have no
// effect but through tx. An error of fn ends Update and nothing is written; if fn
// had called Tx.Expect, it runs once more first, because what it expected may be
// why it failed.
//
// Errors: that of fn; a *ConflictError together with the context's error if ctx
// ended between attempts; ErrUnknownOutcome, after which Update does not run fn
// again; and what Commit returns. The version is 0 if fn wrote nothing.
func (db *DB) Update(ctx context.Context, fn func(tx *Tx) error) (Version, error) {
	wait := retryFirst
	for first := true; ; first = false {
		tx := newTx(ctx, db, first)
		v, again, err := db.attempt(tx, fn)
		if !again {
			return v, err
		}
		if tx.expected {
			continue // what was expected wrongly is not contended for
		}
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return 0, errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
		wait = min(2*wait, retryMost)
	}
}

func newTx(ctx context.Context, db *DB, first bool) *Tx {
	tx := &Tx{db: db, ctx: ctx, first: first}
	tx.rows, tx.writes = tx.fewRows[:0], tx.fewWrites[:0]
	return tx
}

// attempt runs fn once, with a fresh tx. It reports whether fn is to run again: the
// commit was refused because of its checks, which a conflict among fn's own errors
// does not mean, or an expectation may be to blame.
func (db *DB) attempt(tx *Tx, fn func(tx *Tx) error) (v Version, again bool, err error) {
	if err := db.run(tx, fn); err != nil || tx.refuted {
		return 0, tx.expected, err
	}
	t := tx.txn()
	// One row read at one instant needs no proof.
	if len(t.Writes) > 0 || len(t.Checks) > 1 || tx.scanned || tx.expected {
		v, err = db.commit(tx.ctx, t, len(tx.rows))
	}
	if len(t.Writes) == 0 {
		v = 0
	}
	if err == nil || errors.Is(err, ErrUnknownOutcome) {
		for _, f := range tx.after {
			f(v, err)
		}
	}
	return v, IsConflict(err), err
}

func (db *DB) run(tx *Tx, fn func(tx *Tx) error) error {
	if err := fn(tx); err != nil {
		return err
	}
	for _, hook := range db.hooks {
		if err := hook(tx); err != nil {
			return err
		}
	}
	return nil
}

// Context returns the context of the Update that tx belongs to.
func (tx *Tx) Context() context.Context { return tx.ctx }

// SetTag sets the tag that the commit carries.
func (tx *Tx) SetTag(tag string) { tx.tag = tag }

// Tag returns the tag set last.
func (tx *Tx) Tag() string { return tx.tag }

// AfterCommit registers f to run once the commit has happened or its outcome is
// unknown, with what Update returns: a version and nil, or ErrUnknownOutcome. f
// does not run if the commit was refused. It runs on the goroutine of Update and
// must not block.
func (tx *Tx) AfterCommit(f func(Version, error)) { tx.after = append(tx.after, f) }

// Get reads one row; its own buffered write, if there is one, wins, and has the
// version of the row that it replaces. The bytes must not be changed.
func (tx *Tx) Get(space string, key []byte) (Row, error) {
	rows, err := tx.GetAll(Ref{Space: space, Key: key})
	if err != nil {
		return Row{}, err
	}
	return rows[0], nil
}

// GetAll reads rows, as Get does, all of those not read before in one call to
// the engine.
func (tx *Tx) GetAll(refs ...Ref) ([]Row, error) {
	if err := tx.load(refs); err != nil {
		return nil, err
	}
	rows := make([]Row, len(refs))
	for i, ref := range refs {
		r := &tx.rows[tx.find(ref.Space, ref.Key)]
		switch {
		case r.write >= 0:
			rows[i] = tx.written(r)
		case r.seen.Expired && !ref.IncludeExpired:
			rows[i] = Row{Key: r.key}
		default:
			rows[i] = r.seen
		}
	}
	return rows, nil
}

func (tx *Tx) written(r *txRow) Row {
	w := &tx.writes[r.write]
	if w.Delete {
		return Row{Key: r.key}
	}
	return Row{Key: r.key, Value: w.Value, Link: w.Link, ExpiresAt: w.ExpiresAt, Version: r.seen.Version}
}

// load reads the rows of refs that tx has not read, as they are stored.
func (tx *Tx) load(refs []Ref) error {
	var missing []Ref
	for _, ref := range refs {
		if i := tx.find(ref.Space, ref.Key); i >= 0 && tx.rows[i].read {
			continue
		}
		missing = append(missing, Ref{Space: ref.Space, Key: ref.Key, IncludeExpired: true})
	}
	if len(missing) == 0 {
		return nil
	}
	rows, err := tx.db.Get(tx.ctx, missing...)
	if err != nil {
		return err
	}
	tx.rows = slices.Grow(tx.rows, len(missing))
	for i, ref := range missing {
		tx.saw(ref.Space, rows[i])
	}
	return nil
}

// saw records a row that the engine returned, unless it has been read before:
// the first read is the one that the commit checks.
func (tx *Tx) saw(space string, row Row) {
	r := tx.row(space, row.Key)
	if r.read {
		return
	}
	if r.expected && (row.Version != r.seen.Version || row.Expired) {
		tx.refuted = true
	}
	r.read, r.seen = true, row
}

// Expect spares a read: the commit checks that a row lives with version v, or with
// 0 that nothing is stored, not even an expired row, as if tx had read just that.
// It returns false and does nothing if the caller has to read the row, because tx
// knows it already, or an attempt before has failed, or the key is invalid.
//
// Until the commit an expectation is only that. If it does not hold, fn runs again
// and has to read, so what Update returns does not depend on it. A later read of the
// row in the same transaction, also by Changes, returns what is stored.
func (tx *Tx) Expect(space string, key []byte, v Version) bool {
	if !tx.first || tx.find(space, key) >= 0 || checkKey(space, key) != nil {
		return false
	}
	r := tx.row(space, key)
	r.expected, r.seen.Version = true, v
	tx.expected = true
	return true
}

// Scan reads the rows of a range under a guard row: the guard is read first and
// checked at the commit, and so is every row that fn got. Rows that tx itself has
// written must not lie in the range. fn gets rows as Get returns them and must
// not use tx.
func (tx *Tx) Scan(guard Ref, space string, r Range, fn func(Row) bool) error {
	if guard.Space == "" || len(guard.Key) == 0 {
		return fmt.Errorf("scan of space %s: %w", space, ErrUnguardedRange)
	}
	for i := range tx.writes {
		if w := &tx.writes[i]; w.Space == space && r.contains(w.Key) {
			return fmt.Errorf("scan of space %s: %w: the transaction has written in the range", space, ErrInvalid)
		}
	}
	if err := tx.load([]Ref{guard}); err != nil {
		return err
	}
	tx.scanned = true
	return tx.db.Scan(tx.ctx, space, r, func(row Row) bool {
		row.Key = append([]byte(nil), row.Key...)
		row.Value = append([]byte(nil), row.Value...)
		tx.saw(space, row)
		return fn(row)
	})
}

func (r Range) contains(key []byte) bool {
	return string(key) >= string(r.Start) && (r.End == nil || string(key) < string(r.End))
}

// Put buffers a write, in place of an earlier one of the same key. tx keeps the
// slices of w until the commit.
func (tx *Tx) Put(w Write) {
	r := tx.row(w.Space, w.Key)
	if r.write >= 0 {
		tx.writes[r.write] = w
		return
	}
	r.write = int32(len(tx.writes))
	tx.writes = append(tx.writes, w)
}

// Delete buffers the removal of a row.
func (tx *Tx) Delete(space string, key []byte) {
	tx.Put(Write{Space: space, Key: key, Delete: true})
}

// Changes yields each buffered write together with the row that it replaces, as
// stored: absent, live or expired. Rows that were not read yet are read now, and
// thereby checked. Hooks use it. Writes made while it runs are not yielded.
func (tx *Tx) Changes(want func(space string) bool) (iter.Seq2[Row, Write], error) {
	var refs []Ref
	for i := range tx.writes {
		if w := &tx.writes[i]; want(w.Space) {
			refs = append(refs, Ref{Space: w.Space, Key: w.Key})
		}
	}
	if err := tx.load(refs); err != nil {
		return nil, err
	}
	return func(yield func(Row, Write) bool) {
		for _, ref := range refs {
			r := &tx.rows[tx.find(ref.Space, ref.Key)]
			if !yield(r.seen, tx.writes[r.write]) {
				return
			}
		}
	}, nil
}

// find returns the place of a key in tx.rows, or -1.
func (tx *Tx) find(space string, key []byte) int {
	if tx.index == nil {
		for i := range tx.rows {
			if tx.rows[i].is(space, key) {
				return i
			}
		}
		return -1
	}
	i, ok := tx.index[tx.hash(space, key)]
	if !ok {
		return -1
	}
	for i >= 0 && !tx.rows[i].is(space, key) {
		i = tx.rows[i].next
	}
	return int(i)
}

func (r *txRow) is(space string, key []byte) bool {
	return string(r.key) == string(key) && r.space == space
}

func (tx *Tx) hash(space string, key []byte) uint64 {
	return maphash.Bytes(tx.seed, key) ^ maphash.String(tx.seed, space)
}

func (tx *Tx) row(space string, key []byte) *txRow {
	if i := tx.find(space, key); i >= 0 {
		return &tx.rows[i]
	}
	tx.rows = append(tx.rows, txRow{space: space, key: key, write: -1, next: -1})
	n := len(tx.rows)
	switch {
	case tx.index != nil:
		tx.enter(n - 1)
	case n > smallTxn:
		tx.index, tx.seed = make(map[uint64]int32, 4*n), maphash.MakeSeed()
		for i := range tx.rows {
			tx.enter(i)
		}
	}
	return &tx.rows[n-1]
}

// enter puts a row into the index.
func (tx *Tx) enter(i int) {
	r := &tx.rows[i]
	h := tx.hash(r.space, r.key)
	if earlier, ok := tx.index[h]; ok {
		r.next = earlier
	}
	tx.index[h] = int32(i)
}

// txn turns what was recorded into a minitransaction.
func (tx *Tx) txn() *Txn {
	checks := 0
	for i := range tx.rows {
		if r := &tx.rows[i]; r.read || r.expected {
			checks++
		}
	}
	t := &Txn{Tag: tx.tag, Checks: make([]Check, 0, checks), Writes: tx.writes}
	for i := range tx.rows {
		if r := &tx.rows[i]; r.read || r.expected {
			t.Checks = append(t.Checks, Check{
				Space: r.space, Key: r.key, Version: r.seen.Version,
				// What was read as expired must still be the same expired row, and
				// where nothing was stored no row may have come and expired since.
				IncludeExpired: r.seen.Expired || !r.seen.Exists(),
			})
		}
	}
	return t
}
