package kv

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that callers tell apart. Drivers return them wrapped with the operation.
var (
	// ErrUnknownOutcome: a commit may have happened, or may still happen. Nobody
	// may treat it as not done.
	ErrUnknownOutcome = errors.New("outcome of the commit is unknown")
	// ErrTooLarge: a key, value, link, tag, feed entry or commit exceeds its
	// limit. Nothing was written.
	ErrTooLarge = errors.New("too large")
	// ErrInvalid: the call breaks a rule of the contract, whatever the data is.
	ErrInvalid = errors.New("invalid request")
	// ErrClosed: the engine has been closed.
	ErrClosed = errors.New("engine is closed")
	// ErrSpaceNotFound: the space does not exist.
	ErrSpaceNotFound = errors.New("space does not exist")
	// ErrSpaceMismatch: the space exists with other options.
	ErrSpaceMismatch = errors.New("space exists with other options")
	// ErrUnguardedRange: a range was read in a transaction without a guard row.
	ErrUnguardedRange = errors.New("range read in a transaction needs a guard row")
	// ErrFeedTrimmed: entries behind the position were removed by the retention.
	ErrFeedTrimmed = errors.New("feed was trimmed behind the position")
	// ErrCorrupt: stored data does not make sense. Never retried.
	ErrCorrupt = errors.New("stored data is corrupt")
)

// ConflictError reports that checks of a commit failed and nothing was written.
type ConflictError struct {
	// Refs are the rows whose checks failed, in the order of the checks.
	Refs []Ref
}

// Error names the spaces and keys in conflict, the first few of them.
func (e *ConflictError) Error() string {
	const most = 3
	var b strings.Builder
	b.WriteString("conflict on ")
	for i, r := range e.Refs {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(e.Refs)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s/%q", r.Space, r.Key)
	}
	return b.String()
}

// IsConflict reports whether err says that a commit failed because of its
// checks.
func IsConflict(err error) bool {
	_, ok := errors.AsType[*ConflictError](err)
	return ok
}
