package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

const (
	// batchSize is how many messages one Step takes in hand.
	batchSize = 100

	defaultConcurrency = 4
	defaultWait        = 10 * time.Second

	// storeTimeout bounds one operation on the object store, sourceTimeout one
	// on the source. They go on when the context has ended.
	storeTimeout  = 10 * time.Second
	sourceTimeout = 10 * time.Second

	// outageAfter is how many operations of the store must fail in a row to be
	// taken for an outage: a few more than one bad object causes by itself.
	outageAfter = 5

	retryFirst = time.Second
	retryMost  = time.Minute
)

// errOutage ends a Step when the object store has failed several times in a row.
var errOutage = errors.New("object store fails; messages are left in the queue")

// Options adjusts a Reconciler. The zero value is ready to use, but for the clock.
type Options struct {
	// Clock measures operations and the age of records.
	Clock clock.Clock
	// Concurrency is how many messages are worked on at a time. Default: 4.
	Concurrency int
	// Wait is how long a Step waits for messages. Default: 10 seconds.
	Wait time.Duration
	// RequireTransactionTag refuses records that remove a staged row and have no
	// field for the transaction's tag, so that nobody can tell a hand-over from a
	// release. For sources that may lose it.
	RequireTransactionTag bool
	// DeleteDelay is how long after its commit a record's deletions are done. It
	// gives those time who have read a row and are about to read its object. It
	// has no effect on records without a readable time.
	DeleteDelay time.Duration
	// Metrics gets the metrics payload_reconciler.*.
	Metrics *metrics.Registry
	// Log gets a line for each message that failed. Default: none.
	Log *slog.Logger
}

// Reconciler handles the messages of a source. Only one of Step, Run and Once may
// run at a time; several Reconcilers on one source do no harm.
type Reconciler struct {
	source  Source
	objects blob.Finisher
	opts    Options
	names   locks
	meters  meters
	// failures is how many operations of the store have failed in a row.
	failures atomic.Int64
}

// New returns a Reconciler of the objects that the messages of source name.
func New(source Source, objects blob.Finisher, opts Options) *Reconciler {
	if opts.Concurrency <= 0 {
		opts.Concurrency = defaultConcurrency
	}
	if opts.Wait <= 0 {
		opts.Wait = defaultWait
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{source: source, objects: objects, opts: opts, meters: newMeters(opts.Metrics)}
}

// Run repeats Step until ctx is done: at once while things go well, else after a
// growing wait. Then it returns nil; the messages in hand are finished first. It
// returns an error that wraps ErrClosed if the source has ended for good.
func (r *Reconciler) Run(ctx context.Context) error {
	r.meters.runs.Add(1)
	return r.follow(ctx, false)
}

// Once repeats Step until the source is empty, the budget is spent or ctx is done,
// and returns nil then. The budget is looked at between batches. Messages that
// failed and are to be tried again later do not count. An error is that of Run.
func (r *Reconciler) Once(ctx context.Context, budget time.Duration) error {
	r.meters.runs.Add(1)
	began := r.opts.Clock.Now()
	bounded, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	err := r.follow(bounded, true)
	r.meters.drainDuration.Observe(r.opts.Clock.Now().Sub(began))
	if errors.Is(bounded.Err(), context.DeadlineExceeded) {
		r.meters.budgetExhausted.Add(1)
	}
	return err
}

func (r *Reconciler) follow(ctx context.Context, untilEmpty bool) error {
	retry := retryFirst
	for ctx.Err() == nil {
		found, err := r.Step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrClosed):
			return err
		case err != nil:
			r.opts.Log.Warn("reconciliation waits", "error", err, "wait", retry)
			pause(ctx, retry/2+rand.N(retry))
			retry = min(2*retry, retryMost)
			continue
		case !found && untilEmpty:
			return nil
		}
		retry = retryFirst
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Step waits for messages, handles a batch of them and acknowledges those that are
// done. It reports whether there were any. Messages that fail are no error of Step;
// the source not answering is, and so is an object store that fails again and
// again: then what is left of the batch goes back untried, and the next Steps try
// one message each until one gets through.
//
// When ctx ends, messages that have been begun are finished and the others given
// back.
func (r *Reconciler) Step(ctx context.Context) (bool, error) {
	size := batchSize
	if r.outage() {
		size = 1
	}
	waiting, cancel := context.WithTimeout(ctx, r.opts.Wait)
	batch, err := r.source.Receive(waiting, size)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			r.meters.errors.Add(1, "pull")
		}
		return false, err
	}
	if len(batch) == 0 {
		return false, nil
	}
	err = r.work(ctx, batch)
	if err == nil && r.outage() {
		err = errOutage
	}
	return true, err
}

func (r *Reconciler) outage() bool { return r.failures.Load() >= outageAfter }
