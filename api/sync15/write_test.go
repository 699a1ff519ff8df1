package sync15

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
)

// TestAnUpdateChangesWhatItGives is the table of partial updates, for every way to
// write a record and for both places of payloads.
func TestAnUpdateChangesWhatItGives(t *testing.T) {
	ways := map[string]func(w *world, fields string){
		"PUT": func(w *world, f string) { w.do("PUT", "storage/col/a", "{"+f+"}").want(200) },
		"POST": func(w *world, f string) {
			w.do("POST", "storage/col", `[{"id":"a"`+comma(f)+`}]`).want(200)
		},
		"POST of newlines": func(w *world, f string) {
			w.do("POST", "storage/col", `{"id":"a"`+comma(f)+"}\n", "Content-Type: application/newlines").want(200)
		},
		"batch": func(w *world, f string) {
			id := w.batch("col", `[{"id":"a"`+comma(f)+`}]`)
			w.do("POST", "storage/col?commit=true&batch="+id, `[]`).want(200)
		},
		"commit body": func(w *world, f string) {
			id := w.batch("col", `[]`)
			w.do("POST", "storage/col?commit=true&batch="+id, `[{"id":"a"`+comma(f)+`}]`).want(200)
		},
	}
	for _, c := range []struct {
		name, existing, given string
		want                  record // Modified "new" or "old"
		life                  time.Duration
	}{
		{"payload", `"payload":"p","sortindex":1`, `"payload":"q"`, record{"a", "new", "q", ptr(1)}, 0},
		{"the same payload", `"payload":"p"`, `"payload":"p"`, record{"a", "new", "p", nil}, 0},
		{"sortindex", `"payload":"p"`, `"sortindex":-5`, record{"a", "new", "p", ptr(-5)}, 0},
		{"the same sortindex", `"payload":"p","sortindex":1`, `"sortindex":1`, record{"a", "new", "p", ptr(1)}, 0},
		{"sortindex does not prolong a life", `"payload":"p","ttl":60`, `"sortindex":1`, record{"a", "new", "p", ptr(1)}, 50 * time.Second},
		{"only ttl", `"payload":"p","sortindex":1`, `"ttl":60`, record{"a", "old", "p", ptr(1)}, 60 * time.Second},
		{"a longer ttl", `"payload":"p","ttl":30`, `"ttl":999999999`, record{"a", "old", "p", nil}, 0},
		{"null ttl", `"payload":"p","ttl":60`, `"ttl":null`, record{"a", "old", "p", nil}, 50 * time.Second},
		{"null payload", `"payload":"p"`, `"payload":null`, record{"a", "old", "p", nil}, 0},
		{"null sortindex", `"payload":"p","sortindex":3`, `"sortindex":null`, record{"a", "old", "p", ptr(3)}, 0},
		{"nothing", `"payload":"p","sortindex":3`, ``, record{"a", "old", "p", ptr(3)}, 0},
		{"only what is ignored", `"payload":"p"`, `"modified":1,"collection":"x"`, record{"a", "old", "p", nil}, 0},
		{"only ttl of nothing", "", `"ttl":60`, record{"a", "new", "", nil}, 60 * time.Second},
		{"nothing of nothing", "", ``, record{"a", "new", "", nil}, 0},
		{"sortindex of nothing", "", `"sortindex":0`, record{"a", "new", "", ptr(0)}, 0},
		{"empty payload", `"payload":"p"`, `"payload":""`, record{"a", "new", "", nil}, 0},
		{"everything of what has expired", `"payload":"p","sortindex":1,"ttl":5`, `"sortindex":2`, record{"a", "new", "", ptr(2)}, 0},
		{"nothing of what has expired", `"payload":"p","sortindex":1,"ttl":5`, ``, record{"a", "new", "", nil}, 0},
		{"ttl of what has expired", `"payload":"p","sortindex":1,"ttl":5`, `"ttl":60`, record{"a", "new", "", nil}, 60 * time.Second},
	} {
		for way, write := range ways {
			for _, place := range []string{"inline", "offloaded"} {
				t.Run(c.name+" by "+way+" "+place, func(t *testing.T) {
					s := setup{}
					if place == "offloaded" {
						s.offload = []string{"col"}
					}
					w := newWorld(t, s)
					old := ""
					if c.existing != "" {
						old = w.do("PUT", "storage/col/a", "{"+c.existing+"}").want(200).body
					}
					w.clock.Advance(10 * time.Second)
					write(w, c.given)
					col := w.do("GET", "storage/col", "").header.Get("X-Last-Modified")
					if want := stamp(10 * time.Second); col != want {
						t.Errorf("collection modified %s, want %s", col, want)
					}
					want := c.want
					if want.Modified = "old"; c.want.Modified == "new" {
						old = col
					}
					got := w.do("GET", "storage/col/a", "").want(200).record()
					if got.Modified.String() == old {
						got.Modified = "old"
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("record (-want +got):\n%s", diff)
					}
					if c.life > 0 {
						w.clock.Advance(c.life - time.Millisecond)
						w.do("GET", "storage/col/a", "").want(200)
						w.clock.Advance(time.Millisecond)
						w.do("GET", "storage/col/a", "").says(404, "0")
					} else {
						w.clock.Advance(20 * time.Hour)
						w.do("GET", "storage/col/a", "").want(200)
					}
					w.reconcile()
					w.checkObjects()
				})
			}
		}
	}
}

