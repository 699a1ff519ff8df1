package queue

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// Queue is one queue of a Service. It is safe for concurrent use. Methods that
// take a *kv.Tx belong to the caller's transaction, which must be of the DB that
// the Service was opened on or one derived from it.
type Queue struct {
	s        *Service
	name     string
	number   uint64
	prefix   []byte // of all its rows
	settings atomic.Pointer[Settings]

	counts counts

	// demand tells the queue's loop that somebody receives.
	demand chan struct{}

	mu sync.Mutex // guards what follows, and what belongs to shards
	// err is why nothing is delivered any more, nil before.
	err error
	// gone is closed when err is set.
	gone chan struct{}
	// running: Run has begun.
	running bool
	// shards has those that this process owns, at their numbers; nil elsewhere. owned
	// is how many these are.
	shards []*shard
	owned  int
	// known has every message that this process is dealing with. Dispatchers take
	// no other.
	known     map[string]*entry
	receivers []*receiver
	// receives counts calls of Receive; served is how many there were when the shards
	// were given back because there were no more.
	receives, served uint64
	// departed has keys of messages that were removed, or left memory, perhaps before
	// their sender has reported that they exist; departures counts how often it was
	// emptied.
	departed   map[string]struct{}
	departures uint64
}

// leaseID names a lease of a shard for ever: ownerships of a shard are numbered, and
// leases in an ownership.
type leaseID struct{ epoch, sequence uint64 }

// state of an entry.
type state int

const (
	// fetching: the dispatcher reads the message's row.
	fetching state = iota
	// ready: in shard.ready, with its payload.
	ready
	// leased: in shard.leases; somebody has it.
	leased
	// lost: in shard.losses; its lease is over, and the keeper writes that down.
	lost
)

// entry is a message in memory.
type entry struct {
	shard   *shard
	key     string
	state   state
	version kv.Version // of the row; 0 while fetching
	due     time.Time
	record  record // the payload only while ready
	size    int
	// reported: the sender has told of this message.
	reported bool
	// What follows is set from the first lease on: which it is, when it ends,
	// and where in the heap the entry is while leased.
	lease leaseID
	end   time.Time
	index int
}

// compare orders entries as they are handed out.
func (e *entry) compare(f *entry) int {
	if c := e.due.Compare(f.due); c != 0 {
		return c
	}
	return strings.Compare(e.key, f.key)
}

// receiver waits in Receive. The batch is sent at most once; the channel is
// closed if there will be none.
type receiver struct {
	max   int
	batch chan []Message
}

func newQueue(s *Service, name string, e catalogEntry) *Queue {
	q := &Queue{
		s:      s,
		name:   name,
		number: e.Number,
		prefix: key.AppendUint(nil, e.Number),
		demand: make(chan struct{}, 1),
		gone:   make(chan struct{}),
		shards: make([]*shard, max(1, e.Settings.Shards)),
		known:  map[string]*entry{},

		departed: map[string]struct{}{},
	}
	q.settings.Store(&e.Settings)
	return q
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// Settings returns the present settings.
func (q *Queue) Settings() Settings { return *q.settings.Load() }

func (q *Queue) configure(s Settings) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settings.Store(&s)
	q.handOut()
	for sh := range q.ownedShards() {
		signal(sh.more)
	}
}

// NewKey returns a key that no other message has: 16 bytes that begin with the
// time, so that new messages lie together.
func (q *Queue) NewKey() ([]byte, error) {
	k := make([]byte, 16)
	if _, err := io.ReadFull(q.s.rand, k[6:]); err != nil {
		return nil, fmt.Errorf("queue: new key: %w", err)
	}
	ms := uint64(q.s.clock.Now().UnixMilli())
	for i := range 6 {
		k[i] = byte(ms >> (40 - 8*i))
	}
	return k, nil
}

// Message is a message of a queue. Its slices belong to the caller.
type Message struct {
	Key, Payload []byte
	// DeliverTime is from when on the message was to be delivered.
	DeliverTime time.Time
	// Due is from when on it is to be delivered next, or was to be before this
	// delivery. Lost leases move it.
	Due time.Time
	// Attempts is the number of leases lost so far.
	Attempts int
	// Reason is what the last Retry that named one said.
	Reason string
	// LeaseEnd is when the lease of this delivery ends, zero for a message that
	// was only looked at.
	LeaseEnd time.Time

	queue *Queue
	lease leaseID
}

// Token returns the lease token of a received message, as opaque printable text;
// "" for a message that was only looked at.
func (m *Message) Token() string {
	if m.queue == nil {
		return ""
	}
	return m.queue.token(string(m.Key), m.lease, m.LeaseEnd)
}

func (q *Queue) token(k string, lease leaseID, end time.Time) string {
	return q.s.tokens.encode(token{queue: q.number, lease: lease, end: end, key: k})
}

// Receive waits until messages can be delivered and returns up to max of them,
// each with a lease. It returns what is ready and does not wait for more. Those
// who wait longest are served first.
//
// It fails with the context's error, and then has leased nothing; with ErrStopped
// once Run has ended; and with ErrQueueNotFound once the queue was dropped.
func (q *Queue) Receive(ctx context.Context, max int) ([]Message, error) {
	if max <= 0 {
		return nil, fmt.Errorf("queue: receive from %q: %w: batch of %d", q.name, kv.ErrInvalid, max)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	batch, r := q.takeOrWait(max)
	if len(batch) > 0 {
		return batch, nil
	}
	select {
	case batch, ok := <-r.batch:
		if !ok {
			return nil, fmt.Errorf("queue: receive from %q: %w", q.name, q.closed())
		}
		return batch, nil
	case <-ctx.Done():
		q.leave(r)
		return nil, ctx.Err()
	}
}

func (q *Queue) takeOrWait(max int) ([]Message, *receiver) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.receives++
	signal(q.demand)
	// Nothing is ready while others wait: see handOut.
	if batch := q.take(max); len(batch) > 0 {
		return batch, nil
	}
	r := &receiver{max: max, batch: make(chan []Message, 1)}
	if q.err != nil {
		close(r.batch)
	} else {
		q.receivers = append(q.receivers, r)
	}
	return nil, r
}

