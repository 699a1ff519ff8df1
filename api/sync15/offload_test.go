package sync15

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// offloaded is a world whose collection "col" is in the object store.
func offloaded(t testing.TB) *world {
	t.Helper()
	return newWorld(t, setup{offload: []string{"col"}})
}

// link returns the link of the row of a record.
func (w *world) link(id string) string {
	w.Helper()
	found := ""
	must(w, w.plain.Scan(w.Context(), "bsos", kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
		if strings.Contains(string(row.Key), id) {
			found = row.Link
		}
		return true
	}))
	return found
}

// object returns the name of the object with a content.
func (w *world) object(content string) string {
	w.Helper()
	for _, name := range w.memory.Names() {
		r, _, err := w.memory.Get(w.Context(), name, 0, -1)
		must(w, err)
		var b [1 << 10]byte
		n, _ := r.Read(b[:])
		if string(b[:n]) == content {
			return name
		}
	}
	w.Fatalf("no object with %q", content)
	return ""
}

func (w *world) removeObject(content string) {
	w.Helper()
	_, err := w.memory.Delete(w.Context(), w.object(content), blob.Condition{})
	must(w, err)
}

func TestAPayloadIsInTheRowOrInAnObjectAndNeverInBoth(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, door: func(o *Options) { o.OffloadMinBytes = 5 }})
	const long, short = "a long payload", "tiny"
	state := func() string { // of the one record
		t.Helper()
		var s string
		must(t, w.plain.Scan(t.Context(), "bsos", kv.Range{}, func(row kv.Row) bool {
			if row.Link != "" {
				s += "link"
			}
			if strings.Contains(string(row.Value), short) || strings.Contains(string(row.Value), long) {
				s += "inline"
			}
			return true
		}))
		return s
	}
	for i, c := range []struct{ body, payload, where string }{
		{`{"payload":"` + long + `"}`, long, "link"},
		{`{"payload":"` + short + `"}`, short, "inline"},
		{`{"payload":"` + long + `"}`, long, "link"},
		{`{"sortindex":1}`, long, "link"},
		{`{"ttl":100}`, long, "link"},
		{`{"payload":null}`, long, "link"},
		{`{"payload":""}`, "", ""},
		{`{"payload":"` + long + `"}`, long, "link"},
	} {
		w.do("PUT", "storage/col/a", c.body).want(200)
		if got := w.get("col", "a"); got != c.payload || state() != c.where {
			t.Errorf("step %d: payload %q in %q, want %q in %q", i, got, state(), c.payload, c.where)
		}
		w.reconcile()
		if c.where == "link" {
			w.wantPayloads(c.payload + "*")
		} else {
			w.wantPayloads()
		}
	}
}

func TestNamesOfObjectsTellWhoseTheyAreAndAreNeverUsedTwice(t *testing.T) {
	w := offloaded(t)
	w.put("col", "a/b %?#", "one")
	w.put("col", "a/b %?#", "two")
	number := w.newUser(7, "", "")
	w.as(number, "PUT", "storage/col/x", `{"payload":"three"}`).want(200)
	names := w.memory.Names()
	if len(names) != 3 || !strings.HasPrefix(names[0], "account/col/a/b %?#/") || !strings.HasPrefix(names[1], "account/col/a/b %?#/") || !strings.HasPrefix(names[2], "uid-7/col/x/") {
		t.Errorf("objects %q", names)
	}
	if link := w.link("x"); link != "mem://test/"+names[2] {
		t.Errorf("link %q of object %q", link, names[2])
	}
	w.reconcile()
	w.wantPayloads("three*", "two*")
}