func comma(s string) string {
	if s == "" {
		return ""
	}
	return "," + s
}

func ptr[T any](v T) *T { return &v }

// checkObjects checks that every object is finalized and every record readable.
func (w *world) checkObjects() {
	w.Helper()
	for _, p := range w.payloads() {
		if !strings.HasSuffix(p, "*") {
			w.Errorf("object %q was left behind", p)
		}
	}
}

func TestKnownBadCryptoPayloadsAreRefusedAsAWhole(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"crypto"}})
	const bad, near = `{\"ct\":\"x\",\"IV\":  \"AAAAAAAAAAAAAAAAAAAAAA==\"}`, `{\"IV\":\"AAAAAAAAAAAAAAAAAAAAAB==\"}`
	w.do("PUT", "storage/crypto/keys", `{"payload":"`+bad+`"}`).says(400, "8")
	w.do("POST", "storage/crypto", `[{"id":"ok","payload":"x"},{"id":"keys","payload":"`+bad+`"}]`).says(400, "8")
	w.do("POST", "storage/crypto?batch=true", `[{"id":"keys","payload":"`+bad+`"}]`).says(400, "8")
	w.do("POST", "storage/crypto", `{"id":"keys","payload":"`+bad+`"}`, "Content-Type: application/newlines").says(400, "8")
	w.wantPayloads()
	w.do("GET", "info/collections", "").says(200, "{}")
	w.do("PUT", "storage/crypto/keys", `{"payload":"`+near+`"}`).want(200)
	w.do("PUT", "storage/other/keys", `{"payload":"`+bad+`"}`).want(200)
}

