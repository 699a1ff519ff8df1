package sync15

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
)

// TestEarlierChecksWin sends requests with two faults each and expects the answer
// to the one that is checked first.
func TestEarlierChecksWin(t *testing.T) {
	w := newWorld(t, setup{quota: 10, enforce: true})
	w.put("col", "a", "ten bytes.") // and the quota is full
	other := w.newUser(42, "other", "key")
	other.uid = 43 // in the path, not in the token
	anonymous := "Authorization:"
	for _, c := range []struct {
		name, method, target, body string
		headers                    []string
		user                       *user
		status                     int
		answer                     string
	}{
		{"no route before no method", "PATCH", "nowhere", "", nil, nil, 404, "0"},
		{"no route before no authentication", "GET", "info/nothing", "", []string{anonymous}, nil, 404, "0"},
		{"no method before no authentication", "PATCH", "storage/col/a", "", []string{anonymous}, nil, 405, "0"},
		{"no authentication before another uid", "GET", "/1.5/43/info/quota", "", []string{anonymous}, nil, 401, "0"},
		{"no authentication before a bad name", "GET", "storage/b@d", "", []string{anonymous}, nil, 401, "0"},
		{"another uid before a bad name", "GET", "/1.5/43/storage/b@d", "", nil, &other, 400, "0"},
		{"another uid before a bad precondition", "GET", "info/quota", "", []string{"X-If-Modified-Since: x"}, &other, 400, "0"},
		{"a bad name before a bad type", "PUT", "storage/b@d/a", "{", []string{"Content-Type: image/png"}, nil, 400, "0"},
		{"two preconditions before a bad type", "PUT", "storage/col/a", "{", []string{"Content-Type: image/png", "X-If-Modified-Since: 1", "X-If-Unmodified-Since: 1"}, nil, 400, "0"},
		{"a bad type before a bad body", "PUT", "storage/col/a", "{", []string{"Content-Type: image/png"}, nil, 415, "0"},
		{"a bad format before a failed precondition", "GET", "storage/col", "", []string{"Accept: x/yy", "X-If-Unmodified-Since: 1"}, nil, 406, "0"},
		{"a bad query before a failed precondition", "GET", "storage/col?limit=-1", "", []string{"X-If-Unmodified-Since: 1"}, nil, 400, "0"},
		{"a bad query before a bad body", "POST", "storage/col?commit=true", "{", nil, nil, 400, "0"},
		{"an announcement before a bad body", "POST", "storage/col", "{", []string{"X-Weave-Records: 101"}, nil, 400, "17"},
		{"a bad body before a failed precondition", "PUT", "storage/col/a", "{", []string{"X-If-Unmodified-Since: 1"}, nil, 400, "8"},
		{"a bad body before an unknown batch", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA", "{", nil, nil, 400, "8"},
		{"a failed precondition before a full quota, PUT", "PUT", "storage/col/a", "{}", []string{"X-If-Unmodified-Since: 1"}, nil, 412, ""},
		{"a failed precondition before a full quota, POST", "POST", "storage/col", "[]", []string{"X-If-Unmodified-Since: 1"}, nil, 412, ""},
		{"a failed precondition before a full quota, batch", "POST", "storage/col?batch=true", "[]", []string{"X-If-Unmodified-Since: 1"}, nil, 412, ""},
		{"a failed precondition before an unknown batch, append", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA", "[]", []string{"X-If-Unmodified-Since: 1"}, nil, 412, ""},
		{"a failed precondition before an unknown batch, commit", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA&commit=1", "[]", []string{"X-If-Unmodified-Since: 1"}, nil, 400, "0"},
		{"a failed precondition before an unknown batch, true commit", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA&commit=true", "[]", []string{"X-If-Unmodified-Since: 1"}, nil, 412, ""},
		{"an unknown batch before a full quota", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA", "[]", nil, nil, 400, "0"},
		{"an unknown batch before a full quota, commit", "POST", "storage/col?batch=AAAAAAAAAAAAAAAAAAAAAA&commit=true", "[]", nil, nil, 400, "0"},
		{"no record before a precondition", "GET", "storage/col/nobody", "", []string{"X-If-Modified-Since: 99999999999"}, nil, 404, "0"},
		{"no record before a precondition, DELETE", "DELETE", "storage/col/nobody", "", []string{"X-If-Unmodified-Since: 0"}, nil, 404, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := w.user
			if c.user != nil {
				u = *c.user
			}
			r := w.as(u, c.method, c.target, c.body, c.headers...)
			r.t = t
			r.says(c.status, c.answer)
		})
	}
	if got := w.do("GET", "info/collection_counts", "").body; got != `{"col":1}` {
		t.Errorf("something was written: %s", got)
	}
}

// TestErrorsHaveTheirBodyAndHeaders goes through the table of errors.
func TestErrorsHaveTheirBodyAndHeaders(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "a", "x")
	modified := w.do("GET", "storage/col/a", "").header.Get("X-Last-Modified")
	id101 := strings.Repeat("x,", 101)
	const unknownBatch = "AAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		name, method, target, body string
		headers                    []string
		status                     int
		answer                     string
	}{
		{"newer", "GET", "storage/col?newer=x", "", nil, 400, "0"},
		{"negative newer", "GET", "storage/col?newer=-1", "", nil, 400, "0"},
		{"older", "GET", "storage/col?older=nan", "", nil, 400, "0"},
		{"limit", "GET", "storage/col?limit=-1", "", nil, 400, "0"},
		{"limit beyond 32 bits", "GET", "storage/col?limit=4294967296", "", nil, 400, "0"},
		{"sort", "GET", "storage/col?sort=random", "", nil, 400, "0"},
		{"offset", "GET", "storage/col?offset=1234", "", nil, 400, "0"},
		{"ids", "GET", "storage/col?ids=" + id101, "", nil, 400, "0"},
		{"an invalid id", "GET", "storage/col?ids=%07", "", nil, 400, "0"},
		{"ids of a delete", "DELETE", "storage/col?ids=" + id101, "", nil, 400, "0"},
		{"no ids of a delete", "DELETE", "storage/col?ids=", "", nil, 400, "0"},
		{"only commas as ids of a delete", "DELETE", "storage/col?ids=,%20,", "", nil, 400, "0"},
		{"a negative precondition", "GET", "storage/col", "", []string{"X-If-Modified-Since: -1"}, 400, "0"},
		{"a precondition that is no number", "PUT", "storage/col/a", "{}", []string{"X-If-Unmodified-Since: abc"}, 400, "0"},
		{"two preconditions", "GET", "info/quota", "", []string{"X-If-Modified-Since: 1", "X-If-Unmodified-Since: 1"}, 400, "0"},
		{"an announcement that is no number", "POST", "storage/col", "[]", []string{"X-Weave-Records: x"}, 400, "0"},
		{"a negative announcement", "POST", "storage/col?batch=true", "[]", []string{"X-Weave-Bytes: -1"}, 400, "0"},
		{"records announced over the limit", "POST", "storage/col", "[]", []string{"X-Weave-Records: 101"}, 400, "17"},
		{"bytes announced over the limit", "POST", "storage/col", "[]", []string{"X-Weave-Bytes: 2621441"}, 400, "17"},
		{"total records announced over the limit", "POST", "storage/col?batch=true", "[]", []string{"X-Weave-Total-Records: 10001"}, 400, "17"},
		{"total bytes announced over the limit", "POST", "storage/col?batch=true", "[]", []string{"X-Weave-Total-Bytes: 262144001"}, 400, "17"},
		{"commit without batch", "POST", "storage/col?commit=true", "[]", nil, 400, "0"},
		{"commit that is not true", "POST", "storage/col?batch=true&commit=yes", "[]", nil, 400, "0"},
		{"a malformed batch", "POST", "storage/col?batch=sammich", "[]", nil, 400, "0"},
		{"an unknown batch", "POST", "storage/col?batch=" + unknownBatch, "[]", nil, 400, "0"},
		{"an unknown batch to commit", "POST", "storage/col?commit=true&batch=" + unknownBatch, "[]", nil, 400, "0"},
		{"a batch of a collection that does not exist", "POST", "storage/none?batch=" + unknownBatch, "[]", nil, 400, "0"},
		{"a bad collection", "GET", "storage/b@d", "", nil, 400, "0"},
		{"a bad record id", "GET", "storage/col/%07", "", nil, 400, "0"},
		{"a PUT that is not JSON", "PUT", "storage/col/a", "{", nil, 400, "8"},
		{"an unknown key in a PUT", "PUT", "storage/col/a", `{"x":1}`, nil, 400, "8"},
		{"a bad field in a PUT", "PUT", "storage/col/a", `{"ttl":"1"}`, nil, 400, "8"},
		{"a record without id in a POST", "POST", "storage/col", `[{}]`, nil, 400, "8"},
		{"a duplicate id in a POST", "POST", "storage/col", `[{"id":"a"},{"id":"a"}]`, nil, 400, "8"},
		{"a known bad payload in a PUT", "PUT", "storage/crypto/keys", `{"payload":"{\"IV\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}"}`, nil, 400, "8"},
		{"a known bad payload in a POST", "POST", "storage/crypto", `[{"id":"b"},{"id":"keys","payload":"{\"IV\": \"AAAAAAAAAAAAAAAAAAAAAA==\"}"}]`, nil, 400, "8"},
		{"no authentication", "GET", "info/quota", "", []string{"Authorization:"}, 401, "0"},
		{"an unknown URL", "GET", "storage/col/a/b", "", nil, 404, "0"},
		{"no record", "GET", "storage/col/nobody", "", nil, 404, "0"},
		{"no record to delete", "DELETE", "storage/col/nobody", "", nil, 404, "0"},
		{"no collection", "GET", "storage/none/a", "", nil, 404, "0"},
		{"no collection to delete from", "DELETE", "storage/none/a", "", nil, 404, "0"},
		{"PATCH", "PATCH", "storage/col/a", "", nil, 405, "0"},
		{"Accept", "GET", "storage/col", "", []string{"Accept: x/yy"}, 406, "0"},
		{"412", "PUT", "storage/col/a", "{}", []string{"X-If-Unmodified-Since: 1"}, 412, ""},
		{"412 of a GET", "GET", "storage/col", "", []string{"X-If-Unmodified-Since: 1"}, 412, ""},
		{"304", "GET", "storage/col/a", "", []string{"X-If-Modified-Since: " + modified}, 304, ""},
		{"no content type", "PUT", "storage/col/a", "{}", []string{"Content-Type:"}, 415, "0"},
		{"a content encoding", "PUT", "storage/col/a", "{}", []string{"Content-Encoding: gzip"}, 415, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.do(c.method, c.target, c.body, c.headers...)
			r.t = t
			r.says(c.status, c.answer)
			if got := r.header.Get("X-Weave-Timestamp"); !decimals.MatchString(got) {
				t.Errorf("X-Weave-Timestamp is %q", got)
			}
			r.has("Retry-After", "").has("X-Weave-Backoff", "").has("X-Weave-Alert", "")
			switch c.status {
			case 304, 412:
				r.has("Content-Type", "").has("X-Last-Modified", modified)
			case 401:
				r.has("WWW-Authenticate", "Hawk").has("Content-Type", "application/json")
			default:
				r.has("Content-Type", "application/json").has("WWW-Authenticate", "").has("X-Last-Modified", "")
			}
		})
	}
}

func TestAnAnswerWithoutBodyHasNoContentTypeOnTheWire(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "a", "x")
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.Host = host // which the client has signed
		w.server.ServeHTTP(rw, r)
	}))
	defer srv.Close()
	send := func(method, path string, header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(method, srv.URL+path, nil)
		must(t, err)
		r.Header.Set("Authorization", w.user.sign(w.clock.Now(), method, path))
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := srv.Client().Do(r)
		must(t, err)
		resp.Body.Close()
		return resp
	}
	for _, c := range []struct {
		method, path, header, value string
		status                      int
	}{
		{"GET", "/1.5/42/storage/col/a", "X-If-Modified-Since", "9999999999", 304},
		{"GET", "/1.5/42/info/collections", "X-If-Modified-Since", "9999999999", 304},
		{"GET", "/1.5/42/storage/col", "X-If-Unmodified-Since", "1", 412},
		{"DELETE", "/1.5/42/storage/col", "X-If-Unmodified-Since", "1", 412},
	} {
		resp := send(c.method, c.path, c.header, c.value)
		if resp.StatusCode != c.status || resp.Header["Content-Type"] != nil || resp.ContentLength > 0 {
			t.Errorf("%s %s: status %d, Content-Type %q, length %d", c.method, c.path, resp.StatusCode, resp.Header["Content-Type"], resp.ContentLength)
		}
	}
	head := send("HEAD", "/1.5/42/storage/col/a")
	if head.StatusCode != 200 || head.ContentLength == 0 || head.Header.Get("X-Last-Modified") == "" {
		t.Errorf("HEAD: status %d, length %d, %v", head.StatusCode, head.ContentLength, head.Header)
	}
}

