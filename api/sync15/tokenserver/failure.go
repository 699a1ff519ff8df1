package tokenserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
	"github.com/holdfast-dev/holdfast/kv"
)

// failure is an answer other than success. It is an error so that it can travel
// as one.
type failure struct {
	code                                int
	status, location, name, description string
}

func (f *failure) Error() string { return f.status + ": " + f.description }

// body is the failure as clients read it. They compare the texts.
func (f *failure) body() any {
	type item struct {
		Location    string `json:"location"`
		Name        string `json:"name"`
		Description string `json:"description"`
	}
	return struct {
		Status string `json:"status"`
		Errors []item `json:"errors"`
	}{f.status, []item{{f.location, f.name, f.description}}}
}

func unauthorized(status string) *failure {
	return &failure{http.StatusUnauthorized, status, "body", "", "Unauthorized"}
}

func badScheme() *failure {
	return &failure{http.StatusUnauthorized, "error", "body", "", "Unsupported"}
}

func badKeyID(description string) *failure {
	return &failure{http.StatusUnauthorized, "invalid-key-id", "header", "", description}
}

func malformedClientState() *failure {
	return &failure{http.StatusBadRequest, "error", "header", "X-Client-State", "Invalid client state value"}
}

func unsupported(name, description string) *failure {
	return &failure{http.StatusNotFound, "error", "url", name, description}
}

func badQuery() *failure {
	return &failure{http.StatusBadRequest, "error", "url", "", "invalid query params"}
}

func methodNotAllowed() *failure {
	return &failure{http.StatusMethodNotAllowed, "error", "body", "", "Method Not Allowed"}
}

func notFound() *failure {
	return &failure{http.StatusNotFound, "error", "url", "", "Not Found"}
}

func unavailable() *failure {
	return &failure{http.StatusServiceUnavailable, "error", "body", "", "Resource is not available"}
}

func internalError(code int) *failure {
	return &failure{code, "internal-error", "internal", "", "Server error"}
}

// failureOf translates the errors of a Store and of a Verifier.
func failureOf(err error) *failure {
	var f *failure
	var refused *oauth.RefusedError
	var claims *ClaimsError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &refused):
		return unauthorized("invalid-credentials")
	case errors.Is(err, oauth.ErrUnavailable): // which may wrap a timeout
		return unavailable()
	case errors.As(err, &claims):
		if claims.Status != invalidClientState {
			return unauthorized(claims.Status)
		}
		return &failure{http.StatusUnauthorized, invalidClientState, "header", "X-Client-State",
			"Unacceptable client-state value " + claims.Reason}
	case errors.Is(err, ErrNewUsersDisabled):
		return &failure{http.StatusForbidden, "new-users-disabled", "body", "", "New users are not allowed"}
	case errors.Is(err, ErrNoNode):
		return internalError(http.StatusServiceUnavailable)
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{http.StatusGatewayTimeout, "elapsed", "body", "", "Elapsed"}
	case errors.Is(err, kv.ErrUnknownOutcome):
		// Asking again finds out: what was asked for is done once.
		return internalError(http.StatusServiceUnavailable)
	}
	return internalError(http.StatusInternalServerError)
}
