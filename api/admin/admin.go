package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// checkTimeout is how long one readiness check may take: well below the ten
// seconds after which balancers usually give up a probe, for a few checks
// together.
const checkTimeout = 2 * time.Second

// Options says what the door shows. The zero value works and shows little.
type Options struct {
	// Checks are the conditions for serving, by name. They run one after the
	// other at every request of /readyz, in the order of their names, and must
	// return soon after their context has ended. Their errors are shown to
	// everybody who can reach the door.
	Checks map[string]func(context.Context) error

	Metrics http.Handler // serves /metrics; nil: there is no such page
	Version Version      // what /version answers

	// Token opens what Handle adds; empty: it stays closed.
	Token string

	// Hosts are DNS names, without ports, under which the door may be asked
	// beside localhost and IP addresses.
	Hosts []string

	Logger *slog.Logger // gets failed checks and wrong tokens; nil: nobody does
}

// Version describes the running program.
type Version struct {
	Source  string `json:"source"`  // where its source code is, a URL
	Version string `json:"version"` // of the release
	Commit  string `json:"commit"`  // of the source code
	Build   string `json:"build"`   // what built it: a URL of a build, or the version of Go
}

// Server is the door, an http.Handler.
type Server struct {
	opts  Options
	names []string // of the checks, sorted
	token [sha256.Size]byte
	mux   *http.ServeMux
}

// New returns the door with its four open pages.
func New(opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: opts, token: sha256.Sum256([]byte(opts.Token)), mux: http.NewServeMux()}
	for name := range opts.Checks {
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	s.mux.HandleFunc("GET /readyz", s.ready)
	s.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, s.opts.Version)
	})
	if opts.Metrics != nil {
		s.mux.Handle("GET /metrics", opts.Metrics)
	}
	return s
}

// Handle adds a page that only who has the token can use. The pattern is one of
// http.ServeMux, with a method; an impossible or repeated one panics.
func (s *Server) Handle(pattern string, h http.Handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if s.authorized(w, r) {
			h.ServeHTTP(w, r)
		}
	})
}

// ServeHTTP answers r.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if !s.knowsHost(r.Host) {
		WriteError(w, http.StatusMisdirectedRequest, "this door answers to localhost, to IP addresses "+
			"and to the names in admin.hosts; add the name there if it is yours")
		return
	}
	if h, pattern := s.mux.Handler(r); pattern == "" {
		refuse(w, r, h)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// knowsHost reports whether a request for host can be meant for this door. A
// rebinding page has a DNS name, so addresses are safe; a browser always sends a
// host, so a request without one is not from a page.
func (s *Server) knowsHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.ContainsFunc(s.opts.Hosts, func(known string) bool { return strings.EqualFold(host, known) })
}

// authorized reports whether r carries the token, and answers r if not.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request) bool {
	if s.opts.Token == "" {
		WriteError(w, http.StatusForbidden, "no admin token is configured, so this page is closed; set admin.token")
		return false
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(given[:], s.token[:]) == 1 {
		return true
	}
	if scheme != "" {
		s.opts.Logger.Warn("wrong admin token", "remote", r.RemoteAddr, "path", r.URL.Path)
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="holdfast admin"`)
	WriteError(w, http.StatusUnauthorized, "send the header Authorization: Bearer TOKEN; the token is admin.token in the configuration, "+
		"or admin_token in secrets.toml in the data directory")
	return false
}

// ready answers /readyz.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Ready  bool              `json:"ready"`
		Checks map[string]string `json:"checks"` // "ok" or what is wrong
	}{true, map[string]string{}}
	status := http.StatusOK
	for _, name := range s.names {
		answer.Checks[name] = "ok"
		if err := check(r.Context(), s.opts.Checks[name]); err != nil {
			answer.Ready, status = false, http.StatusServiceUnavailable
			answer.Checks[name] = err.Error()
			s.opts.Logger.Warn("not ready", "check", name, "error", err)
		}
	}
	WriteJSON(w, status, answer)
}

func check(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return f(ctx)
}
