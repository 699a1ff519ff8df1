package hawk

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	signingInfo = "services.mozilla.com/tokenlib/v1/signing"
	deriveInfo  = "services.mozilla.com/tokenlib/v1/derive/"
)

// Claims is what a token says about its bearer.
type Claims struct {
	Node              string // URL of the storage node
	FxAKID            string // the account's key, opaque; with FxAUID the identity of a storage
	FxAUID            string // the account, opaque
	HashedDeviceID    string // for metrics
	HashedFxAUID      string // for metrics
	Expires           int64  // seconds since the epoch, rounded; expired from that second on
	UID               uint64 // the number in the storage's URL
	TokenserverOrigin string // "rust" or "python"; a tag of metrics
	Salt              string // for the Hawk key; not empty
}

// payload is the wire form of Claims. The order is that of the tokens which Mint
// makes; readers accept any.
type payload struct {
	Node              *string  `json:"node"`
	FxAKID            string   `json:"fxa_kid"`
	FxAUID            string   `json:"fxa_uid"`
	HashedDeviceID    string   `json:"hashed_device_id"`
	HashedFxAUID      string   `json:"hashed_fxa_uid"`
	Expires           *float64 `json:"expires"`
	UID               *uint64  `json:"uid"`
	TokenserverOrigin string   `json:"tokenserver_origin"`
	Salt              *string  `json:"salt"`
}

// Token is a verified token. A Token may be shared: do not change it.
type Token struct {
	Claims
	Key string // the Hawk key: the text itself is the HMAC key
}

// CheckExpiry returns an [Expired] error from the second t.Expires on.
func (t *Token) CheckExpiry(now time.Time) error {
	if t.Expires <= now.Unix() {
		return &Error{Reason: Expired}
	}
	return nil
}

// Keyring holds the server's master secrets. It mints with the first and accepts
// tokens of all, so that a secret can be replaced while old tokens live on. It is
// immutable and safe for concurrent use.
type Keyring struct {
	secrets []masterSecret
}

type masterSecret struct {
	secret  []byte
	signing []byte
}

// NewKeyring returns a keyring of at least one master secret; none may be empty.
// The raw bytes of the texts are the secrets.
func NewKeyring(masterSecrets ...string) (*Keyring, error) {
	if len(masterSecrets) == 0 {
		return nil, errors.New("hawk: no master secret")
	}
	k := &Keyring{}
	for _, s := range masterSecrets {
		if s == "" {
			return nil, errors.New("hawk: a master secret is empty")
		}
		signing, err := hkdf.Key(sha256.New, []byte(s), nil, signingInfo, sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("hawk: derive the signing key: %w", err)
		}
		k.secrets = append(k.secrets, masterSecret{secret: []byte(s), signing: signing})
	}
	return k, nil
}

// NewSalt reads three random bytes and returns them as a salt for [Claims].
func NewSalt(random io.Reader) (string, error) {
	var b [3]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("hawk: read a salt: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// Mint makes the token of c and its Hawk key. c.Salt must not be empty.
func (k *Keyring) Mint(c Claims) (token, key string, err error) {
	if c.Salt == "" {
		return "", "", errors.New("hawk: mint a token without salt")
	}
	expires := float64(c.Expires)
	p, err := json.Marshal(payload{
		Node: &c.Node, FxAKID: c.FxAKID, FxAUID: c.FxAUID, HashedDeviceID: c.HashedDeviceID,
		HashedFxAUID: c.HashedFxAUID, Expires: &expires, UID: &c.UID,
		TokenserverOrigin: c.TokenserverOrigin, Salt: &c.Salt,
	})
	if err != nil {
		return "", "", fmt.Errorf("hawk: render the token of uid %d: %w", c.UID, err)
	}
	s := k.secrets[0]
	token = base64.URLEncoding.EncodeToString(append(p, s.sign(p)...))
	key, err = s.derive(token, c.Salt)
	return token, key, err
}

// Verify checks the signature, the payload and the expiry of a token, in this
// order. It costs some microseconds: see [Cache].
func (k *Keyring) Verify(token string, now time.Time) (*Token, error) {
	t, err := k.VerifyIgnoringExpiry(token)
	if err != nil {
		return nil, err
	}
	if err := t.CheckExpiry(now); err != nil {
		return nil, err
	}
	return t, nil
}

// VerifyIgnoringExpiry is Verify for the one view that also accepts tokens which
// are out of date (info/collections).
func (k *Keyring) VerifyIgnoringExpiry(token string) (*Token, error) {
	if strings.ContainsAny(token, "\r\n") { // which the decoder would skip
		return nil, &Error{Reason: DecodeError}
	}
	raw, err := base64.URLEncoding.Strict().DecodeString(token)
	if err != nil {
		return nil, &Error{Reason: DecodeError}
	}
	if len(raw) <= sha256.Size {
		return nil, &Error{Reason: IDTooShort}
	}
	p, signature := raw[:len(raw)-sha256.Size], raw[len(raw)-sha256.Size:]
	for _, s := range k.secrets {
		if !hmac.Equal(signature, s.sign(p)) {
			continue
		}
		c, err := parseClaims(p)
		if err != nil {
			return nil, err
		}
		key, err := s.derive(token, c.Salt)
		if err != nil {
			return nil, err
		}
		return &Token{Claims: c, Key: key}, nil
	}
	return nil, &Error{Reason: BadSignature}
}

func parseClaims(b []byte) (Claims, error) {
	var p payload
	if err := json.Unmarshal(b, &p); err != nil {
		return Claims{}, &Error{Reason: InvalidJSON} // the cause may quote the payload
	}
	if p.Node == nil || p.UID == nil || p.Expires == nil || p.Salt == nil {
		return Claims{}, refuse(InvalidJSON, "node, uid, expires or salt is missing")
	}
	if p.TokenserverOrigin == "" {
		p.TokenserverOrigin = "python" // the older token server did not say
	}
	// Beyond 2⁵³ a float is no whole second any more; such a token never expires in
	// practice, and the conversion below stays exact.
	expires := math.Round(min(max(*p.Expires, 0), 1<<53))
	return Claims{
		Node: *p.Node, FxAKID: p.FxAKID, FxAUID: p.FxAUID, HashedDeviceID: p.HashedDeviceID,
		HashedFxAUID: p.HashedFxAUID, Expires: int64(expires), UID: *p.UID,
		TokenserverOrigin: p.TokenserverOrigin, Salt: *p.Salt,
	}, nil
}

func (s *masterSecret) sign(p []byte) []byte {
	mac := hmac.New(sha256.New, s.signing)
	mac.Write(p)
	return mac.Sum(nil)
}

func (s *masterSecret) derive(token, salt string) (string, error) {
	key, err := hkdf.Key(sha256.New, s.secret, []byte(salt), deriveInfo+token, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("hawk: derive the key of a token: %w", err)
	}
	return base64.URLEncoding.EncodeToString(key), nil
}
