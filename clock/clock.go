// Package clock is where the current time comes from.
//
// Every time that is stored, or compared with a stored time (versions, expiry,
// leases, custom times of objects, tokens), comes from a Clock that was handed
// in. Waiting (timers, backoff, deadlines) uses the standard library.
package clock

import (
	"sync"
	"time"
)

// Clock tells the current time. Implementations are safe for concurrent use.
// A clock may jump, forwards and backwards: who needs order must not rely on it.
type Clock interface {
	Now() time.Time
}

// System is the operating system's wall clock, in UTC.
type System struct{}

// Now returns the wall clock's time. It carries no monotonic reading, because
// it is meant to be stored and compared with stored times.
func (System) Now() time.Time { return time.Now().UTC().Round(0) }

// Monotonic is for times that never leave the process: what it shows has a
// monotonic reading, so that a time since then is right however the wall clock
// jumps meanwhile.
type Monotonic struct{}

// Now returns the wall clock's time with a monotonic reading.
func (Monotonic) Now() time.Time { return time.Now() }

// Manual is a clock that stands still until it is told to move. For tests and
// simulations.
type Manual struct {
	mu  sync.Mutex
	now time.Time
}

// NewManual returns a Manual clock that shows start.
func NewManual(start time.Time) *Manual { return &Manual{now: start.UTC()} }

// Now returns the time last set.
func (m *Manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Set makes the clock show t, which may lie before the time shown until now.
func (m *Manual) Set(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = t.UTC()
}

// Advance moves the clock by d, backwards if d is negative, and returns the new
// time.
func (m *Manual) Advance(d time.Duration) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
	return m.now
}
