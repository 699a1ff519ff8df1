package sync15

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/changes"
)

func TestABatchIsInvisibleUntilItsCommitAndThenHasOneTime(t *testing.T) {
	for _, off := range [][]string{nil, {"col"}} {
		w := newWorld(t, setup{offload: off})
		w.put("col", "a", "old")
		w.clock.Advance(time.Second)
		state := w.state()
		r := w.do("POST", "storage/col?batch=true", `[{"id":"a","payload":"staged"},{"id":"bad","ttl":-1}]`).want(202)
		o := r.outcome()
		if !regexp.MustCompile(`^[A-Za-z0-9_-]+$`).MatchString(o.Batch) || o.Modified != "" {
			t.Errorf("answer %s", r.body)
		}
		if diff := cmp.Diff([]string{"a"}, o.Success); diff != "" || len(o.Failed) != 1 {
			t.Errorf("success %q, failed %q", o.Success, o.Failed)
		}
		w.clock.Advance(time.Second)
		r2 := w.do("POST", "storage/col?batch="+o.Batch, `[{"id":"b","payload":"staged"},{"id":"c","sortindex":1}]`).want(202)
		if r2.outcome().Batch != o.Batch || !slices.Equal(r2.outcome().Success, []string{"b", "c"}) {
			t.Errorf("append: %s", r2.body)
		}
		if got := w.state(); got != state {
			t.Errorf("staged records are seen:\n%s", got)
		}
		w.do("GET", "storage/col/b", "").says(404, "0")
		w.clock.Advance(time.Second)
		c := w.do("POST", "storage/col?batch="+o.Batch+"&commit=TRUE", `[{"id":"d","payload":"last"}]`).want(200)
		if got := c.outcome(); got.Batch != "" || !slices.Equal(got.Success, []string{"d"}) {
			t.Errorf("commit: %s", c.body)
		}
		modified := c.outcome().Modified.String()
		c.has("X-Last-Modified", modified).has("X-Weave-Timestamp", modified)
		var records []record
		w.do("GET", "storage/col?full=1&sort=oldest", "").want(200).has("X-Last-Modified", modified).decode(&records)
		for _, rec := range records {
			if rec.Modified.String() != modified {
				t.Errorf("%s has %s, want %s", rec.ID, rec.Modified, modified)
			}
		}
		if len(records) != 4 {
			t.Errorf("records %v", records)
		}
		w.do("GET", "info/collections", "").says(200, `{"col":`+modified+`}`)
		w.do("POST", "storage/col?batch="+o.Batch, "[]").says(400, "0")
		w.do("POST", "storage/col?commit=true&batch="+o.Batch, "[]").says(400, "0")
		w.settle()
		w.checkObjects()
	}
}

func TestABatchOfACollectionThatDoesNotExistMakesItAtTheCommit(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.batch("new", `[{"id":"a"}]`)
	w.do("GET", "info/collections", "").says(200, "{}").has("X-Last-Modified", "0.00")
	w.do("GET", "storage/new", "", "X-If-Modified-Since: 99").says(200, "[]").has("X-Last-Modified", "0.00")
	w.do("POST", "storage/new?batch="+id, "[]", "X-If-Unmodified-Since: 0").want(202).has("X-Last-Modified", "0.00")
	w.do("POST", "storage/new?commit=true&batch="+id, "[]", "X-If-Unmodified-Since: 0").want(200)
	w.do("GET", "storage/new", "").says(200, `["a"]`)
	// An empty batch, too.
	id = w.batch("empty", "[]")
	w.do("POST", "storage/empty?commit=true&batch="+id, "[]").want(200)
	if r := w.do("GET", "info/collections", ""); !strings.Contains(r.body, `"empty":`) {
		t.Errorf("after an empty commit: %s", r.body)
	}
}

func TestSpellingsOfBatchRequests(t *testing.T) {
	w := newWorld(t, setup{})
	for query, status := range map[string]int{
		"batch=true": 202, "batch=TRUE": 202, "batch=": 202, "batch": 202, "batch=True&commit=True": 200, "batch=&commit=true": 200,
		"commit=true": 400, "batch=true&commit=": 400, "batch=true&commit=1": 400, "batch=true&commit=false": 400,
		"batch=false": 400, "batch=true%20": 400, "batch=0": 400, "batch=" + strings.Repeat("A", 21): 400, "batch=" + strings.Repeat("A", 22): 400,
		"batch=" + strings.Repeat("%2F", 22): 400, "batch=true&batch=sammich": 202,
	} {
		r := w.do("POST", "storage/col?"+query, `[{"id":"a"}]`)
		if r.status != status {
			t.Errorf("%s: %d %s, want %d", query, r.status, r.body, status)
		}
		if r.status == 200 && strings.Contains(r.body, "batch") {
			t.Errorf("%s: a plain POST answers %s", query, r.body)
		}
	}
}