func TestMethodsThatAResourceDoesNotKnowAre405AndUnknownURLs404(t *testing.T) {
	w := newWorld(t, setup{})
	for path, known := range map[string]string{
		"":                        "DELETE",
		"storage":                 "DELETE",
		"info/collections":        "GET HEAD",
		"info/collection_counts":  "GET HEAD",
		"info/collection_usage":   "GET HEAD",
		"info/quota":              "GET HEAD",
		"info/configuration":      "GET HEAD",
		"storage/col":             "GET HEAD POST DELETE",
		"storage/col/a":           "GET HEAD PUT DELETE",
		"storage/info/quota":      "GET HEAD PUT DELETE", // a record of the collection info
		"storage/col/":            "",
		"storage/":                "",
		"storage//a":              "",
		"info":                    "",
		"info/":                   "",
		"info/collections/":       "",
		"info/nothing":            "",
		"storage/col/a/b":         "",
		"Storage/col":             "",
		"/1.5/":                   "",
		"/1.5/42/":                "",
		"/1.5/x/info/quota":       "",
		"/1.5/12345678901/info":   "",
		"/1.5/-1/info/quota":      "",
		"/1.5//info/quota":        "",
		"/1.5/42%2Finfo%2Fquota":  "",
		"/1.5/42/storage%2Fcol":   "",
		"/1.5/42/__heartbeat__":   "",
		"/1.5/4294967296123/info": "",
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"} {
			r := w.do(method, path, "{}")
			switch {
			case known == "":
				if r.status != 404 || r.body != "0" || r.header.Get("Content-Type") != "application/json" {
					t.Errorf("%s %s: %d %q", method, path, r.status, r.body)
				}
			case strings.Contains(known+" ", method+" "):
				if r.status == 404 && path != "storage/col/a" && path != "storage/info/quota" || r.status == 405 {
					t.Errorf("%s %s: %d %q", method, path, r.status, r.body)
				}
			case r.status != 405:
				t.Errorf("%s %s: %d, want 405", method, path, r.status)
			}
			if !decimals.MatchString(r.header.Get("X-Weave-Timestamp")) {
				t.Errorf("%s %s: X-Weave-Timestamp %q", method, path, r.header.Get("X-Weave-Timestamp"))
			}
		}
	}
}

