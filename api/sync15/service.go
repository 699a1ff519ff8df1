package sync15

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
)

// checkTimeout bounds the check of the heartbeat.
const checkTimeout = 5 * time.Second

// serveService answers the endpoints beside the storage, which need no
// authentication.
func (s *Server) serveService(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		if isService(r.URL.Path) {
			writeError(w, http.StatusMethodNotAllowed, bso.CodeOther)
		} else {
			writeError(w, http.StatusNotFound, bso.CodeOther)
		}
		return
	}
	switch r.URL.Path {
	case "/__heartbeat__":
		s.heartbeat(w, r)
	case "/__lbheartbeat__":
		s.loadBalancerHeartbeat(w)
	case "/__version__":
		w.Header().Set("Content-Type", "application/json")
		w.Write(s.opts.Version)
	case "/__error__":
		s.opts.Log.Error("error endpoint was called: reporting of errors works")
		writeError(w, http.StatusInternalServerError, bso.CodeOther)
	case "/":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Write([]byte("Holdfast: a Firefox Sync server. Set identity.sync.tokenserver.uri to this address followed by /1.0/sync/1.5.\n"))
	default:
		writeError(w, http.StatusNotFound, bso.CodeOther)
	}
}

func isService(path string) bool {
	switch path {
	case "/__heartbeat__", "/__lbheartbeat__", "/__version__", "/__error__", "/":
		return true
	}
	return false
}

func (s *Server) heartbeat(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	state := map[string]any{
		"version":  s.version(),
		"status":   "Ok",
		"database": "Ok",
		"quota":    map[string]any{"enabled": s.opts.QuotaEnabled, "size": s.quotaSize()},
	}
	status := http.StatusOK
	if s.opts.Check != nil {
		if err := s.opts.Check(ctx); err != nil {
			s.opts.Log.Error("heartbeat: the check failed", "error", err)
			state["status"], state["database"] = "Err", "Err"
			state["database_msg"] = "the engine or the object store does not answer; see the log"
			status = http.StatusServiceUnavailable
		}
	}
	writeJSON(w, status, state)
}

func (s *Server) quotaSize() int64 {
	if s.opts.QuotaEnabled {
		return s.opts.Limits.MaxQuota
	}
	return 0
}

func (s *Server) version() string {
	var v struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(s.opts.Version, &v) != nil {
		return ""
	}
	return v.Version
}

func (s *Server) loadBalancerHeartbeat(w http.ResponseWriter) {
	if ttl := s.opts.HeartbeatTTL; ttl > 0 && s.opts.Clock.Now().Sub(s.started) > ttl {
		writeJSON(w, http.StatusInternalServerError, struct{}{})
		return
	}
	writeJSON(w, http.StatusOK, map[string]int64{"active_connections": s.active.Load(), "idle_connections": 0})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body)
}

// allowOrigin lets pages of other origins read the answer. The origin is echoed
// and not "*".
func (s *Server) allowOrigin(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" || s.opts.CORS.Origin != "*" && s.opts.CORS.Origin != origin {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", s.opts.CORS.Headers)
	h.Add("Vary", "Origin")
}

func (s *Server) preflight(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", s.opts.CORS.Methods)
	h.Set("Access-Control-Allow-Headers", s.opts.CORS.Headers)
	h.Set("Access-Control-Max-Age", strconv.FormatInt(int64(s.opts.CORS.MaxAge/time.Second), 10))
	w.WriteHeader(http.StatusOK)
}

// oldIOS matches the versions of Firefox for iOS that crash on some response
// headers: those below 20.
var oldIOS = regexp.MustCompile(`^Firefox-iOS-Sync/(\d+)\..*b.* \(.*; iPhone OS .*\) \(.*\)$`)

func refusedAgent(agent string) bool {
	if !strings.HasPrefix(agent, "Firefox-iOS-Sync/") {
		return false
	}
	m := oldIOS.FindStringSubmatch(agent)
	if m == nil {
		return false
	}
	major, err := strconv.Atoi(m[1])
	return err == nil && 0 < major && major < 20
}
