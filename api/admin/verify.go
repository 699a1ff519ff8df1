package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/verify"
)

// VerifyEvent is a line of the answer of /v1/verify. Exactly one field is set.
type VerifyEvent struct {
	Progress *VerifyProgress `json:"progress,omitempty"`
	Finding  *verify.Finding `json:"finding,omitempty"`
	// Report is the last line of a walk that was finished, Error of one that was
	// not.
	Report *verify.Report `json:"report,omitempty"`
	Error  string         `json:"error,omitempty"`
}

// VerifyProgress says how far a walk has come.
type VerifyProgress struct {
	Phase string `json:"phase"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"` // 0 if it is not known
}

// progressPeriod is the least time between two progress lines of one phase.
const progressPeriod = 100 * time.Millisecond

// HandleVerify adds
//
//	POST /v1/verify?lag=1h
//
// which walks over all rows and objects and answers with one JSON VerifyEvent a
// line, as it goes. Options are those of the walk but for what depends on the
// request.
func (s *Server) HandleVerify(opts verify.Options) {
	s.Handle("POST /v1/verify", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		opts := opts
		if text := r.URL.Query().Get("lag"); text != "" {
			lag, err := time.ParseDuration(text)
			if err != nil || lag <= 0 {
				WriteError(w, http.StatusBadRequest, "lag is a duration such as 1h")
				return
			}
			opts.Lag = lag
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines := json.NewEncoder(w)
		flusher := http.NewResponseController(w)
		// A walk may take longer than any other answer.
		_ = flusher.SetWriteDeadline(time.Time{})
		send := func(e VerifyEvent) {
			if lines.Encode(e) != nil || flusher.Flush() != nil {
				cancel() // nobody is listening
			}
		}
		opts.Found = func(f verify.Finding) { send(VerifyEvent{Finding: &f}) }
		opts.Progress = throttled(opts, func(p VerifyProgress) { send(VerifyEvent{Progress: &p}) })
		report, err := verify.Run(ctx, opts)
		if err != nil {
			send(VerifyEvent{Error: err.Error()})
			return
		}
		send(VerifyEvent{Report: &report})
	}))
}

// throttled passes on at most one progress in a period, but the first of a phase
// always.
func throttled(opts verify.Options, send func(VerifyProgress)) func(phase string, done, total int64) {
	var last VerifyProgress
	var at time.Time
	return func(phase string, done, total int64) {
		now := opts.Clock.Now()
		if phase == last.Phase && now.Sub(at) < progressPeriod {
			return
		}
		last, at = VerifyProgress{Phase: phase, Done: done, Total: total}, now
		send(last)
	}
}
