package expiry

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/lease"
	"github.com/holdfast-dev/holdfast/metrics"
)

const (
	defaultInterval = 10 * time.Second
	defaultRescan   = 10 * time.Minute

	// overlap is how far behind the present a pass begins that follows another
	// one. It makes up for clocks that differ and for commits that take long.
	overlap = 2 * time.Minute

	// pageEntries is how many entries of a shard one Step handles.
	pageEntries = 2048

	// rowsPerTransaction keeps transactions small enough for all engines and
	// large enough to share the cost of a commit.
	rowsPerTransaction = 256

	// patience is how many conflicts a transaction of several rows may have
	// before its rows are removed one by one.
	patience = 3

	retryFirst = time.Second
	retryMost  = time.Minute
)

// Options adjusts a Sweeper. The zero value is ready to use, but for the clock.
type Options struct {
	// Clock says which entries are due. Whether a row has expired is the
	// engine's decision.
	Clock clock.Clock
	// Interval is the wait after a pass that found nothing. Default: 10 seconds.
	Interval time.Duration
	// Rescan is how often a shard is read from its beginning. Between these
	// passes the sweeper does not look again at times that it has passed, where
	// the engine may keep the traces of many removed entries. So it is also how
	// long a row may have to wait that was written with an expiry in the past,
	// or whose removal failed. Default: 10 minutes.
	Rescan time.Duration
	// Leases, if not nil, share the shards out among the processes that run a
	// Sweeper. They spare work; nothing depends on them.
	Leases *lease.Manager
	// Concurrency is how many shards are swept at once. Default: 4.
	Concurrency int
	// Metrics gets the metrics expiry.removed and expiry.stale (rows and
	// entries, by space), expiry.failed, expiry.unknown, and expiry.lag_seconds.
	Metrics *metrics.Registry
	// Logger gets a line for each batch with failures. Default: none.
	Logger *slog.Logger
}

// Sweeper removes expired rows and the entries that have lost their row. Step and
// Run must not be called concurrently; several Sweepers, also of several
// processes, do no harm to each other.
//
// Whatever the index says, a row is removed only if it has expired by what its
// transaction reads; the transaction conflicts with every other write to the row.
type Sweeper struct {
	db     *kv.DB
	index  *Index
	clock  clock.Clock
	opts   Options
	rows   int
	shards [Shards]shard
	// owned has the epoch in which this process sweeps a shard, 0 if it does not.
	owned [Shards]atomic.Uint64

	removed, stale, failed, unknown *metrics.Counter
	lag                             *metrics.Gauge
}

// shard is how far a range of the index has been swept.
type shard struct {
	epoch  uint64    // of the ownership that this is about
	next   []byte    // where the next Step goes on
	rescan time.Time // when to begin at the beginning
}

