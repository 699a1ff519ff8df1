package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Engine is the engine on one folder. It is safe for concurrent use.
type Engine struct {
	dir   string
	db    *pebbledb.DB
	disk  *freezer
	lock  *pebbledb.Lock
	clock clock.Clock
	log   *slog.Logger
	calls calls
	// panicked: Pebble has panicked, see survive.
	panicked atomic.Bool

	flights *flights
	ceiling ceiling
	locks   locks
	seed    maphash.Seed
	memo    memo
	room    room

	// catalogMu is held shared by commits and exclusively while the set of
	// spaces changes, so that no commit writes to a space being dropped.
	catalogMu sync.RWMutex
	catalog   atomic.Pointer[map[string]*space]
}

var _ kv.Engine = (*Engine)(nil)

// Limits returns what one commit may hold. A commit is in memory about three
// times while it is applied: as the caller's slices, as the batch, and as the
// index over the batch until it is flushed.
func Limits() kv.Limits { return kv.Limits{CommitRows: 200_000, CommitBytes: 288 << 20} }

// Close waits for running calls, closes the folder and gives it up to others.
func (e *Engine) Close() error {
	if !e.calls.close() {
		return nil
	}
	var errs []error
	if e.disk.err() == nil {
		// Nothing is in flight: the next run may go on right behind the last
		// version instead of at the ceiling. Flushing leaves no data in the log,
		// whose last few kilobytes Pebble cannot tell from a torn write if they
		// get damaged.
		errs = append(errs, e.db.Set(ceilingKey, versionBytes(e.flights.last), pebbledb.Sync), e.db.Flush())
	}
	if !e.panicked.Load() { // a panic leaves Pebble in no state to be closed
		errs = append(errs, e.db.Close())
	}
	errs = append(errs, e.disk.err(), e.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pebble: close folder %s: %w", e.dir, err)
	}
	return nil
}

// enter begins a call, and leave must follow if it succeeds.
func (e *Engine) enter(ctx context.Context) error {
	if !e.calls.enter() {
		return kv.ErrClosed
	}
	err := ctx.Err()
	if err == nil {
		err = e.failed()
	}
	if err != nil {
		e.calls.leave()
	}
	return err
}

func (e *Engine) leave() { e.calls.leave() }

// failed returns the error of every call after the folder was frozen.
func (e *Engine) failed() error {
	if err := e.disk.err(); err != nil {
		return fmt.Errorf("folder %s cannot be written any more, repair it and start holdfast again: %w", e.dir, err)
	}
	return nil
}

// explain returns why a call failed. On a frozen folder reads fail in odd ways,
// since Pebble takes for written what is not; conflicts there are no better.
func (e *Engine) explain(err error) error {
	if err == nil || errors.Is(err, kv.ErrUnknownOutcome) || errors.Is(err, kv.ErrClosed) {
		return err
	}
	return firstOf(e.failed(), err)
}

// translate turns an error of Pebble into one of the contract.
func translate(err error) error {
	if pebbledb.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", kv.ErrCorrupt, err)
	}
	return err
}

// survive turns a panic of Pebble into an error, and freezes the folder. Pebble
// panics instead of returning the corruption that it found when it opened a file of
// separated values (as of v2.1.7, in reportCorruption); other panics go on.
func (e *Engine) survive(err *error) {
	p := recover()
	if p == nil {
		return
	}
	if text, ok := p.(string); !ok || !strings.HasPrefix(text, "unknown metadata type") {
		panic(p)
	}
	e.panicked.Store(true)
	e.disk.fail(fmt.Errorf("%w: a file of values cannot be opened", kv.ErrCorrupt))
	*err = e.failed()
}

// calls counts running calls, so that Close can wait for them. Unlike a
// read-write lock it lets a call run inside another one while Close waits.
type calls struct {
	state   atomic.Int64
	once    sync.Once
	drained chan struct{}
}

const closing = 1 << 62

func (c *calls) enter() bool {
	if c.state.Add(1)&closing != 0 {
		c.leave()
		return false
	}
	return true
}

func (c *calls) leave() {
	if c.state.Add(-1) == closing {
		c.once.Do(func() { close(c.drained) })
	}
}

// close lets no further call in and waits for the running ones. It reports
// whether it was the first to be called.
func (c *calls) close() bool {
	old := c.state.Or(closing)
	if old == 0 {
		c.once.Do(func() { close(c.drained) })
	}
	<-c.drained
	return old&closing == 0
}
