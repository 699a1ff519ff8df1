package queue

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/lease"
)

const (
	// settleCount and settleBytes bound one commit of the keeper.
	settleCount = 100
	settleBytes = 8 << 20

	// auditEvery is how often keepers look for messages that their dispatchers
	// went past, and how old what the metrics say of the engine may be.
	auditEvery = 30 * time.Second
)

// loss is a lease that is over and of which the store is to learn.
type loss struct {
	entry *entry
	how   how
	// rest and reason come from Retry. A negative rest stands for the one that
	// the settings say.
	rest   time.Duration
	reason string
	done   chan error // gets the outcome of the first try; has room for it
}

// how a lease was lost.
type how int

const (
	// expired: its end came.
	expired how = iota
	// returned: Retry gave the message back.
	returned
	// parked: the shard is given back. The lease lives on, and is no lost one.
	parked
)

// outcome is what became of the message of a loss.
type outcome struct {
	due  time.Time
	gone bool // acknowledged, or among the dead letters
	// settled: this loss changed the message.
	settled bool
}

// keep writes down lost leases and audits until ctx ends.
func (sh *shard) keep(ctx context.Context) error {
	q := sh.q
	timer := time.NewTimer(0)
	defer timer.Stop()
	var nextAudit time.Time
	for {
		wait, err := sh.settleSome(ctx)
		if now := q.s.clock.Now(); err == nil && !now.Before(nextAudit) {
			err = sh.audit(ctx)
			nextAudit = now.Add(auditEvery)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, kv.ErrClosed) {
			return err
		}
		if err != nil {
			q.s.log.Error("queue: keeping leases failed", "queue", q.name, "error", err)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-sh.ended:
			if err != nil { // others may go on at once, but not the one that failed
				pause(ctx, tick)
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// settleSome settles one batch of lost leases. It returns after which time to come
// again.
func (sh *shard) settleSome(ctx context.Context) (time.Duration, error) {
	now := sh.q.s.clock.Now()
	batch, wait := sh.nextLosses(now)
	if len(batch) == 0 {
		return wait, nil
	}
	if err := sh.settle(ctx, batch); err != nil {
		return tick, err
	}
	return 0, nil
}

// nextLosses moves leases that have ended to the losses and returns the first of
// these. If there are none, it returns how long to wait.
func (sh *shard) nextLosses(now time.Time) ([]*loss, time.Duration) {
	sh.q.mu.Lock()
	defer sh.q.mu.Unlock()
	for len(sh.leases) > 0 && !sh.leases[0].end.After(now) {
		e := heap.Pop(&sh.leases).(*entry)
		e.state = lost
		sh.losses = append(sh.losses, &loss{entry: e, how: expired, rest: -1, done: make(chan error, 1)})
	}
	if len(sh.losses) == 0 {
		wait := tick
		if len(sh.leases) > 0 {
			wait = min(wait, max(sh.leases[0].end.Sub(now), time.Millisecond))
		}
		sh.keeperDue = now.Add(wait)
		return nil, wait
	}
	n, size := 0, 0
	for _, l := range sh.losses[:min(settleCount, len(sh.losses))] {
		if size += l.entry.size; n > 0 && size > settleBytes {
			break
		}
		n++
	}
	return sh.losses[:n:n], 0
}

// settle writes down the first losses of the shard. After an error that says that
// nothing was written they stay in the list.
func (sh *shard) settle(ctx context.Context, batch []*loss) error {
	var outcomes []outcome
	q := sh.q
	_, err := q.s.db.Update(ctx, func(tx *kv.Tx) error {
		err := sh.lease.Fence(tx)
		if err == nil {
			outcomes, err = sh.settleIn(tx, batch)
		}
		return err
	})
	if errors.Is(err, lease.ErrLost) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	unknown := errors.Is(err, kv.ErrUnknownOutcome)
	for _, l := range batch {
		select {
		case l.done <- err:
		default: // it has been told of an earlier failure
		}
	}
	if err != nil && !unknown {
		return fmt.Errorf("settle %d leases: %w", len(batch), err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	sh.losses = sh.losses[len(batch):]
	for i, l := range batch {
		sh.finish(l, outcomes[i], unknown)
	}
	return nil
}

// finish forgets a loss that is settled. If that is not known, the index tells
// where the message is. Queue.mu is held.
func (sh *shard) finish(l *loss, o outcome, unknown bool) {
	q := sh.q
	if l.how == expired && o.settled && !unknown {
		q.counts.expired.Add(1)
		q.s.meters.expired.Add(1, q.s.meters.database, q.name)
	}
	if q.known[l.entry.key] != l.entry {
		return // acknowledged meanwhile
	}
	q.forget(l.entry)
	if unknown {
		sh.lower(l.entry.due)
	}
	if !o.gone {
		sh.lower(o.due)
	}
}

func (sh *shard) settleIn(tx *kv.Tx, batch []*loss) ([]outcome, error) {
	q := sh.q
	keys := make([][]byte, len(batch))
	for i, l := range batch {
		keys[i] = []byte(l.entry.key)
	}
	refs := q.refs(keys)
	rows, err := tx.GetAll(refs...)
	if err != nil {
		return nil, err
	}
	now := q.s.clock.Now()
	outcomes := make([]outcome, len(batch))
	dead := 0
	for i, l := range batch {
		if !rows[i].Exists() {
			outcomes[i].gone = true
			continue
		}
		old, err := decodeRecord(rows[i].Value)
		if err != nil {
			q.s.log.Error("queue: message cannot be read", "queue", q.name, "key", l.entry.key, "error", err)
			outcomes[i].gone = true
			continue
		}
		if rows[i].Version != l.entry.version {
			outcomes[i].due = old.due // it was sent again
			continue
		}
		r := old
		died := q.next(&r, l, now)
		q.remove(tx, refs[i], &old)
		if died {
			q.bury(tx, keys[i], rows[i].Version, &r, now)
			dead++
		} else {
			q.put(tx, refs[i], &r)
		}
		outcomes[i] = outcome{due: r.due, gone: died, settled: true}
	}
	return outcomes, q.countDead(tx, dead)
}

// next changes the message of a loss. It reports whether it has had its last
// attempt.
func (q *Queue) next(r *record, l *loss, now time.Time) (dead bool) {
	if l.how == parked {
		r.due = l.entry.end
		return false
	}
	return q.lose(r, l, now)
}

// lose counts a lost lease, and decides when the message is due again.
func (q *Queue) lose(r *record, l *loss, now time.Time) (dead bool) {
	settings := q.settings.Load()
	r.lost++
	if l.reason != "" {
		r.reason = l.reason
	}
	from, rest := now, l.rest
	if l.how == expired {
		from = l.entry.end
	}
	if rest < 0 {
		rest = settings.rest(r.lost, now.Sub(r.deliver))
	}
	r.due = from.Add(rest)
	return settings.MaxAttempts > 0 && r.lost >= settings.MaxAttempts
}

// audit reads the ready index from its beginning to where the dispatcher is, and
// sends it back if it finds a message that nobody deals with: its commit became
// visible late.
func (sh *shard) audit(ctx context.Context) error {
	q := sh.q
	q.mu.Lock()
	end, holding := sh.cursor, sh.holding
	q.mu.Unlock()
	if holding {
		return nil
	}
	err := q.s.db.Scan(ctx, readySpace, kv.Range{Start: sh.prefix, End: end}, func(row kv.Row) bool {
		return !sh.missed(row.Key)
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// missed sends the dispatcher back to an index row if nobody deals with its
// message.
func (sh *shard) missed(indexKey []byte) bool {
	q := sh.q
	due, k, err := q.splitTimeKey(indexKey)
	if err != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known[string(k)] != nil {
		return false
	}
	sh.lower(due)
	return true
}

// Retry gives a received message back before its lease ends, because it could not
// be handled. It counts as a lost lease: the message rests for the given time, or
// for as long as the settings say if rest is negative, or goes to the dead
// letters. reason is kept with the message, up to 1 KiB of it.
//
// The error is ErrLeaseLost if the lease is no longer alive. After any other error,
// also that of ctx, the lease is over nevertheless, and the service goes on trying
// to write that down, as long as it delivers the message's part of the queue.
func (q *Queue) Retry(ctx context.Context, leaseToken string, rest time.Duration, reason string) error {
	t, ok := q.s.tokens.decode(leaseToken)
	if !ok || t.queue != q.number {
		return fmt.Errorf("queue: retry in %q: %w: not a token of this queue", q.name, kv.ErrInvalid)
	}
	l, err := q.giveBack(t, rest, reason[:min(len(reason), maxReasonSize)])
	switch {
	case err != nil:
	case l == nil:
		err = q.retryStored(ctx, t, rest, reason[:min(len(reason), maxReasonSize)])
	default:
		select {
		case err = <-l.done:
		case <-q.gone:
			err = q.closed()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("queue: retry in %q: %w", q.name, err)
	}
	return nil
}

// giveBack ends a lease. The result is nil if this process does not own the shard.
func (q *Queue) giveBack(t token, rest time.Duration, reason string) (*loss, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sh := q.shardOf(t.key)
	if sh == nil && q.running && q.err == nil {
		return nil, nil
	}
	e := q.known[t.key]
	if e == nil || e.state != leased || e.lease != t.lease || !e.end.After(q.s.clock.Now()) {
		return nil, ErrLeaseLost
	}
	heap.Remove(&sh.leases, e.index)
	e.state = lost
	l := &loss{entry: e, how: returned, rest: rest, reason: reason, done: make(chan error, 1)}
	sh.losses = append(sh.losses, l)
	signal(sh.ended)
	return l, nil
}