func TestWhatIsBoundToFailUploadsNothing(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, quota: 10, enforce: true})
	w.put("col", "a", "ten bytes!")
	w.settle()
	full := w.newUser(1, "empty", "k")
	w.as(full, "PUT", "storage/col/a", "{}").want(200)
	w.objects.ResetTrace()
	const unknown = "AAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		u              user
		method, target string
		body           string
		header         string
		status         int
	}{
		{w.user, "PUT", "storage/col/a", `{"payload":"x"}`, "", 403},
		{w.user, "POST", "storage/col", `[{"id":"a","payload":"x"}]`, "", 403},
		{w.user, "POST", "storage/col?batch=true", `[{"id":"a","payload":"x"}]`, "", 403},
		{full, "PUT", "storage/col/a", `{"payload":"x"}`, "X-If-Unmodified-Since: 1", 412},
		{full, "POST", "storage/col", `[{"id":"a","payload":"x"}]`, "X-If-Unmodified-Since: 1", 412},
		{full, "POST", "storage/col?batch=true", `[{"id":"a","payload":"x"}]`, "X-If-Unmodified-Since: 1", 412},
		{full, "POST", "storage/col?batch=" + unknown, `[{"id":"a","payload":"x"}]`, "", 400},
		{full, "POST", "storage/col?commit=true&batch=" + unknown, `[{"id":"a","payload":"x"}]`, "", 400},
		{full, "POST", "storage/col?batch=true", fmt.Sprintf(`[{"id":"a","payload":%q}]`, strings.Repeat("x", 10)), "", 403},
		{full, "POST", "storage/col", `[{"id":"a","payload":"x"},{"id":"a"}]`, "", 400},
		{full, "POST", "storage/col", `[{"id":"a","payload":"x","bad":1}]`, "", 200},
		{full, "POST", "storage/col", `[{"id":"a","ttl":5},{"id":"b","sortindex":1},{"id":"c","payload":null}]`, "", 200},
		{full, "PUT", "storage/col/a", `{"ttl":5}`, "", 200},
		{full, "PUT", "storage/other/a", `{"payload":"inline"}`, "", 200},
	} {
		headers := []string{c.header}
		if c.header == "" {
			headers = nil
		}
		w.as(c.u, c.method, c.target, c.body, headers...).want(c.status)
		if trace := w.objects.Trace(); len(trace) > 0 {
			t.Errorf("%s %s %s: the store saw %q", c.method, c.target, c.body, trace)
			w.objects.ResetTrace()
		}
	}
}

// uploading are all requests that upload; BATCH stands for an open batch.
var uploading = []struct{ name, method, target, body string }{
	{"PUT", "PUT", "storage/col/a", `{"payload":"new"}`},
	{"POST", "POST", "storage/col", `[{"id":"a","payload":"new"},{"id":"b","payload":"new"}]`},
	{"start", "POST", "storage/col?batch=true", `[{"id":"a","payload":"new"}]`},
	{"append", "POST", "storage/col?batch=BATCH", `[{"id":"a","payload":"new"}]`},
	{"commit", "POST", "storage/col?commit=true&batch=BATCH", `[{"id":"a","payload":"new"}]`},
}

// eachUpload runs a test for each request that uploads, in a world with a record
// and an open batch. send makes the request with a context.
func eachUpload(t *testing.T, test func(t *testing.T, w *world, send func(ctx context.Context) reply)) {
	for _, c := range uploading {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{offload: []string{"col"}, timeout: 5 * time.Second})
			w.put("col", "a", "old")
			batch := w.batch("col", `[{"id":"s","payload":"staged"}]`)
			w.reconcile()
			w.objects.ResetTrace()
			target := strings.ReplaceAll(c.target, "BATCH", batch)
			test(t, w, func(ctx context.Context) reply {
				return w.serve(w.request(w.user, c.method, target, strings.NewReader(c.body)).WithContext(ctx))
			})
		})
	}
}

// onLinkCommit makes f run at each commit that writes a new link of the door.
func (w *world) onLinkCommit(f func(c kvtest.Call) error) {
	w.engine.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit && slices.ContainsFunc(c.Txn.Writes, func(x kv.Write) bool { return x.Link != "" }) {
			return f(c)
		}
		return nil
	})
}

