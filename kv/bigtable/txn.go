package bigtable

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

// errAborted: somebody aborted the transaction, so it changed nothing.
var errAborted = errors.New("the transaction was aborted")

// fanOut bounds how many rows of a transaction are locked or finished at once.
const fanOut = 16

// txn is an attempt to commit several rows. Its record is made first; then every
// row that it checks or writes is locked, by a compare-and-set on the state that was
// read, with all that will happen to it in the lock; then the record is set to
// committed, which is the moment of the commit. After that anybody can finish the
// rows. Nobody waits while holding locks, so there is no deadlock.
type txn struct {
	e       *Engine
	id      txID
	parts   []part
	version version
	// locks are the state cells of the rows while they are locked; nil where no
	// lock was sent.
	locks [][]byte
}

// mostAborts is how often a commit whose transactions are aborted by others, for
// lack of time, is tried again.
const mostAborts = 10

// commitMany commits several rows.
func (e *Engine) commitMany(ctx context.Context, parts []part) (*txn, error) {
	for try := 0; ; try++ {
		free := e.stripes.lock(ctx, parts)
		tx := &txn{e: e, parts: slices.Clone(parts), locks: make([][]byte, len(parts))}
		busy, err := tx.prepare(ctx, try > 0)
		if err == nil && len(busy) == 0 {
			if err = tx.decide(ctx, free); err == nil {
				return tx, nil
			}
		} else {
			tx.abandon(ctx, free, err == nil)
		}
		if err != nil && (!errors.Is(err, errAborted) || try == mostAborts) {
			return nil, err
		}
		if err := e.waitForLock(ctx, busy, try); err != nil {
			return nil, err
		}
	}
}

// prepare locks the rows. It returns the parts that others hold or have changed
// meanwhile. From the first retry on, rows are locked one after the other in the
// same order by all: whoever gets the first wins.
func (tx *txn) prepare(ctx context.Context, careful bool) (busy []part, err error) {
	if tx.id, err = tx.e.newTxID(); err != nil {
		return nil, err
	}
	created := make(chan error, 1)
	go func() { created <- tx.create(ctx) }()
	rows, err := tx.read(ctx)
	if failed := <-created; failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	images := make([]image, len(rows))
	for i, r := range rows {
		tx.parts[i].row = r
		// A lock that is left is that of an undecided transaction.
		if images[i], err = r.image(record{}); err != nil {
			return nil, err
		}
		if r.state.locked {
			busy = append(busy, tx.parts[i])
		}
	}
	if err := tx.e.compare(tx.parts, images); err != nil || len(busy) > 0 {
		return busy, err
	}
	tx.version = tx.e.nextVersion(tx.parts)
	if busy, err = tx.lockAll(ctx, careful); err != nil || len(busy) > 0 {
		return busy, err
	}
	return nil, tx.e.writeHints(ctx, tx.parts, tx.version, tx.id[:])
}

// create makes the record. If it cannot be known whether that worked, the record
// says so; if it is missing the id is given up.
func (tx *txn) create(ctx context.Context) error {
	participants := encodeParticipants(tx.parts)
	err := tx.e.createRecord(ctx, tx.id, participants)
	for try := 1; isCode(err, codes.ResourceExhausted) && try < callAttempts; try++ {
		if err := pause(ctx, firstBackoff<<try); err != nil {
			return err
		}
		err = tx.e.createRecord(ctx, tx.id, participants)
	}
	var failed *callError
	if !errors.As(err, &failed) || !failed.maybe() {
		return err
	}
	records, readErr := tx.e.readRecords(ctx, []txID{tx.id})
	if readErr != nil {
		return readErr
	}
	if records[tx.id].status == pending {
		return nil
	}
	return errors.Join(errAborted, err)
}

// read reads the rows and takes away the locks that nobody needs any more.
func (tx *txn) read(ctx context.Context) ([]*row, error) {
	places := make([]*row, len(tx.parts))
	for i := range tx.parts {
		places[i] = &row{space: tx.parts[i].space, key: tx.parts[i].key}
	}
	rows, err := tx.e.readAll(ctx, places, rowFilter)
	if err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i, r := range rows {
		if r.state.locked {
			g.Go(func() (err error) {
				rows[i], err = tx.e.settle(ctx, r)
				return err
			})
		}
	}
	return rows, g.Wait()
}

