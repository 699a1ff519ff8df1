package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

var start = time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC)

// bucket is a store in memory whose links look like those of a bucket B.
type bucket struct{ *blobtest.Memory }

func (bucket) URLPrefix() string { return "gs://B/" }

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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// counted returns the reconciler's counters that are not zero.
func counted(t *testing.T, reg *metrics.Registry) map[string]int {
	t.Helper()
	must(t, reg.Err())
	rec := httptest.NewRecorder()
	reg.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	got := map[string]int{}
	for line := range strings.Lines(rec.Body.String()) {
		var n int
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, ours := strings.CutPrefix(name, "payload_reconciler_")
		_, err := fmt.Sscan(value, &n)
		name = strings.NewReplacer("_total", "", `="`, ":", `"`, "").Replace(name)
		if ours && err == nil && n > 0 && !strings.Contains(name, "_seconds") && !strings.Contains(name, "processed") {
			got[name] = n
		}
	}
	return got
}

// record builds a message from the raw texts of its values; "-" leaves a field out.
func record(table, tag string, sides ...string) string {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	for _, n := range []string{"a", "b", "c", "d"} {
		sides = strings.Split(strings.ReplaceAll(strings.Join(sides, "\x00"),
			"{"+strings.ToUpper(n)+"}", `{"payload_link":"gs://B/u/c/i/`+n+`"}`), "\x00")
	}
	var mods []string
	for i := 0; i < len(sides); i += 2 {
		mods = append(mods, `{"keys":"{}","oldValues":`+quote(sides[i])+`,"newValues":`+quote(sides[i+1])+`}`)
	}
	head := `{"commitTimestamp":"2026-08-20T09:59:00.000000000Z","modType":"X","tableName":` + quote(table)
	if tag != "-" {
		head += `,"transactionTag":` + quote(tag)
	}
	return head + `,"isSystemTransaction":false,"mods":[` + strings.Join(mods, ",") + `]}`
}

type vector struct {
	name, message string
	ops           string // as traced, without the common prefix
	counts        string
	acked         bool
	opts          Options
	missing       bool // no object exists
	down          blobtest.Op
}

