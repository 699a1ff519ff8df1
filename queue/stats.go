package queue

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/metrics"
)

// Stats says how a queue is doing.
type Stats struct {
	// Shards is how many parts of the queue this process delivers.
	Shards int
	// Ready is how many messages wait in its memory to be handed out. It is bounded,
	// whatever the queue holds.
	Ready int
	// Leased is how many leases live, and Receivers how many wait.
	Leased, Receivers int
	// Sent, Acked and Expired count messages sent, messages acknowledged and
	// leases that ran out, since this process opened the queue.
	Sent, Acked, Expired int64
	// OldestAge is the age of the oldest message since its delivery time; 0 if
	// that lies in the future, or there is none.
	OldestAge time.Duration
	// DeadLetters is how many dead letters there are.
	DeadLetters int64
}

// counts are what a queue counts by itself. oldest (in Unix nanoseconds, 0 if there
// is no message) and dead are refreshed now and then.
type counts struct {
	sent, acked, expired atomic.Int64
	oldest, dead         atomic.Int64
}

// Stats returns the present numbers. It reads two index rows and one counter.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	oldest, err := q.oldestTime(ctx)
	var dead int64
	if err == nil {
		dead, err = q.deadLetters(ctx)
	}
	if err != nil {
		return Stats{}, fmt.Errorf("queue: stats of %q: %w", q.name, err)
	}
	st := Stats{
		Sent:        q.counts.sent.Load(),
		Acked:       q.counts.acked.Load(),
		Expired:     q.counts.expired.Load(),
		OldestAge:   q.age(oldest),
		DeadLetters: dead,
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for sh := range q.ownedShards() {
		st.Ready += len(sh.ready)
		st.Leased += len(sh.leases)
	}
	st.Shards, st.Receivers = q.owned, len(q.receivers)
	return st, nil
}

func (q *Queue) age(oldest int64) time.Duration {
	if oldest == 0 {
		return 0
	}
	return max(0, q.s.clock.Now().Sub(time.Unix(0, oldest)))
}

// meters are the metrics of all queues of a service.
type meters struct {
	database             string
	sent, acked, expired *metrics.Counter
}

func newMeters(r *metrics.Registry, database string, s *Service) *meters {
	r = r.Group("holdfast.queue")
	labels := []string{"database", "queue"}
	gauge := func(name string, read func(q *Queue) float64) {
		r.GaugeFunc(name, func(set func(float64, ...string)) {
			for _, q := range s.loadedQueues() {
				set(read(q), database, q.name)
			}
		}, labels...)
	}
	gauge("buffered_ready_messages", func(q *Queue) float64 {
		q.mu.Lock()
		defer q.mu.Unlock()
		n := 0
		for sh := range q.ownedShards() {
			n += len(sh.ready)
		}
		return float64(n)
	})
	gauge("shards", func(q *Queue) float64 {
		q.mu.Lock()
		defer q.mu.Unlock()
		return float64(q.owned)
	})
	gauge("oldest_unacked_message_age", func(q *Queue) float64 {
		return float64(int64(q.age(q.counts.oldest.Load()).Seconds()))
	})
	gauge("dead_letters", func(q *Queue) float64 { return float64(q.counts.dead.Load()) })
	return &meters{
		database: database,
		sent:     r.Counter("message_send_count", labels...),
		acked:    r.Counter("message_ack_count", labels...),
		expired:  r.Counter("lease_expiration_count", labels...),
	}
}
