// Package pubsub is the reconcile.Source of a Pub/Sub subscription. The
// subscription must be a pull subscription; it has the schedule of attempts and
// says where dead letters go.
//
// A message that failed is left to its ack deadline, never given back early: the
// deadline spaces out the attempts, of which there are few.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/reconcile"
)

const (
	// shortestDeadline is the least ack deadline that a subscription can have.
	// What this one has is not ours to read, so leases are renewed as if it had
	// that.
	shortestDeadline = 10 * time.Second
	// longestDeadline is the greatest that a message can get.
	longestDeadline = 600 * time.Second

	defaultDeadline = 60 * time.Second

	// pullWait is how long one request waits for messages.
	pullWait = 10 * time.Second
	// emptyPause is the wait after an answer without messages.
	emptyPause = 100 * time.Millisecond

	ackRetryFirst = 100 * time.Millisecond
	ackRetryMost  = 2 * time.Second
)

// MaxDelay is the longest time for which Defer can keep a message back.
const MaxDelay = longestDeadline

var subscriptionPattern = regexp.MustCompile(`^projects/[^/]+/subscriptions/[^/]+$`)

// SubscriptionName returns the resource name of a subscription, which may be one
// already.
func SubscriptionName(project, subscription string) (string, error) {
	name := subscription
	if !subscriptionPattern.MatchString(name) {
		name = "projects/" + project + "/subscriptions/" + subscription
	}
	if !subscriptionPattern.MatchString(name) {
		return "", fmt.Errorf("pubsub: %q is not a subscription such as projects/P/subscriptions/S, nor one in project %q", subscription, project)
	}
	return name, nil
}

// Options adjusts a Source. The zero value is ready to use, but for the clock.
type Options struct {
	Clock clock.Clock
	// Deadline is what ack deadlines are extended to. Default: 60 s.
	Deadline time.Duration
	// UntilEmpty makes Receive return when the service answers that there is
	// nothing. Else it goes on until its context ends.
	UntilEmpty bool
	// EmptyAfter, if not zero, is after which time without any answer there is
	// nothing, for UntilEmpty.
	EmptyAfter time.Duration
}

// Source delivers the messages of a subscription. It is safe for concurrent use.
// Close it after use.
type Source struct {
	client *pubsub.SubscriptionAdminClient
	name   string
	opts   Options

	mu     sync.Mutex        // guards inHand
	inHand map[string]string // message ID -> ack ID of its latest delivery
}

// Open returns the source of the subscription of that resource name.
func Open(ctx context.Context, name string, opts Options, client ...option.ClientOption) (*Source, error) {
	if opts.Deadline <= 0 {
		opts.Deadline = defaultDeadline
	}
	c, err := pubsub.NewSubscriptionAdminClient(ctx, client...)
	if err != nil {
		return nil, fmt.Errorf("pubsub: open %s: %w", name, err)
	}
	return &Source{client: c, name: name, opts: opts, inHand: map[string]string{}}, nil
}

// Close ends the use of the subscription.
func (s *Source) Close() error { return s.client.Close() }

// Receive implements reconcile.Source. A subscription that is not there, or may not
// be read, is closed.
func (s *Source) Receive(ctx context.Context, max int) ([]reconcile.Message, error) {
	for ctx.Err() == nil {
		received, err := s.pull(ctx, max)
		switch code := status.Code(err); {
		case err == nil:
			if messages := s.take(received); len(messages) > 0 {
				return messages, nil
			}
			if s.opts.UntilEmpty && len(received) == 0 {
				return nil, nil
			}
			pause(ctx, emptyPause)
		case ctx.Err() != nil:
		case code == codes.DeadlineExceeded:
			// Nobody has said that there is nothing.
			if s.opts.UntilEmpty && s.opts.EmptyAfter > 0 {
				return nil, nil
			}
		case closed(code):
			return nil, fmt.Errorf("pubsub: pull from %s: %w: %w", s.name, reconcile.ErrClosed, err)
		default:
			return nil, fmt.Errorf("pubsub: pull from %s: %w", s.name, err)
		}
	}
	return nil, nil
}