func TestBodiesAreJudgedByTheirContentType(t *testing.T) {
	w := newWorld(t, setup{})
	const jsonBody, lines = `[{"id":"a"}]`, "{\"id\":\"a\"}\n"
	for _, c := range []struct {
		method, contentType, body string
		status                    int
		answer                    string
	}{
		{"PUT", "application/json", "{}", 200, ""},
		{"PUT", "text/plain", "{}", 200, ""},
		{"PUT", "Text/Plain; charset=utf-8", "{}", 200, ""},
		{"PUT", "application/newlines", "{}", 400, "8"},
		{"PUT", "", "{}", 415, "0"},
		{"PUT", "text/html", "{}", 415, "0"},
		{"PUT", "application/x-www-form-urlencoded", "{}", 415, "0"},
		{"POST", "application/json", jsonBody, 200, ""},
		{"POST", "application/json;charset=utf-8", jsonBody, 200, ""},
		{"POST", "text/plain", jsonBody, 200, ""},
		{"POST", "application/newlines", lines, 200, ""},
		{"POST", "application/newlines", "{\"id\":\"a\"}\r\n{\"id\":\"b\"}\r\n", 200, ""},
		{"POST", "application/newlines", `{"id":"a"}`, 200, ""},
		{"POST", "application/newlines", "", 200, ""},
		{"POST", "application/newlines", "\n", 400, "8"},
		{"POST", "application/newlines", lines + "\n" + `{"id":"b"}`, 400, "8"},
		{"POST", "application/newlines", "[]\n", 400, "8"},
		{"POST", "application/newlines", "{}\n", 400, "8"},
		{"POST", "application/newlines", jsonBody, 400, "8"},
		{"POST", "", jsonBody, 415, "0"},
		{"POST", "image/png", jsonBody, 415, "0"},
		{"POST", "application/json", "", 400, "8"},
		{"POST", "application/json", "{}", 400, "8"},
		{"POST", "application/json", "[]", 200, ""},
		{"POST", "application/json", "[[]]", 400, "8"},
		{"POST", "application/json", `[{"id":null}]`, 400, "8"},
		{"POST", "application/json", `[{"id":["a"]}]`, 400, "8"},
		{"POST", "application/json", "[{\"id\":\"\xff\"}]", 400, "8"},
		{"POST", "application/json", lines + lines, 400, "8"},
		{"PUT", "application/json", "", 400, "8"},
		{"PUT", "application/json", "[]", 400, "8"},
		{"PUT", "application/json", `"x"`, 400, "8"},
		{"PUT", "application/json", "1", 400, "8"},
		{"PUT", "application/json", "null", 400, "8"},
		{"PUT", "application/json", "{} {}", 400, "8"},
		{"PUT", "application/json", `{"payload":"` + "\xff" + `"}`, 400, "8"},
		{"PUT", "application/json", `{"id":"another"}`, 200, ""},
		{"PUT", "application/json", `{"id":"bad\n"}`, 400, "8"},
		{"PUT", "application/json", `{"id":1}`, 400, "8"},
		{"PUT", "application/json", `{"payload":1}`, 400, "8"},
		{"PUT", "application/json", `{"sortindex":"3"}`, 400, "8"},
		{"PUT", "application/json", `{"sortindex":3.0}`, 400, "8"},
		{"PUT", "application/json", `{"sortindex":1000000000}`, 400, "8"},
		{"PUT", "application/json", `{"sortindex":-999999999}`, 200, ""},
		{"PUT", "application/json", `{"ttl":-1}`, 400, "8"},
		{"PUT", "application/json", `{"ttl":1000000000}`, 400, "8"},
		{"PUT", "application/json", `{"ttl":999999999}`, 200, ""},
	} {
		target := map[string]string{"PUT": "storage/col/a", "POST": "storage/col"}[c.method]
		r := w.do(c.method, target, c.body, "Content-Type:"+c.contentType)
		if r.status != c.status || c.answer != "" && r.body != c.answer {
			t.Errorf("%s of %q as %q: %d %s, want %d %s", c.method, c.body, c.contentType, r.status, r.body, c.status, c.answer)
		}
	}
	w.do("GET", "storage/col", "").says(200, `["a","b"]`)
}

func TestARecordThatFailsDoesNotKeepOthersFromBeingWritten(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	o := w.do("POST", "storage/col", `[
		{"id":"good","payload":"x"},
		{"id":"unknown","payload":"x","colour":"red"},
		{"id":"type","payload":3},
		{"id":"range","payload":"x","ttl":-3},
		{"id":"A\n","payload":"x"},
		{"id":"","payload":"x"},
		{"id":12,"payload":"x"},
		{"id":"fine","sortindex":1}]`).want(200).outcome()
	if want := []string{"good", "fine"}; !slices.Equal(o.Success, want) {
		t.Errorf("success %q, want %q", o.Success, want)
	}
	var failed []string
	for id := range o.Failed {
		failed = append(failed, id)
	}
	slices.Sort(failed)
	if want := []string{"", "12", "A\n", "range", "type", "unknown"}; !slices.Equal(failed, want) {
		t.Errorf("failed %q, want %q", failed, want)
	}
	w.wantPayloads("x") // only what is written is uploaded
	// With nothing valid the collection still moves on, or comes to be.
	r := w.do("POST", "storage/new", `[{"id":"bad","x":1}]`).want(200)
	w.do("GET", "storage/new", "").says(200, "[]").has("X-Last-Modified", r.outcome().Modified.String())
	if r := w.do("POST", "storage/col", `[]`); !strings.HasSuffix(r.body, `,"success":[],"failed":{}}`) {
		t.Errorf("empty POST: %s", r.body)
	}
}

