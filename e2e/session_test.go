package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// browser makes requests whose answers must have a certain status.
type browser struct {
	t *testing.T
	*syncclient.Client
}

func (b browser) do(want int, method, target, body string, header ...string) *syncclient.Response {
	b.t.Helper()
	rq := syncclient.Request{Method: method, Target: target, Body: body, Header: map[string]string{}}
	for i := 0; i < len(header); i += 2 {
		rq.Header[header[i]] = header[i+1]
	}
	res, err := b.Do(b.t.Context(), rq)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, target, err)
	}
	if res.Status != want {
		b.t.Fatalf("%s %s: %d %.300s, want %d", method, target, res.Status, res.Body, want)
	}
	if res.Header.Get("X-Weave-Timestamp") == "" {
		b.t.Errorf("%s %s: no X-Weave-Timestamp", method, target)
	}
	if res.Status < 300 && res.Header.Get("X-Last-Modified") == "" {
		b.t.Errorf("%s %s: a success without X-Last-Modified", method, target)
	}
	return res
}

func (b browser) get(target string, header ...string) *syncclient.Response {
	b.t.Helper()
	return b.do(http.StatusOK, http.MethodGet, target, "", header...)
}

func (b browser) put(target, body string, header ...string) string {
	b.t.Helper()
	return b.do(http.StatusOK, http.MethodPut, target, body, header...).Body
}

// payloads returns what records of a collection hold, by their ids.
func (b browser) payloads(collection string) map[string]string {
	b.t.Helper()
	s, err := parseCollection(b.get("/storage/" + collection + "?full=1"))
	if err != nil {
		b.t.Fatal(err)
	}
	m := map[string]string{}
	for id, it := range s.Items {
		m[id] = it.Payload
	}
	return m
}

// everyCollection is what the session writes to.
const everyCollection = "meta,crypto,tabs,bookmarks,history,clients,own-one"

func TestSessionOfABrowserWithEverythingInRows(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	session(t, home)
	audit(t, home)
}

