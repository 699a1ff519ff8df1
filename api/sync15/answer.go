package sync15

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/offload"
	"github.com/holdfast-dev/holdfast/queue"
)

// answer is a response of the storage.
type answer struct {
	status int
	// modified is X-Last-Modified, if hasModified.
	modified    bso.Timestamp
	hasModified bool
	// written tells that the request itself set modified.
	written bool
	// contentType is application/json if empty and there is a body.
	contentType string
	body        []byte
	// header holds what else there is; nil if nothing.
	header http.Header
}

// modifiedAnswer is an answer about a resource with a timestamp.
func modifiedAnswer(status int, modified bso.Timestamp, body []byte) *answer {
	return &answer{status: status, modified: modified, hasModified: true, body: body}
}

// writtenAnswer is the answer to a write, with the timestamp that it got.
func writtenAnswer(modified bso.Timestamp, body []byte) *answer {
	return &answer{status: http.StatusOK, modified: modified, hasModified: true, written: true, body: body}
}

func (a *answer) set(name, value string) {
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header.Set(name, value)
}

// head writes status and headers.
func (a *answer) head(w http.ResponseWriter, began bso.Timestamp, backoff time.Duration) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	now := began
	if a.hasModified {
		h["X-Last-Modified"] = []string{a.modified.String()}
		now = max(now, a.modified)
	}
	if a.written {
		now = a.modified // before began if the clock has gone back meanwhile
	}
	h["X-Weave-Timestamp"] = []string{now.String()}
	if backoff > 0 {
		h["X-Weave-Backoff"] = []string{strconv.FormatInt(int64(backoff/time.Second), 10)}
	}
	switch {
	case a.contentType != "":
		h["Content-Type"] = []string{a.contentType}
	case a.status != http.StatusNotModified && a.status != http.StatusPreconditionFailed:
		h["Content-Type"] = []string{"application/json"}
	}
	w.WriteHeader(a.status)
}

func (a *answer) write(w http.ResponseWriter, began bso.Timestamp, backoff time.Duration) {
	if a.status != http.StatusNotModified {
		a.set("Content-Length", strconv.Itoa(len(a.body)))
	}
	a.head(w, began, backoff)
	w.Write(a.body) // a client that went away needs no answer
}

// writeError answers outside of the storage.
func writeError(w http.ResponseWriter, status, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(strconv.AppendInt(nil, int64(code), 10))
}

// errorAnswer is the answer to a request that failed: the code is the body.
func errorAnswer(status, code int) *answer {
	return &answer{status: status, body: strconv.AppendInt(nil, int64(code), 10)}
}

// retryLater is how long a client is asked to wait after a conflict or a failure
// that passes.
const retryLater = "10"

func unavailable() *answer {
	a := errorAnswer(http.StatusServiceUnavailable, bso.CodeOther)
	a.set("Retry-After", retryLater)
	return a
}

// errRetry is a request that the client should simply make again.
var errRetry = errors.New("sync: try again")

// refuse turns an error into its answer. It is the only place that knows how.
func (s *Server) refuse(rq *request, err error) *answer {
	var (
		byClient *bso.Error
		identity *hawk.Error
		pre      *storage.PreconditionError
	)
	switch {
	case errors.As(err, &byClient):
		s.metrics.mistake(byClient.Metric)
		return errorAnswer(byClient.Status, byClient.Code)
	case errors.As(err, &identity):
		s.metrics.mistake("request.error.hawk." + string(identity.Reason))
		a := errorAnswer(http.StatusUnauthorized, bso.CodeOther)
		a.set("WWW-Authenticate", "Hawk")
		return a
	case errors.As(err, &pre):
		return modifiedAnswer(http.StatusPreconditionFailed, pre.Modified, nil)
	case errors.Is(err, storage.ErrNotFound):
		s.metrics.mistake("request.process.missing_bso")
		return errorAnswer(http.StatusNotFound, bso.CodeOther)
	case errors.Is(err, storage.ErrNoBatch):
		s.metrics.mistake("request.validate.batch.invalid_id")
		return errorAnswer(http.StatusBadRequest, bso.CodeOther)
	case errors.Is(err, storage.ErrOverQuota), errors.Is(err, storage.ErrTooManyCollections):
		return errorAnswer(http.StatusForbidden, bso.CodeOverQuota)
	case rq.Context().Err() != nil:
		return unavailable() // nobody is listening
	case errors.Is(err, kv.ErrTooLarge):
		s.metrics.mistake("error.tooMuchData")
		s.logFailure(rq, err)
		return errorAnswer(http.StatusBadRequest, bso.CodeTooLarge)
	case kv.IsConflict(err), errors.Is(err, storage.ErrChanged), errors.Is(err, errRetry):
		s.metrics.conflicts.Add(1)
		return unavailable()
	case errors.Is(err, offload.ErrUnavailable), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, kv.ErrClosed), errors.Is(err, queue.ErrSendDisabled): // stopping, or halted by the operator
		s.logFailure(rq, err)
		return unavailable()
	case errors.Is(err, offload.ErrMissing), errors.Is(err, blob.ErrNotFound):
		s.metrics.missing.Add(1)
		s.logFailure(rq, err)
		return errorAnswer(http.StatusInternalServerError, bso.CodeOther)
	}
	s.logFailure(rq, err)
	return errorAnswer(http.StatusInternalServerError, bso.CodeOther)
}

// logFailure logs a request that failed through no fault of the client. The error
// holds keys and names of objects at most, never a payload.
func (s *Server) logFailure(rq *request, err error) {
	s.opts.Log.Error("sync request failed", "method", rq.Method, "uid", rq.route.UID,
		"collection", rq.route.Collection, "error", err)
}
