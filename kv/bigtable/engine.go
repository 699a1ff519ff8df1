package bigtable

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/kv"
)

// Engine is the engine on one instance, or on two. Any number of them, in any
// number of processes, may be open on the same instance. It is safe for concurrent
// use.
type Engine struct {
	opts   Options
	log    *slog.Logger
	hybrid hybrid
	writer [writerSize]byte
	// hook sees every call to the service: see call.
	hook func(step string) error

	meta, data           *bt.Client
	metaAdmin, dataAdmin *bt.AdminClient

	catalogTable, logTable, streamTable, outboxTable *table

	spacesMu sync.RWMutex
	spaces   map[string]*space // existing ones, as far as known

	calls calls
	// base is the context of what goes on behind the callers' backs, and ends when
	// Close has waited long enough.
	base   context.Context
	cancel context.CancelFunc
	jobs   sync.WaitGroup
	// loops is the context of the sweeper and the forwarder.
	loops     context.Context
	stopLoops context.CancelFunc
	running   sync.WaitGroup

	stripes stripes
	own     ownTxns
	helping helping
	sweep   sweeper
	feeds   feeds
	// readerPatience is how long a reader of a feed waits for the owner of the shard.
	readerPatience time.Duration
	closeTimeout   time.Duration
}

var _ kv.Engine = (*Engine)(nil)

// closeTimeout is how long Close waits for transactions to be finished. What is
// left then, others will find.
const closeTimeout = 10 * time.Second

// Close waits for running calls, and for what they left to be done.
func (e *Engine) Close() error {
	if !e.calls.close() {
		return nil
	}
	e.stopLoops()
	e.running.Wait()
	release, cancel := context.WithTimeout(e.base, callTimeout)
	e.releaseFeeds(release)
	cancel()
	timer := time.AfterFunc(e.closeTimeout, e.cancel)
	e.jobs.Wait()
	timer.Stop()
	e.cancel()
	return e.closeClients()
}

func (e *Engine) closeClients() error {
	var errs []error
	if e.data != nil {
		errs = append(errs, e.data.Close())
	}
	if e.dataAdmin != nil {
		errs = append(errs, e.dataAdmin.Close())
	}
	if e.meta != nil && e.meta != e.data {
		errs = append(errs, e.meta.Close())
	}
	if e.metaAdmin != nil && e.metaAdmin != e.dataAdmin {
		errs = append(errs, e.metaAdmin.Close())
	}
	return errors.Join(errs...)
}

// job does something behind the back of a caller, whose call must be running.
func (e *Engine) job(fn func(ctx context.Context)) {
	e.jobs.Go(func() { fn(e.base) })
}

// loop runs fn until Close.
func (e *Engine) loop(fn func(ctx context.Context)) {
	e.running.Go(func() { fn(e.loops) })
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
