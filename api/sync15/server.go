package sync15

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/offload"
)

// Options configure a Server.
type Options struct {
	Store   *storage.Store
	Keyring *hawk.Keyring
	Clock   clock.Clock
	Limits  bso.Limits

	// PublicURL is how clients reach the server; nil means that each request
	// tells, by its Host header or, if it comes from a trusted proxy, by the
	// forwarded headers.
	PublicURL      *hawk.Origin
	TrustedProxies []netip.Prefix
	// RememberReplays is how many state-changing requests are remembered, to
	// refuse one that comes again; 0 means none.
	RememberReplays int
	// AllowAnonymousConfiguration serves info/configuration without
	// authentication.
	AllowAnonymousConfiguration bool

	// Offload moves the payloads of OffloadCollections, from OffloadMinBytes up,
	// to the object store, and reads all payloads that are there. It may be nil
	// as long as no record has its payload there.
	Offload            *offload.Offloader
	OffloadCollections []string
	OffloadMinBytes    int

	// EnforceQuota tells that Store refuses writes beyond Limits.MaxQuota.
	EnforceQuota bool
	// Backoff, if not zero, asks all clients to slow down.
	Backoff time.Duration
	// BodyBudget bounds the bytes of request bodies held in memory at one time,
	// over all requests. It must be at least Limits.MaxBody().
	BodyBudget int64
	// Turns, if not zero, is how many requests work at one time; others wait in the
	// order in which they came. A request that waits for its client or for the object
	// store does not count. It is for an engine on this machine.
	Turns int
	// CommitBudget, if not zero, bounds the bytes of request bodies whose records are
	// being committed. A commit holds its payloads several times over, with the records
	// that they replace; where memory is short, those that wait should not. A larger
	// commit runs alone; those up to 256 KiB do not count.
	CommitBudget int64

	CORS CORS
	// TokenServer answers below /1.0/; nil if there is none.
	TokenServer http.Handler
	// Check tells whether the server can do its work; for the heartbeat.
	Check func(context.Context) error
	// Version is the answer of /__version__, in JSON.
	Version []byte
	// QuotaEnabled and the limit are shown by the heartbeat.
	QuotaEnabled bool
	// HeartbeatTTL, if not zero, is after what time the load balancer's heartbeat
	// fails, so that the process is replaced.
	HeartbeatTTL time.Duration

	Metrics *metrics.Registry
	Log     *slog.Logger
}

// CORS says which pages of other origins may use the server.
type CORS struct {
	// Origin is the one origin allowed, or "*" for any. Empty allows none.
	Origin           string
	Methods, Headers string
	MaxAge           time.Duration
}

// DefaultCORS allows what the public service allows.
func DefaultCORS() CORS {
	return CORS{
		Origin:  "*",
		Methods: "DELETE, GET, POST, PUT",
		Headers: "Authorization, Content-Type, User-Agent, X-Last-Modified, X-Weave-Timestamp, X-Weave-Next-Offset, " +
			"X-Weave-Records, X-Weave-Bytes, X-Weave-Total-Records, X-Weave-Total-Bytes, X-Weave-Backoff, " +
			"X-Weave-Quota-Remaining, X-If-Modified-Since, X-If-Unmodified-Since, X-Confirm-Delete, Retry-After",
		MaxAge: 1728000 * time.Second,
	}
}

// Server is the door's http.Handler.
type Server struct {
	opts    Options
	tokens  *hawk.Cache
	replays *hawk.ReplayGuard
	bodies  *semaphore.Weighted
	turns   turns
	metrics *counters
	started time.Time
	active  atomic.Int64
	// stream is streamBytes, but for tests.
	stream int
}

// cachedTokens is how many verified tokens are remembered: a client uses its token
// for an hour, and verifying one costs more than the rest of a small request.
const cachedTokens = 5_000

