package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const token = "0123456789abcdef0123"

// request sends a request for localhost; more sets headers as "Name: value".
func request(h http.Handler, method, path string, more ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost:8001"
	for _, m := range more {
		name, value, _ := strings.Cut(m, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func wantAnswer(t *testing.T, w *httptest.ResponseRecorder, status int, body string) {
	t.Helper()
	if w.Code != status || strings.TrimSpace(w.Body.String()) != body {
		t.Errorf("answer %d %s, want %d %s", w.Code, w.Body, status, body)
	}
	wantJSON(t, w)
}

// wantError wants a JSON error that contains text.
func wantError(t *testing.T, w *httptest.ResponseRecorder, status int, text string) {
	t.Helper()
	var e struct{ Error string }
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != status || !strings.Contains(e.Error, text) {
		t.Errorf("answer %d %s (%v), want %d with an error %q", w.Code, w.Body, err, status, text)
	}
	wantJSON(t, w)
}

func wantJSON(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	got := map[string]string{}
	for _, h := range []string{"Content-Type", "Cache-Control", "X-Content-Type-Options", "Access-Control-Allow-Origin"} {
		got[h] = w.Header().Get(h)
	}
	want := map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store",
		"X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("headers (-want +got):\n%s", d)
	}
}

func TestOpenPages(t *testing.T) {
	s := New(Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") }),
		Version: Version{Source: "https://example.org/src", Version: "1.2.3", Commit: "abc", Build: "go1.26"},
	})
	wantAnswer(t, request(s, "GET", "/healthz"), 200, `{"status":"ok"}`)
	wantAnswer(t, request(s, "GET", "/readyz"), 200, `{"ready":true,"checks":{}}`)
	wantAnswer(t, request(s, "GET", "/version"), 200,
		`{"source":"https://example.org/src","version":"1.2.3","commit":"abc","build":"go1.26"}`)
	if w := request(s, "GET", "/metrics"); w.Code != 200 || w.Body.String() != "up 1\n" {
		t.Errorf("metrics: %d %s", w.Code, w.Body)
	}
	if w := request(s, "HEAD", "/healthz"); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

func TestReadyNamesEveryCheck(t *testing.T) {
	var logged bytes.Buffer
	s := New(Options{
		Checks: map[string]func(context.Context) error{
			"store":  func(context.Context) error { return errors.New("disk full") },
			"engine": func(context.Context) error { return nil },
		},
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	wantAnswer(t, request(s, "GET", "/readyz"), 503, `{"ready":false,"checks":{"engine":"ok","store":"disk full"}}`)
	if !strings.Contains(logged.String(), "check=store") || strings.Contains(logged.String(), "check=engine") {
		t.Errorf("log: %s", &logged)
	}
}

func TestAHangingCheckFailsAndTheOthersStillRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := New(Options{Checks: map[string]func(context.Context) error{
			"a": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"b": func(ctx context.Context) error { return ctx.Err() },
		}})
		wantAnswer(t, request(s, "GET", "/readyz"), 503, `{"ready":false,"checks":{"a":"context deadline exceeded","b":"ok"}}`)
		if d := time.Since(start); d != checkTimeout {
			t.Errorf("took %v, want %v", d, checkTimeout)
		}
	})
}

func TestAddedPagesNeedTheToken(t *testing.T) {
	var logged bytes.Buffer
	s := New(Options{Token: token, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	calls := 0
	s.Handle("POST /queues/{queue}/replay", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		WriteJSON(w, http.StatusOK, r.PathValue("queue"))
	}))
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer " + token[1:], "Bearer " + token + "0", "Basic " + token, token} {
		w := request(s, "POST", "/queues/q/replay", "Authorization: "+authorization)
		wantError(t, w, 401, "Authorization: Bearer TOKEN")
		if w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%q: no WWW-Authenticate", authorization)
		}
	}
	if calls != 0 {
		t.Fatalf("%d calls without the token", calls)
	}
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER  "} {
		wantAnswer(t, request(s, "POST", "/queues/q/replay", "Authorization: "+scheme+token), 200, `"q"`)
	}
	if n := strings.Count(logged.String(), "wrong admin token"); n != 6 {
		t.Errorf("%d log lines, want 6", n)
	}
	if strings.Contains(logged.String(), token[1:]) {
		t.Error("the log shows a token")
	}
}

func TestWithoutATokenAddedPagesAreClosed(t *testing.T) {
	s := New(Options{})
	s.Handle("GET /users", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("called") }))
	for _, authorization := range []string{"", "Bearer ", "Bearer x"} {
		wantError(t, request(s, "GET", "/users", "Authorization: "+authorization), 403, "set admin.token")
	}
}

func TestOnlyKnownHostsAreAnswered(t *testing.T) {
	s := New(Options{Hosts: []string{"holdfast.internal"}, Token: token})
	s.Handle("GET /users", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, 200, nil) }))
	for host, ok := range map[string]bool{
		"localhost": true, "LocalHost:8001": true, "127.0.0.1:8001": true, "127.9.9.9": true, "[::1]:8001": true, "[::1]": true,
		"10.1.2.3:8001": true, "holdfast.internal:8001": true, "Holdfast.Internal": true, "": true,
		"evil.example": false, "evil.example:8001": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
		"holdfast.internal.evil.example": false, "2130706433": false, "0x7f.0.0.1": false, "localhost:8001:evil": false,
	} {
		for _, path := range []string{"/healthz", "/users", "/nothing"} {
			w := request(s, "GET", path, "Host: "+host, "Authorization: Bearer "+token)
			if got := w.Code != http.StatusMisdirectedRequest; got != ok {
				t.Errorf("%s with host %q: status %d", path, host, w.Code)
			}
		}
	}
	wantError(t, request(s, "GET", "/healthz", "Host: evil.example"), 421, "admin.hosts")
}

func TestOtherMethodsAndPagesAreRefusedInJSON(t *testing.T) {
	s := New(Options{Token: token})
	s.Handle("POST /a/b", http.NotFoundHandler())
	for _, c := range []struct{ method, path, allow string }{
		{"POST", "/healthz", "GET, HEAD"}, {"DELETE", "/version", "GET, HEAD"}, {"OPTIONS", "/readyz", "GET, HEAD"}, {"GET", "/a/b", "POST"},
	} {
		w := request(s, c.method, c.path, "Origin: https://evil.example", "Access-Control-Request-Method: GET")
		wantError(t, w, 405, c.method+" is not possible here; use "+c.allow)
		if got := w.Header().Get("Allow"); got != c.allow {
			t.Errorf("%s %s: Allow %q, want %q", c.method, c.path, got, c.allow)
		}
	}
	for _, path := range []string{"/", "/nothing", "/healthz/", "/metrics", "//healthz"} {
		if w := request(s, "GET", "http://localhost"+path); w.Code != 404 && w.Code != 301 && w.Code != 307 {
			t.Errorf("%s: status %d", path, w.Code)
		} else if w.Code == 404 {
			wantError(t, w, 404, "there is no page "+path)
		}
	}
}

func TestWhatCannotBeEncodedIsAnError(t *testing.T) {
	w := httptest.NewRecorder()
	WriteJSON(w, http.StatusOK, func() {})
	if w.Code != 500 || !json.Valid(w.Body.Bytes()) {
		t.Errorf("answer %d %s", w.Code, w.Body)
	}
}