func TestABatchBelongsToItsUserAndItsCollection(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.batch("col", `[{"id":"a"}]`)
	w.put("other", "x", "")
	stranger := w.newUser(42, "stranger", "key")
	w.as(stranger, "PUT", "storage/col/x", "{}").want(200)
	for _, commit := range []string{"", "&commit=true"} {
		w.do("POST", "storage/other?batch="+id+commit, `[{"id":"b"}]`).says(400, "0")
		w.do("POST", "storage/never?batch="+id+commit, `[{"id":"b"}]`).says(400, "0")
		w.as(stranger, "POST", "storage/col?batch="+id+commit, `[{"id":"b"}]`).says(400, "0")
	}
	w.do("POST", "storage/col?commit=true&batch="+id, `[]`).want(200)
	w.do("GET", "storage/col", "").says(200, `["a"]`)
	w.as(stranger, "GET", "storage/col", "").says(200, `["x"]`)
}

func TestABatchLivesForTwoHoursFromItsStart(t *testing.T) {
	for _, swept := range []bool{false, true} {
		w := newWorld(t, setup{offload: []string{"col"}})
		short, long := w.batch("col", `[{"id":"a","payload":"x"}]`), ""
		w.clock.Advance(time.Hour)
		long = w.batch("col", `[{"id":"b","payload":"y"}]`)
		w.do("POST", "storage/col?batch="+short, `[{"id":"c","payload":"z"}]`).want(202) // does not prolong it
		w.clock.Advance(time.Hour - time.Millisecond)
		w.do("POST", "storage/col?batch="+short, `[]`).want(202)
		w.clock.Advance(time.Millisecond)
		if swept {
			w.clock.Advance(time.Second) // the sweeper's unit
			w.settle()
			w.wantPayloads("y*")
		}
		w.do("POST", "storage/col?batch="+short, `[]`).says(400, "0")
		w.do("POST", "storage/col?commit=true&batch="+short, `[]`).says(400, "0")
		w.do("POST", "storage/col?commit=true&batch="+long, `[]`).want(200)
		w.do("GET", "storage/col", "").says(200, `["b"]`)
		w.clock.Advance(time.Second)
		w.settle()
		w.wantPayloads("y*")
	}
}