func TestAConflictIsRetriedWithTheSameObjects(t *testing.T) {
	eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
		tries := 0
		w.onLinkCommit(func(c kvtest.Call) error {
			if tries++; tries <= 3 {
				return &kv.ConflictError{Refs: []kv.Ref{{Space: "bsos", Key: []byte("k")}}}
			}
			return nil
		})
		if r := send(t.Context()); r.status != 200 && r.status != 202 {
			t.Errorf("status %d", r.status)
		}
		w.engine.Reset()
		uploads := 0
		for _, line := range w.objects.Trace() {
			if strings.HasPrefix(line, "put ") {
				uploads++
			}
		}
		if want := 1; uploads != want && !(t.Name() == "TestAConflictIsRetriedWithTheSameObjects/POST" && uploads == 2) || tries != 4 {
			t.Errorf("%d uploads in %d tries", uploads, tries)
		}
		w.reconcile()
		w.checkObjects()
	})
}

func TestObjectsOfACommitThatDidNotHappenAreRemoved(t *testing.T) {
	for _, cause := range []error{kvtest.ErrInjected, kv.ErrTooLarge, kv.ErrCorrupt, kv.ErrClosed} {
		eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
			w.onLinkCommit(func(kvtest.Call) error { return fmt.Errorf("commit: %w", cause) })
			if r := send(t.Context()); r.status < 400 {
				t.Errorf("status %d after %v", r.status, cause)
			}
			w.engine.Reset()
			w.wantPayloads("old*", "staged*")
			w.reconcile()
			w.wantPayloads("old*", "staged*")
			if n := w.counter("syncstorage_storage_gcs_payload_cleanup_total"); n == 0 {
				t.Error("the cleanup is not counted")
			}
		})
	}
}

func TestObjectsOfARequestWhosePreconditionFailsAtTheCommitAreRemoved(t *testing.T) {
	for _, c := range uploading {
		t.Run(c.name, func(t *testing.T) {
			w := offloaded(t)
			before := w.put("col", "a", "old")
			batch := w.batch("col", `[{"id":"s","payload":"staged"}]`)
			w.reconcile()
			var race sync.Once
			w.objects.SetHook(blobtest.On(blobtest.OpPut, blobtest.After, func(context.Context, blobtest.Call) error {
				race.Do(func() { // after the check, before the commit
					w.objects.SetHook(nil)
					w.put("col", "a", "in between")
				})
				return nil
			}))
			r := w.do(c.method, strings.ReplaceAll(c.target, "BATCH", batch), c.body, "X-If-Unmodified-Since: "+before)
			r.says(412, "").has("X-Last-Modified", shift(t, before, 1))
			w.reconcile()
			w.wantPayloads("in between*", "staged*")
		})
	}
}

func TestNothingIsRemovedAfterAnUnknownOutcome(t *testing.T) {
	for _, applied := range []bool{false, true} {
		eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
			due := false
			w.engine.Before(func(_ context.Context, c kvtest.Call) error {
				due = c.Op == kvtest.OpCommit && slices.ContainsFunc(c.Txn.Writes, func(x kv.Write) bool { return x.Link != "" })
				if due && !applied {
					return kv.ErrUnknownOutcome
				}
				return nil
			})
			w.engine.After(func(_ context.Context, c kvtest.Call, err error) error {
				if due && c.Op == kvtest.OpCommit {
					due = false
					return kv.ErrUnknownOutcome
				}
				return err
			})
			send(t.Context()).says(500, "0")
			w.engine.Reset()
			for _, line := range w.objects.Trace() {
				if !strings.HasPrefix(line, "put ") {
					t.Errorf("the store saw %q", line)
				}
			}
			w.reconcile()
			var left []string
			for _, p := range w.payloads() {
				if p == "new" {
					left = append(left, p)
				}
			}
			if applied == (len(left) > 0) {
				t.Errorf("applied %v, but objects are %q", applied, w.payloads())
			}
			w.do("GET", "storage/col?full=1", "").want(200)
			if got := w.get("col", "a"); got != "old" && got != "new" {
				t.Errorf("payload %q", got)
			}
		})
	}
}

