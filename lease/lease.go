package lease

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

var (
	// ErrLost: the lease is no longer this process's.
	ErrLost = errors.New("lease is lost")
	// ErrStopped: the manager's Run has ended.
	ErrStopped = errors.New("lease manager has stopped")
)

// Lease is the ownership of a name during one epoch. It is safe for concurrent use.
type Lease struct {
	m       *Manager
	name    string
	epoch   uint64
	clean   bool
	version kv.Version // of its row during the epoch
	session *session
	over    atomic.Bool // given back
}

// Name returns what is owned.
func (l *Lease) Name() string { return l.name }

// Epoch returns the number of this ownership: larger than all before it of the same
// name, in all processes.
func (l *Lease) Epoch() uint64 { return l.epoch }

// Clean reports whether the owner before has given the lease back in order, or there
// was none.
func (l *Lease) Clean() bool { return l.clean }

// Valid reports whether the lease surely is this process's, as far as clocks of equal
// speed can tell. What is written needs Fence.
func (l *Lease) Valid() bool { return !l.over.Load() && l.session.valid(l.m.elapsed()) }

// Fence makes tx fail if the lease is no longer this process's: with ErrLost, now or
// when it runs again after a conflict. Its database must have the manager's engine.
func (l *Lease) Fence(tx *kv.Tx) error {
	k := leaseKey(l.name)
	if tx.Expect(space, k, l.version) {
		return nil
	}
	row, err := tx.Get(space, k)
	if err != nil {
		return fmt.Errorf("lease %q: %w", l.name, err)
	}
	if row.Version != l.version {
		return fmt.Errorf("lease %q: %w", l.name, ErrLost)
	}
	return nil
}

// session is a life of this process in the eyes of the others. The manager's
// heartbeat is the only one to change it.
type session struct {
	id string
	// until is when it ends unless it is renewed, in Manager.elapsed; zero before the
	// first renewal.
	until atomic.Int64
	// gone is closed when somebody has deleted its row.
	gone chan struct{}
	row  sessionRow
}

// forever is the end of a session that nobody can take away.
const forever = math.MaxInt64

func (s *session) valid(now time.Duration) bool { return int64(now) < s.until.Load() && !s.lost() }

// begun reports whether the session's row is known to have existed.
func (s *session) begun() bool { return s.until.Load() != 0 }

func (s *session) lost() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}
