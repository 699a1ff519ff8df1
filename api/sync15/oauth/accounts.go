package oauth

import (
	"context"
	"errors"

	"github.com/go-jose/go-jose/v4"
)

// Accounts verifies access tokens of an account service.
type Accounts struct {
	service *service
	keys    *Keys
}

// NewAccounts returns a verifier that checks JWTs with keys and asks the service of
// o about tokens that it cannot read, or about all while there is no key.
func NewAccounts(o Options, keys *Keys) *Accounts {
	return &Accounts{service: newService(o), keys: keys}
}

// Verify implements [Verifier]. A JWT that it can read is refused when it is out of
// date, of another type or signed by an unknown key, without asking the service.
func (a *Accounts) Verify(ctx context.Context, token string) (Identity, error) {
	id, err := a.verifyLocally(ctx, token)
	if errors.Is(err, errNotJWT) {
		return a.service.verify(ctx, token)
	}
	return id, err
}

func (a *Accounts) verifyLocally(ctx context.Context, token string) (Identity, error) {
	jws, err := parse(token, jose.RS256)
	if err != nil {
		return Identity{}, err
	}
	keys := a.keys.find(ctx, jws.Signatures[0].Protected.KeyID)
	if len(keys) == 0 {
		return Identity{}, errNotJWT
	}
	var claims accessClaims
	if err := open(jws, keys, &claims); err != nil {
		return Identity{}, err
	}
	if !hasType(jws, "at+jwt") {
		return Identity{}, refused(Untrusted)
	}
	return claims.identity(a.service.clock.Now())
}