func TestNamesAreDecodedSegmentBySegment(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"offloaded"}})
	for _, collection := range []string{"plain", "offloaded"} {
		for raw, id := range map[string]string{
			"a%2Fb":                    "a/b",
			"%7Bx%7D%20y":              "{x} y",
			"..":                       "..",
			"%2e%2E%2f":                "../",
			"a%25b":                    "a%b",
			"a%3Fb%23c":                "a?b#c",
			"%22q%22":                  `"q"`,
			"~!$&'()*+,;=:@":           "~!$&'()*+,;=:@",
			strings.Repeat("i", 64):    strings.Repeat("i", 64),
			strings.Repeat("%20", 64):  strings.Repeat(" ", 64),
			strings.Repeat("%2F", 3):   "///",
			"%5C":                      `\`,
			"plus+plus":                "plus+plus",
			"semi;colon=1&amp":         "semi;colon=1&amp",
			"%61":                      "a",
			"CASE":                     "CASE",
			"case":                     "case",
			strings.Repeat("%7E", 63):  strings.Repeat("~", 63),
			"0":                        "0",
			"%30%30":                   "00",
			"a%2Fb%2Fc%2Fd%2F..%2F..%": "", // a wrong escape
		} {
			if id == "" {
				w.do("GET", "storage/"+collection+"/"+raw, "").says(400, "0")
				continue
			}
			w.do("PUT", "storage/"+collection+"/"+raw, `{"payload":"of `+strings.ReplaceAll(raw, `"`, "")+`"}`).want(200)
			if got := w.do("GET", "storage/"+collection+"/"+raw, "").want(200).record().ID; got != id {
				t.Errorf("%s is stored as %q, want %q", raw, got, id)
			}
		}
	}
	w.do("GET", "storage/pl%61in/a%2Fb", "").want(200) // names of collections are decoded too
	for _, bad := range []string{
		"storage/" + strings.Repeat("c", 33), "storage/a%20b", "storage/a%2Fb", "storage/%", "storage/caf%C3%A9",
		"storage/plain/" + strings.Repeat("i", 65), "storage/plain/a%0A", "storage/plain/%7F", "storage/plain/caf%C3%A9", "storage/plain/%00",
	} {
		w.do("GET", bad, "").says(400, "0")
	}
	w.settle()
	w.do("DELETE", "storage/offloaded", "").want(200)
	w.settle()
	w.wantPayloads()
}

