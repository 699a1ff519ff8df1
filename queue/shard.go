package queue

import (
	"bytes"
	"container/heap"
	"hash/fnv"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/lease"
)

// shard is a part of a queue from when this process owns it until it does not any
// more. Its messages are those with the same hash of their key. All but the first
// group of fields is guarded by Queue.mu.
type shard struct {
	q      *Queue
	number int
	prefix []byte // of its rows in the indexes
	lease  *lease.Lease
	// opened is from when on no other process has handed messages out.
	opened time.Time
	// more tells the dispatcher to look at the ready index, ended tells the
	// keeper to look at the leases.
	more, ended chan struct{}

	// leaving: nothing is handed out any more.
	leaving bool
	// ready are the messages that can be handed out, by due time, then key.
	ready      []*entry
	readyBytes int
	leases     leaseHeap
	// last is the lease given out last.
	last leaseID
	// cursor is up to where the ready index has been read; lowered, if not nil,
	// is the lowest place where it has changed since. nextScan is when to look
	// behind the cursor without a signal; it is zero while something that is due
	// is known to lie there.
	cursor, lowered []byte
	nextScan        time.Time
	// fetchCount and fetchBytes are the room that is kept for what is being read.
	fetchCount, fetchBytes int
	// holding: messages due up to opened are left alone until holdEnd.
	holding bool
	holdEnd time.Time
	// losses wait for the keeper; keeperDue is when it looks next at the latest.
	losses    []*loss
	keeperDue time.Time
}

// shardNumber returns the shard that a message belongs to.
func (q *Queue) shardNumber(k []byte) int {
	if len(q.shards) == 1 {
		return 0
	}
	h := fnv.New64a()
	h.Write(k) // never fails
	return int(h.Sum64() % uint64(len(q.shards)))
}

// shardOf returns the shard that a message belongs to, nil if this process does not
// own it. q.mu is held.
func (q *Queue) shardOf(k string) *shard {
	if len(q.shards) == 1 {
		return q.shards[0]
	}
	return q.shards[q.shardNumber([]byte(k))]
}

// ownedShards yields the shards that this process owns. q.mu is held.
func (q *Queue) ownedShards() iter.Seq[*shard] {
	return func(yield func(*shard) bool) {
		for _, sh := range q.shards {
			if sh != nil && !yield(sh) {
				return
			}
		}
	}
}

// adopt makes this process deal with a shard that it owns from now on. What the owner
// before has handed out is unknown if it did not give the shard back in order.
func (q *Queue) adopt(number int, l *lease.Lease) *shard {
	now, settings := q.s.clock.Now(), q.settings.Load()
	sh := &shard{
		q: q, number: number, prefix: q.shardPrefix(number), lease: l,
		more: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		last: leaseID{epoch: l.Epoch()}, opened: now, holdEnd: now.Add(settings.Lease),
	}
	sh.holding = !l.Clean()
	if q.s.leases.Exclusive() {
		// Only an earlier process can have handed something out, and it is dead.
		sh.opened = q.s.opened
		sh.holding = sh.holding && !settings.LocalReceivers
	}
	sh.cursor = sh.prefix
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shards[number] = sh
	q.owned++
	q.departAll()
	return sh
}

// leave ends that sh hands out messages.
func (sh *shard) leave() {
	sh.q.mu.Lock()
	defer sh.q.mu.Unlock()
	sh.leaving = true
}

// abandon forgets sh and its messages. What was handed out stays with the receivers.
func (q *Queue) abandon(sh *shard) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shards[sh.number] = nil
	q.owned--
	for k, e := range q.known {
		if e.shard == sh {
			delete(q.known, k)
		}
	}
	for _, l := range sh.losses {
		select {
		case l.done <- ErrLeaseLost:
		default:
		}
	}
}

// most is how many messages may wait for receivers. q.mu is held.
func (sh *shard) most() int { return bufferCount / max(1, sh.q.owned) }

// room reports whether there is room for one more message. q.mu is held.
func (sh *shard) room(e *entry) bool {
	count, size := len(sh.ready)+sh.fetchCount, sh.readyBytes+sh.fetchBytes
	return count < sh.most() && (count == 0 || size+e.size <= bufferBytes/max(1, sh.q.owned))
}

// fetch notes that the row of e is going to be read, if there is room for the
// message. q.mu is held.
func (sh *shard) fetch(e *entry) bool {
	if !sh.room(e) {
		return false
	}
	sh.q.known[e.key] = e
	sh.fetchCount++
	sh.fetchBytes += e.size
	return true
}

// makeReady puts e in its place among the ready. q.mu is held.
func (sh *shard) makeReady(e *entry) {
	e.state = ready
	sh.readyBytes += e.size
	at := len(sh.ready)
	if at > 0 && sh.ready[at-1].compare(e) > 0 {
		at, _ = slices.BinarySearchFunc(sh.ready, e, (*entry).compare)
	}
	sh.ready = slices.Insert(sh.ready, at, e)
}

// grant puts e under a new lease. q.mu is held.
func (sh *shard) grant(e *entry, end time.Time) {
	sh.last.sequence++
	e.state, e.lease, e.end = leased, sh.last, end
	heap.Push(&sh.leases, e)
	if end.Before(sh.keeperDue) {
		signal(sh.ended)
	}
}

// lower makes the dispatcher look for messages due from t on. q.mu is held.
func (sh *shard) lower(t time.Time) {
	if at := sh.timePlace(t); sh.lowered == nil || bytes.Compare(at, sh.lowered) < 0 {
		sh.lowered = at
	}
	signal(sh.more)
}

// behind reports whether messages that are due may lie in the ready index where the
// dispatcher has not looked. q.mu is held.
func (sh *shard) behind(now time.Time) bool { return sh.lowered != nil || !now.Before(sh.nextScan) }
