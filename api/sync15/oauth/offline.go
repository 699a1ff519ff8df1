package oauth

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/holdfast-dev/holdfast/clock"
)

const (
	offlineType = "holdfast-offline+jwt"
	offlineInfo = "holdfast/sync15/offline-token/v1"
)

// Offline mints access tokens and verifies them, for installations without an
// account service. A token is a JWT under HMAC-SHA256 with a key that is derived
// from the server's master secret, so that it works on all servers with that secret
// and is of no use for anything else.
type Offline struct {
	key   []byte
	clock clock.Clock
}

// NewOffline returns an Offline for a master secret.
func NewOffline(masterSecret string, c clock.Clock) (*Offline, error) {
	if masterSecret == "" {
		return nil, errors.New("oauth: the master secret is empty")
	}
	key, err := hkdf.Key(sha256.New, []byte(masterSecret), nil, offlineInfo, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("oauth: derive the key of offline tokens: %w", err)
	}
	return &Offline{key: key, clock: c}, nil
}

// Mint makes a token for an account, good for ttl, which must be at least a second.
// A generation higher than before makes the token server refuse older ones; 0 says
// nothing about it. The account id may be any name of letters, digits, '.', '_' and
// '-', up to 64 of them.
func (o *Offline) Mint(accountID string, generation int64, ttl time.Duration) (string, error) {
	if !validAccountID(accountID) {
		return "", errors.New("oauth: an account id has 1 to 64 letters, digits, '.', '_' or '-'")
	}
	if ttl < time.Second || generation < 0 {
		return "", fmt.Errorf("oauth: a lifetime of %v or generation %d is out of range", ttl, generation)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: o.key},
		(&jose.SignerOptions{}).WithType(offlineType))
	if err != nil {
		return "", fmt.Errorf("oauth: mint a token: %w", err)
	}
	now := o.clock.Now()
	claims := accessClaims{Subject: accountID, Scope: Scope, Expiry: jwt.NewNumericDate(now.Add(ttl)), IssuedAt: jwt.NewNumericDate(now)}
	if generation > 0 {
		claims.Generation = &generation
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		return "", fmt.Errorf("oauth: mint a token: %w", err)
	}
	return token, nil
}

func validAccountID(s string) bool {
	if len(s) < 1 || len(s) > 64 {
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

// Verify implements [Verifier].
func (o *Offline) Verify(_ context.Context, token string) (Identity, error) {
	jws, err := parse(token, jose.HS256)
	if err != nil {
		return Identity{}, refused(Malformed)
	}
	var claims accessClaims
	err = open(jws, []jose.JSONWebKey{{Key: o.key}}, &claims)
	switch {
	case errors.Is(err, errNotJWT):
		return Identity{}, refused(Malformed)
	case err != nil:
		return Identity{}, err
	case !hasType(jws, offlineType):
		return Identity{}, refused(Untrusted)
	}
	return claims.identity(o.clock.Now())
}
