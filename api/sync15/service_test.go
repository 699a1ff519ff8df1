package sync15

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
)

// anonymous sends a request without authentication.
func (w *world) anonymous(method, target string, headers ...string) reply {
	w.Helper()
	return w.do(method, target, "", append([]string{"Authorization:"}, headers...)...)
}

func TestServiceEndpointsNeedNoAuthenticationAndTellNoStorageTime(t *testing.T) {
	w := newWorld(t, setup{})
	w.anonymous("GET", "/__heartbeat__").says(200, `{"database":"Ok","quota":{"enabled":false,"size":0},"status":"Ok","version":"1.2.3"}`).has("X-Weave-Timestamp", "")
	w.anonymous("GET", "/__lbheartbeat__").says(200, `{"active_connections":1,"idle_connections":0}`).has("X-Weave-Timestamp", "")
	w.anonymous("GET", "/__version__").says(200, `{"version":"1.2.3"}`).has("Content-Type", "application/json").has("X-Weave-Timestamp", "")
	w.anonymous("GET", "/__error__").says(500, "0").has("X-Weave-Timestamp", "")
	w.anonymous("GET", "/").want(200)
	w.anonymous("HEAD", "/__heartbeat__").want(200)
	for _, path := range []string{"/nothing", "/1.5", "/1.0/sync/1.5", "/__heartbeat__/", "/favicon.ico"} {
		w.anonymous("GET", path).says(404, "0").has("Content-Type", "application/json")
		w.anonymous("POST", path).says(404, "0")
	}
	for _, path := range []string{"/", "/__heartbeat__", "/__lbheartbeat__", "/__version__", "/__error__"} {
		w.anonymous("POST", path).want(405)
	}
}

func TestTheHeartbeatFailsWithTheCheck(t *testing.T) {
	var result error
	w := newWorld(t, setup{quota: 1000, door: func(o *Options) {
		o.Check = func(ctx context.Context) error {
			if _, ok := ctx.Deadline(); !ok {
				return errors.New("the check may take for ever")
			}
			return result
		}
	}})
	w.anonymous("GET", "/__heartbeat__").says(200, `{"database":"Ok","quota":{"enabled":true,"size":1000},"status":"Ok","version":"1.2.3"}`)
	result = errors.New("the disk of db-7 is full")
	r := w.anonymous("GET", "/__heartbeat__").want(503)
	if !strings.Contains(r.body, `"database":"Err"`) || !strings.Contains(r.body, `"status":"Err"`) || strings.Contains(r.body, "db-7") {
		t.Errorf("heartbeat: %s", r.body)
	}
	if !strings.Contains(w.log.String(), "db-7") {
		t.Error("the log does not say why")
	}
	w.do("GET", "info/quota", "").want(200) // the storage goes on
}

func TestTheLoadBalancersHeartbeatEndsWithTheProcessesTime(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.HeartbeatTTL = time.Hour }})
	w.clock.Advance(time.Hour)
	w.anonymous("GET", "/__lbheartbeat__").want(200)
	w.clock.Advance(time.Second)
	w.anonymous("GET", "/__lbheartbeat__").says(500, "{}")
	w.do("GET", "info/quota", "").want(200)
}

func TestTheTokenServerAnswersBelowItsPath(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) {
		o.TokenServer = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.WriteHeader(404)
			rw.Write([]byte("token server: " + r.URL.Path))
		})
	}})
	w.anonymous("GET", "/1.0/sync/1.5", "Origin: https://page.org").says(404, "token server: /1.0/sync/1.5").
		has("X-Weave-Timestamp", "").has("Access-Control-Allow-Origin", "https://page.org")
}

func TestPagesOfOtherOrigins(t *testing.T) {
	w := newWorld(t, setup{})
	const page = "https://page.example.org"
	for _, path := range []string{"/1.5/42/__heartbeat__", "/1.5/42/storage/col", "/1.0/sync/1.5", "/"} {
		r := w.anonymous("OPTIONS", path, "Origin: "+page, "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization").says(200, "")
		r.has("Access-Control-Allow-Origin", page).has("Access-Control-Max-Age", "1728000").has("Access-Control-Allow-Methods", "DELETE, GET, POST, PUT")
		for _, h := range []string{"Authorization", "Content-Type", "User-Agent", "X-If-Unmodified-Since", "X-Weave-Records", "X-Confirm-Delete"} {
			if !strings.Contains(r.header.Get("Access-Control-Allow-Headers"), h) {
				t.Errorf("%s is not allowed", h)
			}
		}
	}
	w.do("GET", "info/quota", "", "Origin: "+page).want(200).has("Access-Control-Allow-Origin", page).has("Vary", "Origin")
	w.do("GET", "info/quota", "", "Origin: "+page, "Authorization:").want(401).has("Access-Control-Allow-Origin", page)
	w.do("GET", "nothing", "", "Origin: "+page).want(404).has("Access-Control-Allow-Origin", page)
	w.do("GET", "info/quota", "").want(200).has("Access-Control-Allow-Origin", "")
	w.anonymous("OPTIONS", "/1.5/42/storage/col").want(405) // no preflight

	w = newWorld(t, setup{door: func(o *Options) { o.CORS.Origin = page }})
	w.do("GET", "info/quota", "", "Origin: "+page).has("Access-Control-Allow-Origin", page)
	w.do("GET", "info/quota", "", "Origin: https://evil.org").want(200).has("Access-Control-Allow-Origin", "")
	w = newWorld(t, setup{door: func(o *Options) { o.CORS.Origin = "" }})
	w.do("GET", "info/quota", "", "Origin: "+page).want(200).has("Access-Control-Allow-Origin", "")
}

func TestOldClientsOfIOSAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	refused := 0
	for agent, status := range map[string]int{
		"Firefox-iOS-Sync/18.0b1 (iPhone; iPhone OS 13.2.2) (Fennec (synctesting))":      503,
		"Firefox-iOS-Sync/1.1b9 (iPhone; iPhone OS 9.0) (Firefox)":                       503,
		"Firefox-iOS-Sync/19.9b1 (iPhone; iPhone OS 13.2.2) (Firefox)":                   503,
		"Firefox-iOS-Sync/20.0b1 (iPhone; iPhone OS 13.2.2) (Firefox)":                   200,
		"Firefox-iOS-Sync/33.0b1 (iPhone; iPhone OS 13.2.2) (Firefox)":                   200,
		"Firefox-iOS-Sync/0.0.1b1 (iPhone; iPhone OS 13.2.2) (Firefox)":                  200,
		"Firefox-iOS-FxA/18.0b1 (iPhone; iPhone OS 13.2.2) (Firefox)":                    200,
		"Mozilla/5.0 Firefox-iOS-Sync/18.0b1 (iPhone; iPhone OS 13.2.2) (Firefox)":       200,
		"Firefox-iOS-Sync/18.0 (iPhone; iPhone OS 13.2.2)":                               200,
		"Firefox-iOS-Sync/99999999999999999999.0b1 (iPhone; iPhone OS 13.2.2) (Firefox)": 200,
		"Firefox/150.0.20260801 (Windows NT 10.0) FxSync/1.200.0.desktop":                200,
	} {
		r := w.do("GET", "info/quota", "", "User-Agent: "+agent).want(status)
		if status == 503 {
			refused++
			r.says(503, "0").has("Content-Type", "application/json")
			w.anonymous("GET", "/1.5/42/nothing", "User-Agent: "+agent).want(503) // before everything else
			refused++
		}
	}
	if n := w.counter("syncstorage_error_rejectua_total"); n != refused {
		t.Errorf("%d counted, want %d", n, refused)
	}
}

func TestRequestsAreCountedByWhatTheyDo(t *testing.T) {
	w := newWorld(t, setup{})
	batch := ""
	for _, c := range []struct{ method, target, body, names string }{
		{"GET", "info/collections", "", "get_collections"},
		{"GET", "info/collection_counts", "", "get_collection_counts"},
		{"GET", "info/collection_usage", "", "get_collection_usage"},
		{"GET", "info/quota", "", "get_quota"},
		{"PUT", "storage/col/a", "{}", "put_bso"},
		{"GET", "storage/col/a", "", "get_bso"},
		{"HEAD", "storage/col/a", "", "get_bso"},
		{"GET", "storage/col", "", "get_collection"},
		{"POST", "storage/col", "[]", "post_collection"},
		{"POST", "storage/col?batch=true", "[]", "post_collection post_collection_batch"},
		{"POST", "storage/col?batch=BATCH", "[]", "post_collection post_collection_batch"},
		{"POST", "storage/col?batch=BATCH&commit=true", "[]", "post_collection post_collection_batch"},
		{"DELETE", "storage/col/a", "", "delete_bso"},
		{"DELETE", "storage/col?ids=a", "", "delete_collection delete_bsos"},
		{"DELETE", "storage/col", "", "delete_collection"},
		{"DELETE", "storage", "", "delete_all"},
	} {
		before := w.counters()
		r := w.do(c.method, strings.ReplaceAll(c.target, "BATCH", batch), c.body)
		if r.status == 202 {
			batch = r.outcome().Batch
		}
		var got []string
		after := w.counters()
		for _, op := range operations {
			if name := "syncstorage_request_" + op + "_total"; after[name] > before[name] {
				got = append(got, op)
			}
		}
		want := map[string]bool{}
		for _, n := range strings.Fields(c.names) {
			want[n] = true
		}
		for _, n := range got {
			if !want[n] {
				t.Errorf("%s %s counts %s", c.method, c.target, n)
			}
			delete(want, n)
		}
		if len(want) > 0 {
			t.Errorf("%s %s does not count %v", c.method, c.target, want)
		}
	}
}

