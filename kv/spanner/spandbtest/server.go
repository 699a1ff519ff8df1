package spandbtest

import (
	"context"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/holdfast-dev/holdfast/clock"
)

// Database is the database that exists from the start.
const Database = "projects/p/instances/i/databases/d"

// Server is a running server. It is safe for concurrent use.
type Server struct {
	spannerpb.UnimplementedSpannerServer
	databasepb.UnimplementedDatabaseAdminServer

	addr string

	mu        sync.Mutex
	clock     clock.Clock
	databases map[string]*database
	before    func(context.Context, Call) error
	after     func(context.Context, Call, error) error
	query     func(context.Context, *spannerpb.ExecuteSqlRequest, spannerpb.Spanner_ExecuteStreamingSqlServer) (bool, error)
	onCommit  []func(Commit)
	calls     []string
	frozen    chan struct{} // closed when the server may go on; nil if it runs
}

// Call is one call that the server has received.
type Call struct {
	// Method is the name without its service, such as "Commit".
	Method string
	// Request is the message; nil for what comes with a stream of its own.
	Request any
}

// Start runs a server that ends with the test. Commit timestamps follow the
// clock as far as they may: they never go back.
func Start(tb testing.TB, c clock.Clock) *Server {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{addr: l.Addr().String(), clock: c, databases: map[string]*database{}}
	s.CreateDatabaseNamed(Database)
	g := grpc.NewServer(
		grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	spannerpb.RegisterSpannerServer(g, s)
	databasepb.RegisterDatabaseAdminServer(g, s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l) // ends with Stop
	}()
	tb.Cleanup(func() {
		s.thaw()
		g.Stop()
		<-served
	})
	return s
}

// Addr is what SPANNER_EMULATOR_HOST would be.
func (s *Server) Addr() string { return s.addr }

// ClientOptions connect a client, of data or of administration, to the server.
func (s *Server) ClientOptions() []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + s.addr),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		option.WithoutAuthentication(),
	}
}

// SetClock replaces the clock. Timestamps go on rising if it is behind.
func (s *Server) SetClock(c clock.Clock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = c
}

// Before sets what runs before each call: an error is the answer, and the call is
// not made. Nil removes it.
func (s *Server) Before(fn func(context.Context, Call) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = fn
}

// After sets what runs after each call, when its effects are there but not the
// answer, with the error it ends with, and returns the error that it ends with
// instead. Nil removes it.
func (s *Server) After(fn func(context.Context, Call, error) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = fn
}

// HandleQuery sets what sees each ExecuteStreamingSql first. It reports whether
// it has served the query; if so, err is its end.
func (s *Server) HandleQuery(fn func(ctx context.Context, req *spannerpb.ExecuteSqlRequest, stream spannerpb.Spanner_ExecuteStreamingSqlServer) (handled bool, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.query = fn
}

// OnCommit adds a function that gets each commit that changed rows, in the order
// of their timestamps, before the commit is answered. It must not call the
// server's methods or a client.
func (s *Server) OnCommit(fn func(Commit)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onCommit = append(s.onCommit, fn)
}

// Calls returns the methods called since the last ResetCalls, in order.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// ResetCalls empties the log of calls.
func (s *Server) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// Freeze lets calls arrive and answers none until thaw. Then all of them are
// done, those that nobody waits for any more too.
func (s *Server) Freeze() (thaw func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = make(chan struct{})
	}
	return s.thaw
}

func (s *Server) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
}

// enter runs what comes before a call.
func (s *Server) enter(ctx context.Context, c Call) error {
	s.mu.Lock()
	s.calls = append(s.calls, c.Method)
	frozen, before := s.frozen, s.before
	s.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	if before != nil {
		return before(ctx, c)
	}
	return nil
}

func (s *Server) leave(ctx context.Context, c Call, err error) error {
	s.mu.Lock()
	after := s.after
	s.mu.Unlock()
	if after != nil {
		return after(ctx, c, err)
	}
	return err
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c := Call{Method: methodOf(info.FullMethod), Request: req}
	if err := s.enter(ctx, c); err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err = s.leave(ctx, c, err); err != nil {
		return nil, err
	}
	return resp, nil
}

// stream serves calls whose request is a single message, which it takes before
// the handler asks for it, so that hooks can see it.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := Call{Method: methodOf(info.FullMethod)}
	peeked := &peekedStream{ServerStream: ss}
	if c.Method == "ExecuteStreamingSql" {
		peeked.req = new(spannerpb.ExecuteSqlRequest)
		if err := ss.RecvMsg(peeked.req); err != nil {
			return err
		}
		c.Request = peeked.req
	}
	if err := s.enter(ss.Context(), c); err != nil {
		return err
	}
	return s.leave(ss.Context(), c, handler(srv, peeked))
}

func methodOf(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }
