// Package reconciletest has the cases that a reconciler must pass, whatever source
// its messages come from.
package reconciletest

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

// bucket is a store in memory whose links look like those of a bucket B.
type bucket struct{ *blobtest.Memory }

func (bucket) URLPrefix() string { return "gs://B/" }

// NewStore returns a store, of a bucket B, with the objects a to d under u/c/i/, and
// its trace.
func NewStore(t testing.TB, c clock.Clock) (*blob.Store, *blobtest.Faults) {
	t.Helper()
	faults := blobtest.NewFaults(bucket{blobtest.NewMemory()})
	store := blob.New(faults, blob.Options{Clock: c})
	for _, n := range []string{"u/c/i/a", "u/c/i/b", "u/c/i/c", "u/c/i/d", "u/c/a b/%2f/é#?/x"} {
		if err := store.Put(t.Context(), n, strings.NewReader("x"), 1); err != nil {
			t.Fatal(err)
		}
	}
	faults.ResetTrace()
	return store, faults
}

// Vector is one message and what becomes of it.
type Vector struct {
	Name, Message string
	// Ops are the operations of the store as Operations returns them.
	Ops string
	// Counts are the counters that are not zero, as "name=1 name{tag:value}=2".
	Counts string
	// Acked says whether the message is acknowledged.
	Acked bool

	RequireTransactionTag bool
	// Missing: the object a does not exist.
	Missing bool
	// Down is the operation that the store fails in.
	Down blobtest.Op
}

// Prepare makes the store as the case wants it.
func (v *Vector) Prepare(t testing.TB, store *blob.Store, faults *blobtest.Faults) {
	t.Helper()
	if v.Missing {
		if _, err := store.Delete(t.Context(), "u/c/i/a"); err != nil {
			t.Fatal(err)
		}
		faults.ResetTrace()
	}
	if v.Down != "" {
		faults.SetHook(blobtest.FailOn(v.Down, blobtest.Before, blobtest.ErrInjected))
	}
}

// WantCounts is Counts as Counted returns them.
func (v *Vector) WantCounts() map[string]int {
	want := map[string]int{}
	for f := range strings.FieldsSeq(v.Counts) {
		name, n, _ := strings.Cut(f, "=")
		want[name] = int(n[0] - '0')
	}
	return want
}

// Operations returns what was done to the store: F for a finalization, D for a
// deletion, each with the name of the object without u/c/i/.
func Operations(faults *blobtest.Faults) string {
	return strings.NewReplacer("finalize ", "F ", "delete ", "D ", "u/c/i/", "").Replace(strings.Join(faults.Trace(), ","))
}

// Counted returns the reconciler's counters that are not zero.
func Counted(t testing.TB, reg *metrics.Registry) map[string]int {
	t.Helper()
	if err := reg.Err(); err != nil {
		t.Fatal(err)
	}
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

// Record builds a message from the raw texts of its values, old and new side of
// each mod in turn; {A} to {D} are links of the objects a to d. In place of the
// tag "-" leaves the field out.
func Record(table, tag string, sides ...string) string {
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

// Vectors returns the cases.
func Vectors() []Vector {
	const newA = `[{"oldValues":"{}","newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]`
	link := func(url string) string { return `{"payload_link":"` + url + `"}` }
	return []Vector{
		{Name: "V01", Message: Record("bsos", "", "{}", "{A}"), Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V02", Message: Record("bsos", "", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V03", Message: Record("bsos", "", "{A}", "{B}"), Ops: "F b,D a", Counts: "finalizes=1 orphan_deletes=1", Acked: true},
		{Name: "V04", Message: Record("bsos", "", "{A}", "{A}"), Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V05", Message: Record("bsos", "", "{A}", `{"payload_link":null}`), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V06", Message: Record("bsos", "", `{"payload_link":null}`, `{"payload_link":null}`), Counts: "noop_skips=1", Acked: true},
		{Name: "V07", Message: Record("bsos", "", `{"payload_link":""}`, `{"payload_link":""}`), Counts: "noop_skips=1", Acked: true},
		{Name: "V08", Message: Record("bsos", "", `{"payload":"x"}`, `{"payload":"y"}`), Counts: "noop_skips=1", Acked: true},
		{Name: "V09", Message: `{"tableName":"bsos","mods":[{"oldValues":null,"newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V10", Message: `{"tableName":"bsos","mods":[{"newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V11", Message: Record("bsos", "", "", "{A}"), Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V12", Message: `{"tableName":"bsos"}`, Counts: "noop_skips=1", Acked: true},
		{Name: "V13", Message: `{"tableName":"bsos","mods":null}`, Counts: "errors{kind:handler}=1"},
		{Name: "V14", Message: `{"mods":[`, Counts: "errors{kind:handler}=1"},
		{Name: "V15", Message: `[]`, Counts: "errors{kind:handler}=1"},
		{Name: "V16", Message: Record("bsos", "", "{oops", "{A}"), Counts: "errors{kind:handler}=1"},
		{Name: "V17", Message: Record("bsos", "", "{}", "{A}", "{}", link("gs://other/u/c/i/x")), Ops: "F a", Counts: "errors{kind:handler}=1 finalizes=1"},
		{Name: "V18", Message: Record("bsos", "", "{}", link("s3://B/u")), Counts: "errors{kind:handler}=1"},
		{Name: "V19", Message: Record("bsos", "", "{}", link("gs://B/")), Counts: "errors{kind:handler}=1"},
		{Name: "V20", Message: Record("bsos", "", "{}", link("gs:///x")), Counts: "errors{kind:handler}=1"},
		{Name: "V21", Message: Record("batch_bsos", "", "{}", "{A}"), Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V22", Message: Record("batch_bsos", "batch_commit", "{A}", "{}"), Counts: "batch_commit_skips=1", Acked: true},
		{Name: "V23", Message: Record("batch_bsos", "", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V24", Message: Record("batch_bsos", "RowDeletionPolicy", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V25", Message: Record("batch_bsos", "batch_commit", "{A}", "{B}"), Ops: "F b,D a", Counts: "finalizes=1 orphan_deletes=1", Acked: true},
		{Name: "V26", Message: Record("bsos", "batch_commit", "{A}", "{B}"), Ops: "F b,D a", Counts: "finalizes=1 orphan_deletes=1", Acked: true},
		{Name: "V27", Message: Record("bsos", "batch_commit", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V28", Message: Record("batch_bsos", "batch_commit", "{A}", `{"payload_link":""}`), Counts: "batch_commit_skips=1", Acked: true},
		{Name: "V29", Message: Record("batch_bsos", "-", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V29 strict", Message: Record("batch_bsos", "-", "{A}", "{}"), RequireTransactionTag: true, Counts: "errors{kind:handler}=1"},
		{Name: "V29 strict, other table", Message: Record("bsos", "-", "{A}", "{}"), RequireTransactionTag: true, Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V29 strict, empty tag", Message: Record("batch_bsos", "", "{A}", "{}"), RequireTransactionTag: true, Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V29 strict, replaced", Message: Record("batch_bsos", "-", "{A}", "{B}"), RequireTransactionTag: true, Ops: "F b,D a", Counts: "finalizes=1 orphan_deletes=1", Acked: true},
		{Name: "V30", Message: Record("batch_bsos", "Batch_Commit", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V31", Message: Record("bsos", "", "{A}", "{B}", "{}", "{C}", "{D}", "{}"), Ops: "F b,D a,F c,D d", Counts: "finalizes=2 orphan_deletes=2", Acked: true},
		{Name: "V32", Message: Record("bsos", "", "{}", `{"payload_link":7}`), Counts: "errors{kind:handler}=1"},
		{Name: "V33", Message: Record("bsos", "", "{}", link("gs://B/u/c/a b/%2f/é#?/x")), Ops: "F u/c/a b/%2f/é#?/x", Counts: "finalizes=1", Acked: true},
		{Name: "V34", Message: Record("bsos", "", "{}", "[]"), Counts: "errors{kind:handler}=1"},
		{Name: "V35", Message: `{"x":[1],"tableName":"bsos","transactionTag":"","mods":` + strings.Replace(newA, `{"old`, `{"extra":{},"old`, 1) + `}`, Ops: "F a", Counts: "finalizes=1", Acked: true},
		{Name: "V36", Message: `{"tableName":"bsos","transactionTag":"","mods":[{"newValues":{"payload_link":"gs://B/u/c/i/a"}}]}`, Counts: "errors{kind:handler}=1"},
		{Name: "V37", Message: Record("bsos", "RowDeletionPolicy", "{A}", "{}"), Ops: "D a", Counts: "orphan_deletes=1", Acked: true},
		{Name: "V38", Message: `{"tableName":"bsos","mods":[null]}`, Counts: "errors{kind:handler}=1"},
		{Name: "V39", Message: Record("bsos", "", "{}", "null"), Counts: "errors{kind:handler}=1"},
		{Name: "V40", Message: Record("bsos", "", "{A}", "{B}", "{B}", "{A}"), Ops: "F b,D a,F a,D b", Counts: "finalizes=1 gcs_404{op:finalize}=1 orphan_deletes=2", Acked: true},
		{Name: "V41", Message: Record("bsos", "", "{}", "{A}"), Missing: true, Ops: "F a", Counts: "gcs_404{op:finalize}=1", Acked: true},
		{Name: "V42", Message: Record("bsos", "", "{A}", "{}"), Missing: true, Ops: "D a", Counts: "gcs_404{op:delete}=1", Acked: true},
		{Name: "V43", Message: Record("bsos", "", "{A}", "{B}"), Down: blobtest.OpFinalize, Ops: "F b: failed", Counts: "errors{kind:handler}=1"},
		{Name: "V44", Message: Record("bsos", "", "{A}", "{B}"), Down: blobtest.OpDelete, Ops: "F b,D a: failed", Counts: "errors{kind:handler}=1 finalizes=1"},
	}
}