func vectors() []vector {
	const newA = `[{"oldValues":"{}","newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]`
	link := func(url string) string { return `{"payload_link":"` + url + `"}` }
	strict := Options{RequireTransactionTag: true}
	return []vector{
		{name: "V01", message: record("bsos", "", "{}", "{A}"), ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V02", message: record("bsos", "", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V03", message: record("bsos", "", "{A}", "{B}"), ops: "F b,D a", counts: "finalizes=1 orphan_deletes=1", acked: true},
		{name: "V04", message: record("bsos", "", "{A}", "{A}"), ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V05", message: record("bsos", "", "{A}", `{"payload_link":null}`), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V06", message: record("bsos", "", `{"payload_link":null}`, `{"payload_link":null}`), counts: "noop_skips=1", acked: true},
		{name: "V07", message: record("bsos", "", `{"payload_link":""}`, `{"payload_link":""}`), counts: "noop_skips=1", acked: true},
		{name: "V08", message: record("bsos", "", `{"payload":"x"}`, `{"payload":"y"}`), counts: "noop_skips=1", acked: true},
		{name: "V09", message: `{"tableName":"bsos","mods":[{"oldValues":null,"newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V10", message: `{"tableName":"bsos","mods":[{"newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V11", message: record("bsos", "", "", "{A}"), ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V12", message: `{"tableName":"bsos"}`, counts: "noop_skips=1", acked: true},
		{name: "V13", message: `{"tableName":"bsos","mods":null}`, counts: "errors{kind:handler}=1"},
		{name: "V14", message: `{"mods":[`, counts: "errors{kind:handler}=1"},
		{name: "V15", message: `[]`, counts: "errors{kind:handler}=1"},
		{name: "V16", message: record("bsos", "", "{oops", "{A}"), counts: "errors{kind:handler}=1"},
		{name: "V17", message: record("bsos", "", "{}", "{A}", "{}", link("gs://other/u/c/i/x")), ops: "F a", counts: "errors{kind:handler}=1 finalizes=1"},
		{name: "V18", message: record("bsos", "", "{}", link("s3://B/u")), counts: "errors{kind:handler}=1"},
		{name: "V19", message: record("bsos", "", "{}", link("gs://B/")), counts: "errors{kind:handler}=1"},
		{name: "V20", message: record("bsos", "", "{}", link("gs:///x")), counts: "errors{kind:handler}=1"},
		{name: "V21", message: record("batch_bsos", "", "{}", "{A}"), ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V22", message: record("batch_bsos", "batch_commit", "{A}", "{}"), counts: "batch_commit_skips=1", acked: true},
		{name: "V23", message: record("batch_bsos", "", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V24", message: record("batch_bsos", "RowDeletionPolicy", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V25", message: record("batch_bsos", "batch_commit", "{A}", "{B}"), ops: "F b,D a", counts: "finalizes=1 orphan_deletes=1", acked: true},
		{name: "V26", message: record("bsos", "batch_commit", "{A}", "{B}"), ops: "F b,D a", counts: "finalizes=1 orphan_deletes=1", acked: true},
		{name: "V27", message: record("bsos", "batch_commit", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V28", message: record("batch_bsos", "batch_commit", "{A}", `{"payload_link":""}`), counts: "batch_commit_skips=1", acked: true},
		{name: "V29", message: record("batch_bsos", "-", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V29 strict", message: record("batch_bsos", "-", "{A}", "{}"), opts: strict, counts: "errors{kind:handler}=1"},
		{name: "V29 strict, other table", message: record("bsos", "-", "{A}", "{}"), opts: strict, ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V29 strict, empty tag", message: record("batch_bsos", "", "{A}", "{}"), opts: strict, ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V29 strict, replaced", message: record("batch_bsos", "-", "{A}", "{B}"), opts: strict, ops: "F b,D a", counts: "finalizes=1 orphan_deletes=1", acked: true},
		{name: "V30", message: record("batch_bsos", "Batch_Commit", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V31", message: record("bsos", "", "{A}", "{B}", "{}", "{C}", "{D}", "{}"), ops: "F b,D a,F c,D d", counts: "finalizes=2 orphan_deletes=2", acked: true},
		{name: "V32", message: record("bsos", "", "{}", `{"payload_link":7}`), counts: "errors{kind:handler}=1"},
		{name: "V33", message: record("bsos", "", "{}", link("gs://B/u/c/a b/%2f/é#?/x")), ops: "F u/c/a b/%2f/é#?/x", counts: "finalizes=1", acked: true},
		{name: "V34", message: record("bsos", "", "{}", "[]"), counts: "errors{kind:handler}=1"},
		{name: "V35", message: `{"x":[1],"tableName":"bsos","transactionTag":"","mods":` + strings.Replace(newA, `{"old`, `{"extra":{},"old`, 1) + `}`, ops: "F a", counts: "finalizes=1", acked: true},
		{name: "V36", message: `{"tableName":"bsos","transactionTag":"","mods":[{"newValues":{"payload_link":"gs://B/u/c/i/a"}}]}`, counts: "errors{kind:handler}=1"},
		{name: "V37", message: record("bsos", "RowDeletionPolicy", "{A}", "{}"), ops: "D a", counts: "orphan_deletes=1", acked: true},
		{name: "V38", message: `{"tableName":"bsos","mods":[null]}`, counts: "errors{kind:handler}=1"},
		{name: "V39", message: record("bsos", "", "{}", "null"), counts: "errors{kind:handler}=1"},
		{name: "V40", message: record("bsos", "", "{A}", "{B}", "{B}", "{A}"), ops: "F b,D a,F a,D b", counts: "finalizes=1 gcs_404{op:finalize}=1 orphan_deletes=2", acked: true},
		{name: "V41", message: record("bsos", "", "{}", "{A}"), missing: true, ops: "F a", counts: "gcs_404{op:finalize}=1", acked: true},
		{name: "V42", message: record("bsos", "", "{A}", "{}"), missing: true, ops: "D a", counts: "gcs_404{op:delete}=1", acked: true},
		{name: "V43", message: record("bsos", "", "{A}", "{B}"), down: blobtest.OpFinalize, ops: "F b: failed", counts: "errors{kind:handler}=1"},
		{name: "V44", message: record("bsos", "", "{A}", "{B}"), down: blobtest.OpDelete, ops: "F b,D a: failed", counts: "errors{kind:handler}=1 finalizes=1"},
	}
}

// store returns a store with the objects a to d, and its trace.
func newStore(t *testing.T, c clock.Clock) (*blob.Store, *blobtest.Faults) {
	t.Helper()
	faults := blobtest.NewFaults(bucket{blobtest.NewMemory()})
	store := blob.New(faults, blob.Options{Clock: c})
	for _, n := range []string{"u/c/i/a", "u/c/i/b", "u/c/i/c", "u/c/i/d", "u/c/a b/%2f/é#?/x"} {
		must(t, store.Put(t.Context(), n, strings.NewReader("x"), 1))
	}
	faults.ResetTrace()
	return store, faults
}

func TestVectors(t *testing.T) {
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			c := clock.NewManual(start)
			store, faults := newStore(t, c)
			if v.missing {
				_, err := store.Delete(t.Context(), "u/c/i/a")
				must(t, err)
				faults.ResetTrace()
			}
			if v.down != "" {
				faults.SetHook(blobtest.FailOn(v.down, blobtest.Before, blobtest.ErrInjected))
			}
			reg := metrics.New()
			v.opts.Clock, v.opts.Metrics = c, reg
			source := newListSource(v.message)
			if _, err := New(source, store, v.opts).Step(t.Context()); err != nil {
				t.Errorf("Step: %v", err)
			}
			ops := strings.NewReplacer("finalize ", "F ", "delete ", "D ", "u/c/i/", "").Replace(strings.Join(faults.Trace(), ","))
			if ops != v.ops {
				t.Errorf("operations %q, want %q", ops, v.ops)
			}
			want := map[string]int{}
			for _, f := range strings.Fields(v.counts) {
				name, n, _ := strings.Cut(f, "=")
				want[name] = int(n[0] - '0')
			}
			if d := cmp.Diff(want, counted(t, reg)); d != "" {
				t.Error("counts -want +got\n" + d)
			}
			if acked := len(source.acked) == 1; acked != v.acked {
				t.Errorf("acked %v, want %v", acked, v.acked)
			}
		})
	}
}