// NewSweeper returns a sweeper of the rows that index knows. Its transactions run
// on db, whose hooks must include Index.Hook and those of whoever wants to see
// the removals.
func NewSweeper(db *kv.DB, index *Index, opts Options) *Sweeper {
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	if opts.Rescan <= 0 {
		opts.Rescan = defaultRescan
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = 4
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	m := opts.Metrics.Group("expiry")
	s := &Sweeper{
		db: db, index: index, clock: opts.Clock, opts: opts,
		// Each row may bring its entry, a counter and some messages.
		rows:    max(1, min(rowsPerTransaction, db.Limits().CommitRows/8)),
		removed: m.Counter("removed", "space"), stale: m.Counter("stale", "space"),
		failed: m.Counter("failed", "space"), unknown: m.Counter("unknown", "space"),
		lag: m.Gauge("lag_seconds"),
	}
	if opts.Leases == nil {
		for i := range s.owned {
			s.owned[i].Store(1)
		}
	}
	return s
}

// Run repeats Step: at once while there is work, else after the interval, or after
// a growing wait if there were errors. It returns nil when ctx is done.
func (s *Sweeper) Run(ctx context.Context) error {
	if s.opts.Leases == nil {
		return s.run(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.run(ctx) })
	group.Go(func() error { return s.compete(ctx) })
	return group.Wait()
}

// compete owns this process's share of the shards until ctx ends.
func (s *Sweeper) compete(ctx context.Context) error {
	names := make([]string, Shards)
	numbers := map[string]int{}
	for i := range names {
		names[i] = fmt.Sprintf("expiry/%d", i)
		numbers[names[i]] = i
	}
	err := s.opts.Leases.Compete(ctx, "expiry", names, func(ctx context.Context, l *lease.Lease) error {
		owned := &s.owned[numbers[l.Name()]]
		owned.Store(l.Epoch())
		<-ctx.Done()
		owned.Store(0)
		return nil
	})
	if ctx.Err() != nil {
		return nil // the manager may have stopped for the same reason
	}
	return err
}

func (s *Sweeper) run(ctx context.Context) error {
	retry := retryFirst
	for {
		worked, err := s.Step(ctx)
		wait := s.opts.Interval
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.opts.Logger.Warn("sweep of expired rows failed", "error", err)
			wait, retry = retry, min(2*retry, retryMost)
		case worked:
			retry = retryFirst
			continue
		default:
			retry = retryFirst
		}
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// Step handles the next entries of each shard that is this process's, and reports whether it removed
// anything or saw that there is more to do. An error does not keep the other
// shards from being swept. A shard whose rows could not be read or written is
// tried again from the same place; a row that cannot be removed is passed over
// until the next rescan.
func (s *Sweeper) Step(ctx context.Context) (bool, error) {
	var worked [Shards]bool
	var oldest [Shards]uint64
	var errs [Shards]error
	var group errgroup.Group
	group.SetLimit(s.opts.Concurrency)
	now := s.clock.Now()
	for i := range s.shards {
		epoch := s.owned[i].Load()
		if epoch == 0 {
			continue
		}
		if s.shards[i].epoch != epoch {
			s.shards[i] = shard{epoch: epoch} // another process has swept it
		}
		group.Go(func() error {
			worked[i], oldest[i], errs[i] = s.sweep(ctx, byte(i), now)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	lag, any := uint64(0), false
	for i := range oldest {
		if t := uint64(now.Unix()); oldest[i] != 0 && oldest[i] < t {
			lag = max(lag, t-oldest[i])
		}
		any = any || worked[i]
	}
	s.lag.Set(float64(lag))
	return any, errors.Join(errs[:]...)
}

// sweep handles the next page of a shard. It returns the time of the first entry
// that was due, 0 if none was.
func (s *Sweeper) sweep(ctx context.Context, i byte, now time.Time) (worked bool, oldest uint64, err error) {
	sh := &s.shards[i]
	if sh.next == nil {
		sh.next, sh.rescan = bound(i, 0), now.Add(s.opts.Rescan)
	}
	end := bound(i, uint64(now.Unix())+1)
	if bytes.Compare(sh.next, end) >= 0 {
		sh.next = nil // the clock has jumped back
		return false, 0, nil
	}
	page, last, err := s.page(ctx, sh.next, end)
	if err != nil {
		return false, 0, fmt.Errorf("expiry: scan shard %d: %w", i, err)
	}
	if len(page) > 0 {
		oldest = page[0].Seconds
	}
	t, err := s.handle(ctx, page)
	if err != nil {
		return t.work > 0, oldest, fmt.Errorf("expiry: sweep shard %d: %w", i, err)
	}
	more := last != nil
	switch {
	case more:
		sh.next = append(last, 0)
	case !now.Before(sh.rescan):
		sh.next = nil
	default:
		sh.next = bound(i, uint64(max(0, now.Add(-overlap).Unix())))
	}
	return t.work > 0 || more, oldest, t.failure
}

// bound is where the entries of a shard with this time begin.
func bound(shard byte, seconds uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{shard}, seconds)
}

// page reads entries. If there may be more of them, last is the key of the last
// one read.
func (s *Sweeper) page(ctx context.Context, from, to []byte) (page []Entry, last []byte, err error) {
	n := 0
	err = s.db.Scan(ctx, IndexSpace, kv.Range{Start: from, End: to, Limit: pageEntries}, func(row kv.Row) bool {
		row.Key = bytes.Clone(row.Key)
		if n++; n == pageEntries {
			last = row.Key
		}
		e, err := ParseEntry(row)
		if err != nil {
			s.unknown.Add(1, "")
			return true
		}
		page = append(page, e)
		return true
	})
	return page, last, err
}

// tally is what became of some entries.
type tally struct {
	work    int   // rows and entries removed
	failure error // of the first row that could not be removed
}

// handle removes the rows of a page, each transaction those of one space.
func (s *Sweeper) handle(ctx context.Context, page []Entry) (tally, error) {
	var t tally
	var order []string
	bySpace := map[string][]Entry{}
	for _, e := range page {
		if _, ok := bySpace[e.Space]; !ok {
			order = append(order, e.Space)
		}
		bySpace[e.Space] = append(bySpace[e.Space], e)
	}
	for _, name := range order {
		space, ok := s.index.spaces(name)
		entries := bySpace[name]
		if !ok {
			s.unknown.Add(int64(len(entries)), name)
			continue
		}
		n := s.rows
		if space.Rows > 0 {
			n = min(n, space.Rows)
		}
		for len(entries) > 0 {
			n = min(n, len(entries))
			if err := s.remove(ctx, space, entries[:n], &t); err != nil {
				return t, err
			}
			entries = entries[n:]
		}
	}
	return t, nil
}

// remove removes the rows of entries, which are of one space: in one transaction;
// in several if Remove asks for that; one by one if that does not work.
func (s *Sweeper) remove(ctx context.Context, space Space, entries []Entry, t *tally) error {
	again, err := s.transact(ctx, space, entries, t)
	for err == nil && len(again) > 0 && len(entries) == 1 {
		again, err = s.transact(ctx, space, entries, t)
	}
	switch {
	case err == nil:
		return s.removeEach(ctx, space, again, t)
	case !isRowsFault(err) || ctx.Err() != nil:
		return err
	case len(entries) > 1:
		return s.removeEach(ctx, space, entries, t)
	}
	s.failed.Add(1, entries[0].Space)
	if t.failure == nil {
		t.failure = fmt.Errorf("expiry: remove %s/%q: %w", entries[0].Space, entries[0].RowKey, err)
	}
	return nil
}

func (s *Sweeper) removeEach(ctx context.Context, space Space, entries []Entry, t *tally) error {
	for i := range entries {
		if err := s.remove(ctx, space, entries[i:i+1], t); err != nil {
			return err
		}
	}
	return nil
}

// transact removes, in one transaction, those rows of entries that have expired,
// and the entries that are stale. It returns those that Remove has not finished.
func (s *Sweeper) transact(ctx context.Context, space Space, entries []Entry, t *tally) (again []Entry, err error) {
	attempts, removed, stale := 0, 0, 0
	_, err = s.db.Update(ctx, func(tx *kv.Tx) error {
		if attempts++; attempts > patience && len(entries) > 1 {
			return errContended
		}
		again, removed, stale = nil, 0, 0
		tx.SetTag(changes.ExpiryTag)
		if err := load(tx, entries); err != nil {
			return err
		}
		for _, e := range entries {
			row, err := stored(tx, e)
			if err != nil {
				return err
			}
			if key, ok := s.index.Key(e.Space, row); !ok || !bytes.Equal(key, e.Key) {
				tx.Delete(IndexSpace, e.Key)
				stale++
				continue
			}
			if !row.Expired {
				continue // the engine's clock is behind
			}
			more, err := space.remove(tx, e.Space, row)
			if err != nil {
				return &rowError{err}
			}
			if more {
				again = append(again, e)
			} else {
				removed++
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	name := entries[0].Space
	s.removed.Add(int64(removed), name)
	s.stale.Add(int64(stale), name)
	t.work += removed + stale
	return again, nil
}

func (s Space) remove(tx *kv.Tx, space string, row kv.Row) (more bool, err error) {
	if s.Remove != nil {
		return s.Remove(tx, space, row)
	}
	tx.Delete(space, row.Key)
	return false, nil
}

// load reads all rows of entries at once, so that they need not be read one by
// one. If their space is gone they are stale. A new space of the name may have the
// same entries: so these are read first, and checked, before the second look.
func load(tx *kv.Tx, entries []Entry) error {
	rows, index := make([]kv.Ref, len(entries)), make([]kv.Ref, len(entries))
	for i, e := range entries {
		rows[i] = kv.Ref{Space: e.Space, Key: e.RowKey, IncludeExpired: true}
		index[i] = kv.Ref{Space: IndexSpace, Key: e.Key}
	}
	_, err := tx.GetAll(rows...)
	if !errors.Is(err, kv.ErrSpaceNotFound) {
		return err
	}
	if _, err := tx.GetAll(index...); err != nil {
		return err
	}
	if _, err := tx.GetAll(rows...); !errors.Is(err, kv.ErrSpaceNotFound) {
		return err
	}
	return nil
}

// stored returns the row of an entry as tx leaves it: Remove may have removed it
// with another one.
func stored(tx *kv.Tx, e Entry) (kv.Row, error) {
	rows, err := tx.GetAll(kv.Ref{Space: e.Space, Key: e.RowKey, IncludeExpired: true})
	if errors.Is(err, kv.ErrSpaceNotFound) {
		return kv.Row{}, nil
	}
	if err != nil {
		return kv.Row{}, err
	}
	return rows[0], nil
}

// errContended gives up a transaction of several rows.
var errContended = errors.New("too many conflicts")

// rowError is an error of Space.Remove.
type rowError struct{ err error }

func (e *rowError) Error() string { return e.err.Error() }
func (e *rowError) Unwrap() error { return e.err }

// isRowsFault reports whether other rows may fare better than those of the
// transaction that ended with err.
func isRowsFault(err error) bool {
	var ofRow *rowError
	if errors.As(err, &ofRow) {
		return true
	}
	for _, target := range []error{errContended, kv.ErrTooLarge, kv.ErrInvalid, kv.ErrCorrupt} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
