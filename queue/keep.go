package queue

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

const (
	// settleCount and settleBytes bound one commit of the keeper.
	settleCount = 100
	settleBytes = 8 << 20

	// auditEvery is how often the keeper looks for messages that the dispatcher
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
	// parked: the service stops. The lease lives on, and is no lost one.
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
func (q *Queue) keep(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var nextAudit time.Time
	for {
		wait, err := q.settleSome(ctx)
		if now := q.s.clock.Now(); err == nil && !now.Before(nextAudit) {
			err = q.audit(ctx)
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
		case <-q.ended:
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
func (q *Queue) settleSome(ctx context.Context) (time.Duration, error) {
	now := q.s.clock.Now()
	batch, wait := q.nextLosses(now)
	if len(batch) == 0 {
		return wait, nil
	}
	if err := q.settle(ctx, batch); err != nil {
		return tick, err
	}
	return 0, nil
}

// nextLosses moves leases that have ended to the losses and returns the first of
// these. If there are none, it returns how long to wait.
func (q *Queue) nextLosses(now time.Time) ([]*loss, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.leases) > 0 && !q.leases[0].end.After(now) {
		e := heap.Pop(&q.leases).(*entry)
		e.state = lost
		q.losses = append(q.losses, &loss{entry: e, how: expired, rest: -1, done: make(chan error, 1)})
	}
	if len(q.losses) == 0 {
		wait := tick
		if len(q.leases) > 0 {
			wait = min(wait, max(q.leases[0].end.Sub(now), time.Millisecond))
		}
		q.keeperDue = now.Add(wait)
		return nil, wait
	}
	n, size := 0, 0
	for _, l := range q.losses[:min(settleCount, len(q.losses))] {
		if size += l.entry.size; n > 0 && size > settleBytes {
			break
		}
		n++
	}
	return q.losses[:n:n], 0
}

// settle writes down the first losses of the queue. After an error that says that
// nothing was written they stay in the list.
func (q *Queue) settle(ctx context.Context, batch []*loss) error {
	var outcomes []outcome
	_, err := q.s.db.Update(ctx, func(tx *kv.Tx) (err error) {
		outcomes, err = q.settleIn(tx, batch)
		return err
	})
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
	q.losses = q.losses[len(batch):]
	for i, l := range batch {
		q.finish(l, outcomes[i], unknown)
	}
	return nil
}

// finish forgets a loss that is settled. If that is not known, the index tells
// where the message is. q.mu is held.
func (q *Queue) finish(l *loss, o outcome, unknown bool) {
	if l.how == expired && o.settled && !unknown {
		q.counts.expired.Add(1)
		q.s.meters.expired.Add(1, q.s.meters.database, q.name)
	}
	if q.known[l.entry.key] != l.entry {
		return // acknowledged meanwhile
	}
	q.forget(l.entry)
	if unknown {
		q.lower(l.entry.due)
	}
	if !o.gone {
		q.lower(o.due)
	}
}

func (q *Queue) settleIn(tx *kv.Tx, batch []*loss) ([]outcome, error) {
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
// visible late, or another process made it. It also refreshes what the metrics
// show.
func (q *Queue) audit(ctx context.Context) error {
	q.mu.Lock()
	end, holding := q.cursor, q.holding
	q.mu.Unlock()
	if !holding {
		err := q.s.db.Scan(ctx, readySpace, kv.Range{Start: q.prefix, End: end}, func(row kv.Row) bool {
			return !q.missed(row.Key)
		})
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	oldest, err := q.oldestTime(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	dead, err := q.deadLetters(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	q.counts.oldest.Store(oldest)
	q.counts.dead.Store(dead)
	return nil
}

// missed sends the dispatcher back to an index row if nobody deals with its
// message.
func (q *Queue) missed(indexKey []byte) bool {
	due, k, err := q.splitTimeKey(indexKey)
	if err != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known[string(k)] != nil {
		return false
	}
	q.lower(due)
	return true
}

// Retry gives a received message back before its lease ends, because it could not
// be handled. It counts as a lost lease: the message rests for the given time, or
// for as long as the settings say if rest is negative, or goes to the dead
// letters. reason is kept with the message, up to 1 KiB of it.
//
// The error is ErrLeaseLost if the lease is no longer alive. After any other error,
// also that of ctx, the lease is over nevertheless, and the service goes on trying
// to write that down.
func (q *Queue) Retry(ctx context.Context, leaseToken string, rest time.Duration, reason string) error {
	l, err := q.giveBack(leaseToken, rest, reason)
	if err == nil {
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

func (q *Queue) giveBack(leaseToken string, rest time.Duration, reason string) (*loss, error) {
	t, ok := q.s.tokens.decode(leaseToken)
	if !ok || t.queue != q.number {
		return nil, fmt.Errorf("%w: not a token of this queue", kv.ErrInvalid)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.known[t.key]
	if e == nil || e.state != leased || e.lease != t.lease || !e.end.After(q.s.clock.Now()) {
		return nil, ErrLeaseLost
	}
	heap.Remove(&q.leases, e.index)
	e.state = lost
	l := &loss{entry: e, how: returned, rest: rest, reason: reason[:min(len(reason), maxReasonSize)], done: make(chan error, 1)}
	q.losses = append(q.losses, l)
	signal(q.ended)
	return l, nil
}
