package oauth

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// leeway is what clocks of servers may differ when the expiry is compared.
const leeway = time.Minute

// errNotJWT says that a text is no JWT of the algorithm asked for.
var errNotJWT = errors.New("oauth: not a JWT")

// parse reads a JWT whose signature has the algorithm given.
func parse(token string, algorithm jose.SignatureAlgorithm) (*jose.JSONWebSignature, error) {
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{algorithm})
	if err != nil || len(jws.Signatures) != 1 || !json.Valid(jws.UnsafePayloadWithoutVerification()) {
		return nil, errNotJWT
	}
	return jws, nil
}

// open checks a parsed token with the first key that fits and reads its claims.
// The errors are errNotJWT for claims of wrong types, or refusals.
func open(jws *jose.JSONWebSignature, keys []jose.JSONWebKey, claims any) error {
	for _, k := range keys {
		payload, err := jws.Verify(k.Key)
		if err != nil {
			continue
		}
		if json.Unmarshal(payload, claims) != nil {
			return errNotJWT
		}
		return nil
	}
	return refused(InvalidSignature)
}

// hasType compares the typ header: any case, with or without "application/".
func hasType(jws *jose.JSONWebSignature, want string) bool {
	typ, _ := jws.Signatures[0].Protected.ExtraHeaders[jose.HeaderType].(string)
	return strings.TrimPrefix(strings.ToLower(typ), "application/") == want
}

func isExpired(exp *jwt.NumericDate, now time.Time) bool {
	return now.After(exp.Time().Add(leeway))
}

// accessClaims are the claims of an access token, of the account service and of
// our own.
type accessClaims struct {
	Subject    string           `json:"sub"`
	Scope      string           `json:"scope"`
	Generation *int64           `json:"fxa-generation,omitempty"`
	Expiry     *jwt.NumericDate `json:"exp"`
	IssuedAt   *jwt.NumericDate `json:"iat,omitempty"`
}

// identity accepts genuine claims, unless they are out of date or of no use here.
func (c *accessClaims) identity(now time.Time) (Identity, error) {
	if c.Expiry == nil || isExpired(c.Expiry, now) {
		return Identity{}, refused(Expired)
	}
	return identify(c.Subject, splitScopes(c.Scope), c.Generation)
}
