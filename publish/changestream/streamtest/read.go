package streamtest

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// query is the arguments of the table function.
type query struct {
	start     time.Time
	end       time.Time // zero if NULL
	token     string    // empty if NULL
	heartbeat time.Duration
	next      int // index of the first event to send, from a resume token
}

const latestStart = 10 * time.Minute // ahead of the present

// parse checks a request as Spanner does.
func (s *Server) parse(r *sppb.ExecuteSqlRequest) (q query, err error) {
	if ro := r.GetTransaction().GetSingleUse().GetReadOnly(); ro == nil || !ro.GetStrong() {
		return q, status.Error(codes.InvalidArgument, "Change stream queries must be strong, single-use reads by ExecuteStreamingSql.")
	}
	fields := r.Params.GetFields()
	if q.start, err = time.Parse(time.RFC3339Nano, fields["start_timestamp"].GetStringValue()); err != nil {
		return q, status.Error(codes.InvalidArgument, "start_timestamp must not be null.")
	}
	if end := fields["end_timestamp"].GetStringValue(); end != "" {
		if q.end, err = time.Parse(time.RFC3339Nano, end); err != nil {
			return q, status.Error(codes.InvalidArgument, "end_timestamp is malformed.")
		}
	}
	q.token = fields["partition_token"].GetStringValue()
	ms, err := strconv.Atoi(fields["heartbeat_milliseconds"].GetStringValue())
	if err != nil || ms < 1000 || ms > 300_000 {
		return q, status.Error(codes.OutOfRange, "heartbeat_milliseconds must be between 1000 and 300000.")
	}
	q.heartbeat = time.Duration(ms) * time.Millisecond
	oldest := time.Now().Add(-s.Retention)
	if created := s.Created(); created.After(oldest) {
		oldest = created
	}
	switch {
	case q.start.Before(oldest):
		return q, status.Errorf(codes.OutOfRange, "Specified start_timestamp is too far in the past; the earliest is %v.", oldest)
	case q.start.After(time.Now().Add(latestStart)):
		return q, status.Error(codes.OutOfRange, "Specified start_timestamp is too far in the future.")
	case !q.end.IsZero() && q.start.After(q.end):
		return q, status.Error(codes.InvalidArgument, "start_timestamp must not be after end_timestamp.")
	}
	if _, at, ok := strings.Cut(string(r.ResumeToken), "@"); ok {
		q.next, err = strconv.Atoi(at)
	}
	return q, err
}

// Change is what one transaction did to one table.
type Change struct {
	Table, ModType, Tag string
	System              bool
	Mods                []Mod
}

// Mod is the change of one row, as texts of JSON.
type Mod struct{ Keys, Old, New string }

// Commit records a change, in the partition of its first mod's keys, and returns
// its time.
func (s *Server) Commit(c Change) time.Time {
	h := fnv.New32()
	if len(c.Mods) > 0 {
		h.Write([]byte(c.Mods[0].Keys))
	}
	slot := int(h.Sum32() % slots)
	var at time.Time
	s.change(func() {
		at = time.Now()
		for _, p := range s.parts {
			if !p.end.IsZero() {
				continue
			}
			for _, own := range p.slots {
				if own == slot {
					p.log = append(p.log, event{at: at, change: &c})
				}
			}
		}
	})
	return at
}

// reader is one answer under way.
type reader struct {
	s    *Server
	q    query
	out  sppb.Spanner_ExecuteStreamingSqlServer
	sent int
}

// send sends records as rows of one message. next is where to resume after it.
func (r *reader) send(next int, records ...*structpb.Value) error {
	if r.s.Fault != nil {
		if err := r.s.Fault(r.q.token, r.sent); err != nil {
			return err
		}
	}
	m := &sppb.PartialResultSet{ResumeToken: fmt.Appendf(nil, "%d@%d", r.sent, next)}
	if r.s.OneResumeToken {
		m.ResumeToken = []byte("the only one")
	}
	if r.sent == 0 {
		m.Metadata = &sppb.ResultSetMetadata{RowType: r.s.rowType()}
	}
	for _, rec := range records {
		m.Values = append(m.Values, listOf(rec))
	}
	r.sent++
	return r.out.Send(m)
}

func (s *Server) read(req *sppb.ExecuteSqlRequest, out sppb.Spanner_ExecuteStreamingSqlServer) error {
	q, err := s.parse(req)
	if err != nil {
		return err
	}
	r := &reader{s: s, q: q, out: out}
	if q.token == "" {
		return r.first()
	}
	s.mu.Lock()
	p := s.parts[q.token]
	s.mu.Unlock()
	if p == nil {
		return status.Error(codes.InvalidArgument, "Specified partition_token is invalid.")
	}
	return r.follow(p)
}

// first answers which partitions there are, each in a record of its own.
func (r *reader) first() error {
	r.s.mu.Lock()
	var records []*structpb.Value
	for i := range r.s.tokens {
		p := r.s.parts[fmt.Sprintf("__8BAYEG%04d", i+1)]
		if !p.start.After(r.q.start) && (p.end.IsZero() || p.end.After(r.q.start)) {
			records = append(records, r.s.childRecord(r.q.start, &partition{token: p.token}))
		}
	}
	r.s.mu.Unlock()
	for i := r.q.next; i < len(records); i++ {
		if err := r.send(i+1, records[i]); err != nil {
			return err
		}
	}
	return r.finish()
}

// finish ends an answer; one without rows still has metadata.
func (r *reader) finish() error {
	if r.sent == 0 {
		return r.send(r.q.next)
	}
	return nil
}

// atOnce is how many records one message carries at most.
const atOnce = 50

func (r *reader) follow(p *partition) error {
	beat := time.NewTicker(r.q.heartbeat)
	defer beat.Stop()
	for next := r.q.next; ; {
		r.s.mu.Lock()
		log, end, changed := p.log, p.end, r.s.changed
		r.s.mu.Unlock()
		if r.q.start.Before(p.start) || !end.IsZero() && r.q.start.After(end) {
			return status.Error(codes.OutOfRange, "Specified start_timestamp is outside of the life of the partition.")
		}
		for next < len(log) {
			var records []*structpb.Value
			for ; next < len(log) && len(records) < atOnce; next++ {
				if e := log[next]; !e.at.Before(r.q.start) && (r.q.end.IsZero() || !e.at.After(r.q.end)) {
					records = append(records, r.s.record(e))
				}
			}
			if len(records) > 0 {
				if err := r.send(next, records...); err != nil {
					return err
				}
			}
		}
		if !end.IsZero() || !r.q.end.IsZero() && time.Now().After(r.q.end) {
			return r.finish()
		}
		select {
		case <-changed:
		case <-beat.C:
			if err := r.beat(p, next); err != nil {
				return err
			}
		case <-r.out.Context().Done():
			return status.FromContextError(r.out.Context().Err()).Err()
		}
	}
}

// beat sends a heartbeat, unless there is something to send.
func (r *reader) beat(p *partition, next int) error {
	r.s.mu.Lock()
	idle := next == len(p.log)
	at := time.Now()
	r.s.mu.Unlock()
	if !idle {
		return nil
	}
	return r.send(next, r.s.heartbeatRecord(at))
}
