package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	defaultLifecyclePeriod = 24 * time.Hour

	// lifecycleBatch is how many objects one Step looks at. It bounds how long a
	// Step takes, not how much memory: candidates are removed as they are met.
	lifecycleBatch = 1000

	// lifecycleFailures is how many failed removals end a Step early: then the
	// store is at fault, not the object.
	lifecycleFailures = 100

	// lifecycleRetry is the wait after a failed Step.
	lifecycleRetry = time.Minute
)

// Lifecycle removes the objects of a Store that nobody has finalized within
// UnfinalizedLifetime, for stores that have no rule of their own.
//
// It never removes a finalized object: it reads the attributes again right
// before, and the removal is conditional on them, so that a Finalize at the
// last moment wins. Several workers on one store do no harm.
//
// Step and Run must not be called concurrently.
type Lifecycle struct {
	store  *Store
	period time.Duration
	log    *slog.Logger
	after  string // name last looked at in this pass
}

// LifecycleOptions adjusts a Lifecycle. The zero value is ready to use.
type LifecycleOptions struct {
	// Period is the pause between two passes over all objects. Default: one day.
	Period time.Duration

	// Logger gets a line for each batch that removed something and for each that
	// failed. Default: none.
	Logger *slog.Logger
}

// NewLifecycle returns a worker on store, whose clock decides about age.
func NewLifecycle(store *Store, opts LifecycleOptions) *Lifecycle {
	if opts.Period <= 0 {
		opts.Period = defaultLifecyclePeriod
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Lifecycle{store: store, period: opts.Period, log: opts.Logger}
}

// Step looks at the next objects and removes those that are due. It reports
// whether more are to come in this pass over the store; after false, the next
// Step starts a new pass. An object that cannot be removed does not hold up the
// others: the error names the first, and the next pass tries again.
func (l *Lifecycle) Step(ctx context.Context) (bool, error) {
	var seen, removed, failed int
	var firstErr error
	due := l.store.clock.Now().Add(-UnfinalizedLifetime)
	err := l.store.List(ctx, "", l.after, func(a Attrs) bool {
		if expired(a, due) {
			ok, err := l.expire(ctx, a.Name, due)
			if ok {
				removed++
			}
			if err != nil {
				failed++
				firstErr = cmp.Or(firstErr, err)
			}
		}
		l.after = a.Name
		seen++
		return seen < lifecycleBatch && failed < lifecycleFailures && ctx.Err() == nil
	})
	if removed > 0 {
		l.log.Info("removed objects that were never finalized", "removed", removed, "looked_at", seen)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, err
	}
	more := seen == lifecycleBatch || failed == lifecycleFailures
	if !more {
		l.after = ""
	}
	if failed > 0 {
		return more, fmt.Errorf("blob: lifecycle: %d objects could not be removed: %w", failed, firstErr)
	}
	return more, nil
}

// expire removes the object if it is still due.
func (l *Lifecycle) expire(ctx context.Context, name string, due time.Time) (bool, error) {
	a, err := l.store.Stat(ctx, name)
	if errors.Is(err, ErrNotFound) || err == nil && !expired(a, due) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return l.store.remove(ctx, "expire", name, Condition{Unfinalized: true, CustomTime: a.CustomTime})
}

func expired(a Attrs, due time.Time) bool { return !a.Committed && a.CustomTime.Before(due) }

// Run repeats Step: at once while there is more, else after the period, or a
// minute after an error. It returns nil when ctx is done.
func (l *Lifecycle) Run(ctx context.Context) error {
	for {
		more, err := l.Step(ctx)
		wait := l.period
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			l.log.Warn("lifecycle step failed", "error", err)
			wait = min(wait, lifecycleRetry)
		case more:
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}