func TestAClientThatGoesAwayDoesNotCutACommitInHalf(t *testing.T) {
	// After the upload: the commit is made.
	eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
		ctx, cancel := context.WithCancel(t.Context())
		w.onLinkCommit(func(kvtest.Call) error { cancel(); return nil })
		send(ctx)
		w.engine.Reset()
		w.reconcile()
		w.checkObjects()
		if t.Name() == "TestAClientThatGoesAwayDoesNotCutACommitInHalf/PUT" && w.get("col", "a") != "new" {
			t.Error("the write is lost")
		}
	})
	// Before the end of the upload: nothing is left of it, although the client's
	// context has ended.
	eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
		ctx, cancel := context.WithCancel(t.Context())
		w.objects.SetHook(blobtest.On(blobtest.OpPut, blobtest.After, func(context.Context, blobtest.Call) error {
			cancel()
			return ctx.Err()
		}))
		if r := send(ctx); r.status < 500 {
			t.Errorf("status %d", r.status)
		}
		w.objects.SetHook(nil)
		w.wantPayloads("old*", "staged*")
		if got := w.get("col", "a"); got != "old" {
			t.Errorf("payload %q", got)
		}
	})
	// And when the commit is refused after the client has gone, the cleanup is made.
	eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
		ctx, cancel := context.WithCancel(t.Context())
		w.onLinkCommit(func(kvtest.Call) error { cancel(); return kvtest.ErrInjected })
		send(ctx)
		w.engine.Reset()
		w.wantPayloads("old*", "staged*")
	})
}

func TestAFailedUploadEndsTheRequestAndLeavesNothing(t *testing.T) {
	eachUpload(t, func(t *testing.T, w *world, send func(context.Context) reply) {
		state := w.state()
		for _, stage := range []blobtest.Stage{blobtest.Before, blobtest.After} {
			w.objects.SetHook(blobtest.FailOn(blobtest.OpPut, stage, blobtest.ErrInjected))
			send(t.Context()).says(503, "0").has("Retry-After", "10")
			w.objects.SetHook(nil)
			w.wantPayloads("old*", "staged*")
			if got := w.state(); got != state {
				t.Errorf("state is\n%s", got)
			}
		}
		if r := send(t.Context()); r.status > 202 {
			t.Errorf("once the store is back: %d", r.status)
		}
	})
}

func TestOneFailedUploadOfManyEndsTheOthers(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, concurrency: 2})
	w.objects.SetHook(blobtest.On(blobtest.OpPut, blobtest.Before, func(_ context.Context, c blobtest.Call) error {
		if strings.Contains(c.Name, "/r5/") {
			return blobtest.ErrInjected
		}
		return nil
	}))
	var items []string
	for i := range 100 {
		items = append(items, fmt.Sprintf(`{"id":"r%d","payload":"p%d"}`, i, i))
	}
	w.serve(w.request(w.user, "POST", "storage/col", strings.NewReader("["+strings.Join(items, ",")+"]"))).says(503, "0")
	w.objects.SetHook(nil)
	w.wantPayloads()
	w.do("GET", "info/collections", "").says(200, "{}")
	if puts := len(slices.DeleteFunc(w.objects.Trace(), func(s string) bool { return !strings.HasPrefix(s, "put ") })); puts > 50 {
		t.Errorf("%d uploads although the sixth failed", puts)
	}
}