func (tx *txn) lockAll(ctx context.Context, careful bool) (busy []part, err error) {
	missed := make([]bool, len(tx.parts))
	var stop atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	if g.SetLimit(fanOut); careful {
		g.SetLimit(1)
	}
	for i := range tx.parts {
		p := &tx.parts[i]
		if stop.Load() {
			break
		}
		never := version{p: tx.id.p(), writer: tx.e.writer}
		tx.locks[i] = p.row.state.lockedBy(tx.id, p.intent().encode(), never)
		g.Go(func() error {
			done, err := tx.lock(ctx, p, tx.locks[i])
			if missed[i] = !done; !done {
				stop.Store(true)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i := range missed {
		if missed[i] {
			busy = append(busy, tx.parts[i])
		}
	}
	return busy, nil
}

// lock reports whether the row is locked now.
func (tx *txn) lock(ctx context.Context, p *part, lock []byte) (bool, error) {
	res, err := tx.e.cas(ctx, "lock row", p.space.table, p.key, stateCell.is(p.row.state.raw), newMutation().set(stateCell, lock))
	if !res.unsure || res.applied {
		return res.applied, err
	}
	now, readErr := tx.e.readCell(ctx, "read lock", p.space.table, p.key, stateCell)
	if readErr == nil && bytes.HasPrefix(now, lock[:headerSize]) {
		return true, nil
	}
	return false, err
}

// decide commits, and returns as soon as that is certain. It goes on behind the
// caller's back until the rows are finished, or, if the caller's context ends,
// until it is known what happened. free is called in the end.
func (tx *txn) decide(ctx context.Context, free func()) error {
	outcome := make(chan error, 1)
	tx.e.job(func(base context.Context) {
		defer free()
		err := tx.commit(base)
		if err == nil {
			tx.e.own.add(tx.id, tx.version)
		}
		outcome <- err
		switch {
		case err == nil:
			tx.finish(base, record{status: committed, version: tx.version})
			tx.e.own.remove(tx.id)
			for i := range tx.parts {
				if p := &tx.parts[i]; tx.fed(i) {
					tx.e.wakeFeed(p.space, p.key, []byte{})
				}
			}
		case !errors.Is(err, kv.ErrUnknownOutcome):
			tx.undo(base)
		}
	})
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return errors.Join(kv.ErrUnknownOutcome, ctx.Err())
	}
}

// fed reports whether part i has a feed entry. The caller's transaction is not to be
// looked at any more when this is asked.
func (tx *txn) fed(i int) bool { return tx.locks[i][headerSize+1]&optionFeed != 0 }

// commitTries is how often it is tried to find out whether a commit happened. It
// takes about half a minute.
const commitTries = 8

// commit sets the record to committed. After an error other than
// kv.ErrUnknownOutcome it never will be.
func (tx *txn) commit(ctx context.Context) error {
	status := tx.version.append([]byte{committed})
	unsure := false
	var err error
	for try := range commitTries {
		var res set
		res, err = tx.e.cas(ctx, "commit", tx.e.logTable, logKey(tx.id), recordCell.is([]byte{pending}), newMutation().set(recordCell, status))
		unsure = unsure || res.unsure
		switch {
		case res.applied:
			return nil
		case err == nil && !unsure:
			return errAborted // nobody but us commits
		case err != nil && !unsure:
			return err
		}
		records, readErr := tx.e.readRecords(ctx, []txID{tx.id})
		if rec := records[tx.id]; readErr == nil && rec.status == committed {
			return nil
		} else if readErr == nil && rec.status != pending {
			return errAborted
		}
		if pause(ctx, firstBackoff<<try) != nil {
			break
		}
	}
	return errors.Join(kv.ErrUnknownOutcome, err)
}

// finish finishes the rows for which a lock was sent.
func (tx *txn) finish(ctx context.Context, rec record) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for i, lock := range tx.locks {
		if lock == nil {
			continue
		}
		p := &tx.parts[i]
		g.Go(func() error {
			st, err := parseState(lock)
			if err == nil {
				_, err = tx.e.finish(ctx, &row{space: p.space, key: p.key, state: st, item: p.row.item}, rec)
			}
			if err != nil {
				tx.e.log.Debug("bigtable: row not finished, left to others", "space", p.space.Name, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // never fails
}

// undo aborts the transaction and takes its locks away.
func (tx *txn) undo(ctx context.Context) {
	if tx.id == (txID{}) {
		return
	}
	// From P; or from none, so that a creation that comes late finds the id taken.
	for _, raw := range [][]byte{{pending}, nil} {
		if done, err := tx.e.abort(ctx, tx.id, raw); done || err != nil {
			break
		}
	}
	tx.finish(ctx, record{status: aborted})
}

// abandon undoes the transaction. If there will be another attempt it waits for
// that, as long as ctx lasts.
func (tx *txn) abandon(ctx context.Context, free func(), wait bool) {
	done := make(chan struct{})
	tx.e.job(func(base context.Context) {
		defer close(done)
		defer free()
		tx.undo(base)
	})
	if !wait {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// lockedSnapshot reads rows at one instant by locking them.
func (e *Engine) lockedSnapshot(ctx context.Context, places []*row) ([]image, error) {
	index := map[participant]int{}
	var parts []part
	for _, p := range places {
		id := participant{p.space.table.name, p.key}
		if _, ok := index[id]; !ok {
			index[id] = -1
			parts = append(parts, part{space: p.space, key: p.key})
		}
	}
	sortParts(parts)
	tx, err := e.commitMany(ctx, parts)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		index[participant{parts[i].space.table.name, parts[i].key}] = i
	}
	images := make([]image, len(places))
	for i, p := range places {
		if images[i], err = tx.parts[index[participant{p.space.table.name, p.key}]].row.image(record{}); err != nil {
			return nil, err
		}
	}
	return images, nil
}