func TestStagedFieldsAddUpAndTheCommitsBodyWins(t *testing.T) {
	for _, off := range [][]string{nil, {"col"}} {
		w := newWorld(t, setup{offload: off})
		w.do("POST", "storage/col", `[{"id":"m","payload":"stored","sortindex":1},{"id":"ttl","payload":"stored"},{"id":"none","payload":"stored"}]`).want(200)
		old := w.do("GET", "storage/col", "").header.Get("X-Last-Modified")
		w.clock.Advance(time.Minute)
		id := w.batch("col", `[{"id":"a","payload":"first","sortindex":1},{"id":"b","payload":"staged"},{"id":"m","sortindex":2},{"id":"ttl","ttl":100},{"id":"none"},{"id":"meta","sortindex":9}]`)
		w.do("POST", "storage/col?batch="+id, `[{"id":"a","payload":"second"},{"id":"b","sortindex":5,"ttl":50}]`).want(202)
		w.do("POST", "storage/col?batch="+id, `[{"id":"a","ttl":70},{"id":"b","payload":null}]`).want(202)
		w.clock.Advance(time.Hour)
		r := w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"b","payload":"from the commit"},{"id":"a","sortindex":-1}]`).want(200)
		now := r.outcome().Modified
		want := map[string]record{
			"a":    {"a", now, "second", ptr(-1)},
			"b":    {"b", now, "from the commit", ptr(5)},
			"m":    {"m", now, "stored", ptr(2)},
			"ttl":  {"ttl", "old", "stored", nil},
			"none": {"none", "old", "stored", nil},
			"meta": {"meta", now, "", ptr(9)},
		}
		var records []record
		w.do("GET", "storage/col?full=1", "").decode(&records)
		got := map[string]record{}
		for _, rec := range records {
			if rec.Modified.String() == old {
				rec.Modified = "old"
			}
			got[rec.ID] = rec
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		// ttl counts from the commit.
		for _, c := range []struct {
			at   time.Duration
			live string
		}{{49 * time.Second, "a b ttl"}, {51 * time.Second, "a ttl"}, {71 * time.Second, "ttl"}, {101 * time.Second, ""}} {
			w.clock.Set(start.Add(time.Minute + time.Hour + c.at))
			var live []string
			for _, id := range []string{"a", "b", "ttl"} {
				if w.do("GET", "storage/col/"+id, "").status == 200 {
					live = append(live, id)
				}
			}
			if got := strings.Join(live, " "); got != c.live {
				t.Errorf("after %v: %q live, want %q", c.at, got, c.live)
			}
		}
		w.settle()
		w.checkObjects()
	}
}

func TestTotalsOfABatchAreKeptAndSurplusFails(t *testing.T) {
	for _, off := range [][]string{nil, {"col"}} {
		w := newWorld(t, setup{offload: off, door: func(o *Options) { o.Limits.MaxTotalRecords, o.Limits.MaxTotalBytes = 4, 20 }})
		id := w.batch("col", `[{"id":"a","payload":"1234567890"},{"id":"b","payload":"123456"}]`)
		post := func(query, body string, status int, success []string, failed map[string]string) {
			t.Helper()
			o := w.do("POST", "storage/col?batch="+id+query, body).want(status).outcome()
			if failed == nil {
				failed = map[string]string{}
			}
			if diff := cmp.Diff(success, o.Success) + cmp.Diff(failed, o.Failed); diff != "" {
				t.Errorf("%s (-want +got):\n%s", body, diff)
			}
		}
		post("", `[{"id":"c","payload":"12345"}]`, 202, []string{}, map[string]string{"c": "retry bytes"})
		post("", `[{"id":"c","payload":"1234"}]`, 202, []string{"c"}, nil)                                                         // exactly full
		post("", `[{"id":"a","payload":"12345"}]`, 202, []string{"a"}, nil)                                                        // smaller than before
		post("", `[{"id":"a","payload":"1234567890x"}]`, 202, []string{}, map[string]string{"a": "retry bytes"})                   // larger
		post("", `[{"id":"d"},{"id":"e"},{"id":"a","sortindex":1}]`, 202, []string{"d", "a"}, map[string]string{"e": "retry bso"}) // a fifth record
		post("&commit=true", `[{"id":"f"},{"id":"b","payload":"654321"},{"id":"c","payload":"too many bytes"}]`, 200, []string{"b"},
			map[string]string{"f": "retry bso", "c": "retry bytes"})
		w.do("GET", "storage/col?sort=index", "").says(200, `["a","b","c","d"]`)
		if got := w.get("col", "a") + w.get("col", "b") + w.get("col", "c"); got != "12345"+"654321"+"1234" {
			t.Errorf("payloads %q", got)
		}
		w.settle()
		if off != nil {
			w.wantPayloads("1234*", "12345*", "654321*")
		}
		w.do("POST", "storage/col?batch=true", "[]", "X-Weave-Total-Records: 4", "X-Weave-Total-Bytes: 20").want(202)
		w.do("POST", "storage/col?batch=true", "[]", "X-Weave-Total-Records: 5").says(400, "17")
		w.do("POST", "storage/col?batch=true", "[]", "X-Weave-Total-Bytes: 21").says(400, "17")
	}
}

func TestADeletedCollectionTakesItsBatchesWithItForGood(t *testing.T) {
	for _, target := range []string{"storage/col", "storage", ""} {
		w := newWorld(t, setup{offload: []string{"col"}})
		w.put("col", "a", "x")
		id := w.batch("col", `[{"id":"b","payload":"y"}]`)
		w.do("DELETE", target, "").want(200)
		for range 2 {
			w.do("POST", "storage/col?batch="+id, `[{"id":"c","payload":"z"}]`).says(400, "0")
			w.do("POST", "storage/col?commit=true&batch="+id, `[]`).says(400, "0")
			w.put("col", "new", "n") // the collection is made again
		}
		w.do("GET", "storage/col", "").says(200, `["new"]`)
		w.settle()
		w.wantPayloads("n*")
	}
	// A delete of some records leaves batches alone, and does not come back through them.
	w := newWorld(t, setup{})
	w.put("col", "a", "x")
	id := w.batch("col", `[{"id":"b","payload":"y"}]`)
	w.do("DELETE", "storage/col?ids=a,b", "").want(200)
	w.do("DELETE", "storage/col/b", "").want(404)
	w.do("POST", "storage/col?commit=true&batch="+id, `[]`).want(200)
	w.do("GET", "storage/col", "").says(200, `["b"]`)
}

func TestACommitThatIsRefusedCanBeTriedAgain(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	id := w.batch("col", `[{"id":"a","payload":"staged"}]`)
	before := w.put("col", "b", "x")
	w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"c","payload":"y"}]`, "X-If-Unmodified-Since: "+shift(t, before, -1)).want(412)
	w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"c"`).says(400, "8")
	w.settle()
	w.wantPayloads("staged*", "x*")
	w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"c","payload":"y"}]`, "X-If-Unmodified-Since: "+before).want(200)
	w.settle()
	w.wantPayloads("staged*", "x*", "y*")
}

