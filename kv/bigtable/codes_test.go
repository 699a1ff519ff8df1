package bigtable

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/kv"
)

const secret = "what the service says stays inside"

// failing makes the first n calls of a method fail.
func failing(name string, code codes.Code, n int32) (func(string, any) error, *atomic.Int32) {
	var seen atomic.Int32
	return func(method string, _ any) error {
		if method == name && seen.Add(1) <= n {
			return status.Error(code, secret)
		}
		return nil
	}, &seen
}

func TestTemporaryErrorsAreTriedAgain(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded, codes.Internal, codes.Unknown} {
		for _, name := range []string{"ReadRows", "CheckAndMutateRow", "MutateRow"} {
			w := newWorld(t)
			v := w.commit(nil, put("a", "x", "old"), put("b", "y", "old"))
			settled(w.other)
			hook, seen := failing(name, code, 2)
			w.server.intercept(hook, nil)
			w.commit([]kv.Check{check("a", "x", v)}, fed(put("a", "x", "new"), "e"))
			if seen.Load() < 3 {
				t.Errorf("%v of %s: %d calls", code, name, seen.Load())
			}
			w.server.intercept(nil, nil)
			if got := w.show(w.other, "a/x"); got != "a/x=new" {
				t.Errorf("%v of %s: %s", code, name, got)
			}
		}
	}
}

// Errors that say that nothing was done leave nothing unknown, and end a call.
func TestDefiniteErrorsEndTheCall(t *testing.T) {
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition} {
		for _, writes := range [][]kv.Write{{put("a", "x", "new")}, {put("a", "x", "new"), put("b", "y", "new")}} {
			w := newWorld(t)
			hook, seen := failing("CheckAndMutateRow", code, 1_000_000)
			w.server.intercept(hook, nil)
			_, err := w.db.Commit(t.Context(), &kv.Txn{Writes: writes})
			if err == nil || errors.Is(err, kv.ErrUnknownOutcome) || kv.IsConflict(err) {
				t.Errorf("%v: error = %v", code, err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%v: error tells what the service says: %v", code, err)
			}
			settled(w.other)
			if seen.Load() > 4 {
				t.Errorf("%v: %d calls", code, seen.Load())
			}
			w.server.intercept(nil, nil)
			if got := w.show(w.other, "a/x", "b/y"); got != "a/x=- b/y=-" {
				t.Errorf("%v: %s", code, got)
			}
		}
	}
}

// A service that stays away makes a write's outcome unknown, and a read fail.
func TestOutageIsReported(t *testing.T) {
	w := newWorld(t)
	hook, _ := failing("CheckAndMutateRow", codes.Unavailable, 1_000_000)
	w.server.intercept(hook, nil)
	_, err := w.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "x", "new")}})
	if !errors.Is(err, kv.ErrUnknownOutcome) {
		t.Errorf("error = %v", err)
	}
	// No lock was placed and no record made: nothing unknown here.
	_, err = w.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "x", "new"), put("b", "y", "new")}})
	if err == nil || errors.Is(err, kv.ErrUnknownOutcome) {
		t.Errorf("error = %v", err)
	}
	hook, _ = failing("ReadRows", codes.ResourceExhausted, 1_000_000)
	w.server.intercept(hook, nil)
	if _, err = w.db.GetOne(t.Context(), "a", []byte("x")); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("error = %v", err)
	}
	w.server.intercept(nil, nil)
}

// Answers to commits get lost at the decisive moment, again and again.
func TestCommitPointIsFoundOut(t *testing.T) {
	w := newWorld(t)
	var dropped atomic.Int32
	w.server.intercept(nil, func(_ string, req any) error {
		r, ok := req.(*bigtablepb.CheckAndMutateRowRequest)
		if ok && len(r.TrueMutations) == 1 && strings.HasPrefix(string(r.TrueMutations[0].GetSetCell().GetValue()), "C") {
			dropped.Add(1)
			return errDropped
		}
		return nil
	})
	w.commit(nil, put("a", "x", "new"), put("b", "y", "new"))
	if dropped.Load() == 0 {
		t.Errorf("nothing was dropped")
	}
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=new b/y=new" {
		t.Errorf("rows: %s", got)
	}
}

// A caller who does not wait for the decision is told that it is unknown, and the
// transaction is decided behind its back.
func TestUnknownCommitIsDecidedInTheBackground(t *testing.T) {
	w := newWorld(t)
	s := newStall("before commit")
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.reached
		cancel()
	}()
	_, err := e.Commit(ctx, &kv.Txn{Writes: []kv.Write{put("a", "x", "new"), put("b", "y", "new")}})
	if !errors.Is(err, kv.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	close(s.resume)
	settled(e)
	if got := w.show(w.other, "a/x", "b/y"); got != "a/x=new b/y=new" {
		t.Errorf("rows: %s", got)
	}
	w.unlockedAll("a/x", "b/y")
}

// Close does not wait for ever for a service that is gone.
func TestCloseOfAFrozenService(t *testing.T) {
	w := newWorld(t)
	s := newStall("before finish")
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), s.hook)
	e.closeTimeout = 50 * time.Millisecond
	if _, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "x", "new"), put("b", "y", "new")}}); err != nil {
		t.Fatal(err)
	}
	thaw := w.server.freeze()
	defer thaw()
	close(s.resume)
	done := make(chan struct{})
	go func() {
		_ = e.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		t.Error("Close hangs")
	}
}