func TestPreconditionsApplyToEveryResource(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "old", "x")
	old := w.do("GET", "storage/col/old", "").header.Get("X-Last-Modified")
	w.clock.Advance(time.Second)
	w.put("col", "new", "x")
	col := w.do("GET", "storage/col", "").header.Get("X-Last-Modified")
	w.clock.Advance(time.Second)
	w.put("other", "a", "x")
	all := w.do("GET", "info/collections", "").header.Get("X-Last-Modified")
	if old >= col || col >= all {
		t.Fatalf("timestamps %s, %s, %s", old, col, all)
	}
	for path, modified := range map[string]string{
		"info/collections": all, "info/collection_counts": all, "info/collection_usage": all, "info/quota": all,
		"storage/col": col, "storage/col?full=1&limit=1": col, "storage/col?ids=nobody": col, "storage/col/old": old, "storage/col/old?x=y": old,
	} {
		before, after := shift(t, modified, -1), shift(t, modified, 1)
		for _, method := range []string{"GET", "HEAD"} {
			w.do(method, path, "", "X-If-Modified-Since: "+before).want(200)
			w.do(method, path, "", "X-If-Modified-Since: "+modified).says(304, "").has("X-Last-Modified", modified)
			w.do(method, path, "", "X-If-Modified-Since: "+after).want(304)
			w.do(method, path, "", "X-If-Modified-Since: 9999999999").want(304)
			w.do(method, path, "", "X-If-Unmodified-Since: "+before).says(412, "").has("X-Last-Modified", modified)
			w.do(method, path, "", "X-If-Unmodified-Since: "+modified).want(200).has("X-Last-Modified", modified)
			w.do(method, path, "", "X-If-Unmodified-Since: 9999999999.999").want(200)
			w.do(method, path, "", "X-If-Unmodified-Since: 0").want(412)
		}
	}
	for _, header := range []string{"X-If-Modified-Since: 9999999999", "X-If-Unmodified-Since: 0", "X-If-Modified-Since: -1", "X-If-Modified-Since: 0"} {
		w.do("GET", "info/configuration", "", header).want(200).has("X-Last-Modified", "0.00")
	}
}

