// Package bso is the language of the Sync storage: what its URLs, headers, query
// strings and bodies mean, and how answers are written. A BSO (basic storage
// object) is one record of a collection.
//
// Bytes come in and values go out; nothing here knows a store, a handler or a
// clock. A request that breaks a rule is an [*Error], which carries the complete
// answer.
//
// Timestamps are a [Timestamp] everywhere. A client's write is an [Update], in
// which every field may be absent; a stored record on its way out is a [Record].
package bso

import "fmt"

// The codes that make up the body of an error answer.
const (
	CodeOther     = 0  // anything without a code of its own
	CodeInvalid   = 8  // invalid BSO or list of BSOs
	CodeOverQuota = 14 // the user's quota is used up
	CodeTooLarge  = 17 // a size limit is exceeded
)

// Error is a request that must be refused, with the answer to give.
type Error struct {
	Status int    // HTTP status
	Code   int    // the answer's body
	Metric string // counter to increase; empty if the case has none
	Detail string // for the log; never quotes a payload
}

func (e *Error) Error() string {
	return fmt.Sprintf("sync: %s (%d/%d)", e.Detail, e.Status, e.Code)
}

// bad is an error of a header, a name or a query string.
func bad(metric, format string, args ...any) *Error {
	return &Error{Status: 400, Code: CodeOther, Metric: metric, Detail: fmt.Sprintf(format, args...)}
}

// invalid is an error of a body.
func invalid(metric, format string, args ...any) *Error {
	return &Error{Status: 400, Code: CodeInvalid, Metric: metric, Detail: fmt.Sprintf(format, args...)}
}
