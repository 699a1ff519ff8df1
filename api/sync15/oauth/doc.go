// Package oauth decides whose Firefox account an OAuth access token belongs to.
//
// Two verifiers exist. [Accounts] trusts an account service: it checks tokens that
// are JWTs with the service's public keys and asks the service about all others.
// [Offline] is for installations that have no account service: the operator mints
// the tokens, and the server recognises its own.
//
// [Events] checks the security event tokens by which the account service tells
// about deleted accounts and changed passwords.
package oauth

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Scope is what a token must allow to be good for Sync.
const Scope = "https://identity.mozilla.com/apps/oldsync"

// Identity is what an accepted token says about its bearer.
type Identity struct {
	AccountID string
	// Generation rises with each change of the account's password; nil when the
	// token does not say, or says 0.
	Generation *int64
}

// Verifier finds out whose a token is. It is safe for concurrent use. The error is a
// [*RefusedError], or wraps [ErrUnavailable] when nobody knows, or the context's.
type Verifier interface {
	Verify(ctx context.Context, token string) (Identity, error)
}

// ErrUnavailable says that the account service could not be asked. It says nothing
// about the token: answering it like a refusal would sign users out.
var ErrUnavailable = errors.New("oauth: the account service is not available")

// RefusedError is a token that must not be accepted.
type RefusedError struct {
	Reason Reason
}

func (e *RefusedError) Error() string { return "oauth: token refused: " + string(e.Reason) }

// Reason names why a token was refused, as the last part of a metric's name.
type Reason string

// The reasons.
const (
	Malformed        Reason = "decoding_error"    // not a token of the kind expected
	InvalidSignature Reason = "invalid_signature" // signed by a key that is not trusted
	Expired          Reason = "expired_signature" // out of date
	Untrusted        Reason = "trust_error"       // a genuine token, but of another type, audience or issuer
	MissingScope     Reason = "missing_scope"     // good, but not for Sync
	RefusedRemotely  Reason = "refused_remotely"  // by the account service
)

func refused(r Reason) error { return &RefusedError{Reason: r} }

func unavailable(operation string, cause error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, operation, cause)
}

// identify makes an Identity of claims that are genuine.
func identify(accountID string, scopes []string, generation *int64) (Identity, error) {
	if accountID == "" {
		return Identity{}, refused(Malformed)
	}
	for _, s := range scopes {
		if s != Scope {
			continue
		}
		if generation != nil && *generation == 0 {
			generation = nil
		}
		return Identity{AccountID: accountID, Generation: generation}, nil
	}
	return Identity{}, refused(MissingScope)
}

// splitScopes reads a scope claim. The standard puts spaces between scopes, the
// public service reads commas.
func splitScopes(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