func TestPreconditionsOnWritesHoldOrNothingIsWritten(t *testing.T) {
	w := newWorld(t, setup{})
	for _, c := range []struct {
		method, target, body string
		resource             string // whose timestamp counts
	}{
		{"PUT", "storage/col/a", `{"payload":"new"}`, "storage/col/a"},
		{"DELETE", "storage/col/a", "", "storage/col/a"},
		{"POST", "storage/col", `[{"id":"z"}]`, "storage/col"},
		{"POST", "storage/col?batch=true", `[{"id":"z"}]`, "storage/col"},
		{"POST", "storage/col?batch=true&commit=true", `[{"id":"z"}]`, "storage/col"},
		{"POST", "storage/col?batch=BATCH", `[{"id":"z"}]`, "storage/col"},
		{"POST", "storage/col?batch=BATCH&commit=true", `[{"id":"z"}]`, "storage/col"},
		{"DELETE", "storage/col?ids=a", "", "storage/col"},
		{"DELETE", "storage/col?ids=nobody", "", "storage/col"},
		{"DELETE", "storage/col", "", "storage/col"},
		{"DELETE", "storage", "", "info/collections"},
		{"DELETE", "", "", "info/collections"},
	} {
		t.Run(c.method+" "+c.target, func(t *testing.T) {
			w.do("DELETE", "", "").want(200)
			w.put("col", "a", "old")
			w.clock.Advance(time.Second)
			w.put("col", "b", "old")
			batch := w.batch("col", `[{"id":"staged"}]`)
			w.clock.Advance(time.Second)
			w.put("other", "a", "old")
			target := strings.ReplaceAll(c.target, "BATCH", batch)
			modified := w.do("GET", c.resource, "").header.Get("X-Last-Modified")
			state := w.state()
			for _, value := range []string{"0", "1", shift(t, modified, -1)} {
				r := w.do(c.method, target, c.body, "X-If-Unmodified-Since: "+value)
				r.t = t
				r.says(412, "").has("X-Last-Modified", modified).has("Content-Type", "")
			}
			if now := w.state(); now != state {
				t.Errorf("a refused request has changed\n%s\nto\n%s", state, now)
			}
			// X-If-Modified-Since has no meaning for a write.
			r := w.do(c.method, target, c.body, "X-If-Modified-Since: 9999999999")
			if r.status != 200 && r.status != 202 {
				t.Errorf("X-If-Modified-Since: %d", r.status)
			}
		})
		t.Run(c.method+" "+c.target+" that holds", func(t *testing.T) {
			w.do("DELETE", "", "").want(200)
			w.put("col", "a", "old")
			batch := w.batch("col", `[{"id":"staged"}]`)
			modified := w.do("GET", c.resource, "").header.Get("X-Last-Modified")
			r := w.do(c.method, strings.ReplaceAll(c.target, "BATCH", batch), c.body, "X-If-Unmodified-Since: "+modified)
			if r.status != 200 && r.status != 202 {
				t.Errorf("%d", r.status)
			}
		})
	}
}