func TestManyAppendsMakeOneAtomicCommit(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.batch("col", "[]")
	for i := range 10 {
		var items []string
		for j := range 100 {
			items = append(items, fmt.Sprintf(`{"id":"r%d","payload":"p"}`, i*100+j))
		}
		w.do("POST", "storage/col?batch="+id, "["+strings.Join(items, ",")+"]").want(202)
	}
	w.do("POST", "storage/col?commit=true&batch="+id, "[]").want(200)
	w.do("GET", "info/collection_counts", "").says(200, `{"col":1000}`)
	w.do("GET", "storage/col", "").want(200).has("X-Weave-Records", "1000")
}

// records returns the change records that were sent and not yet worked off, in the
// words of a reader: table, kind, tag and the links of each change.
func (w *world) records() []string {
	w.Helper()
	waiting, err := w.changes.Peek(w.Context(), 100)
	must(w, err)
	var all []string
	for _, m := range waiting {
		r, err := changes.Decode(m.Payload)
		must(w, err)
		for _, mod := range r.Mods {
			content := func(link string) string {
				if link == "" {
					return "-"
				}
				o, _, err := w.memory.Get(w.Context(), strings.TrimPrefix(link, "mem://test/"), 0, -1)
				must(w, err)
				b, err := io.ReadAll(o)
				must(w, err)
				return string(b)
			}
			all = append(all, fmt.Sprintf("%s %s %q %s>%s", r.TableName, r.ModType, r.TransactionTag, content(mod.Old), content(mod.New)))
		}
	}
	slices.Sort(all)
	return all
}

func TestChangeRecordsOfABatchTellAHandoverFromARelease(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	w.put("col", "b", "old")
	w.reconcile()
	id := w.batch("col", `[{"id":"a","payload":"A"},{"id":"b","payload":"B"},{"id":"c","payload":"C"}]`)
	want := []string{`batch_bsos INSERT "" ->A`, `batch_bsos INSERT "" ->B`, `batch_bsos INSERT "" ->C`}
	if diff := cmp.Diff(want, w.records()); diff != "" {
		t.Errorf("start (-want +got):\n%s", diff)
	}
	w.reconcile()
	w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"c","payload":"D"}]`).want(200)
	want = []string{
		`batch_bsos DELETE "batch_commit" A>-`, `batch_bsos DELETE "batch_commit" B>-`, `batch_bsos DELETE "batch_commit" C>-`,
		`bsos INSERT "batch_commit" ->A`, `bsos INSERT "batch_commit" ->D`, `bsos UPDATE "batch_commit" C>-`, `bsos UPDATE "batch_commit" old>B`,
	}
	if diff := cmp.Diff(want, w.records()); diff != "" {
		t.Errorf("commit (-want +got):\n%s", diff)
	}
	w.reconcile()
	w.wantPayloads("A*", "B*", "D*")
	w.do("PUT", "storage/col/a", `{"ttl":5}`).want(200)
	w.batch("col", `[{"id":"x","payload":"X"}]`)
	w.reconcile()
	w.clock.Advance(3 * time.Hour)
	w.sweep()
	// A client's batch that is given up is released as any delete; the rest is the
	// system's doing.
	want = []string{`batch_bsos DELETE "" X>-`, fmt.Sprintf("bsos DELETE %q A>-", changes.ExpiryTag)}
	if diff := cmp.Diff(want, w.records()); diff != "" {
		t.Errorf("sweep (-want +got):\n%s", diff)
	}
}
