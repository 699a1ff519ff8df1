// Package hawk checks who sent a request to the Sync storage: the token that the
// token server gave out, and the Hawk signature that a client makes with it.
//
// A token is base64url(P ‖ S), padded. P is a JSON payload (the [Claims]) and S
// its HMAC-SHA256 under a key derived from the server's master secret. The token
// text is the Hawk id; the Hawk key is derived from the master secret, the
// payload's salt and the token text. So the server stores nothing per client:
// whoever holds the master secret can check a request.
//
// A request is accepted in this order, and each step has its own reason to fail:
//
//	header, err := hawk.ParseHeader(r.Header.Get("Authorization"))
//	token, err := cache.Verify(header.ID, now)
//	err = header.Verify(request, token.Key, now)
//
// Every failure is an [*Error] and is answered with 401. Nothing here reads a
// clock, the network or a store.
package hawk

import "fmt"

// Reason names why a request was refused. The text is the last part of the metric
// request.error.hawk.<reason>.
type Reason string

// The reasons, in the order in which a request is checked.
const (
	MissingHeader Reason = "missing_header" // no Authorization header
	ParseError    Reason = "parse_error"    // the header is not printable ASCII
	MissingPrefix Reason = "missing_prefix" // another scheme than Hawk
	BadHeader     Reason = "header"         // the attributes do not follow the grammar
	MissingID     Reason = "missing_id"     // no id attribute
	DecodeError   Reason = "decode_error"   // the id is not padded base64url
	IDTooShort    Reason = "id_too_short"   // the id has no room for payload and signature
	BadSignature  Reason = "hmac"           // the token was not signed by any master secret
	InvalidJSON   Reason = "invalid_json"   // the token's payload lacks a field, or has one of a wrong type
	Expired       Reason = "expired"        // the token is out of date
	InvalidHeader Reason = "invalid_header" // the MAC does not match the request, or ts is off by more than a year
)

// Error is a refused request. It never quotes the header, the token or a key.
type Error struct {
	Reason Reason
	Detail string // what exactly was wrong, for the log; may be empty
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return "hawk: " + string(e.Reason)
	}
	return "hawk: " + string(e.Reason) + ": " + e.Detail
}

func refuse(reason Reason, format string, args ...any) error {
	return &Error{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}
