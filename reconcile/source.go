package reconcile

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/queue"
)

// ErrClosed says that a source gives no messages any more.
var ErrClosed = errors.New("source of change records is closed")

// Message is a change record as a source delivers it.
type Message struct {
	// ID is printable and names the delivery: no two messages in hand have the
	// same.
	ID string
	// Data is the record. It must not be changed.
	Data []byte
}

// Failure is a message that could not be handled, and why.
type Failure struct{ ID, Reason string }

// Source delivers change records at least once, in any order. A message is in hand
// from Receive until it was given to Ack, Fail, Release or Defer, or until its
// lease has ended. Methods may be called concurrently; IDs of messages that are no
// longer in hand are no error.
type Source interface {
	// Receive waits for messages and returns up to max of them; none, and no
	// error, if ctx ends first. After an error that wraps ErrClosed there will
	// never be any.
	Receive(ctx context.Context, max int) ([]Message, error)
	// Lease is how long a message is kept from others without Renew.
	Lease() time.Duration
	// Renew makes the leases last for another Lease from now.
	Renew(ctx context.Context, ids []string) error
	// Ack ends the delivery of messages for good.
	Ack(ctx context.Context, ids []string) error
	// Fail gives messages back to be tried again later, a bounded number of
	// times, and then kept for a human.
	Fail(ctx context.Context, failures []Failure) error
	// Release gives messages back that were not tried.
	Release(ctx context.Context, ids []string) error
	// Defer ends this delivery of m and delivers its data again at the given
	// time, as a new message.
	Defer(ctx context.Context, m Message, until time.Time) error
}

// QueueSource delivers what package changes sends to a queue. It is safe for
// concurrent use.
type QueueSource struct {
	db *kv.DB
	q  *queue.Queue

	mu     sync.Mutex // guards inHand
	inHand map[string]held
}

// held is a message in hand.
type held struct {
	message queue.Message
	token   string // of its present lease
}

// NewQueueSource returns a source of the messages of q, whose rows are in db.
func NewQueueSource(db *kv.DB, q *queue.Queue) *QueueSource {
	return &QueueSource{db: db, q: q, inHand: map[string]held{}}
}

// Receive implements Source. Records get the time at which they were sent, which
// is that of their commit as near as anybody can tell.
func (s *QueueSource) Receive(ctx context.Context, max int) ([]Message, error) {
	received, err := s.q.Receive(ctx, max)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, nil
	case errors.Is(err, queue.ErrStopped), errors.Is(err, queue.ErrQueueNotFound):
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	default:
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := make([]Message, len(received))
	for i, m := range received {
		id := hex.EncodeToString(m.Key)
		messages[i] = Message{ID: id, Data: changes.Stamp(m.Payload, kv.VersionAt(m.DeliverTime))}
		s.inHand[id] = held{message: m, token: m.Token()}
	}
	return messages, nil
}

// Lease implements Source.
func (s *QueueSource) Lease() time.Duration { return s.q.Settings().Lease }

// Renew implements Source.
func (s *QueueSource) Renew(ctx context.Context, ids []string) error {
	byToken := make(map[string]string, len(ids))
	tokens := make([]string, 0, len(ids))
	s.mu.Lock()
	for _, id := range ids {
		if h, ok := s.inHand[id]; ok {
			byToken[h.token] = id
			tokens = append(tokens, h.token)
		}
	}
	s.mu.Unlock()
	renewals, err := s.q.RenewLease(ctx, tokens...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range renewals {
		id := byToken[n.OldToken]
		if h, ok := s.inHand[id]; ok && h.token == n.OldToken && n.NewToken != "" {
			h.token = n.NewToken
			s.inHand[id] = h
		}
	}
	return nil
}

// take ends that messages are in hand.
func (s *QueueSource) take(ids ...string) []held {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := make([]held, 0, len(ids))
	for _, id := range ids {
		if h, ok := s.inHand[id]; ok {
			taken = append(taken, h)
			delete(s.inHand, id)
		}
	}
	return taken
}

// Ack implements Source, in a commit of its own.
func (s *QueueSource) Ack(ctx context.Context, ids []string) error {
	var keys [][]byte
	for _, h := range s.take(ids...) {
		keys = append(keys, h.message.Key)
	}
	_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
		_, err := s.q.AckExisting(tx, keys...)
		return err
	})
	return err
}

// Fail implements Source by the settings of the queue.
func (s *QueueSource) Fail(ctx context.Context, failures []Failure) error {
	var group errgroup.Group
	for _, f := range failures {
		for _, h := range s.take(f.ID) {
			group.Go(func() error {
				err := s.q.Retry(ctx, h.token, -1, f.Reason)
				if errors.Is(err, queue.ErrLeaseLost) {
					return nil // it is back already
				}
				return err
			})
		}
	}
	return group.Wait()
}

// Release implements Source. A message whose lease was renewed comes back only when
// that ends, and that counts as an attempt: the queue takes it for a receiver's
// work.
func (s *QueueSource) Release(_ context.Context, ids []string) error {
	for _, h := range s.take(ids...) {
		s.q.Release(h.message)
	}
	return nil
}

// Defer implements Source: the message and the one that takes its place change
// places in one commit.
func (s *QueueSource) Defer(ctx context.Context, m Message, until time.Time) error {
	for _, h := range s.take(m.ID) {
		_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
			n, err := s.q.AckExisting(tx, h.message.Key)
			if err != nil || n == 0 {
				return err
			}
			key, err := s.q.NewKey()
			if err != nil {
				return err
			}
			return s.q.Send(tx, queue.Outgoing{Key: key, Payload: m.Data, DeliverTime: until})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
