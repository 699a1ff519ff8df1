package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"
)

// batch is the messages of one Step. Its fields belong to the goroutine that
// called work.
type batch struct {
	r      *Reconciler
	inHand map[string]Message // those whose leases are kept
}

// outcome is how the work on a message ended.
type outcome struct {
	m       Message
	until   time.Time // when to come again for the deletions, if not zero
	err     error
	untried bool
}

// work handles messages, several at a time, renews their leases meanwhile, and
// tells the source of each soon after it is done. It returns the first error of
// the source; the leases of the messages concerned end by themselves.
func (r *Reconciler) work(ctx context.Context, messages []Message) error {
	b := batch{r: r, inHand: make(map[string]Message, len(messages))}
	todo := make(chan Message, len(messages))
	for _, m := range messages {
		b.inHand[m.ID] = m
		todo <- m
	}
	close(todo)
	done := make(chan outcome, len(messages))
	detached := context.WithoutCancel(ctx) // what has been begun is finished
	probe := len(messages) == 1
	var workers sync.WaitGroup
	for range min(r.opts.Concurrency, len(messages)) {
		workers.Go(func() {
			for m := range todo {
				o := outcome{m: m, untried: ctx.Err() != nil || r.outage() && !probe}
				if !o.untried {
					o.until, o.err = r.handle(detached, m)
				}
				done <- o
			}
		})
	}
	err := b.settle(detached, done)
	workers.Wait()
	return err
}

// settle reports outcomes until there is one for each message.
func (b *batch) settle(ctx context.Context, done <-chan outcome) error {
	// Half a lease leaves time for a renewal that is slow, and lets an outage of
	// a store that hangs show before: untried messages are given back for free
	// only while their leases are the first.
	renew := time.NewTicker(max(b.r.source.Lease()/2, time.Millisecond))
	defer renew.Stop()
	var first error
	for len(b.inHand) > 0 {
		var err error
		select {
		case o := <-done:
			outcomes := []outcome{o}
			for len(done) > 0 {
				outcomes = append(outcomes, <-done)
			}
			err = b.report(ctx, outcomes)
		case <-renew.C:
			err = b.renew(ctx)
		}
		first = cmp.Or(first, err)
	}
	return first
}

func (b *batch) renew(ctx context.Context) error {
	ids := make([]string, 0, len(b.inHand))
	for id := range b.inHand {
		ids = append(ids, id)
	}
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	if err := b.r.source.Renew(ctx, ids); err != nil {
		b.r.meters.errors.Add(1, "renew")
		return fmt.Errorf("reconcile: renew %d leases: %w", len(ids), err)
	}
	return nil
}

// report tells the source what became of some messages.
func (b *batch) report(ctx context.Context, outcomes []outcome) error {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	var acks, untried []string
	var failed []Failure
	var deferred []outcome
	for _, o := range outcomes {
		delete(b.inHand, o.m.ID)
		switch {
		case o.untried:
			untried = append(untried, o.m.ID)
		case o.err != nil:
			b.r.meters.errors.Add(1, "handler")
			b.r.opts.Log.Warn("change record failed", "message", o.m.ID, "error", o.err)
			failed = append(failed, Failure{ID: o.m.ID, Reason: o.err.Error()})
		case !o.until.IsZero():
			deferred = append(deferred, o)
		default:
			acks = append(acks, o.m.ID)
		}
	}
	var first error
	note := func(op string, n int, call func() error) {
		if n == 0 {
			return
		}
		if err := call(); err != nil {
			b.r.meters.errors.Add(1, op)
			first = cmp.Or(first, fmt.Errorf("reconcile: %s %d messages: %w", op, n, err))
			return
		}
		if op == "ack" {
			b.r.meters.processed.Add(int64(n))
		}
	}
	note("ack", len(acks), func() error { return b.r.source.Ack(ctx, acks) })
	note("fail", len(failed), func() error { return b.r.source.Fail(ctx, failed) })
	note("release", len(untried), func() error { return b.r.source.Release(ctx, untried) })
	for _, o := range deferred {
		note("defer", 1, func() error { return b.r.source.Defer(ctx, o.m, o.until) })
	}
	return first
}