func closed(c codes.Code) bool {
	return c == codes.NotFound || c == codes.InvalidArgument || c == codes.PermissionDenied ||
		c == codes.Unauthenticated || c == codes.Unimplemented
}

func (s *Source) pull(ctx context.Context, max int) ([]*pubsubpb.ReceivedMessage, error) {
	wait := pullWait
	if s.opts.EmptyAfter > 0 {
		wait = s.opts.EmptyAfter
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	res, err := s.client.Pull(ctx, &pubsubpb.PullRequest{Subscription: s.name, MaxMessages: int32(min(max, 1000))}, noRetry)
	if err != nil && ctx.Err() != nil {
		err = status.FromContextError(ctx.Err()).Err()
	}
	return res.GetReceivedMessages(), err
}

// take notes that messages are in hand and returns those that were not: of a
// message that is delivered again meanwhile, the latest delivery is acknowledged.
func (s *Source) take(received []*pubsubpb.ReceivedMessage) []reconcile.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := make([]reconcile.Message, 0, len(received))
	for _, r := range received {
		id := r.GetMessage().GetMessageId()
		if _, again := s.inHand[id]; !again {
			messages = append(messages, reconcile.Message{ID: id, Data: r.GetMessage().GetData()})
		}
		s.inHand[id] = r.GetAckId()
	}
	return messages
}

// ackIDs returns the ack IDs of messages in hand. If done, they no longer are.
func (s *Source) ackIDs(ids []string, done bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	acks := make([]string, 0, len(ids))
	for _, id := range ids {
		if ack, ok := s.inHand[id]; ok {
			acks = append(acks, ack)
		}
		if done {
			delete(s.inHand, id)
		}
	}
	return acks
}

// Lease implements reconcile.Source.
func (s *Source) Lease() time.Duration { return shortestDeadline }

// Renew implements reconcile.Source.
func (s *Source) Renew(ctx context.Context, ids []string) error {
	return s.extend(ctx, s.ackIDs(ids, false), s.opts.Deadline)
}

func (s *Source) extend(ctx context.Context, acks []string, d time.Duration) error {
	if len(acks) == 0 {
		return nil
	}
	return retry(ctx, func() error {
		return s.client.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{
			Subscription: s.name, AckIds: acks, AckDeadlineSeconds: int32(d / time.Second),
		}, noRetry)
	})
}

// Ack implements reconcile.Source.
func (s *Source) Ack(ctx context.Context, ids []string) error {
	acks := s.ackIDs(ids, true)
	if len(acks) == 0 {
		return nil
	}
	return retry(ctx, func() error {
		return s.client.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: s.name, AckIds: acks}, noRetry)
	})
}

// Fail implements reconcile.Source: the deadlines end by themselves.
func (s *Source) Fail(_ context.Context, failures []reconcile.Failure) error {
	ids := make([]string, len(failures))
	for i, f := range failures {
		ids[i] = f.ID
	}
	s.ackIDs(ids, true)
	return nil
}

// Release implements reconcile.Source as Fail does. It costs an attempt, and so
// would giving the message back.
func (s *Source) Release(_ context.Context, ids []string) error {
	s.ackIDs(ids, true)
	return nil
}

// Defer implements reconcile.Source by a longer deadline, MaxDelay at the most. It
// costs an attempt.
func (s *Source) Defer(ctx context.Context, m reconcile.Message, until time.Time) error {
	wait := until.Sub(s.opts.Clock.Now()) + time.Second // whole seconds, rounded up
	return s.extend(ctx, s.ackIDs([]string{m.ID}, true), min(max(wait, shortestDeadline), longestDeadline))
}

var noRetry = gax.WithRetry(func() gax.Retryer { return nil })

// retry repeats a request until it succeeds, is refused or ctx ends.
func retry(ctx context.Context, do func() error) error {
	for wait := ackRetryFirst; ; wait = min(2*wait, ackRetryMost) {
		err := do()
		if err == nil {
			return nil
		}
		if closed(status.Code(err)) || ctx.Err() != nil {
			return fmt.Errorf("pubsub: %w", err)
		}
		pause(ctx, wait/2+rand.N(wait))
		if ctx.Err() != nil {
			return fmt.Errorf("pubsub: %w", errors.Join(err, ctx.Err()))
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
