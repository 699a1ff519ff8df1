package spanner

import (
	"context"
	"sync/atomic"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// outcome follows the Commit requests of one commit, below all of the client's
// own retries. The client repeats a request that failed to be answered, which
// Spanner answers as it answered the first; and after some failures it runs the
// whole transaction again, which must not happen while an earlier Commit may have
// been done.
type outcome struct{ open atomic.Bool }

// unsettled reports whether a Commit was sent whose end is not known.
func (o *outcome) unsettled() bool { return o.open.Load() }

type outcomeKey struct{}

func withOutcome(ctx context.Context, o *outcome) context.Context {
	return context.WithValue(ctx, outcomeKey{}, o)
}

// settles reports whether an answer to a Commit says what has become of the
// transaction, and refuses whether it says that this request did nothing.
func settles(err error) bool { return err == nil || status.Code(err) == codes.Aborted }

func refuses(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}

// rollbackTimeout bounds a rollback, which nobody waits for: locks that it does
// not release are released by Spanner after some seconds.
const rollbackTimeout = 5 * time.Second

// intercept sees each unary request that the client sends.
func (e *Engine) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch method {
	case spannerpb.Spanner_Commit_FullMethodName:
		o, ok := ctx.Value(outcomeKey{}).(*outcome)
		if !ok {
			break
		}
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		before := o.open.Swap(true)
		err := invoker(ctx, method, req, reply, cc, opts...)
		if settles(err) || refuses(err) && !before {
			o.open.Store(false)
		}
		return err
	case spannerpb.Spanner_Rollback_FullMethodName:
		// The client waits for the answer without a deadline of its caller. The
		// call options point to what it reads afterwards, so they are left out.
		e.background.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
			defer cancel()
			_ = invoker(ctx, method, req, &emptypb.Empty{}, cc)
		})
		return nil
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}
