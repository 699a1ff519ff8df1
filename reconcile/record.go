package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/changes"
)

// handle does what one message asks for, in its order. After an error the
// operations before it have been done; the message comes again and repeats them.
// If until is not zero, deletions are left to do that are due then.
func (r *Reconciler) handle(ctx context.Context, m Message) (until time.Time, err error) {
	record, malformed := changes.Decode(m.Data)
	committed, _ := time.Parse(time.RFC3339Nano, record.CommitTimestamp) // zero if there is no telling
	due := committed.Add(r.opts.DeleteDelay)
	early := r.opts.DeleteDelay > 0 && !committed.IsZero() && r.opts.Clock.Now().Before(due)
	operations := 0
	for _, mod := range record.Mods {
		if mod.New != "" {
			if err := r.finalize(ctx, mod.New, committed); err != nil {
				return time.Time{}, err
			}
			operations++
		}
		if mod.Old == "" || mod.Old == mod.New {
			continue
		}
		operations++
		switch {
		case record.IsHandover(mod):
			r.meters.batchCommitSkips.Add(1)
		case r.opts.RequireTransactionTag && record.Untagged && record.TableName == changes.StagedTable && mod.New == "":
			return time.Time{}, errUntagged
		case early:
			until = due
		default:
			if err := r.delete(ctx, mod.Old); err != nil {
				return time.Time{}, err
			}
		}
	}
	if malformed != nil {
		return time.Time{}, malformed
	}
	if operations == 0 {
		r.meters.noopSkips.Add(1)
	}
	return until, nil
}

// errUntagged: see Options.RequireTransactionTag.
var errUntagged = errors.New("a staged row was removed, but the record has no transactionTag: its object may be in service")

func (r *Reconciler) finalize(ctx context.Context, link string, committed time.Time) error {
	found, err := r.operate(ctx, "finalize", link, r.objects.Finalize)
	if err != nil {
		return err
	}
	if !found {
		return nil
	}
	r.meters.finalizes.Add(1)
	if !committed.IsZero() {
		r.meters.finalizeAge.Observe(r.opts.Clock.Now().Sub(committed))
	}
	return nil
}

func (r *Reconciler) delete(ctx context.Context, link string) error {
	found, err := r.operate(ctx, "delete", link, r.objects.Delete)
	if err == nil && found {
		r.meters.orphanDeletes.Add(1)
	}
	return err
}

// operate does one operation on the object of a link, alone on its name. A link of
// another store is an error, and its object is left alone.
func (r *Reconciler) operate(ctx context.Context, op, link string, do func(context.Context, string) (bool, error)) (bool, error) {
	name, err := r.objects.Name(link)
	if err != nil {
		return false, fmt.Errorf("reconcile: %s: %w", op, err)
	}
	r.names.lock(name)
	defer r.names.unlock(name)
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	began := r.opts.Clock.Now()
	found, err := do(ctx, name)
	result := "success"
	switch {
	case err != nil:
		result = "error"
		r.failures.Add(1)
		err = fmt.Errorf("reconcile: %w", err)
	case !found:
		result = "not_found"
		r.meters.notFound.Add(1, op)
	}
	if err == nil {
		r.failures.Store(0)
	}
	r.meters.storeOps.Observe(r.opts.Clock.Now().Sub(began), op, result)
	return found, err
}

// locks keeps operations on one name apart. The zero value is ready to use.
type locks struct {
	mu   sync.Mutex
	held map[string]*nameLock
}

type nameLock struct {
	free  chan struct{} // has one element while nobody holds the lock
	users int           // holders and those who wait; guarded by locks.mu
}

func (l *locks) lock(name string) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*nameLock{}
	}
	k := l.held[name]
	if k == nil {
		k = &nameLock{free: make(chan struct{}, 1)}
		k.free <- struct{}{}
		l.held[name] = k
	}
	k.users++
	l.mu.Unlock()
	<-k.free
}

func (l *locks) unlock(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[name]
	k.free <- struct{}{}
	if k.users--; k.users == 0 {
		delete(l.held, name)
	}
}
