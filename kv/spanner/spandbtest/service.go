package spandbtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// peekedStream hands out a request that was received before.
type peekedStream struct {
	grpc.ServerStream
	req proto.Message
}

func (p *peekedStream) RecvMsg(m any) error {
	if p.req == nil {
		return p.ServerStream.RecvMsg(m)
	}
	proto.Merge(m.(proto.Message), p.req)
	p.req = nil
	return nil
}

// abortedError tells the client to try again at once.
func abortedError(text string) error {
	st, err := status.New(codes.Aborted, text).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
	if err != nil {
		return status.Error(codes.Aborted, text)
	}
	return st.Err()
}

// Aborted is the error with which Spanner ends a transaction that must be tried
// again, for hooks.
func Aborted() error { return abortedError("transaction was aborted") }

func (s *Server) database(name string) (*database, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if db, ok := s.databases[name]; ok {
		return db, nil
	}
	return nil, status.Errorf(codes.NotFound, "Database not found: %s", name)
}

// sessionDatabase returns the database of a session. Sessions have no other state,
// so that they never get lost.
func (s *Server) sessionDatabase(session string) (*database, error) {
	name, _, ok := strings.Cut(session, "/sessions/")
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "invalid session name %q", session)
	}
	return s.database(name)
}

// CreateSession implements spannerpb.SpannerServer.
func (s *Server) CreateSession(_ context.Context, req *spannerpb.CreateSessionRequest) (*spannerpb.Session, error) {
	db, err := s.database(req.GetDatabase())
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	role := req.GetSession().GetCreatorRole()
	if role != "" && !db.roles[strings.ToLower(role)] {
		return nil, status.Errorf(codes.PermissionDenied, "Role not found: %s", role)
	}
	return &spannerpb.Session{
		Name: fmt.Sprintf("%s/sessions/%d", req.GetDatabase(), db.nextID()), CreatorRole: role,
		Multiplexed: req.GetSession().GetMultiplexed(), CreateTime: timestamppb.New(fromMicro(db.last)),
	}, nil
}