// New returns a Server, or an error that names the option which makes no sense.
func New(opts Options) (*Server, error) {
	if err := opts.Limits.Validate(); err != nil {
		return nil, err
	}
	for _, c := range opts.OffloadCollections {
		if !bso.ValidCollection(c) {
			return nil, fmt.Errorf("sync: %q cannot be offloaded: it is no collection name", c)
		}
	}
	if len(opts.OffloadCollections) > 0 && opts.Offload == nil {
		return nil, errors.New("sync: collections are to be offloaded, but there is no object store")
	}
	if opts.BodyBudget < opts.Limits.MaxBody() {
		return nil, fmt.Errorf("sync: the memory for request bodies (%d) is less than the largest one (%d)", opts.BodyBudget, opts.Limits.MaxBody())
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		opts:    opts,
		tokens:  hawk.NewCache(opts.Keyring, cachedTokens),
		bodies:  semaphore.NewWeighted(opts.BodyBudget),
		turns:   newTurns(opts.Turns, opts.CommitBudget),
		metrics: newCounters(opts.Metrics),
		started: opts.Clock.Now(),
		stream:  streamBytes,
	}
	if opts.RememberReplays > 0 {
		s.replays = hawk.NewReplayGuard(opts.RememberReplays)
	}
	return s, nil
}

// request is an authenticated request to the storage.
type request struct {
	*http.Request
	route bso.Route
	user  storage.User
	// claims are nil for an anonymous request for the configuration.
	claims *hawk.Claims
	// began is when the request began, cut to the protocol's tick.
	began bso.Timestamp
	pre   bso.Precondition
	query string
	turn  turn
}

// ServeHTTP answers any request to the door.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.active.Add(1)
	defer s.active.Add(-1)
	s.allowOrigin(w, r)
	switch {
	case r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "":
		s.preflight(w)
	case refusedAgent(r.UserAgent()):
		s.metrics.refusedAgent.Add(1)
		writeError(w, http.StatusServiceUnavailable, bso.CodeOther)
	case strings.HasPrefix(r.URL.Path, "/1.5/"):
		s.serveStorage(w, r)
	case strings.HasPrefix(r.URL.Path, "/1.0/") && s.opts.TokenServer != nil:
		s.opts.TokenServer.ServeHTTP(w, r)
	default:
		s.serveService(w, r)
	}
}

func (s *Server) serveStorage(w http.ResponseWriter, r *http.Request) {
	rq := &request{Request: r, began: bso.Floor(s.opts.Clock.Now())}
	err := s.parse(rq)
	var a *answer
	if err == nil {
		a, err = s.act(w, rq)
	}
	if err != nil {
		a = s.refuse(rq, err)
	}
	if a != nil { // nil: the handler has streamed its answer
		a.write(w, rq.began, s.opts.Backoff)
	}
}

// parse does what comes before the action: route, authentication, names,
// precondition.
func (s *Server) parse(rq *request) error {
	target := rq.RequestURI
	if i := strings.Index(target, "://"); i > 0 && target[0] != '/' { // absolute form
		if j := strings.IndexByte(target[i+3:], '/'); j >= 0 {
			target = target[i+3+j:]
		}
	}
	path, query, _ := strings.Cut(target, "?")
	rq.query = query
	var err error
	if rq.route, err = bso.ParsePath(path); err != nil {
		return err
	}
	if !rq.route.Allows(rq.Method) {
		return &bso.Error{Status: http.StatusMethodNotAllowed, Code: bso.CodeOther, Detail: "the resource does not know the method"}
	}
	if err := s.authenticate(rq, target); err != nil {
		return err
	}
	if err := rq.route.CheckNames(); err != nil {
		return err
	}
	if rq.route.Resource == bso.InfoConfiguration {
		return nil
	}
	rq.pre, err = bso.ParsePrecondition(rq.Method, rq.Header)
	return err
}

