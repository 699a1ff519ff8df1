package blobtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// Op names a method of blob.Driver.
type Op string

// The operations that Faults sees.
const (
	OpPut      Op = "put"
	OpFinalize Op = "finalize"
	OpGet      Op = "get"
	OpRead     Op = "read" // the content that a get returned: its first byte and its end
	OpStat     Op = "stat"
	OpDelete   Op = "delete" // of a Delete without condition
	OpDiscard  Op = "discard"
	OpCopy     Op = "copy"
	OpList     Op = "list"
)

// Stage tells when a hook runs.
type Stage string

// The stages of a call. An error injected Before means that the call was not
// made; one injected After, that it was made and its success is kept from the
// caller.
const (
	Before Stage = "before"
	After  Stage = "after"
)

// Call is one call of a driver, as a hook sees it.
type Call struct {
	N     int // number of the call since NewFaults, from 0; the same for both stages
	Op    Op
	Name  string // the object; the source of a copy; the prefix of a list
	Dst   string // the copy
	Stage Stage
	Err   error // After: what the driver returned
}

// String returns the call as it stands in a trace: "copy a to b".
func (c Call) String() string {
	s := fmt.Sprintf("%s %s", c.Op, c.Name)
	if c.Dst != "" {
		s += " to " + c.Dst
	}
	return s
}

// Hook is called before and after each call, by many goroutines if the driver
// is. An error is what the caller gets instead of the driver's answer. A hook
// may wait, move a clock, or use the wrapped driver.
type Hook func(ctx context.Context, c Call) error

// ErrInjected is the error for tests that need just any.
var ErrInjected = errors.New("injected fault")

// Faults is a blob.Driver around another that keeps a trace of the calls and
// does to them what its hook says.
type Faults struct {
	driver blob.Driver

	mu    sync.Mutex
	hook  Hook     // guarded by mu
	calls int      // guarded by mu
	trace []string // guarded by mu
}

var _ blob.Driver = (*Faults)(nil)

// NewFaults wraps driver. Without a hook it only traces.
func NewFaults(driver blob.Driver) *Faults { return &Faults{driver: driver} }

// SetHook replaces the hook for calls that begin from now on; nil removes it.
func (f *Faults) SetHook(h Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = h
}

// Trace returns the calls so far in the order of their ends, one string each:
// "put a/b", or "put a/b: failed" if the caller got an error (not found and
// exists included). Reads of content are not traced.
func (f *Faults) Trace() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.trace...)
}

// ResetTrace empties the trace.
func (f *Faults) ResetTrace() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = nil
}

// begin numbers the call and runs its hook. end runs the hook again and is
// called with the driver's error only if begin returned none.
func (f *Faults) begin(ctx context.Context, op Op, name, dst string) (end func(error) error, err error) {
	f.mu.Lock()
	hook := f.hook
	c := Call{N: f.calls, Op: op, Name: name, Dst: dst, Stage: Before}
	f.calls++
	f.mu.Unlock()
	if hook == nil {
		hook = func(context.Context, Call) error { return nil }
	}
	if err := hook(ctx, c); err != nil {
		f.record(c, err)
		return nil, err
	}
	return func(err error) error {
		c.Stage, c.Err = After, err
		if injected := hook(ctx, c); injected != nil {
			err = injected
		}
		f.record(c, err)
		return err
	}, nil
}

func (f *Faults) record(c Call, err error) {
	if c.Op == OpRead {
		return
	}
	line := c.String()
	if err != nil {
		line += ": failed"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = append(f.trace, line)
}

// URLPrefix returns that of the wrapped driver. It is no call.
func (f *Faults) URLPrefix() string { return f.driver.URLPrefix() }

// Put implements blob.Driver.
func (f *Faults) Put(ctx context.Context, name string, customTime time.Time, r io.Reader, size int64) error {
	end, err := f.begin(ctx, OpPut, name, "")
	if err != nil {
		return err
	}
	return end(f.driver.Put(ctx, name, customTime, r, size))
}

// Finalize implements blob.Driver.
func (f *Faults) Finalize(ctx context.Context, name string) (bool, error) {
	end, err := f.begin(ctx, OpFinalize, name, "")
	if err != nil {
		return false, err
	}
	found, err := f.driver.Finalize(ctx, name)
	if err = end(err); err != nil {
		return false, err
	}
	return found, nil
}

// Get implements blob.Driver.
func (f *Faults) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, blob.Attrs, error) {
	end, err := f.begin(ctx, OpGet, name, "")
	if err != nil {
		return nil, blob.Attrs{}, err
	}
	r, attrs, err := f.driver.Get(ctx, name, offset, length)
	if failed := end(err); failed != nil {
		if err == nil {
			err = r.Close()
		}
		return nil, blob.Attrs{}, errors.Join(failed, err)
	}
	return &faultyReader{ReadCloser: r, faults: f, ctx: ctx, name: name}, attrs, nil
}

