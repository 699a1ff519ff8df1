package tokenserver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// keyID is what a client says about the keys that its data is encrypted with.
type keyID struct {
	keysChangedAt *int64 // nil for 0
	clientState   string // hex
}

// parseKeyID reads X-KeyID, <keys changed at>-<client state>, and compares it with
// X-Client-State, an older header that may come along.
func parseKeyID(h http.Header) (keyID, error) {
	values := h.Values("X-KeyID")
	if len(values) == 0 {
		return keyID{}, badKeyID("Missing X-KeyID header")
	}
	if !isPrintable(values[0]) {
		return keyID{}, badKeyID("Invalid X-KeyID header")
	}
	changedAt, encoded, ok := strings.Cut(values[0], "-")
	state, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil {
		return keyID{}, unauthorized("invalid-credentials")
	}
	k := keyID{clientState: hex.EncodeToString(state)}
	if err := checkClientState(h, k.clientState); err != nil {
		return keyID{}, err
	}
	n, err := strconv.ParseInt(changedAt, 10, 64)
	if err != nil {
		return keyID{}, unauthorized("invalid-credentials")
	}
	if n != 0 {
		k.keysChangedAt = &n
	}
	return k, nil
}

func checkClientState(h http.Header, want string) error {
	values := h.Values("X-Client-State")
	switch {
	case len(values) == 0:
		return nil
	case !isClientState(values[0]):
		return malformedClientState()
	case values[0] != want:
		return unauthorized(invalidClientState)
	}
	return nil
}

// isClientState is about the form that the header has had, not only hex.
func isClientState(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 32
}

// keyIDOf names the keys of a user as the account service does. With the account's
// id it is the identity of a storage.
func keyIDOf(u *User) (string, error) {
	state, err := hex.DecodeString(u.ClientState)
	if err != nil {
		return "", fmt.Errorf("tokenserver: client state of uid %d is not hex", u.UID)
	}
	changedAt := u.Generation
	if u.KeysChangedAt != nil {
		changedAt = *u.KeysChangedAt
	}
	return fmt.Sprintf("%013d-%s", changedAt, base64.RawURLEncoding.EncodeToString(state)), nil
}

// hashes hides an account's id, and its device, which no client names any more.
func (s *Server) hashes(accountID string) (account, device string) {
	account = s.hash(accountID)
	return account, s.hash(account + "none")
}

func (s *Server) hash(text string) string {
	mac := hmac.New(sha256.New, []byte(s.opts.MetricsHashSecret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))[:32]
}
