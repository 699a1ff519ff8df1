package admin

import (
	"encoding/json"
	"net/http"
)

// WriteJSON answers with v as JSON. A v that cannot be encoded is answered with
// 500.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"BUG: the answer could not be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // who hung up does not want to know
}

// WriteError answers with an error. The message says what to do, in words for an
// operator.
func WriteError(w http.ResponseWriter, status int, message string) {
	WriteJSON(w, status, map[string]string{"error": message})
}

// refuse answers a request that no page takes, as JSON. h is what the mux would
// have answered with: not found, another method, or a redirect to a cleaner path.
func refuse(w http.ResponseWriter, r *http.Request, h http.Handler) {
	said := &silent{header: http.Header{}}
	h.ServeHTTP(said, r)
	if said.status == http.StatusMethodNotAllowed {
		allow := said.header.Get("Allow")
		w.Header().Set("Allow", allow)
		WriteError(w, said.status, r.Method+" is not possible here; use "+allow)
		return
	}
	WriteError(w, http.StatusNotFound, "there is no page "+r.URL.Path+"; try /healthz, /readyz, /version or /metrics")
}

// silent notes the head of an answer and drops its body.
type silent struct {
	header http.Header
	status int
}

func (s *silent) Header() http.Header         { return s.header }
func (s *silent) WriteHeader(status int)      { s.status = status }
func (s *silent) Write(p []byte) (int, error) { return len(p), nil }