func TestSessionOfABrowserWithEverythingOffloaded(t *testing.T) {
	t.Parallel()
	home := newHome(t, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS="+everyCollection, largeHistory)
	session(t, home)
	audit(t, home)
}

// largeHistory allows history larger payloads than other collections.
const largeHistory = `HOLDFAST_SYNC_LIMITS_COLLECTIONS={"history":{"max_record_payload_bytes":20971520,"max_post_bytes":26214400,"max_request_bytes":26218496}}`

// session does what a browser does in its life with a server.
func session(t *testing.T, home *program.Home) {
	server := home.Serve(t)
	b := browser{t, login(t, home, newHTTP(t), "browser_1")}
	firstSync(t, b)
	uploadInBatch(t, b)
	largePayload(t, b)
	readInPages(t, b)
	partialUpdates(t, b)
	deletions(t, b)
	waitForQueues(t, home)
	agrees(t, home)
	server.Stop(t)
}

// firstSync is what desktop does with a new account.
func firstSync(t *testing.T, b browser) {
	if got := b.get("/info/collections"); got.Body != "{}" {
		t.Errorf("info/collections of a new account: %s", got.Body)
	}
	var limits map[string]any
	if err := b.get("/info/configuration").JSON(&limits); err != nil || limits["max_post_records"] == nil {
		t.Errorf("info/configuration: %v %v", limits, err)
	}
	b.do(http.StatusNotFound, http.MethodGet, "/storage/meta/global", "")
	b.do(http.StatusOK, http.MethodDelete, "/storage", "", "X-Confirm-Delete", "1")
	meta := b.put("/storage/meta/global", `{"id":"global","payload":"{\"storageVersion\":5}"}`, "X-If-Unmodified-Since", "0")
	keys := b.put("/storage/crypto/keys", `{"id":"keys","payload":"secret keys"}`, "X-If-Unmodified-Since", "0")
	b.do(http.StatusPreconditionFailed, http.MethodPut, "/storage/crypto/keys", `{"payload":"others"}`, "X-If-Unmodified-Since", "0")
	var collections map[string]any
	res := b.get("/info/collections")
	if err := res.JSON(&collections); err != nil || !strings.Contains(res.Body, `"meta":`+meta) || !strings.Contains(res.Body, `"crypto":`+keys) {
		t.Errorf("info/collections: %s, want meta %s and crypto %s (%v)", res.Body, meta, keys, err)
	}
	b.put("/storage/meta/global", `{"payload":"{\"storageVersion\":6}"}`, "X-If-Unmodified-Since", meta)
	if got := b.payloads("meta")["global"]; got != `{"storageVersion":6}` {
		t.Errorf("meta/global is %s", got)
	}
}

func posts(from, to int, payload string) string {
	var ps []patch
	for i := from; i < to; i++ {
		text := fmt.Sprintf("%s %d", payload, i)
		ps = append(ps, patch{id: fmt.Sprintf("b%02d", i), payload: &text})
	}
	return jsonList(ps)
}

// uploadInBatch uploads in three requests that take effect together.
func uploadInBatch(t *testing.T, b browser) {
	before := b.do(http.StatusOK, http.MethodPost, "/storage/bookmarks", posts(0, 5, "plain")).Header.Get("X-Last-Modified")
	var first struct{ Batch string }
	started := b.do(http.StatusAccepted, http.MethodPost, "/storage/bookmarks?batch=true", posts(3, 10, "batched"), "X-If-Unmodified-Since", before)
	if err := started.JSON(&first); err != nil || first.Batch == "" || started.Header.Get("X-Last-Modified") != before {
		t.Fatalf("start of a batch: %v %s", err, started.Body)
	}
	b.do(http.StatusAccepted, http.MethodPost, "/storage/bookmarks?batch="+first.Batch, posts(10, 15, "batched"), "X-If-Unmodified-Since", before)
	if got := b.payloads("bookmarks"); len(got) != 5 || got["b03"] != "plain 3" {
		t.Errorf("staged records are visible: %v", got)
	}
	b.do(http.StatusOK, http.MethodPost, "/storage/bookmarks?commit=true&batch="+first.Batch, posts(14, 20, "committed"), "X-If-Unmodified-Since", before)
	got := b.payloads("bookmarks")
	if len(got) != 20 || got["b02"] != "plain 2" || got["b03"] != "batched 3" || got["b13"] != "batched 13" || got["b14"] != "committed 14" {
		t.Errorf("after the commit: %v", got)
	}
	b.do(http.StatusBadRequest, http.MethodPost, "/storage/bookmarks?batch="+first.Batch, "[]")
	// One that nobody commits.
	b.do(http.StatusAccepted, http.MethodPost, "/storage/bookmarks?batch=true", posts(0, 3, "abandoned"))
}

// largePayload writes as much as the server says that it takes.
func largePayload(t *testing.T, b browser) {
	var limits struct {
		Most        int `json:"max_record_payload_bytes"`
		Collections map[string]struct {
			Most int `json:"max_record_payload_bytes"`
		}
	}
	if err := b.get("/info/configuration").JSON(&limits); err != nil {
		t.Fatal(err)
	}
	most := max(limits.Most, limits.Collections["history"].Most)
	large := strings.Repeat("0123456789abcde ", most/16)
	b.put("/storage/history/large", (patch{id: "large", payload: &large}).json())
	var got shown
	if err := b.get("/storage/history/large").JSON(&got); err != nil || got.Payload != large {
		t.Errorf("a payload of %d bytes came back with %d (%v)", len(large), len(got.Payload), err)
	}
	larger := large + "!"
	res := b.do(http.StatusBadRequest, http.MethodPut, "/storage/history/larger", (patch{id: "larger", payload: &larger}).json())
	if res.Body != "8" {
		t.Errorf("a payload over the limit: code %s", res.Body)
	}
}

// readInPages reads as browsers do that have some of the records.
func readInPages(t *testing.T, b browser) {
	w := &worker{t: t, client: b.Client, name: "pages", rng: newRand(1)}
	s, ok := w.read(t.Context(), "bookmarks")
	if !ok {
		t.Fatal("bookmarks cannot be read")
	}
	c := &collection{name: "bookmarks", possible: []state{s}}
	for range 3 {
		w.readPages(t.Context(), c)
	}
	b.put("/storage/bookmarks/newest", `{"payload":"new"}`)
	var ids []string
	if err := b.get("/storage/bookmarks?newer=" + s.Modified).JSON(&ids); err != nil || len(ids) != 1 || ids[0] != "newest" {
		t.Errorf("newer than %s: %v (%v)", s.Modified, ids, err)
	}
	b.do(http.StatusNotModified, http.MethodGet, "/storage/tabs/x", "", "X-If-Modified-Since", b.put("/storage/tabs/x", `{"payload":"t"}`))
	b.do(http.StatusPreconditionFailed, http.MethodGet, "/storage/bookmarks?full=1", "", "X-If-Unmodified-Since", s.Modified)
}

func partialUpdates(t *testing.T, b browser) {
	b.put("/storage/clients/c", `{"payload":"kept","sortindex":5}`)
	b.put("/storage/clients/c", `{"sortindex":7}`)
	before := b.get("/storage/clients/c")
	if !strings.Contains(before.Body, `"sortindex":7`) || !strings.Contains(before.Body, `"payload":"kept"`) {
		t.Errorf("after an update of the sortindex: %s", before.Body)
	}
	b.put("/storage/clients/c", `{"ttl":1000}`)
	if after := b.get("/storage/clients/c"); after.Body != before.Body {
		t.Errorf("an update of the ttl made %s of %s", after.Body, before.Body)
	}
	b.put("/storage/clients/gone", `{"payload":"gone at once","ttl":0}`)
	b.do(http.StatusNotFound, http.MethodGet, "/storage/clients/gone", "")
	if got := b.get("/info/collection_counts").Body; !strings.Contains(got, `"clients":1`) {
		t.Errorf("counts: %s", got)
	}
}

func deletions(t *testing.T, b browser) {
	b.do(http.StatusOK, http.MethodDelete, "/storage/bookmarks/b00", "")
	b.do(http.StatusNotFound, http.MethodDelete, "/storage/bookmarks/b00", "")
	b.do(http.StatusOK, http.MethodDelete, "/storage/bookmarks?ids=b01,b02,nothing", "")
	if got := b.payloads("bookmarks"); len(got) != 18 {
		t.Errorf("%d bookmarks are left, want 18", len(got))
	}
	b.do(http.StatusOK, http.MethodPost, "/storage/own-one", posts(0, 50, "own"))
	b.do(http.StatusOK, http.MethodDelete, "/storage/own-one", "")
	if got := b.get("/info/collections").Body; strings.Contains(got, "own-one") {
		t.Errorf("a deleted collection is listed: %s", got)
	}
	odd := syncclient.Escape("a b/c%?#")
	b.put("/storage/tabs/"+odd, `{"payload":"odd"}`)
	if got := b.payloads("tabs")["a b/c%?#"]; got != "odd" {
		t.Errorf("a record with an odd id: %q", got)
	}
	b.do(http.StatusOK, http.MethodDelete, "/storage/tabs/"+odd, "")
}
