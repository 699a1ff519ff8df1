package postgres

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Engine is the engine in one schema of a database. It is safe for concurrent use.
type Engine struct {
	pool     *pgxpool.Pool
	listen   *pgx.ConnConfig
	schema   string // the name
	prefix   string // what stands before the name of a table: the schema, quoted, and a dot
	lockBase int64
	// commitSQL is the statement of every commit.
	commitSQL string
	clock     clock.Clock
	log       *slog.Logger
	calls     calls
	// work ends when the engine is closed, and what runs in the background with it.
	work context.Context
	stop context.CancelFunc

	standby standby
	catalog catalog
	chores  chores
	signals signals
}

var (
	_ kv.Engine   = (*Engine)(nil)
	_ kv.Signaler = (*Engine)(nil)
)

// Limits returns what one commit may hold. The bytes of a commit are about four
// times in the server's memory, as the message, the parameters, their parts by
// space, and the rows; one parameter may have 1 GB. Some 100,000 rows are written
// in a few seconds, during which commits of rows nearby wait.
func Limits() kv.Limits { return kv.Limits{CommitRows: 100_000, CommitBytes: 64 << 20} }

// Close waits for running calls and closes the connections.
func (e *Engine) Close() error {
	if !e.calls.close() {
		return nil
	}
	e.stop()
	e.calls.background.Wait()
	e.standby.close()
	e.pool.Close()
	return nil
}

// enter begins a call, and leave must follow if it succeeds.
func (e *Engine) enter(ctx context.Context) error {
	if !e.calls.enter() {
		return kv.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		e.calls.leave()
		return err
	}
	return nil
}

func (e *Engine) leave() { e.calls.leave() }

// inBackground runs fn, which has to end when its context does, unless the engine
// is being closed.
func (e *Engine) inBackground(fn func(ctx context.Context)) {
	if !e.calls.enter() {
		return
	}
	defer e.calls.leave()
	e.calls.background.Go(func() { fn(e.work) })
}

// calls counts running calls, so that Close can wait for them. Unlike a
// read-write lock it lets a call run inside another one while Close waits.
type calls struct {
	state   atomic.Int64
	once    sync.Once
	drained chan struct{}
	// background counts what calls have left running.
	background sync.WaitGroup
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