// state is everything that a client can see of the storage.
func (w *world) state() string {
	w.Helper()
	var b strings.Builder
	for _, path := range []string{"info/collections", "info/collection_counts", "info/collection_usage", "storage/col?full=1", "storage/other?full=1"} {
		r := w.do("GET", path, "").want(200)
		b.WriteString(path + " " + r.header.Get("X-Last-Modified") + " " + r.body + "\n")
	}
	return b.String()
}

// shift moves a timestamp by ticks.
func shift(t testing.TB, s string, ticks int) string {
	t.Helper()
	v, err := bso.ParseTimestamp(s)
	must(t, err)
	return (v + bso.Timestamp(ticks)).String()
}

func TestWhatDoesNotExistHasTimestampZero(t *testing.T) {
	w := newWorld(t, setup{})
	// Nothing at all: an empty storage is 0.00 old.
	w.do("GET", "info/collections", "", "X-If-Modified-Since: 1").want(304).has("X-Last-Modified", "0.00")
	w.do("GET", "info/collections", "", "X-If-Unmodified-Since: 0").says(200, "{}").has("X-Last-Modified", "0.00")
	w.do("GET", "info/quota", "").says(200, "[0.0,null]").has("X-Last-Modified", "0.00")
	w.do("DELETE", "storage", "", "X-If-Unmodified-Since: 0").says(200, "{}")
	// A collection that does not exist is never unmodified.
	w.do("GET", "storage/none", "", "X-If-Modified-Since: 9999999999").says(200, "[]").has("X-Last-Modified", "0.00").has("X-Weave-Records", "0")
	w.do("GET", "storage/none", "", "X-If-Unmodified-Since: 0").says(200, "[]")
	w.do("GET", "storage/none/a", "", "X-If-Modified-Since: 9999999999").says(404, "0")
	w.do("GET", "storage/none/a", "", "X-If-Unmodified-Since: 0").says(404, "0")
	// "0" means: must not exist yet.
	w.do("PUT", "storage/col/a", `{}`, "X-If-Unmodified-Since: 0").want(200)
	w.do("PUT", "storage/col/a", `{}`, "X-If-Unmodified-Since: 0").want(412)
	w.do("PUT", "storage/col/b", `{}`, "X-If-Unmodified-Since: 0").want(200)
	w.do("POST", "storage/new", `[]`, "X-If-Unmodified-Since: 0").want(200)
	w.do("POST", "storage/new", `[]`, "X-If-Unmodified-Since: 0").want(412)
	w.do("DELETE", "storage/none", "", "X-If-Unmodified-Since: 0").want(200)
	w.do("DELETE", "storage/none?ids=a", "", "X-If-Unmodified-Since: 0").want(200)
	// A deleted collection is as one that never was; the storage has moved on.
	before := w.do("GET", "info/collections", "").header.Get("X-Last-Modified")
	w.do("DELETE", "storage/col", "").want(200)
	w.do("GET", "storage/col", "", "X-If-Modified-Since: 9999999999").says(200, "[]").has("X-Last-Modified", "0.00")
	w.do("PUT", "storage/col/a", `{}`, "X-If-Unmodified-Since: 0").want(200)
	if r := w.do("GET", "info/collections", "", "X-If-Modified-Since: "+before).want(200); strings.Contains(r.body, "none") {
		t.Errorf("info/collections after deletes: %s", r.body)
	}
}
