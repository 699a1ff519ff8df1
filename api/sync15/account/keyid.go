// Package account reads what a client of the token server says about its account's
// keys, and makes the names under which an account appears in tokens and metrics.
package account

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// The faults of the headers X-KeyID and X-Client-State.
var (
	ErrKeyIDMissing        = errors.New("account: X-KeyID is missing")
	ErrKeyIDNotASCII       = errors.New("account: X-KeyID is not printable ASCII")
	ErrKeyIDMalformed      = errors.New("account: X-KeyID is not <number>-<base64>")
	ErrClientStateInvalid  = errors.New("account: X-Client-State is not 1 to 32 letters, digits, '.', '_' or '-'")
	ErrClientStateMismatch = errors.New("account: X-Client-State differs from X-KeyID")
)

// maxClientState bounds a client state in bytes; those of Firefox have 16.
const maxClientState = 64

// KeyID names the keys of an account.
type KeyID struct {
	// KeysChangedAt is the time of the last change by the client's account, in
	// seconds; nil if it is 0.
	KeysChangedAt *int64
	// ClientState is a hash of the keys, in lower-case hex. It may be empty.
	ClientState string
}

// ParseKeyID reads X-KeyID and compares it with X-Client-State, if that was sent.
// Of several faults the error is the one that the protocol wants told first.
func ParseKeyID(h http.Header) (KeyID, error) {
	values := h["X-Keyid"] // the canonical spelling
	if len(values) == 0 {
		return KeyID{}, ErrKeyIDMissing
	}
	text := values[0]
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return KeyID{}, ErrKeyIDNotASCII
		}
	}
	number, encoded, ok := strings.Cut(text, "-")
	if !ok {
		return KeyID{}, ErrKeyIDMalformed
	}
	state, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(state) > maxClientState {
		return KeyID{}, ErrKeyIDMalformed
	}
	id := KeyID{ClientState: hex.EncodeToString(state)}
	if err := id.checkClientState(h["X-Client-State"]); err != nil {
		return KeyID{}, err
	}
	changed, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return KeyID{}, ErrKeyIDMalformed
	}
	if changed != 0 {
		id.KeysChangedAt = &changed
	}
	return id, nil
}

func (id *KeyID) checkClientState(values []string) error {
	if len(values) == 0 {
		return nil
	}
	if !validClientState(values[0]) {
		return ErrClientStateInvalid
	}
	if values[0] != id.ClientState {
		return ErrClientStateMismatch
	}
	return nil
}

func validClientState(s string) bool {
	if len(s) < 1 || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// FormatKeyID returns the fxa_kid of a token: 13 digits of changedAt, which is
// keys_changed_at or else the generation, and the client state, given in hex.
func FormatKeyID(changedAt int64, clientState string) (string, error) {
	state, err := hex.DecodeString(clientState)
	if err != nil {
		return "", fmt.Errorf("account: format a key id: the client state is not hex: %w", err)
	}
	return fmt.Sprintf("%013d-%s", changedAt, base64.RawURLEncoding.EncodeToString(state)), nil
}
