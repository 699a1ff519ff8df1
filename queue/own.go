package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/lease"
)

const (
	// stopTime bounds how long a process goes on with a shard that it is to give
	// back, to store which leases live.
	stopTime = 10 * time.Second

	// idleTime is how long nobody must receive from a queue for its shards to be
	// given back; it can take twice as long.
	idleTime = 5 * time.Second
)

// roleName names the role in which processes compete for the shards of a queue.
func roleName(number uint64) string { return fmt.Sprintf("queue/%d", number) }

func leaseNames(number uint64, shards int) []string {
	names := make([]string, shards)
	for i := range names {
		names[i] = fmt.Sprintf("queue/%d/%d", number, i)
	}
	return names
}

// compete owns shards of the queue while somebody receives from it in this process, or
// always if no other process can, until ctx ends or the queue is dropped.
func (q *Queue) compete(ctx context.Context) error {
	names := leaseNames(q.number, len(q.shards))
	numbers := map[string]int{}
	for i, name := range names {
		numbers[name] = i
	}
	own := func(shardCtx context.Context, l *lease.Lease) error {
		return q.own(shardCtx, q.adopt(numbers[l.Name()], l), func() bool { return ctx.Err() != nil })
	}
	for {
		competing, cancel := context.WithCancel(ctx)
		if !q.awaitDemand(ctx) {
			cancel()
			return nil
		}
		go q.endWithDemand(competing, cancel)
		err := q.s.leases.Compete(competing, roleName(q.number), names, own)
		cancel()
		switch {
		case errors.Is(q.closed(), ErrQueueNotFound):
			return nil
		case ctx.Err() != nil, errors.Is(err, lease.ErrStopped), errors.Is(err, kv.ErrClosed):
			return err
		case err != nil:
			q.s.log.Error("queue: giving shards back failed", "queue", q.name, "error", err)
		}
	}
}

// awaitDemand waits until this process is to own shards. It returns false if it never
// is.
func (q *Queue) awaitDemand(ctx context.Context) bool {
	if q.s.leases.Exclusive() {
		return true
	}
	for {
		q.mu.Lock()
		demand := q.receives != q.served
		q.mu.Unlock()
		if demand {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-q.gone:
			return false
		case <-q.demand:
		}
	}
}

// endWithDemand calls end when nobody has received for a while, or the queue is
// dropped. It returns when ctx ends.
func (q *Queue) endWithDemand(ctx context.Context, end func()) {
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	var before uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.gone:
			if errors.Is(q.closed(), ErrQueueNotFound) {
				end()
			}
			return
		case <-timer.C:
		}
		if q.s.leases.Exclusive() {
			continue
		}
		q.mu.Lock()
		idle := len(q.receivers) == 0 && q.receives == before
		if before = q.receives; idle {
			q.served = before
		}
		q.mu.Unlock()
		if idle {
			end()
			return
		}
		timer.Reset(idleTime)
	}
}

// own delivers the messages of a shard until ctx ends, and then stores which of its
// leases live. stopping tells whether the process delivers no more at all.
func (q *Queue) own(ctx context.Context, sh *shard, stopping func() bool) error {
	defer q.abandon(sh)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return sh.dispatch(running) })
	group.Go(func() error { return sh.keep(running) })
	if err := group.Wait(); err != nil {
		return err
	}
	sh.leave()
	if errors.Is(q.closed(), ErrQueueNotFound) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	// The receivers of a process that goes on go on too.
	keep := !stopping() || !q.settings.Load().LocalReceivers
	if err := sh.park(ctx, keep); err != nil {
		if errors.Is(err, lease.ErrLost) {
			return lease.ErrLost
		}
		return fmt.Errorf("store leases of queue %q: %w", q.name, err)
	}
	return nil
}

// park settles what is lost and, if asked, makes each leased message due when its lease
// ends. Nothing else works on the shard's leases any more.
func (sh *shard) park(ctx context.Context, keep bool) error {
	for {
		batch, _ := sh.nextLosses(sh.q.s.clock.Now())
		if len(batch) == 0 && !(keep && sh.parkLeases()) {
			return nil
		}
		if len(batch) > 0 {
			if err := sh.settle(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// parkLeases turns the leases into losses. It reports whether there are any.
func (sh *shard) parkLeases() bool {
	sh.q.mu.Lock()
	defer sh.q.mu.Unlock()
	for _, e := range sh.leases {
		e.state = lost
		sh.losses = append(sh.losses, &loss{entry: e, how: parked, done: make(chan error, 1)})
	}
	sh.leases = nil
	return len(sh.losses) > 0
}

// Signals between processes: that the catalog has changed, and that there is something
// to deliver in a shard.
const (
	catalogSignal = "queue"
	shardSignal   = "queue/" // then the number of the queue, "/", that of the shard
)

// hint tells whoever owns shards that there may be something to deliver.
func (q *Queue) hint(shards []int) {
	if q.s.leases.Exclusive() {
		return
	}
	told := map[int]bool{}
	for _, i := range shards {
		if !told[i] {
			told[i] = true
			q.s.db.Signal(fmt.Sprintf("%s%d/%d", shardSignal, q.number, i))
		}
	}
}

// announce tells other processes that the catalog has changed.
func (s *Service) announce() { s.db.Signal(catalogSignal) }

// listen takes signals until ctx ends.
func (s *Service) listen(ctx context.Context) {
	if err := s.db.Listen(ctx, s.heard); err != nil && ctx.Err() == nil {
		s.log.Error("queue: no signals from other processes any more", "error", err)
	}
}

func (s *Service) heard(name string) {
	if name == "" || name == catalogSignal {
		signal(s.stale)
	}
	queueText, shardText, ok := strings.Cut(strings.TrimPrefix(name, shardSignal), "/")
	number, err := strconv.ParseUint(queueText, 10, 64)
	shard, err2 := strconv.Atoi(shardText)
	named := ok && err == nil && err2 == nil
	if name != "" && !named {
		return
	}
	for _, q := range s.loadedQueues() {
		if named && q.number != number {
			continue
		}
		q.mu.Lock()
		for sh := range q.ownedShards() {
			if !named || sh.number == shard {
				sh.lower(s.clock.Now().Add(-s.lookAround))
			}
		}
		q.mu.Unlock()
	}
}