func TestOptionsThatMakeNoSenseAreNamed(t *testing.T) {
	w := newWorld(t, setup{})
	for want, change := range map[string]func(*Options){
		"max_post_bytes":  func(o *Options) { o.Limits.MaxPostBytes = 0 },
		"cannot be":       func(o *Options) { o.Limits.Collections = map[string]bso.Override{"b@d": {}} },
		"at least 1":      func(o *Options) { o.Limits.Collections = map[string]bso.Override{"col": {MaxPostBytes: ptr(int64(0))}} },
		"no collection":   func(o *Options) { o.OffloadCollections = []string{"b@d"} },
		"no object store": func(o *Options) { o.OffloadCollections, o.Offload = []string{"col"}, nil },
		"memory for req":  func(o *Options) { o.BodyBudget = o.Limits.MaxBody() - 1 },
		"memory for reques": func(o *Options) {
			o.Limits.Collections = map[string]bso.Override{"col": {MaxRequestBytes: ptr(int64(1 << 40))}}
		},
	} {
		o := w.opts
		o.Metrics = nil
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	o := w.opts
	o.Metrics, o.Log, o.Offload = nil, nil, nil
	s, err := New(o)
	must(t, err)
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, w.request(w.user, "GET", "info/quota", http.NoBody))
	if rec.Code != 200 {
		t.Errorf("without metrics and log: %d", rec.Code)
	}
}

func TestMistakesOfClientsAreCountedUnderTheirNames(t *testing.T) {
	w := newWorld(t, setup{})
	for _, c := range []struct{ metric, method, target, body, header string }{
		{"request.error.invalid_content_type", "PUT", "storage/col/a", "{}", "Content-Type: image/png"},
		{"request.validate.request_bytes_exceeded", "PUT", "storage/col/a", strings.Repeat(" ", 3<<20), ""},
		{"request.validate.payload_too_large", "PUT", "storage/col/a", `{"payload":"` + strings.Repeat("x", 2_621_441) + `"}`, ""},
		{"request.validate.invalid_body_json", "PUT", "storage/col/a", "{", ""},
		{"request.validate.bad_bso_body", "PUT", "storage/col/a", "[]", ""},
		{"request.validate.invalid_accept_header", "GET", "storage/col", "", "Accept: x/y"},
		{"request.validate.mod_header.negative", "GET", "storage/col", "", "X-If-Modified-Since: -1"},
		{"request.validate.hawk.invalid_uid", "GET", "/1.5/1/info/quota", "", ""},
		{"request.validate.batch.size_exceeded", "POST", "storage/col", "[]", "X-Weave-Records: 101"},
		{"request.validate.batch.invalid_x_weave", "POST", "storage/col", "[]", "X-Weave-Records: x"},
		{"request.validate.batch.missing_id", "POST", "storage/col?commit=true", "[]", ""},
		{"request.validate.batch.invalid_id", "POST", "storage/col?batch=x", "[]", ""},
		{"request.validate.batch.invalid_id", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA", "[]", ""},
		{"request.store.missing_bso_id", "POST", "storage/col", "[{}]", ""},
		{"request.store.duplicate_bso_id", "POST", "storage/col", `[{"id":"a"},{"id":"a"}]`, ""},
		{"request.process.known_bad_bso", "PUT", "storage/crypto/a", `{"payload":"IV\":\"AAAAAAAAAAAAAAAAAAAAAA==\""}`, ""},
		{"request.process.missing_bso", "GET", "storage/col/nobody", "", ""},
		{"request.process.missing_bso", "DELETE", "storage/col/nobody", "", ""},
		{"request.process.invalid_bso", "GET", "storage/col/%07", "", ""},
		{"request.process.invalid_collection", "GET", "storage/b@d", "", ""},
	} {
		before := w.counters()
		headers := []string{c.header}
		if c.header == "" {
			headers = nil
		}
		r := w.do(c.method, c.target, c.body, headers...)
		name := "syncstorage_" + strings.ReplaceAll(c.metric, ".", "_") + "_total"
		if after := w.counters(); after[name] != before[name]+1 || r.status < 400 {
			t.Errorf("%s %s: status %d, %s counts %d, before %d", c.method, c.target, r.status, c.metric, after[name], before[name])
		}
	}
}
