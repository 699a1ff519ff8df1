package kvtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
)

// Failure is a way in which a call can go wrong.
type Failure string

// All failures that EachCall tries.
const (
	// Refused: the call is not made and returns ErrInjected.
	Refused Failure = "refused"
	// LostBefore: a commit is not applied and returns ErrUnknownOutcome.
	LostBefore Failure = "lost-before"
	// LostAfter: a commit is applied and returns ErrUnknownOutcome.
	LostAfter Failure = "lost-after"
	// CrashedBefore: the call is not made; it and all later ones return
	// ErrCrashed.
	CrashedBefore Failure = "crashed-before"
	// CrashedAfter: the call is made; it and all later ones return ErrCrashed.
	CrashedAfter Failure = "crashed-after"
)

var failures = []Failure{Refused, LostBefore, LostAfter, CrashedBefore, CrashedAfter}

// Point is one place at which a scenario goes wrong.
type Point struct {
	// Failure is what happens, at call N among those it can happen to: commits
	// for LostBefore and LostAfter, all calls otherwise.
	Failure Failure
	N       int

	armed, fired atomic.Bool
}

// Arm plans the failure, counted from the next call of f. Any hooks of f are
// replaced. The scenario's setup comes before Arm, and f.Reset ends the failure.
func (p *Point) Arm(f *Faults) {
	f.Reset()
	p.armed.Store(true)
	var seen atomic.Int64
	due := func(c Call) bool {
		if lost := p.Failure == LostBefore || p.Failure == LostAfter; lost && c.Op != OpCommit {
			return false
		}
		if seen.Add(1) != int64(p.N)+1 {
			return false
		}
		p.fired.Store(true)
		return true
	}
	switch p.Failure {
	case Refused, LostBefore, CrashedBefore:
		f.Before(func(_ context.Context, c Call) error {
			if !due(c) {
				return nil
			}
			return p.fail(f)
		})
	default:
		f.After(func(_ context.Context, c Call, err error) error {
			if !due(c) {
				return err
			}
			return p.fail(f)
		})
	}
}

func (p *Point) fail(f *Faults) error {
	switch p.Failure {
	case Refused:
		return ErrInjected
	case LostBefore, LostAfter:
		return kv.ErrUnknownOutcome
	}
	f.Crash()
	return ErrCrashed
}

// Fired reports whether the failure has happened.
func (p *Point) Fired() bool { return p.fired.Load() }

// maxPoints ends a scenario that always makes one call more than before.
const maxPoints = 10_000

// EachCall runs a scenario over and over: with call 0 failing, then call 1, and so
// on until a run has no such call; and that for each kind of failure. The
// scenario makes a fresh engine, prepares its data, calls Arm, acts, calls
// Faults.Reset, and checks that the state is one that is allowed. The last run of
// each kind of failure has none.
func EachCall(t *testing.T, scenario func(t *testing.T, p *Point)) {
	t.Helper()
	for _, failure := range failures {
		for n := 0; runPoint(t, &Point{Failure: failure, N: n}, scenario); n++ {
			if n == maxPoints {
				t.Fatalf("%s: no end after %d calls", failure, n)
			}
		}
	}
}

// runPoint reports whether there may be a further point.
func runPoint(t *testing.T, p *Point, scenario func(t *testing.T, p *Point)) bool {
	ran := false
	t.Run(fmt.Sprintf("%s-%d", p.Failure, p.N), func(t *testing.T) {
		ran = true
		scenario(t, p)
		if !p.armed.Load() {
			t.Fatal("the scenario did not arm the point")
		}
	})
	if !ran {
		return p.N < maxPoints-1 // left out by -run, which may want a later one
	}
	return p.Fired()
}