// Stat implements blob.Driver.
func (f *Faults) Stat(ctx context.Context, name string) (blob.Attrs, error) {
	end, err := f.begin(ctx, OpStat, name, "")
	if err != nil {
		return blob.Attrs{}, err
	}
	attrs, err := f.driver.Stat(ctx, name)
	if err = end(err); err != nil {
		return blob.Attrs{}, err
	}
	return attrs, nil
}

// Delete implements blob.Driver.
func (f *Faults) Delete(ctx context.Context, name string, cond blob.Condition) (bool, error) {
	op := OpDelete
	if cond != (blob.Condition{}) {
		op = OpDiscard
	}
	end, err := f.begin(ctx, op, name, "")
	if err != nil {
		return false, err
	}
	removed, err := f.driver.Delete(ctx, name, cond)
	if err = end(err); err != nil {
		return false, err
	}
	return removed, nil
}

// Copy implements blob.Driver.
func (f *Faults) Copy(ctx context.Context, src, dst string, customTime time.Time) error {
	end, err := f.begin(ctx, OpCopy, src, dst)
	if err != nil {
		return err
	}
	return end(f.driver.Copy(ctx, src, dst, customTime))
}

// List implements blob.Driver.
func (f *Faults) List(ctx context.Context, prefix, after string, fn func(blob.Attrs) bool) error {
	end, err := f.begin(ctx, OpList, prefix, "")
	if err != nil {
		return err
	}
	return end(f.driver.List(ctx, prefix, after, fn))
}

// faultyReader is one OpRead: its Before is at the first Read, its After at the
// end of the content.
type faultyReader struct {
	io.ReadCloser
	faults *Faults
	ctx    context.Context
	name   string
	end    func(error) error
	err    error // sticky
}

func (r *faultyReader) Read(p []byte) (int, error) {
	if r.err == nil && r.end == nil {
		r.end, r.err = r.faults.begin(r.ctx, OpRead, r.name, "")
	}
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.ReadCloser.Read(p)
	if err != nil {
		r.err = r.end(err)
	}
	return n, r.err
}

// FailAt returns a hook that fails call number n at the stage.
func FailAt(n int, stage Stage, err error) Hook {
	return func(_ context.Context, c Call) error {
		if c.N == n && c.Stage == stage {
			return err
		}
		return nil
	}
}

// FailOn returns a hook that fails each call of op at the stage.
func FailOn(op Op, stage Stage, err error) Hook {
	return On(op, stage, func(context.Context, Call) error { return err })
}

// HangOn returns a hook that keeps each call of op, at the stage, until its
// context ends, and fails it with the context's error.
func HangOn(op Op, stage Stage) Hook {
	return On(op, stage, func(ctx context.Context, _ Call) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// DelayOn returns a hook that keeps each call of op, at the stage, for d or
// until its context ends.
func DelayOn(op Op, stage Stage, d time.Duration) Hook {
	return On(op, stage, func(ctx context.Context, _ Call) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	})
}

// On returns h limited to calls of op at the stage.
func On(op Op, stage Stage, h Hook) Hook {
	return func(ctx context.Context, c Call) error {
		if c.Op == op && c.Stage == stage {
			return h(ctx, c)
		}
		return nil
	}
}

// Hooks returns a hook that runs hs in turn up to the first error.
func Hooks(hs ...Hook) Hook {
	return func(ctx context.Context, c Call) error {
		for _, h := range hs {
			if err := h(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
}

// maxFaults bounds EachFault: a scenario with more calls goes on for ever.
const maxFaults = 10_000

// EachFault runs the scenario again and again, each time as a subtest with
// another single call failing: call 0 before it is made, call 0 after it was
// made, call 1, and so on, until no call is left to fail. The scenario makes its
// world anew, gives the hook to a Faults and asserts what must hold in spite of
// the failure, or without one in the last run. The error is ErrInjected.
func EachFault(t *testing.T, scenario func(t *testing.T, hook Hook)) {
	t.Helper()
	for n := range maxFaults {
		reached := false
		for _, stage := range []Stage{Before, After} {
			var mu sync.Mutex
			fail := FailAt(n, stage, ErrInjected)
			hook := func(ctx context.Context, c Call) error {
				err := fail(ctx, c)
				if err != nil {
					mu.Lock()
					reached = true
					mu.Unlock()
					err = fmt.Errorf("%s %s: %w", c.Stage, strings.TrimSpace(c.String()), err)
				}
				return err
			}
			ok := t.Run(fmt.Sprintf("call %d %s", n, stage), func(t *testing.T) { scenario(t, hook) })
			if !ok {
				return
			}
		}
		if !reached {
			return
		}
	}
	t.Errorf("the scenario still makes calls after %d", maxFaults)
}
