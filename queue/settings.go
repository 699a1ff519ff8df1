package queue

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// Settings are stored with a queue. The zero value of a duration stands for its
// default.
type Settings struct {
	// Lease is how long a delivery or renewal keeps a message from others.
	// Default 10 s. A change applies to leases taken afterwards.
	Lease time.Duration

	// After the k-th lost lease a message rests for RetryFirst * 2^(k-1), at
	// most RetryMost, and for RetryLate once it is older than RetryWindow,
	// counted from its delivery time. Defaults 1 s, 10 min, 1 h, 1 h.
	RetryFirst, RetryMost, RetryLate, RetryWindow time.Duration

	// MaxAttempts is after how many lost leases a message goes to the dead
	// letters. 0: never.
	MaxAttempts int

	// LocalReceivers says that all receivers live in the process that delivers to
	// them and die with it. Then a start need not wait for leases of the past, if
	// no other process can have the engine open. Where others can, a process that
	// has fallen silent may only be paused, and its receivers at work.
	LocalReceivers bool

	// Shards is in how many parts the queue is divided, up to 64. Each is delivered
	// by one process at a time, so at most so many processes receive. It is fixed
	// when the queue is created. Default Options.Shards.
	Shards int

	// DisableSend refuses new messages; DisableDelivery keeps receivers waiting.
	// Acknowledging and renewing work on. A transaction that was under way
	// when DisableSend was set may still commit.
	DisableSend, DisableDelivery bool
}

const (
	defaultLease       = 10 * time.Second
	defaultRetryFirst  = time.Second
	defaultRetryMost   = 10 * time.Minute
	defaultRetryLate   = time.Hour
	defaultRetryWindow = time.Hour

	maxShards = 64
)

// complete fills in defaults and refuses what makes no sense.
func (s *Settings) complete() error {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&s.Lease, defaultLease},
		{&s.RetryFirst, defaultRetryFirst},
		{&s.RetryMost, defaultRetryMost},
		{&s.RetryLate, defaultRetryLate},
		{&s.RetryWindow, defaultRetryWindow},
	} {
		if *d.value < 0 {
			return fmt.Errorf("%w: negative duration in queue settings", kv.ErrInvalid)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if s.MaxAttempts < 0 {
		return fmt.Errorf("%w: negative number of attempts", kv.ErrInvalid)
	}
	if s.Shards < 1 || s.Shards > maxShards {
		return fmt.Errorf("%w: queue of %d shards", kv.ErrInvalid, s.Shards)
	}
	return nil
}

// rest returns how long a message rests after its lost-th lost lease, age being
// the time since its delivery time.
func (s *Settings) rest(lost int, age time.Duration) time.Duration {
	if age >= s.RetryWindow {
		return s.RetryLate
	}
	d := s.RetryFirst
	for i := 1; i < lost && d < s.RetryMost; i++ {
		d *= 2
	}
	return min(d, s.RetryMost)
}