// DeleteSession implements spannerpb.SpannerServer.
func (s *Server) DeleteSession(context.Context, *spannerpb.DeleteSessionRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// BeginTransaction implements spannerpb.SpannerServer.
func (s *Server) BeginTransaction(_ context.Context, req *spannerpb.BeginTransactionRequest) (*spannerpb.Transaction, error) {
	db, err := s.sessionDatabase(req.GetSession())
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	t, err := db.begin(req.GetOptions())
	if err != nil {
		return nil, err
	}
	return db.describe(t), nil
}

// describe is what a client is told of a transaction that has begun.
func (db *database) describe(t *transaction) *spannerpb.Transaction {
	d := &spannerpb.Transaction{Id: []byte(t.id)}
	if t.snapshot != nil {
		d.ReadTimestamp = timestamppb.New(fromMicro(t.readAt))
	} else {
		d.PrecommitToken = db.precommitToken()
	}
	return d
}

func (db *database) precommitToken() *spannerpb.MultiplexedSessionPrecommitToken {
	n := db.nextID()
	return &spannerpb.MultiplexedSessionPrecommitToken{PrecommitToken: fmt.Appendf(nil, "%d", n), SeqNum: int32(n)}
}

// selected returns the transaction of a read, and whether it has only begun with
// it. A single-use one is not kept.
func (db *database) selected(sel *spannerpb.TransactionSelector) (t *transaction, begun bool, err error) {
	switch sel := sel.GetSelector().(type) {
	case *spannerpb.TransactionSelector_Id:
		t, ok := db.transactions[string(sel.Id)]
		switch {
		case !ok:
			return nil, false, status.Error(codes.InvalidArgument, "transaction not found")
		case t.aborted:
			return nil, false, Aborted()
		case t.committed != nil:
			return nil, false, status.Error(codes.FailedPrecondition, "transaction has been committed")
		}
		return t, false, nil
	case *spannerpb.TransactionSelector_Begin:
		t, err = db.begin(sel.Begin)
		return t, true, err
	case *spannerpb.TransactionSelector_SingleUse:
		t, err = db.begin(sel.SingleUse)
	default:
		t, err = db.begin(&spannerpb.TransactionOptions{Mode: &spannerpb.TransactionOptions_ReadOnly_{ReadOnly: strong()}})
	}
	if err != nil {
		return nil, false, err
	}
	delete(db.transactions, t.id)
	if t.snapshot == nil {
		return nil, false, status.Error(codes.InvalidArgument, "a single-use transaction cannot read and write")
	}
	return t, sel.GetSingleUse().GetReadOnly().GetReturnReadTimestamp(), nil
}

func strong() *spannerpb.TransactionOptions_ReadOnly {
	return &spannerpb.TransactionOptions_ReadOnly{TimestampBound: &spannerpb.TransactionOptions_ReadOnly_Strong{Strong: true}}
}

// Rollback implements spannerpb.SpannerServer.
func (s *Server) Rollback(_ context.Context, req *spannerpb.RollbackRequest) (*emptypb.Empty, error) {
	db, err := s.sessionDatabase(req.GetSession())
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if t, ok := db.transactions[string(req.GetTransactionId())]; ok && t.committed == nil {
		t.aborted = true
	}
	return &emptypb.Empty{}, nil
}

// Commit implements spannerpb.SpannerServer.
func (s *Server) Commit(_ context.Context, req *spannerpb.CommitRequest) (*spannerpb.CommitResponse, error) {
	db, err := s.sessionDatabase(req.GetSession())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	hooks := s.onCommit
	s.mu.Unlock()
	db.mu.Lock()
	defer db.mu.Unlock()
	var t *transaction
	switch sel := req.GetTransaction().(type) {
	case *spannerpb.CommitRequest_TransactionId:
		t = db.transactions[string(sel.TransactionId)]
	case *spannerpb.CommitRequest_SingleUseTransaction:
		t, err = db.begin(sel.SingleUseTransaction)
	}
	switch {
	case err != nil:
		return nil, err
	case t == nil:
		return nil, status.Error(codes.InvalidArgument, "transaction not found")
	case t.committed != nil:
		return t.committed, nil
	case t.aborted:
		return nil, Aborted()
	case t.snapshot != nil:
		return nil, status.Error(codes.FailedPrecondition, "transaction is read-only")
	}
	c, err := db.commit(t, req.GetMutations(), len(hooks) > 0)
	if err != nil {
		t.aborted = status.Code(err) == codes.Aborted
		return nil, err
	}
	c.Tag = req.GetRequestOptions().GetTransactionTag()
	t.committed = &spannerpb.CommitResponse{CommitTimestamp: timestamppb.New(c.Timestamp)}
	db.tell(hooks, c)
	return t.committed, nil
}

// rowsPerMessage and bytesPerMessage bound a message of a result.
const (
	rowsPerMessage  = 100
	bytesPerMessage = 1 << 20
)

// ExecuteStreamingSql implements spannerpb.SpannerServer.
func (s *Server) ExecuteStreamingSql(req *spannerpb.ExecuteSqlRequest, stream spannerpb.Spanner_ExecuteStreamingSqlServer) error {
	s.mu.Lock()
	handle := s.query
	s.mu.Unlock()
	if handle != nil {
		if handled, err := handle(stream.Context(), req, stream); handled || err != nil {
			return err
		}
	}
	db, err := s.sessionDatabase(req.GetSession())
	if err != nil {
		return err
	}
	messages, err := db.execute(req)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// execute runs a query, or goes on with one whose stream broke.
func (db *database) execute(req *spannerpb.ExecuteSqlRequest) ([]*spannerpb.PartialResultSet, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if token := string(req.GetResumeToken()); token != "" {
		return db.results.after(token)
	}
	t, tell, err := db.selected(req.GetTransaction())
	if err != nil {
		return nil, err
	}
	result, err := db.runQuery(t, req)
	if err != nil {
		if tell && t.snapshot == nil {
			delete(db.transactions, t.id) // it has not begun
		}
		return nil, err
	}
	result.metadata = &spannerpb.ResultSetMetadata{RowType: result.rowType}
	if tell {
		result.metadata.Transaction = db.describe(t)
	}
	messages := result.messages(db.nextID())
	if t.snapshot == nil {
		messages[len(messages)-1].PrecommitToken = db.precommitToken()
	}
	db.results.keep(messages)
	return messages, nil
}

// results keeps the last few results, for streams that break.
type results [][]*spannerpb.PartialResultSet

func (r *results) keep(messages []*spannerpb.PartialResultSet) {
	const most = 64
	*r = append(*r, messages)
	if len(*r) > most {
		*r = (*r)[1:]
	}
}

func (r results) after(token string) ([]*spannerpb.PartialResultSet, error) {
	for _, messages := range r {
		for i, m := range messages {
			if string(m.GetResumeToken()) != token {
				continue
			}
			if i == len(messages)-1 {
				return []*spannerpb.PartialResultSet{{Metadata: messages[0].GetMetadata(), Last: true}}, nil
			}
			rest := append([]*spannerpb.PartialResultSet(nil), messages[i+1:]...)
			first := proto.Clone(rest[0]).(*spannerpb.PartialResultSet)
			first.Metadata, rest[0] = messages[0].GetMetadata(), first
			return rest, nil
		}
	}
	return nil, status.Error(codes.InvalidArgument, "invalid resume token")
}
