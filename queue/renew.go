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
	if err == nil {
		err = q.renew(tokens, rows, renewals, now)
	}
	if err != nil {
		return nil, fmt.Errorf("queue: renew leases of %q: %w", q.name, err)
	}
	return renewals, nil
}

func (q *Queue) renew(tokens []token, rows []kv.Row, renewals []Renewal, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if q.last.run == 0 {
		return ErrStopped
	}
	for i, t := range tokens {
		e := q.known[t.key]
		if e == nil || e.state != leased {
			e = q.inherit(t, rows[i])
		}
		if e == nil || e.lease != t.lease || e.version != rows[i].Version || !e.end.After(now) {
			continue
		}
		heap.Remove(&q.leases, e.index)
		q.lease(e, now.Add(q.settings.Load().Lease))
		renewals[i].NewToken, renewals[i].LeaseEnd = q.token(e.key, e.lease, e.end), e.end
	}
	return nil
}

// inherit takes over the lease of an earlier run, if the message has rested since:
// until the end of the hold after an unclean stop, until its lease ends after a
// clean one. q.mu is held.
func (q *Queue) inherit(t token, row kv.Row) *entry {
	if t.lease.run >= q.last.run || q.settings.Load().LocalReceivers || !row.Exists() || q.known[t.key] != nil {
		return nil
	}
	r, err := decodeRecord(row.Value)
	if err != nil {
		return nil
	}
	stillHeld := q.holding && !r.due.After(q.s.opened)
	if !stillHeld && !r.due.Equal(t.end) {
		return nil
	}
	e := &entry{key: t.key, version: row.Version, due: r.due, record: r, size: len(r.payload) + len(t.key)}
	e.record.payload = nil
	e.state, e.lease, e.end = leased, t.lease, t.end
	q.known[e.key] = e
	heap.Push(&q.leases, e)
	return e
}
