package streamtest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Database is the database that a Server has.
const Database = "projects/test/instances/test/databases/test"

// Stream is the name of its change stream.
const Stream = "payload_link_changes"

// Options are the change stream's, as the information schema shows them.
type Options map[string]string

// Server is a server with one change stream. Its exported fields may be changed
// before a client uses it.
type Server struct {
	// StreamOptions default: what the pipeline needs.
	StreamOptions Options
	// Role, if not empty, is the only database role that may read the stream.
	Role string
	// Retention of the stream.
	Retention time.Duration
	// ParsedJSON gives JSON values as objects instead of texts, Shuffled the fields
	// of structs in another order.
	ParsedJSON, Shuffled bool
	// OneResumeToken repeats one resume token, as the emulator does.
	OneResumeToken bool
	// Fault, if not nil, is asked before each message of a stream is sent and may
	// end it.
	Fault func(token string, message int) error
	// Seen, if not nil, is told of each read of the stream.
	Seen func(*sppb.ExecuteSqlRequest, context.Context)

	grpc *grpc.Server
	addr string

	mu      sync.Mutex // guards what follows
	created time.Time
	parts   map[string]*partition
	tokens  int
	roles   map[string]string // of sessions
	changed chan struct{}     // closed and replaced with every change
}

// partition owns the keys whose hash it has.
type partition struct {
	token      string
	parents    []string
	start, end time.Time // end is zero while it lives
	slots      []int
	log        []event
}

// slots is how many parts the keys are divided into.
const slots = 16

// event is what a partition's log has: a change or its children.
type event struct {
	at       time.Time
	change   *Change
	children []*partition
}

// New starts a server with one partition, which ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		StreamOptions: Options{"retention_period": "7d", "value_capture_type": "OLD_AND_NEW_VALUES"},
		Retention:     7 * 24 * time.Hour, created: time.Now().Add(-time.Hour),
		parts: map[string]*partition{}, roles: map[string]string{}, changed: make(chan struct{}),
	}
	first := s.newPartition(s.created)
	for i := range slots {
		first.slots = append(first.slots, i)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.grpc = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	sppb.RegisterSpannerServer(s.grpc, &service{s: s})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(func() {
		s.grpc.Stop()
		<-done
	})
	return s
}

// Client returns what a client needs to reach the server.
func (s *Server) Client() []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + s.addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

// Addr is where the server listens.
func (s *Server) Addr() string { return s.addr }

func (s *Server) newPartition(at time.Time, parents ...*partition) *partition {
	s.tokens++
	p := &partition{token: fmt.Sprintf("__8BAYEG%04d", s.tokens), start: at}
	for _, q := range parents {
		p.parents = append(p.parents, q.token)
	}
	s.parts[p.token] = p
	return p
}

// change does something to the partitions and wakes the streams.
func (s *Server) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Created returns when the stream was made.
func (s *Server) Created() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.created
}

// Recreate says that the stream was made at another time.
func (s *Server) Recreate(at time.Time) { s.change(func() { s.created = at }) }

// Living returns the tokens of the partitions that have no end yet, oldest first.
func (s *Server) Living() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tokens []string
	for i := range s.tokens {
		if p := s.parts[fmt.Sprintf("__8BAYEG%04d", i+1)]; p.end.IsZero() {
			tokens = append(tokens, p.token)
		}
	}
	return tokens
}

// Split ends a partition and divides its keys among n others.
func (s *Server) Split(token string, n int) {
	s.change(func() {
		at, p := time.Now(), s.parts[token]
		p.end = at
		children := make([]*partition, n)
		for i := range children {
			children[i] = s.newPartition(at, p)
		}
		for i, slot := range p.slots {
			c := children[i%n]
			c.slots = append(c.slots, slot)
		}
		p.log = append(p.log, event{at: at, children: children})
	})
}

// Merge ends partitions and gives their keys to one.
func (s *Server) Merge(tokens ...string) {
	s.change(func() {
		at := time.Now()
		var parents []*partition
		for _, token := range tokens {
			parents = append(parents, s.parts[token])
		}
		c := s.newPartition(at, parents...)
		for _, p := range parents {
			p.end = at
			c.slots = append(c.slots, p.slots...)
			p.log = append(p.log, event{at: at, children: []*partition{c}})
		}
	})
}

// service is the protocol of a Server.
type service struct {
	sppb.UnimplementedSpannerServer
	s *Server
}

// CreateSession implements the protocol. Its name says what it is.
func (v *service) CreateSession(_ context.Context, r *sppb.CreateSessionRequest) (*sppb.Session, error) {
	return v.s.session(r.Database, r.Session)
}

// BatchCreateSessions implements the protocol.
func (v *service) BatchCreateSessions(_ context.Context, r *sppb.BatchCreateSessionsRequest) (*sppb.BatchCreateSessionsResponse, error) {
	res := &sppb.BatchCreateSessionsResponse{}
	for range r.SessionCount {
		session, err := v.s.session(r.Database, r.SessionTemplate)
		if err != nil {
			return nil, err
		}
		res.Session = append(res.Session, session)
	}
	return res, nil
}

func (s *Server) session(database string, template *sppb.Session) (*sppb.Session, error) {
	if database != Database {
		return nil, status.Errorf(codes.NotFound, "Database not found: %s", database)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%s/sessions/%d", database, len(s.roles)+1)
	s.roles[name] = template.GetCreatorRole()
	return &sppb.Session{Name: name, CreatorRole: template.GetCreatorRole(), Multiplexed: template.GetMultiplexed()}, nil
}

// DeleteSession implements the protocol.
func (v *service) DeleteSession(context.Context, *sppb.DeleteSessionRequest) (*emptyResponse, error) {
	return &emptyResponse{}, nil
}

// ExecuteStreamingSql implements the protocol for the table function of the stream
// and for the tables of the information schema.
func (v *service) ExecuteStreamingSql(r *sppb.ExecuteSqlRequest, out sppb.Spanner_ExecuteStreamingSqlServer) error {
	s := v.s
	s.mu.Lock()
	role := s.roles[r.Session]
	s.mu.Unlock()
	allowed := s.Role == "" || role == s.Role
	switch {
	case strings.Contains(r.Sql, "READ_"+Stream+"("):
		if s.Seen != nil {
			s.Seen(r, out.Context())
		}
		if !allowed {
			return status.Errorf(codes.PermissionDenied, "Role %q does not have required privileges on change stream %s.", role, Stream)
		}
		return s.read(r, out)
	case strings.Contains(r.Sql, "INFORMATION_SCHEMA.CHANGE_STREAMS"):
		var rows [][]string
		if r.Params.GetFields()["stream"].GetStringValue() == Stream && allowed {
			rows = [][]string{{Stream}}
		}
		return sendRows(out, []string{"CHANGE_STREAM_NAME"}, rows)
	case strings.Contains(r.Sql, "INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS"):
		var rows [][]string
		for name, value := range s.StreamOptions {
			rows = append(rows, []string{name, value})
		}
		return sendRows(out, []string{"OPTION_NAME", "OPTION_VALUE"}, rows)
	}
	return status.Errorf(codes.InvalidArgument, "Table-valued function or table not found in %q", r.Sql)
}