// authenticate finds out who sent the request, and that they sent just this one.
func (s *Server) authenticate(rq *request, target string) error {
	if rq.route.Resource == bso.InfoConfiguration && s.opts.AllowAnonymousConfiguration && rq.Header.Get("Authorization") == "" {
		return nil
	}
	h, err := hawk.ParseHeader(rq.Header.Get("Authorization"))
	if err != nil {
		return err
	}
	now := s.opts.Clock.Now()
	var token *hawk.Token
	if acceptsExpired(rq) {
		token, err = s.tokens.VerifyIgnoringExpiry(h.ID)
	} else {
		token, err = s.tokens.Verify(h.ID, now)
	}
	if err != nil {
		return err
	}
	origin, err := s.origin(rq)
	if err != nil {
		return err
	}
	if err := h.Verify(origin.Request(rq.Method, target), token.Key, now); err != nil {
		return err
	}
	if changesState(rq.Method) && s.replays != nil && s.replays.Seen(h) {
		return &hawk.Error{Reason: hawk.InvalidHeader, Detail: "the request was sent before"}
	}
	rq.claims = &token.Claims
	if token.UID != rq.route.UID {
		return &bso.Error{Status: http.StatusBadRequest, Code: bso.CodeOther,
			Metric: "request.validate.hawk.invalid_uid", Detail: "the token is for another uid"}
	}
	rq.user = storage.User{UID: token.UID, FxaUID: token.FxAUID, FxaKID: token.FxAKID}
	return nil
}

// acceptsExpired reports whether the request may come with a token out of date:
// clients poll info/collections with what they have, and the configuration is no
// secret.
func acceptsExpired(rq *request) bool {
	switch rq.route.Resource {
	case bso.InfoCollections:
		return rq.Method == http.MethodGet
	case bso.InfoConfiguration:
		return true
	}
	return false
}

func changesState(method string) bool {
	return method == http.MethodPut || method == http.MethodPost || method == http.MethodDelete
}

// origin returns the address under which the client sees the server.
func (s *Server) origin(rq *request) (hawk.Origin, error) {
	if s.opts.PublicURL != nil {
		return *s.opts.PublicURL, nil
	}
	a := hawk.Arrival{Scheme: "http", Host: rq.Host}
	if rq.TLS != nil {
		a.Scheme = "https"
	}
	if s.fromProxy(rq.RemoteAddr) {
		a.Forwarded = rq.Header.Get("Forwarded")
		a.ForwardedHost = rq.Header.Get("X-Forwarded-Host")
		a.ForwardedProto = rq.Header.Get("X-Forwarded-Proto")
	}
	return a.Origin()
}

func (s *Server) fromProxy(remote string) bool {
	if len(s.opts.TrustedProxies) == 0 {
		return false
	}
	addr, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	ip := addr.Addr().Unmap()
	return slices.ContainsFunc(s.opts.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (s *Server) act(w http.ResponseWriter, rq *request) (*answer, error) {
	origin := ""
	if rq.claims != nil {
		origin = rq.claims.TokenserverOrigin
	}
	op := operation(rq)
	s.metrics.request(op, origin)
	defer rq.turn.end()
	switch op {
	case "put_bso": // whose time begins when the body is there
		return s.putRecord(rq.Context(), rq)
	case "post_collection":
		return s.postCollection(rq.Context(), rq)
	case "get_configuration":
		return s.getConfiguration()
	}
	if err := rq.turn.begin(rq.Context(), &s.turns, 0); err != nil {
		return nil, err
	}
	if op == "get_collection" { // which may be long, on a slow line
		return s.getCollection(rq.Context(), w, rq)
	}
	ctx, cancel := context.WithTimeout(rq.Context(), requestTimeout)
	defer cancel()
	switch op {
	case "get_collections", "get_collection_counts", "get_collection_usage", "get_quota":
		return s.getInfo(ctx, rq)
	case "get_bso":
		return s.getRecord(ctx, rq)
	default:
		return s.delete(ctx, rq)
	}
}

// operation names what a request does, as the metrics do.
func operation(rq *request) string {
	switch rq.route.Resource {
	case bso.InfoConfiguration:
		return "get_configuration"
	case bso.InfoCollections:
		return "get_collections"
	case bso.InfoCollectionCounts:
		return "get_collection_counts"
	case bso.InfoCollectionUsage:
		return "get_collection_usage"
	case bso.InfoQuota:
		return "get_quota"
	case bso.Storage:
		return "delete_all"
	}
	reading := rq.Method == http.MethodGet || rq.Method == http.MethodHead
	item := rq.route.Resource == bso.Item
	switch {
	case reading && item:
		return "get_bso"
	case reading:
		return "get_collection"
	case rq.Method == http.MethodPut:
		return "put_bso"
	case rq.Method == http.MethodPost:
		return "post_collection"
	case item:
		return "delete_bso"
	default:
		return "delete_collection"
	}
}