func TestWhatReleasesALink(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
		want []string
	}{
		{"overwritten by PUT", func(w *world) { w.put("col", "a", "new") }, []string{"new*", "other*"}},
		{"overwritten by POST", func(w *world) { w.do("POST", "storage/col", `[{"id":"a","payload":"new"}]`).want(200) }, []string{"new*", "other*"}},
		{"overwritten by a batch", func(w *world) {
			w.do("POST", "storage/col?commit=true&batch="+w.batch("col", `[{"id":"a","payload":"new"}]`), "[]").want(200)
		}, []string{"new*", "other*"}},
		{"overwritten inline", func(w *world) {
			w.server.opts.OffloadCollections = nil
			w.put("col", "a", "new")
		}, []string{"other*"}},
		{"overwritten by nothing", func(w *world) { w.put("col", "a", "") }, []string{"*", "other*"}},
		{"deleted", func(w *world) { w.do("DELETE", "storage/col/a", "").want(200) }, []string{"other*"}},
		{"deleted with others", func(w *world) { w.do("DELETE", "storage/col?ids=a,b,nobody", "").want(200) }, nil},
		{"deleted with its collection", func(w *world) { w.do("DELETE", "storage/col", "").want(200) }, nil},
		{"deleted with everything", func(w *world) { w.do("DELETE", "", "").want(200) }, nil},
		{"expired", func(w *world) {
			w.do("PUT", "storage/col/a", `{"ttl":5}`).want(200)
			w.clock.Advance(6 * time.Second)
		}, []string{"other*"}},
		{"only its life changed", func(w *world) { w.do("PUT", "storage/col/a", `{"ttl":500}`).want(200) }, []string{"old*", "other*"}},
		{"only its sortindex changed", func(w *world) { w.do("PUT", "storage/col/a", `{"sortindex":5}`).want(200) }, []string{"old*", "other*"}},
		{"a batch that gives no payload", func(w *world) {
			w.do("POST", "storage/col?commit=true&batch="+w.batch("col", `[{"id":"a","ttl":500}]`), `[{"id":"b","sortindex":1}]`).want(200)
		}, []string{"old*", "other*"}},
		{"staged and abandoned", func(w *world) {
			w.batch("col", `[{"id":"a","payload":"staged"}]`)
			w.clock.Advance(2*time.Hour + time.Second)
		}, []string{"old*", "other*"}},
		{"staged and deleted with the collection", func(w *world) {
			w.batch("col", `[{"id":"x","payload":"staged"}]`)
			w.do("DELETE", "storage/col", "").want(200)
		}, nil},
		{"staged and deleted with everything", func(w *world) {
			w.batch("col", `[{"id":"x","payload":"staged"}]`)
			w.do("DELETE", "storage", "").want(200)
		}, nil},
		{"staged and replaced by an append", func(w *world) {
			id := w.batch("col", `[{"id":"a","payload":"first"}]`)
			w.do("POST", "storage/col?batch="+id, `[{"id":"a","payload":"second"}]`).want(202)
			w.do("POST", "storage/col?commit=true&batch="+id, `[]`).want(200)
		}, []string{"other*", "second*"}},
		{"staged, another one in the commit", func(w *world) {
			id := w.batch("col", `[{"id":"a","payload":"A"},{"id":"new","payload":"N"}]`)
			w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"a","payload":"B"},{"id":"new","payload":"M"}]`).want(200)
		}, []string{"B*", "M*", "other*"}},
		{"staged, then inline in the commit", func(w *world) {
			id := w.batch("col", `[{"id":"a","payload":"A"}]`)
			w.server.opts.OffloadCollections = nil
			w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"a","payload":"B"}]`).want(200)
		}, []string{"other*"}},
		{"staged, then inline in an append", func(w *world) {
			id := w.batch("col", `[{"id":"a","payload":"A"}]`)
			w.server.opts.OffloadCollections = nil
			w.do("POST", "storage/col?batch="+id, `[{"id":"a","payload":"B"}]`).want(202)
			w.do("POST", "storage/col?commit=true&batch="+id, `[]`).want(200)
		}, []string{"other*"}},
		{"staged inline, then an object in an append", func(w *world) {
			w.server.opts.OffloadCollections = nil
			id := w.batch("col", `[{"id":"a","payload":"A"}]`)
			w.server.opts.OffloadCollections = []string{"col"}
			w.do("POST", "storage/col?batch="+id, `[{"id":"a","payload":"B"}]`).want(202)
			w.do("POST", "storage/col?commit=true&batch="+id, `[]`).want(200)
		}, []string{"B*", "other*"}},
		{"staged inline, then an object in the commit", func(w *world) {
			w.server.opts.OffloadCollections = nil
			id := w.batch("col", `[{"id":"a","payload":"A"}]`)
			w.server.opts.OffloadCollections = []string{"col"}
			w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"a","payload":"B"}]`).want(200)
		}, []string{"B*", "other*"}},
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reconciled before: %v", c.name, early), func(t *testing.T) {
				w := offloaded(t)
				w.put("col", "a", "old")
				w.put("col", "b", "other")
				if early {
					w.reconcile()
				}
				c.do(w)
				// Whatever the order of records, what readers see is there.
				w.do("GET", "storage/col?full=1", "").want(200)
				w.settle()
				w.wantPayloads(c.want...)
				w.do("GET", "storage/col?full=1", "").want(200)
			})
		}
	}
}

func TestCleanupsThatFailAreLeftToTheLifecycle(t *testing.T) {
	w := offloaded(t)
	w.onLinkCommit(func(kvtest.Call) error { return kvtest.ErrInjected })
	w.objects.SetHook(blobtest.FailOn(blobtest.OpDiscard, blobtest.Before, blobtest.ErrInjected))
	w.do("PUT", "storage/col/a", `{"payload":"x"}`).says(500, "0")
	w.engine.Reset()
	w.objects.SetHook(nil)
	w.reconcile()
	w.wantPayloads("x")
	if !strings.Contains(w.log.String(), "the lifecycle will") {
		t.Errorf("log: %s", w.log)
	}
	w.do("GET", "storage/col/a", "").says(404, "0")
}

func TestAFaultOfTheStoreAtAnyCallNeverLosesARecord(t *testing.T) {
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		w := newWorld(t, setup{offload: []string{"col"}, concurrency: 1})
		w.put("col", "a", "old")
		w.reconcile()
		w.objects.SetHook(hook)
		put := w.do("POST", "storage/col", `[{"id":"a","payload":"new"},{"id":"b","payload":"b"}]`)
		read := w.do("GET", "storage/col?full=1", "")
		w.objects.SetHook(nil)
		switch {
		case put.status != 200 && put.status != 503:
			t.Errorf("write: %d", put.status)
		case read.status != 200 && read.status != 503:
			t.Errorf("read: %d %s", read.status, read.body)
		}
		w.reconcile()
		want := "old"
		if put.status == 200 {
			want = "new"
		}
		if got := w.get("col", "a"); got != want {
			t.Errorf("payload %q, want %q", got, want)
		}
		w.checkLinks()
	})
}

// checkLinks checks that every link points at a finalized object.
func (w *world) checkLinks() {
	w.Helper()
	for _, space := range []string{"bsos", "batch_bsos"} {
		must(w, w.plain.Scan(w.Context(), space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
			if row.Link == "" {
				return true
			}
			attrs, err := w.memory.Stat(w.Context(), strings.TrimPrefix(row.Link, "mem://test/"))
			if err != nil || !attrs.Committed {
				w.Errorf("%s: link %s: finalized %v, %v", space, row.Link, attrs.Committed, err)
			}
			return true
		}))
	}
}

func TestAFaultOfTheEngineAtAnyCallKeepsRowsAndObjectsInAgreement(t *testing.T) {
	for _, c := range []struct{ name, method, target, body string }{
		{"PUT", "PUT", "storage/col/a", `{"payload":"new"}`},
		{"commit", "POST", "storage/col?commit=true&batch=BATCH", `[{"id":"a","payload":"new"},{"id":"s","payload":"over the staged one"}]`},
		{"delete", "DELETE", "storage/col", ""},
		{"read", "GET", "storage/col?full=1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
				w := newWorld(t, setup{offload: []string{"col"}})
				w.put("col", "a", "old")
				batch := w.batch("col", `[{"id":"s","payload":"staged"}]`)
				w.reconcile()
				before := w.state()
				p.Arm(w.engine)
				r := w.do(c.method, strings.ReplaceAll(c.target, "BATCH", batch), c.body)
				w.engine.Reset()
				if r.status == 404 || r.status == 200 && c.method == "GET" && !strings.Contains(r.body, `"old"`) {
					t.Errorf("status %d, body %s", r.status, r.body)
				}
				if r.status != 200 && r.status != 500 && r.status != 503 {
					t.Errorf("status %d", r.status)
				}
				if p.Failure == kvtest.CrashedAfter || p.Failure == kvtest.CrashedBefore {
					return // a process that is gone cleans nothing up, unlike this one
				}
				after := w.state()
				if r.status == 200 && c.method != "GET" && after == before {
					t.Error("the write was confirmed and is not there")
				}
				if r.status != 200 && p.Failure == kvtest.Refused && after != before {
					t.Errorf("the write was refused, but the state is\n%s\nafter\n%s", after, before)
				}
				w.settle()
				w.checkLinks()
				w.do("GET", "storage/col?full=1", "").want(200)
			})
		})
	}
}