func TestLimitsOfAPostAreInclusiveAndSurplusIsToBeSentAgain(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) {
		o.Limits.MaxPostRecords, o.Limits.MaxPostBytes, o.Limits.MaxRecordPayloadBytes = 3, 10, 6
	}})
	body := func(payloads ...string) string {
		var items []string
		for i, p := range payloads {
			items = append(items, fmt.Sprintf(`{"id":"r%d","payload":%q}`, i, p))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	for _, c := range []struct {
		payloads []string
		failed   map[string]string
	}{
		{[]string{"666666", "4444"}, map[string]string{}},
		{[]string{"666666", "55555", ""}, map[string]string{"r1": "retry bytes", "r2": "retry bytes"}},
		{[]string{"7777777", "333"}, map[string]string{"r0": "retry bytes"}},
		{[]string{"7777777", "4444"}, map[string]string{"r0": "retry bytes", "r1": "retry bytes"}},
		{[]string{"", "", "", "", ""}, map[string]string{"r3": "retry bso", "r4": "retry bso"}},
		{[]string{"ü", "ü", "ü", "ü"}, map[string]string{"r3": "retry bso"}},
		{[]string{"üüüü", ""}, map[string]string{"r0": "retry bytes"}},
	} {
		o := w.do("POST", "storage/col", body(c.payloads...)).want(200).outcome()
		if diff := cmp.Diff(c.failed, o.Failed); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.payloads, diff)
		}
	}
	// A fifth record that cannot be valid does not use up the room of others.
	o := w.do("POST", "storage/col", `[{"id":"x","y":1},{"id":"a"},{"id":"b"},{"id":"c"}]`).want(200).outcome()
	if len(o.Success) != 3 || len(o.Failed) != 1 {
		t.Errorf("success %q, failed %q", o.Success, o.Failed)
	}
	w.do("PUT", "storage/col/a", `{"payload":"666666"}`).want(200)
	w.do("PUT", "storage/col/a", `{"payload":"7777777"}`).says(400, "8")
	w.do("POST", "storage/col", `[]`, "X-Weave-Records: 3", "X-Weave-Bytes: 10").want(200)
	w.do("POST", "storage/col", `[]`, "X-Weave-Records: 4").says(400, "17")
	w.do("POST", "storage/col", `[]`, "X-Weave-Bytes: 11").says(400, "17")
}

func TestLimitsOfACollectionTakeThePlaceOfTheOthers(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) {
		o.Limits.MaxRequestBytes, o.Limits.MaxPostBytes, o.Limits.MaxRecordPayloadBytes = 100, 50, 40
		o.Limits.Collections = map[string]bso.Override{
			"large": {MaxRequestBytes: ptr(int64(400)), MaxPostBytes: ptr(int64(300)), MaxRecordPayloadBytes: ptr(int64(200))},
			"small": {MaxRequestBytes: ptr(int64(60))},
		}
	}})
	put := func(collection string, n int) reply {
		return w.do("PUT", "storage/"+collection+"/a", fmt.Sprintf(`{"payload":%q}`, strings.Repeat("x", n)))
	}
	put("col", 40).want(200)
	put("col", 41).says(400, "8")
	put("col", 200).says(413, "17")
	put("large", 200).want(200)
	put("large", 201).says(400, "8")
	put("large", 400).says(413, "17")
	put("small", 40).want(200)
	put("small", 50).says(413, "17")
	w.do("POST", "storage/large", "[]", "X-Weave-Bytes: 300").want(200)
	w.do("POST", "storage/large", "[]", "X-Weave-Bytes: 301").says(400, "17")
	w.do("POST", "storage/col", "[]", "X-Weave-Bytes: 51").says(400, "17")
	r := w.do("GET", "info/configuration", "").want(200)
	const overrides = `"collections":{"large":{"max_record_payload_bytes":200,"max_post_bytes":300,"max_request_bytes":400},"small":{"max_request_bytes":60}}}`
	if !strings.HasSuffix(r.body, overrides) {
		t.Errorf("configuration is %s", r.body)
	}
	for _, key := range []string{"max_request_bytes", "max_post_records", "max_post_bytes", "max_record_payload_bytes", "max_total_records", "max_total_bytes", "max_quota_limit"} {
		if !strings.Contains(r.body, `"`+key+`":`) {
			t.Errorf("configuration lacks %s", key)
		}
	}
}

