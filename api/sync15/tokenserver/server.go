package tokenserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

// retryAfter is what every 503 asks for, in seconds. Clients wait at least as long
// before they sync again.
const retryAfter = "30"

// Options are the parts and the settings of a Server.
type Options struct {
	Store    *Store         // required
	Accounts oauth.Verifier // required: checks access tokens
	Keyring  *hawk.Keyring  // required: mints credentials
	Clock    clock.Clock    // required
	Random   io.Reader      // required: salts; safe for concurrent use

	// EmailDomain makes an account's email address out of its id.
	EmailDomain string
	// MetricsHashSecret hides account ids in what is given to telemetry.
	MetricsHashSecret string
	// TokenDuration is how long credentials live, in whole seconds; clients may
	// ask for less.
	TokenDuration time.Duration
	// NodeType is a word for the telemetry of clients: mysql, postgres or spanner.
	NodeType string
	// StoreTimeout bounds the engine's part of a request.
	StoreTimeout time.Duration

	// Events checks account events; nil means that they are not received.
	Events *oauth.Events
	// EventsMetricsOnly counts events and does nothing else.
	EventsMetricsOnly bool

	Log     *slog.Logger      // nil discards
	Metrics *metrics.Registry // nil measures nothing
}

// Server answers the paths below /1.0/. It is an http.Handler, safe for concurrent
// use, and starts nothing.
type Server struct {
	opts    Options
	metrics serverMetrics
}

type serverMetrics struct {
	verification, creation          *metrics.Timer
	oauth, clientState, unavailable *metrics.Counter
	eventsReceived, eventsProcessed *metrics.Counter
}

// New returns a Server.
func New(o Options) (*Server, error) {
	switch {
	case o.Store == nil || o.Accounts == nil || o.Keyring == nil || o.Clock == nil || o.Random == nil:
		return nil, errors.New("tokenserver: Store, Accounts, Keyring, Clock and Random are required")
	case o.EmailDomain == "" || o.NodeType == "":
		return nil, errors.New("tokenserver: EmailDomain and NodeType are required")
	case o.TokenDuration < time.Second || o.StoreTimeout <= 0:
		return nil, fmt.Errorf("tokenserver: token duration %v or store timeout %v is too short", o.TokenDuration, o.StoreTimeout)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := o.Metrics
	return &Server{opts: o, metrics: serverMetrics{
		verification:    m.Timer("token_verification", "token_type"),
		creation:        m.Timer("token_creation"),
		oauth:           m.Counter("request.error.oauth"),
		clientState:     m.Counter("request.error.invalid_client_state"),
		unavailable:     m.Counter("request.error.resource_unavailable"),
		eventsReceived:  m.Counter("webhook.events_received"),
		eventsProcessed: m.Counter("webhook.events_processed", "event_type"),
	}}, nil
}

const eventsPath = "/1.0/webhooks/fxa/events"

// ServeHTTP implements http.Handler. The path must be the one that remains when
// the prefix of a public URL has been taken off.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if path == eventsPath && s.opts.Events != nil {
		s.serve(w, r, http.MethodPost, s.events)
		return
	}
	application, version, ok := splitPath(path)
	if !ok {
		s.write(w, http.StatusNotFound, notFound().body())
		return
	}
	s.serve(w, r, http.MethodGet, func(r *http.Request) (any, error) {
		return s.token(r, application, version)
	})
}

// splitPath takes /1.0/{application}/{version} apart.
func splitPath(path string) (application, version string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/1.0/")
	a, v, two := strings.Cut(rest, "/")
	if !ok || !two || a == "" || v == "" || strings.Contains(v, "/") {
		return "", "", false
	}
	application, errA := url.PathUnescape(a)
	version, errV := url.PathUnescape(v)
	return application, version, errA == nil && errV == nil
}

// serve answers with what handle returns; a nil value is an empty body.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, method string, handle func(*http.Request) (any, error)) {
	if r.Method != method {
		w.Header().Set("Allow", method)
		s.write(w, http.StatusMethodNotAllowed, methodNotAllowed().body())
		return
	}
	body, err := handle(r)
	if err == nil {
		s.write(w, http.StatusOK, body)
		return
	}
	f := failureOf(err)
	s.count(f, err)
	if f.code >= http.StatusInternalServerError && r.Context().Err() == nil {
		s.opts.Log.Error("token server request failed", "path", r.URL.Path, "status", f.code, "error", err)
	}
	if f.code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	s.write(w, f.code, f.body())
}

func (s *Server) count(f *failure, err error) {
	var refused *oauth.RefusedError
	switch {
	case errors.As(err, &refused):
		s.metrics.oauth.Add(1)
		s.opts.Metrics.Counter("jwt.error." + string(refused.Reason)).Add(1)
	case f.status == invalidClientState:
		s.metrics.clientState.Add(1)
	case errors.Is(err, oauth.ErrUnavailable):
		s.metrics.unavailable.Add(1)
	}
}

// write sends a response. Clients take one that is not JSON, or has no X-Timestamp,
// for that of a broken server.
func (s *Server) write(w http.ResponseWriter, code int, body any) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			s.opts.Log.Error("token server response cannot be rendered", "error", err)
			code, b = http.StatusInternalServerError, nil
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Timestamp", strconv.FormatInt(s.opts.Clock.Now().Unix(), 10))
	w.WriteHeader(code)
	w.Write(b) // an error means that the client is gone
}
