package queue

import (
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// Renewal says what became of a lease token that has not expired.
type Renewal struct {
	// OldToken is the token that was given.
	OldToken string
	// NewToken takes its place; "" if the lease cannot be renewed, because the
	// message was acknowledged or given back, or the token renewed before.
	NewToken string
	// LeaseEnd is when the lease ends: anew, or as OldToken says.
	LeaseEnd time.Time
}

// RenewLease makes leases last for another Settings.Lease from now. The result has
// one element for each token that can be read, belongs to this queue and has not
// expired, in their order. A renewed token can not be used again.
//
// A lease is renewed by the process that gave it out. If that has given back the part
// of the queue meanwhile, the lease is stored, and any process can renew it.
func (q *Queue) RenewLease(ctx context.Context, leaseTokens ...string) ([]Renewal, error) {
	now := q.s.clock.Now()
	var tokens []token
	var renewals []Renewal
	for _, text := range leaseTokens {
		if t, ok := q.s.tokens.decode(text); ok && t.queue == q.number && t.end.After(now) {
			tokens = append(tokens, t)
			renewals = append(renewals, Renewal{OldToken: text, LeaseEnd: t.end})
		}
	}
	// The store knows what was acknowledged in a commit of unknown outcome.
	keys := make([][]byte, len(tokens))
	for i, t := range tokens {
		keys[i] = []byte(t.key)
	}
	rows, err := q.s.get(ctx, q.refs(keys))
	var stored []int
	if err == nil {
		stored, err = q.renew(tokens, rows, renewals, now)
	}
	for _, i := range stored {
		if err == nil {
			err = q.renewStored(ctx, tokens[i], &renewals[i], now)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("queue: renew leases of %q: %w", q.name, err)
	}
	return renewals, nil
}

// renew renews leases in memory. It returns which are to be looked for in the store.
func (q *Queue) renew(tokens []token, rows []kv.Row, renewals []Renewal, now time.Time) (stored []int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil, q.err
	}
	if !q.running {
		return nil, ErrStopped
	}
	for i, t := range tokens {
		sh := q.shardOf(t.key)
		if sh == nil {
			stored = append(stored, i)
			continue
		}
		e := q.known[t.key]
		if e == nil || e.state != leased {
			e = sh.inherit(t, rows[i])
		}
		if e == nil || e.lease != t.lease || e.version != rows[i].Version || !e.end.After(now) || !sh.lease.Valid() {
			continue
		}
		heap.Remove(&sh.leases, e.index)
		sh.grant(e, now.Add(q.settings.Load().Lease))
		renewals[i].NewToken, renewals[i].LeaseEnd = q.token(e.key, e.lease, e.end), e.end
	}
	return stored, nil
}

// inherit takes over the lease of an earlier owner, if the message has rested since:
// until the end of the hold after an unclean end, until its lease ends after a
// clean one. q.mu is held.
func (sh *shard) inherit(t token, row kv.Row) *entry {
	q := sh.q
	dead := q.s.leases.Exclusive() && q.settings.Load().LocalReceivers // the holders of earlier leases
	if t.lease.epoch >= sh.last.epoch || dead || !row.Exists() || q.known[t.key] != nil || sh.leaving {
		return nil
	}
	r, err := decodeRecord(row.Value)
	if err != nil {
		return nil
	}
	stillHeld := sh.holding && !r.due.After(sh.opened)
	if !stillHeld && !r.due.Equal(t.end) {
		return nil
	}
	e := &entry{shard: sh, key: t.key, version: row.Version, due: r.due, record: r, size: len(r.payload) + len(t.key)}
	e.record.payload = nil
	e.state, e.lease, e.end = leased, t.lease, t.end
	q.known[e.key] = e
	heap.Push(&sh.leases, e)
	return e
}

// The lease of a shard that was given back in order is stored as the time from which
// the message is due: that it is the end of the lease says which lease it is.

// renewStored renews a stored lease.
func (q *Queue) renewStored(ctx context.Context, t token, renewal *Renewal, now time.Time) error {
	end := now.Add(q.settings.Load().Lease)
	renewed, err := q.changeStored(ctx, t, func(_ *kv.Tx, r *record) (bool, error) {
		r.due = end
		return true, nil
	})
	if renewed {
		renewal.NewToken, renewal.LeaseEnd = q.token(t.key, t.lease, end), end
	}
	return err
}

// retryStored ends a stored lease.
func (q *Queue) retryStored(ctx context.Context, t token, rest time.Duration, reason string) error {
	now := q.s.clock.Now()
	if !t.end.After(now) {
		return ErrLeaseLost
	}
	l := &loss{how: returned, rest: rest, reason: reason}
	found, err := q.changeStored(ctx, t, func(tx *kv.Tx, r *record) (bool, error) {
		if !q.lose(r, l, now) {
			return true, nil
		}
		row, err := tx.Get(messageSpace, q.messageKey([]byte(t.key)))
		if err != nil {
			return false, err
		}
		q.bury(tx, []byte(t.key), row.Version, r, now)
		return false, q.countDead(tx, 1)
	})
	if err == nil && !found {
		err = ErrLeaseLost
	}
	q.hint([]int{q.shardNumber([]byte(t.key))})
	return err
}

// changeStored changes a message whose lease is stored, and reports whether that is
// so. change returns false if the message is not to be stored again.
func (q *Queue) changeStored(ctx context.Context, t token, change func(*kv.Tx, *record) (bool, error)) (bool, error) {
	found := false
	_, err := q.s.db.Update(ctx, func(tx *kv.Tx) error {
		ref := q.row([]byte(t.key))
		row, err := tx.Get(ref.Space, ref.Key)
		if found = false; err != nil || !row.Exists() {
			return err
		}
		old, err := decodeRecord(row.Value)
		if err != nil || !old.due.Equal(t.end) {
			return err
		}
		found = true
		r := old
		keep, err := change(tx, &r)
		if err != nil {
			return err
		}
		q.remove(tx, ref, &old)
		if keep {
			q.put(tx, ref, &r)
		}
		return nil
	})
	return found && err == nil, err
}