// leave ends the wait of r. What it was given meanwhile goes back.
func (q *Queue) leave(r *receiver) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.receivers, r); i >= 0 {
		q.receivers = slices.Delete(q.receivers, i, i+1)
		return
	}
	select {
	case batch := <-r.batch:
		q.release(batch)
	default:
	}
}

// closed returns why nothing is delivered any more, nil if that is not so.
func (q *Queue) closed() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// close ends all deliveries with err.
func (q *Queue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return
	}
	q.err = err
	close(q.gone)
	for _, r := range q.receivers {
		close(r.batch)
	}
	q.receivers = nil
}

// handOut serves receivers while there are messages. q.mu is held.
func (q *Queue) handOut() {
	for len(q.receivers) > 0 {
		r := q.receivers[0]
		batch := q.take(r.max)
		if len(batch) == 0 {
			return
		}
		r.batch <- batch
		q.receivers = slices.Delete(q.receivers, 0, 1)
	}
}

// take leases up to max ready messages. q.mu is held.
func (q *Queue) take(max int) []Message {
	settings := q.settings.Load()
	if q.err != nil || settings.DisableDelivery {
		return nil
	}
	var few [8]*shard
	sources := q.sources(few[:0])
	if len(sources) == 0 {
		return nil
	}
	now := q.s.clock.Now()
	end := now.Add(settings.Lease)
	var batch []Message
	for len(batch) < max {
		sh := first(sources)
		if sh == nil {
			break
		}
		n := 1
		if len(sources) == 1 {
			n = min(max, len(sh.ready))
		}
		batch = slices.Grow(batch, n)
		for _, e := range sh.ready[:n] {
			sh.readyBytes -= e.size
			sh.grant(e, end)
			batch = append(batch, e.message(q))
			e.record.payload = nil
		}
		sh.ready = slices.Delete(sh.ready, 0, n)
	}
	for _, sh := range sources {
		if sh.behind(now) && len(sh.ready) <= sh.most()/2 {
			signal(sh.more)
		}
	}
	return batch
}

// sources appends the shards that have something to hand out and surely are this
// process's. q.mu is held.
func (q *Queue) sources(sources []*shard) []*shard {
	for sh := range q.ownedShards() {
		if len(sh.ready) > 0 && !sh.leaving && sh.lease.Valid() {
			sources = append(sources, sh)
		}
	}
	return sources
}

// first returns the shard whose first message is the first of all, nil if none is
// ready.
func first(sources []*shard) *shard {
	var best *shard
	for _, sh := range sources {
		if len(sh.ready) > 0 && (best == nil || sh.ready[0].compare(best.ready[0]) < 0) {
			best = sh
		}
	}
	return best
}

func (e *entry) message(q *Queue) Message {
	m := e.record.message([]byte(e.key))
	m.LeaseEnd, m.queue, m.lease = e.end, q, e.lease
	return m
}

func (r *record) message(k []byte) Message {
	return Message{Key: k, Payload: r.payload, DeliverTime: r.deliver, Due: r.due, Attempts: r.lost, Reason: r.reason}
}

// Release gives received messages back that nobody has seen: they are delivered
// again at once, and it does not count as an attempt. Messages whose lease is no
// longer alive are skipped.
func (q *Queue) Release(batch ...Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release(batch)
}

func (q *Queue) release(batch []Message) {
	for i := range batch {
		e := q.known[string(batch[i].Key)]
		if e == nil || e.state != leased || e.lease != batch[i].lease {
			continue
		}
		heap.Remove(&e.shard.leases, e.index)
		e.record.payload = batch[i].Payload
		e.shard.makeReady(e)
	}
	q.handOut()
}

// forget removes e from memory. q.mu is held.
func (q *Queue) forget(e *entry) {
	delete(q.known, e.key)
	if !e.reported {
		q.depart(e.key)
	}
	switch sh := e.shard; e.state {
	case ready:
		at, _ := slices.BinarySearchFunc(sh.ready, e, (*entry).compare)
		sh.ready = slices.Delete(sh.ready, at, at+1)
		sh.readyBytes -= e.size
	case leased:
		heap.Remove(&sh.leases, e.index)
	}
}

// departedCount bounds departed. Few messages leave between the commit that sends them
// and the report of it, so it may be emptied often.
const departedCount = 1024

// depart notes that a message may be gone when its sender reports that it exists.
// q.mu is held.
func (q *Queue) depart(k string) {
	if len(q.departed) >= departedCount {
		q.departAll()
	}
	q.departed[k] = struct{}{}
}

// departAll says that any message may be gone when its sender reports. q.mu is held.
func (q *Queue) departAll() {
	clear(q.departed)
	q.departures++
}

// departing notes messages that are going to be removed.
func (q *Queue) departing(keys [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		q.depart(string(k))
	}
}

// leaseHeap has the leased entries, the one whose lease ends first in front.
type leaseHeap []*entry

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].end.Before(h[j].end) }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *leaseHeap) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
