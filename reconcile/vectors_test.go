package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/reconcile/reconciletest"
)

var start = time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC)

// listSource delivers messages from memory and remembers what became of them. Like
// a queue it gives up after five attempts.
type listSource struct {
	waiting  []Message
	attempts map[string]int
	inHand   map[string]Message
	acked    []string
	dead     []string
	renewed  int
	lease    time.Duration
}

func newListSource(messages ...string) *listSource {
	s := &listSource{attempts: map[string]int{}, inHand: map[string]Message{}, lease: time.Minute}
	for i, m := range messages {
		s.waiting = append(s.waiting, Message{ID: fmt.Sprint(i), Data: []byte(m)})
	}
	return s
}

func (s *listSource) Receive(_ context.Context, max int) ([]Message, error) {
	n := min(max, len(s.waiting))
	batch := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	for _, m := range batch {
		s.inHand[m.ID] = m
	}
	return batch, nil
}

func (s *listSource) Lease() time.Duration                        { return s.lease }
func (s *listSource) Renew(_ context.Context, ids []string) error { s.renewed += len(ids); return nil }
func (s *listSource) Ack(_ context.Context, ids []string) error {
	s.acked = append(s.acked, ids...)
	return nil
}
func (s *listSource) Release(_ context.Context, ids []string) error {
	for _, id := range ids {
		s.waiting = append(s.waiting, s.inHand[id])
	}
	return nil
}

func (s *listSource) Fail(_ context.Context, failures []Failure) error {
	for _, f := range failures {
		if s.attempts[f.ID]++; s.attempts[f.ID] == 5 {
			s.dead = append(s.dead, f.ID)
			continue
		}
		s.waiting = append(s.waiting, s.inHand[f.ID])
	}
	return nil
}

func (s *listSource) Defer(_ context.Context, m Message, _ time.Time) error {
	s.waiting = append(s.waiting, m)
	return nil
}

var (
	newStore = reconciletest.NewStore
	counted  = reconciletest.Counted
	record   = reconciletest.Record
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVectors(t *testing.T) {
	for _, v := range reconciletest.Vectors() {
		t.Run(v.Name, func(t *testing.T) {
			c := clock.NewManual(start)
			store, faults := newStore(t, c)
			v.Prepare(t, store, faults)
			reg := metrics.New()
			opts := Options{Clock: c, Metrics: reg, RequireTransactionTag: v.RequireTransactionTag}
			source := newListSource(v.Message)
			if _, err := New(source, store, opts).Step(t.Context()); err != nil {
				t.Errorf("Step: %v", err)
			}
			if ops := reconciletest.Operations(faults); ops != v.Ops {
				t.Errorf("operations %q, want %q", ops, v.Ops)
			}
			if d := cmp.Diff(v.WantCounts(), counted(t, reg)); d != "" {
				t.Error("counts -want +got\n" + d)
			}
			if acked := len(source.acked) == 1; acked != v.Acked {
				t.Errorf("acked %v, want %v", acked, v.Acked)
			}
		})
	}
}
