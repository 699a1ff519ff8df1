// Package faulthttp is an HTTP server for tests that loses requests and answers,
// waits, and counts as it is told.
package faulthttp

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Stage tells when a Hook runs.
type Stage string

// The stages of a request. What a hook does Before, the handler does not see; what it
// does After, the client sees in place of the handler's answer.
const (
	Before Stage = "before"
	After  Stage = "after"
)

// Action is what becomes of a request.
type Action struct {
	drop   bool
	status int
	body   string
}

// Pass lets a request go on. It is the zero Action.
var Pass = Action{}

// Drop closes the connection without an answer.
var Drop = Action{drop: true}

// Fail answers with the status and the body.
func Fail(status int, body string) Action { return Action{status: status, body: body} }

// Hook is called before and after the n-th request, counted from 0 since SetHook. It
// may wait, on the request's context for example. The body must not be read.
type Hook func(n int, r *http.Request, stage Stage) Action

// Server is a server around a handler. Its address is the URL of the embedded one.
type Server struct {
	*httptest.Server
	handler http.Handler
	closing chan struct{}

	mu      sync.Mutex
	hook    Hook          // guarded by mu
	n       int           // guarded by mu: requests since SetHook
	seen    []string      // guarded by mu: method and path
	frozen  chan struct{} // guarded by mu: closed by Thaw; nil: not frozen
	latency time.Duration // guarded by mu
}

// New starts a server on loopback that ends with the test.
func New(tb testing.TB, handler http.Handler) *Server {
	tb.Helper()
	s := &Server{handler: handler, closing: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	tb.Cleanup(func() {
		close(s.closing)
		s.Server.Close()
	})
	return s
}

// SetHook replaces the hook and starts to number requests anew; nil removes it.
func (s *Server) SetHook(h Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook, s.n = h, 0
}

// SetLatency delays each answer.
func (s *Server) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// Freeze keeps requests waiting from now on, until Thaw or until their clients leave.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = make(chan struct{})
	}
}

// Thaw lets the waiting requests go on.
func (s *Server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
}

// Requests returns the method and the path of each request since Reset, in the order
// of their arrival.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// Reset forgets the requests so far.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// arrive counts the request and returns what is in force for it.
func (s *Server) arrive(r *http.Request) (n int, hook Hook, frozen chan struct{}, latency time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = s.n
	s.n++
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	return n, s.hook, s.frozen, s.latency
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	n, hook, frozen, latency := s.arrive(r)
	if hook != nil || frozen != nil || latency > 0 {
		// Only when its body is read does a request notice that its client left.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if frozen != nil {
		s.wait(r, frozen, 0)
	}
	if latency > 0 {
		s.wait(r, nil, latency)
	}
	if hook == nil {
		s.handler.ServeHTTP(w, r)
		return
	}
	if hook(n, r, Before).apply(w) {
		return
	}
	answer := httptest.NewRecorder()
	s.handler.ServeHTTP(answer, r)
	if !hook(n, r, After).apply(w) {
		Send(w, answer)
	}
}

// wait returns when the first of all this happens.
func (s *Server) wait(r *http.Request, thawed chan struct{}, d time.Duration) {
	var elapsed <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-thawed:
	case <-elapsed:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	case <-s.closing:
		panic(http.ErrAbortHandler)
	}
}

// apply does what the action says, if it says anything.
func (a Action) apply(w http.ResponseWriter) bool {
	switch {
	case a.drop:
		panic(http.ErrAbortHandler) // closes the connection, without a word in the log
	case a.status != 0:
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
		return true
	}
	return false
}

// Send sends a recorded answer.
func Send(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = io.Copy(w, bytes.NewReader(answer.Body.Bytes()))
}

// At returns a hook that does the action at one stage of one request.
func At(n int, stage Stage, a Action) Hook {
	return func(i int, _ *http.Request, at Stage) Action {
		if i == n && at == stage {
			return a
		}
		return Pass
	}
}

// Always returns a hook that does the action at one stage of all requests.
func Always(stage Stage, a Action) Hook {
	return func(_ int, _ *http.Request, at Stage) Action {
		if at == stage {
			return a
		}
		return Pass
	}
}
