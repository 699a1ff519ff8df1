package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/kv"
)

// catalogEvery is how often a process looks for queues that others have created,
// changed or dropped.
const catalogEvery = 3 * time.Second

// Run delivers messages until ctx ends. Then receivers get ErrStopped, living
// leases are stored, and Run returns nil, or why they could not be stored; in that
// case whoever delivers next holds messages back. It can be called once.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.begun
	s.begun = true
	s.mu.Unlock()
	if again {
		return fmt.Errorf("queue: run: %w: called twice", kv.ErrInvalid)
	}
	defer s.stop()
	err := s.begin(ctx)
	if err != nil && ctx.Err() != nil {
		return nil // it ended before anything was delivered
	}
	if err != nil {
		return fmt.Errorf("queue: run: begin: %w", err)
	}
	leasing := s.runLeases(ctx)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer s.stop()
		s.start(running, group)
		return nil
	})
	if !s.leases.Exclusive() {
		group.Go(func() error { return s.follow(running) })
		group.Go(func() error { s.listen(running); return nil })
	}
	err = group.Wait()
	if err = errors.Join(err, leasing()); err != nil {
		return fmt.Errorf("queue: run: %w", err)
	}
	return nil
}

// runLeases runs the lease manager if the service has made it. The result ends that.
func (s *Service) runLeases(ctx context.Context) (end func() error) {
	if !s.ownLeases {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan error, 1)
	go func() { ran <- s.leases.Run(ctx) }()
	return func() error {
		cancel()
		return <-ran
	}
}

// begin removes what is left of dropped queues, and loads all others.
func (s *Service) begin(ctx context.Context) error {
	if err := s.sweepDropped(ctx); err != nil {
		return err
	}
	return s.refresh(ctx)
}

// start runs each queue, and each one that is added later.
func (s *Service) start(ctx context.Context, group *errgroup.Group) {
	started := map[*Queue]bool{}
	for {
		present := map[*Queue]bool{}
		for _, q := range s.loadedQueues() {
			present[q] = true
			if !started[q] {
				q.begin()
				group.Go(func() error { return q.compete(ctx) })
				group.Go(func() error { return q.observe(ctx) })
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

// begin notes that Run has begun.
func (q *Queue) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running = true
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

// follow keeps the queues in memory as the catalog says, until ctx ends.
func (s *Service) follow(ctx context.Context) error {
	timer := time.NewTimer(catalogEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.stale:
		}
		err := s.refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kv.ErrClosed):
			return err
		case err != nil:
			s.log.Error("queue: reading the catalog failed", "error", err)
		}
		timer.Reset(catalogEvery)
	}
}

// refresh takes over what other processes have changed in the catalog.
func (s *Service) refresh(ctx context.Context) error {
	s.ddl.Lock()
	defer s.ddl.Unlock()
	entries := map[string]catalogEntry{}
	var bad error
	err := s.db.Scan(ctx, catalogSpace, kv.Prefix([]byte{'q'}), func(row kv.Row) bool {
		var e catalogEntry
		if bad = catalogDecode(row, &e); bad == nil {
			entries[string(row.Key[1:])] = e
		}
		return bad == nil
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	for _, q := range s.loadedQueues() {
		e, exists := entries[q.name]
		switch {
		case !exists || e.Number != q.number:
			s.unload(q.name)
		case e.Settings != q.Settings():
			q.configure(e.Settings)
			delete(entries, q.name)
		default:
			delete(entries, q.name)
		}
	}
	for name, e := range entries {
		s.adopt(name, e)
	}
	return nil
}

// observe refreshes what the metrics show of the queue, until ctx ends or the queue is
// dropped.
func (q *Queue) observe(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.gone:
			return nil
		case <-timer.C:
		}
		oldest, err := q.oldestTime(ctx)
		var dead int64
		if err == nil {
			dead, err = q.deadLetters(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kv.ErrClosed):
			return err
		case err != nil:
			q.s.log.Error("queue: counting failed", "queue", q.name, "error", err)
		default:
			q.counts.oldest.Store(oldest)
			q.counts.dead.Store(dead)
		}
		timer.Reset(auditEvery)
	}
}
