package bigtable

import (
	"context"
	"flag"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// server is a Bigtable in memory that counts calls, and fails or holds them up when
// told to.
type server struct {
	*bttest.Server
	audit *audit

	mu     sync.Mutex
	counts map[string]int
	before func(method string, req any) error
	after  func(method string, req any) error
	change func(res any) // of answers
	gate   chan struct{} // not nil: calls wait until it is closed
	killed chan struct{}
}

func newServer(tb testing.TB) *server {
	tb.Helper()
	s := &server{counts: map[string]int{}, killed: make(chan struct{}), audit: newAudit(tb)}
	srv, err := bttest.NewServer("127.0.0.1:0",
		grpc.MaxRecvMsgSize(1<<28), grpc.MaxSendMsgSize(1<<28),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	if err != nil {
		tb.Fatal(err)
	}
	s.Server = srv
	tb.Cleanup(func() {
		close(s.killed)
		srv.Close()
	})
	return s
}

func method(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

func (s *server) pass(ctx context.Context, name string, req any) error {
	s.mu.Lock()
	s.counts[name]++
	before, gate := s.before, s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.killed:
		}
	}
	if before != nil {
		return before(name, req)
	}
	return nil
}

func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	name := method(info.FullMethod)
	if err := s.pass(ctx, name, req); err != nil {
		return nil, err
	}
	res, err := s.audit.call(ctx, req, handler)
	s.mu.Lock()
	after, change := s.after, s.change
	s.mu.Unlock()
	if err == nil && after != nil {
		if err := after(name, req); err != nil {
			return nil, err
		}
	}
	if err == nil && change != nil {
		change(res)
	}
	return res, err
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	name := method(info.FullMethod)
	if err := s.pass(ss.Context(), name, nil); err != nil {
		return err
	}
	err := handler(srv, ss)
	s.mu.Lock()
	after := s.after
	s.mu.Unlock()
	if err == nil && after != nil {
		err = after(name, nil)
	}
	return err
}

// intercept makes a function run before each call, and another after each that
// succeeded. What they return takes the place of the answer.
func (s *server) intercept(before, after func(method string, req any) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

// freeze holds all calls up.
func (s *server) freeze() (thaw func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.gate = gate
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate = nil
		close(gate)
	}
}

// calls returns how often each method was called since it was asked last.
func (s *server) calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	s.counts = map[string]int{}
	return c
}

func (s *server) options(c clock.Clock) Options {
	return Options{ProjectID: "p", InstanceID: "i", EmulatorHost: s.Addr, PoolSize: 1, Clock: c}
}

func (s *server) open(tb testing.TB, c clock.Clock) *Engine {
	tb.Helper()
	return s.openWith(tb, s.options(c), func(string) error { return nil })
}

func (s *server) openWith(tb testing.TB, o Options, hook func(string) error) *Engine {
	tb.Helper()
	e, err := open(context.Background(), o, hook)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = e.Close() })
	return e
}

// slow makes a test one of those that take long, because all they do are calls: they run
// beside each other. Under the race detector a call takes a millisecond, so there are
// fewer runs of random operations, unless a flag of rapid says otherwise.
func slow(t *testing.T) {
	t.Parallel()
	fewerRuns()
}

var fewerRuns = sync.OnceFunc(func() {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("20") // fails for what is no number
	}
})

func TestConformance(t *testing.T) {
	slow(t)
	var last *server
	kvtest.Run(t, kvtest.Harness{
		Limits: Limits(),
		Shared: true,
		NewStore: func(tb testing.TB) kvtest.Store {
			last = newServer(tb)
			s := last
			return func(tb testing.TB, c clock.Clock) kv.Engine {
				tb.Helper()
				e, err := Open(context.Background(), s.options(c))
				if err != nil {
					tb.Fatal(err)
				}
				return e
			}
		},
		Freeze: func(testing.TB) func() { return last.freeze() },
	})
}
