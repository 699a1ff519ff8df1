package bigtable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	bt "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/kv"
)

// Times of calls. None matters for safety.
const (
	callTimeout  = 2 * time.Second
	pageTimeout  = 30 * time.Second // of a page of a scan, and of calls that change tables
	callAttempts = 5
	firstBackoff = 10 * time.Millisecond
	mostBackoff  = 500 * time.Millisecond
)

// callError is a call that failed. Its text does not tell what the service said:
// that goes to the debug log only.
type callError struct {
	step  string
	table string
	code  codes.Code
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s in table %s: the service answered %s", e.step, e.table, e.code)
}

// maybe reports whether the request may have been applied, or may be later.
func (e *callError) maybe() bool {
	switch e.code {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.ResourceExhausted, codes.Unimplemented, codes.AlreadyExists:
		return false
	}
	return true
}

// temporary reports whether it makes sense to send the request again.
func (e *callError) temporary() bool { return e.maybe() || e.code == codes.ResourceExhausted }

func isCode(err error, code codes.Code) bool {
	var c *callError
	return errors.As(err, &c) && c.code == code
}

// call is the one place from which all calls to the service go out. The hook sees
// each before it is made, and after it was, so that tests can stop the driver
// there, hold it up, or take the answer away.
func (e *Engine) call(ctx context.Context, step, table string, timeout time.Duration, fn func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := e.hook("before " + step)
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, timeout)
		err = fn(limited)
		cancel()
		if hooked := e.hook("after " + step); hooked != nil {
			err = hooked
		}
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, kv.ErrTooLarge) || errors.Is(err, kv.ErrCorrupt) {
		return err
	}
	code := status.Code(err)
	if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	e.log.Debug("bigtable: a call failed", "step", step, "table", table, "code", code.String(), "error", err)
	return &callError{step: step, table: table, code: code}
}

// again makes a call, up to callAttempts times. sent reports whether a request
// whose fate is not known was made.
func (e *Engine) again(ctx context.Context, step, table string, timeout time.Duration, fn func(ctx context.Context) error) (unsure bool, err error) {
	wait := firstBackoff
	for attempt := 1; ; attempt++ {
		err = e.call(ctx, step, table, timeout, fn)
		var failed *callError
		if !errors.As(err, &failed) {
			return unsure, err
		}
		unsure = unsure || failed.maybe()
		if !failed.temporary() || attempt == callAttempts {
			return unsure, errors.Join(ctx.Err(), err)
		}
		if err := pause(ctx, wait); err != nil {
			return unsure, err
		}
		wait = min(2*wait, mostBackoff)
	}
}

// pause waits for d, give or take a half.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// set is the outcome of a compare-and-set.
type set struct {
	// applied: the condition held for one of the requests that were sent.
	applied bool
	// unsure: the fate of a request is not known. If none is known to be applied,
	// that one may have been, or may yet be.
	unsure bool
}

// cas changes a row if the predicate holds. It sends the same request again until
// it gets an answer. That is safe, because a condition that was met once never
// holds again.
func (e *Engine) cas(ctx context.Context, step string, t *table, key string, p predicate, m *mutation) (set, error) {
	if err := m.check(key); err != nil {
		return set{}, err
	}
	cond := bt.NewCondMutation(p.filter, m.bt, nil)
	if p.negated {
		cond = bt.NewCondMutation(p.filter, nil, m.bt)
	}
	var matched bool
	unsure, err := e.again(ctx, step, t.name, callTimeout, func(ctx context.Context) error {
		return t.bt.Apply(ctx, key, cond, bt.GetCondMutationResult(&matched))
	})
	return set{applied: err == nil && matched != p.negated, unsure: unsure}, err
}

// plain changes a row whatever it holds. It may be applied again much later, so
// it is only used where that does no harm.
func (e *Engine) plain(ctx context.Context, step string, t *table, keys []string, ms []*mutation) error {
	raw := make([]*bt.Mutation, len(ms))
	for i, m := range ms {
		if err := m.check(keys[i]); err != nil {
			return err
		}
		raw[i] = m.bt
	}
	_, err := e.again(ctx, step, t.name, callTimeout, func(ctx context.Context) error {
		if len(keys) == 1 {
			return t.bt.Apply(ctx, keys[0], raw[0])
		}
		errs, err := t.bt.ApplyBulk(ctx, keys, raw)
		for _, one := range errs {
			if err == nil {
				err = one
			}
		}
		return err
	})
	return err
}

// read reads rows. It calls fn for each, on the caller's goroutine, until fn
// returns false; begin comes before each attempt.
func (e *Engine) read(ctx context.Context, step string, t *table, timeout time.Duration, rows bt.RowSet, begin func(), fn func(bt.Row) bool, opts ...bt.ReadOption) error {
	_, err := e.again(ctx, step, t.name, timeout, func(ctx context.Context) error {
		begin()
		return t.bt.ReadRows(ctx, rows, fn, opts...)
	})
	return err
}

// readCell reads one cell of one row; nil if there is none.
func (e *Engine) readCell(ctx context.Context, step string, t *table, key string, c cell) ([]byte, error) {
	var value []byte
	err := e.read(ctx, step, t, callTimeout, bt.SingleRow(key), func() { value = nil }, func(r bt.Row) bool {
		value = newest(r, c)
		return true
	}, bt.RowFilter(c.filter()))
	return value, err
}

// newest returns the value of a cell; nil if the row has none.
func newest(r bt.Row, c cell) []byte {
	for _, item := range r[c.family] {
		if item.Column == c.family+":"+c.column {
			if item.Value == nil {
				return []byte{}
			}
			return item.Value
		}
	}
	return nil
}
