package kvtest

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-dev/holdfast/kv"
)

var (
	// ErrInjected is a failure that a test asked for: the call did nothing.
	ErrInjected = errors.New("injected failure")
	// ErrCrashed is what every call returns after Faults.Crash.
	ErrCrashed = errors.New("simulated crash")
)

// Faults is an engine that does what another one does, under the control of a
// test. It is safe for concurrent use; hooks may be called by many goroutines.
type Faults struct {
	engine kv.Engine

	mu      sync.Mutex
	before  func(context.Context, Call) error
	after   func(context.Context, Call, error) error
	calls   int
	crashed bool
}

// NewFaults returns an engine that hands all calls to engine until told otherwise.
func NewFaults(engine kv.Engine) *Faults { return &Faults{engine: engine} }

// Before makes hook run before each call. If it returns an error the call is not
// made and returns that error; if it blocks, the call is delayed.
func (f *Faults) Before(hook func(ctx context.Context, c Call) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// After makes hook run after each call that was made, with its error. What it
// returns takes the place of that error.
func (f *Faults) After(hook func(ctx context.Context, c Call, err error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = hook
}

// Crash makes all calls return ErrCrashed until Reset, those in progress too:
// what they did stays, but nobody learns of it.
func (f *Faults) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Reset removes the hooks, ends a crash and counts calls from 0 again.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after, f.calls, f.crashed = nil, nil, 0, false
}

// Calls returns how many calls were begun since Reset.
func (f *Faults) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *Faults) do(ctx context.Context, c Call, call func() error) error {
	f.mu.Lock()
	c.N = f.calls
	f.calls++
	before, crashed := f.before, f.crashed
	f.mu.Unlock()
	if crashed {
		return ErrCrashed
	}
	if before != nil {
		if err := before(ctx, c); err != nil {
			return err
		}
	}
	err := call()
	f.mu.Lock()
	after := f.after
	f.mu.Unlock()
	if after != nil {
		err = after(ctx, c, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	return err
}

// CreateSpace implements kv.Engine.
func (f *Faults) CreateSpace(ctx context.Context, name string, opts kv.SpaceOptions) error {
	return f.do(ctx, Call{Op: OpCreateSpace, Space: name}, func() error {
		return f.engine.CreateSpace(ctx, name, opts)
	})
}

// DropSpace implements kv.Engine.
func (f *Faults) DropSpace(ctx context.Context, name string) error {
	return f.do(ctx, Call{Op: OpDropSpace, Space: name}, func() error {
		return f.engine.DropSpace(ctx, name)
	})
}

// Spaces implements kv.Engine.
func (f *Faults) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) {
	return result(f, ctx, Call{Op: OpSpaces}, func() ([]kv.SpaceInfo, error) { return f.engine.Spaces(ctx) })
}

// Get implements kv.Engine.
func (f *Faults) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	return result(f, ctx, Call{Op: OpGet, Refs: refs}, func() ([]kv.Row, error) { return f.engine.Get(ctx, refs) })
}

// Scan implements kv.Engine. A fault after the call comes after the last row.
func (f *Faults) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	return f.do(ctx, Call{Op: OpScan, Space: space, Range: r}, func() error {
		return f.engine.Scan(ctx, space, r, fn)
	})
}

// Commit implements kv.Engine.
func (f *Faults) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	return result(f, ctx, Call{Op: OpCommit, Txn: t}, func() (kv.Version, error) { return f.engine.Commit(ctx, t) })
}

// ReadFeed implements kv.Engine.
func (f *Faults) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	return result(f, ctx, Call{Op: OpReadFeed, Space: space, Shard: shard}, func() ([]kv.FeedEntry, error) {
		return f.engine.ReadFeed(ctx, space, shard, after, limit)
	})
}

// Close implements kv.Engine. It always closes the engine, and no hook sees it.
func (f *Faults) Close() error { return f.engine.Close() }

// result does a call that returns a value, which is zero if an error is.
func result[T any](f *Faults, ctx context.Context, c Call, call func() (T, error)) (T, error) {
	var value, zero T
	err := f.do(ctx, c, func() (err error) {
		value, err = call()
		return err
	})
	if err != nil {
		return zero, err
	}
	return value, nil
}
