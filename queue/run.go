package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/kv"
)

// stopTime bounds how long Run goes on after its context has ended, to store which
// leases live.
const stopTime = 10 * time.Second

// errGone ends the loops of a queue that delivers no more.
var errGone = errors.New("queue is gone")

// lastRun is the catalog's row about runs.
type lastRun struct {
	Number uint64
	// Clean: the run ended in order, all leases that lived are stored.
	Clean bool
}

// Run delivers messages until ctx ends. Then receivers get ErrStopped, living
// leases are stored, and Run returns nil, or why they could not be stored; in that
// case the next Run holds messages back. It can be called once.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.begun
	s.begun = true
	s.mu.Unlock()
	if again {
		return fmt.Errorf("queue: run: %w: called twice", kv.ErrInvalid)
	}
	defer s.stop()
	number, clean, err := s.begin(ctx)
	if err != nil && ctx.Err() != nil {
		return nil // it ended before anything was delivered
	}
	if err != nil {
		return fmt.Errorf("queue: run: begin: %w", err)
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer s.stop()
		s.start(running, group, number, clean)
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("queue: run: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := s.end(ctx, number); err != nil {
		return fmt.Errorf("queue: run: store leases: %w", err)
	}
	return nil
}

// begin notes that leases are unknown from now on, and loads all queues.
func (s *Service) begin(ctx context.Context) (number uint64, clean bool, err error) {
	last := lastRun{Clean: true}
	_, err = s.db.Update(ctx, func(tx *kv.Tx) error {
		last = lastRun{Clean: true}
		if _, err := catalogGet(tx, runKey(), &last); err != nil {
			return err
		}
		return catalogPut(tx, runKey(), lastRun{Number: last.Number + 1})
	})
	if err != nil {
		return 0, false, err
	}
	if err := s.sweepDropped(ctx); err != nil {
		return 0, false, err
	}
	names, err := s.Names(ctx)
	if err != nil {
		return 0, false, err
	}
	for _, name := range names {
		if _, err := s.Queue(ctx, name); err != nil && !errors.Is(err, ErrQueueNotFound) {
			return 0, false, err
		}
	}
	return last.Number + 1, last.Clean, nil
}

// start runs each queue, and each one that is added later.
func (s *Service) start(ctx context.Context, group *errgroup.Group, number uint64, clean bool) {
	started := map[*Queue]bool{}
	for {
		present := map[*Queue]bool{}
		for _, q := range s.loadedQueues() {
			present[q] = true
			if !started[q] {
				q.prepare(number, clean)
				group.Go(func() error { return q.run(ctx) })
			}
		}
		started = present
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
	}
}

// prepare tells q about the run that it is part of.
func (q *Queue) prepare(number uint64, clean bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	settings := q.settings.Load()
	q.last.run = number
	q.holding = !clean && !settings.LocalReceivers
	q.holdEnd = q.s.clock.Now().Add(settings.Lease)
}

// run delivers until ctx ends or the queue is dropped.
func (q *Queue) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return q.dispatch(ctx) })
	group.Go(func() error { return q.keep(ctx) })
	group.Go(func() error {
		select {
		case <-q.gone:
			return errGone
		case <-ctx.Done():
			return nil
		}
	})
	if err := group.Wait(); !errors.Is(err, errGone) {
		return err
	}
	return nil
}

// stop ends all deliveries.
func (s *Service) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	for _, q := range s.loadedQueues() {
		q.close(ErrStopped)
	}
}

// end stores the leases that live, and that this is all there is to know.
func (s *Service) end(ctx context.Context, number uint64) error {
	for _, q := range s.loadedQueues() {
		if err := q.park(ctx); err != nil {
			return fmt.Errorf("queue %q: %w", q.name, err)
		}
	}
	_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
		var last lastRun
		if _, err := catalogGet(tx, runKey(), &last); err != nil {
			return err
		}
		if last.Number != number {
			return fmt.Errorf("%w: another run has begun meanwhile", kv.ErrInvalid)
		}
		return catalogPut(tx, runKey(), lastRun{Number: number, Clean: true})
	})
	return err
}

// park makes each leased message due when its lease ends. Nothing else works on
// the queue's leases any more.
func (q *Queue) park(ctx context.Context) error {
	for {
		batch, _ := q.nextLosses(q.s.clock.Now())
		if len(batch) == 0 && !q.parkLeases() {
			return nil
		}
		if len(batch) > 0 {
			if err := q.settle(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// parkLeases turns the leases into losses. It reports whether there are any.
func (q *Queue) parkLeases() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.settings.Load().LocalReceivers {
		return false
	}
	for _, e := range q.leases {
		e.state = lost
		q.losses = append(q.losses, &loss{entry: e, how: parked, done: make(chan error, 1)})
	}
	q.leases = nil
	return len(q.losses) > 0
}
