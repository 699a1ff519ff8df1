package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/holdfast-dev/holdfast/clock"
)

// The types of events that matter to Sync. Others may occur.
const (
	DeleteUser     = "https://schemas.accounts.firefox.com/event/delete-user"
	PasswordChange = "https://schemas.accounts.firefox.com/event/password-change"
)

// Event is something that happened to an account.
type Event struct {
	Type       string // a URL
	AccountID  string
	ChangeTime time.Time // of a PasswordChange, in milliseconds
}

// Events verifies the security event tokens of an account service. Safe for
// concurrent use.
type Events struct {
	keys             *Keys
	clock            clock.Clock
	audience, issuer string
}

// NewEvents returns a verifier of tokens that the issuer made for the audience, our
// client id at the service. If one of both is empty, every token is refused.
func NewEvents(keys *Keys, c clock.Clock, audience, issuer string) *Events {
	return &Events{keys: keys, clock: c, audience: audience, issuer: issuer}
}

// Verify returns the events that a token tells of, ordered by type. The error is a
// [*RefusedError]. A token may have an expiry; it must not be over.
func (e *Events) Verify(ctx context.Context, token string) ([]Event, error) {
	jws, err := parse(token, jose.RS256)
	if err != nil {
		return nil, refused(Malformed)
	}
	var claims struct {
		Issuer   string                     `json:"iss"`
		Audience jwt.Audience               `json:"aud"`
		Subject  string                     `json:"sub"`
		Expiry   *jwt.NumericDate           `json:"exp"`
		Events   map[string]json.RawMessage `json:"events"`
	}
	err = open(jws, e.keys.find(ctx, jws.Signatures[0].Protected.KeyID), &claims)
	switch {
	case errors.Is(err, errNotJWT):
		return nil, refused(Malformed)
	case err != nil:
		return nil, err
	case claims.Issuer == "" || claims.Issuer != e.issuer || e.audience == "" || !claims.Audience.Contains(e.audience):
		return nil, refused(Untrusted)
	case claims.Expiry != nil && isExpired(claims.Expiry, e.clock.Now()):
		return nil, refused(Expired)
	case claims.Subject == "":
		return nil, refused(Malformed)
	}
	var events []Event
	for _, name := range slices.Sorted(maps.Keys(claims.Events)) {
		event := Event{Type: name, AccountID: claims.Subject}
		if name == PasswordChange {
			var details struct {
				ChangeTime *int64 `json:"changeTime"`
			}
			if json.Unmarshal(claims.Events[name], &details) != nil || details.ChangeTime == nil {
				return nil, refused(Malformed)
			}
			event.ChangeTime = time.UnixMilli(*details.ChangeTime).UTC()
		}
		events = append(events, event)
	}
	return events, nil
}