func TestABodyIsCutAtTheLimitWithOrWithoutContentLength(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.Limits.MaxRequestBytes, o.BodyBudget = 20_000, 20_000 }})
	send := func(n int, chunked bool) reply {
		body := `{"payload":"` + strings.Repeat("x", n-14) + `"}`
		r := w.request(w.user, "PUT", "storage/col/a", strings.NewReader(body))
		if chunked {
			r.Body, r.ContentLength = io.NopCloser(iotest.OneByteReader(strings.NewReader(body))), -1
		}
		return w.serve(r)
	}
	for _, chunked := range []bool{false, true} {
		send(20_000, chunked).want(200)
		send(20_001, chunked).says(413, "17")
		send(100_000, chunked).says(413, "17")
		send(20_000, chunked).want(200) // the budget is free again
	}
	// A body that ends before its Content-Length, or fails.
	r := w.request(w.user, "PUT", "storage/col/a", strings.NewReader(`{}`))
	r.ContentLength = 10
	w.serve(r).says(400, "8")
	r = w.request(w.user, "POST", "storage/col", nil)
	r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)), -1
	w.serve(r).says(400, "8")
	send(20_000, false).want(200)
}

func TestAnEndlessChunkedBodyOverAConnectionIsRefused(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.Limits.MaxRequestBytes = 1000 }})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.Host = host
		w.server.ServeHTTP(rw, r)
	}))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	must(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /1.5/42/storage/col HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nAuthorization: %s\r\n\r\n",
		w.user.sign(w.clock.Now(), "POST", "/1.5/42/storage/col"))
	answered := make(chan struct{})
	go func() { // until the server has had enough
		for {
			select {
			case <-answered:
				return
			default:
			}
			if _, err := conn.Write([]byte("64\r\n" + strings.Repeat("x", 100) + "\r\n")); err != nil {
				return
			}
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	close(answered)
	must(t, err)
	if resp.StatusCode != 413 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestABodyWaitsForMemoryUntilItsClientGivesUp(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.Limits.MaxRequestBytes, o.BodyBudget = 40_000, 40_000 }})
	pr, pw := io.Pipe()
	slow := w.request(w.user, "PUT", "storage/col/slow", pr)
	slow.ContentLength = 24_000
	slowDone := make(chan reply)
	go func() { slowDone <- w.serve(slow) }()
	_, err := pw.Write([]byte(`{"payload":"`)) // returns once the server reads, so has its memory
	must(t, err)
	// Another one that does not fit waits, and gives up with its client.
	ctx, cancel := context.WithCancel(t.Context())
	r := w.request(w.user, "PUT", "storage/col/b", strings.NewReader(`{"payload":"`+strings.Repeat("x", 20_000)+`"}`))
	done := make(chan reply)
	go func() { done <- w.serve(r.WithContext(ctx)) }()
	cancel()
	(<-done).want(503).has("Retry-After", "10")
	// A small one does not wait, whoever else does.
	r = w.request(w.user, "PUT", "storage/col/c", strings.NewReader(`{"payload":"`+strings.Repeat("x", 20_000)+`"}`))
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- w.serve(r.WithContext(ctx)) }()
	w.do("PUT", "storage/col/small", `{"payload":"x"}`).want(200)
	cancel()
	(<-done).want(503)
	_, err = pw.Write([]byte(strings.Repeat("y", 23_986) + `"}`))
	must(t, err)
	(<-slowDone).want(200)
	w.do("PUT", "storage/col/b", `{"payload":"`+strings.Repeat("x", 39_000)+`"}`).want(200)
}

func TestTheTimeOfAWriteBeginsWhenItsBodyIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{offload: []string{"bookmarks"}})
		for _, method := range []string{"PUT", "POST"} {
			path, body := "storage/bookmarks/a", `{"payload":"x"}`
			if method == "POST" {
				path, body = "storage/bookmarks", `[{"id":"b","payload":"x"}]`
			}
			pr, pw := io.Pipe()
			r := w.request(w.user, method, path, pr)
			r.ContentLength = int64(len(body))
			go func() {
				time.Sleep(requestTimeout + time.Minute) // a slow line
				pw.Write([]byte(body))
			}()
			w.serve(r).want(200)
		}
	})
}
