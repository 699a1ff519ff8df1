package oauth

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
)

const (
	// keysLifetime is how long the service's keys are used before they are asked
	// for again. If that fails, they stay in use.
	keysLifetime = time.Hour
	// keysPause is the least time between two questions, whatever tokens come in.
	keysPause = time.Minute
)

// ParseKey reads a public RSA key in JWK form.
func ParseKey(text string) (jose.JSONWebKey, error) {
	var k jose.JSONWebKey
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return jose.JSONWebKey{}, fmt.Errorf("oauth: parse a JWK: %w", err)
	}
	if !usable(&k) {
		return jose.JSONWebKey{}, errors.New("oauth: the JWK is no public RSA key for RS256 signatures")
	}
	return k, nil
}

func usable(k *jose.JSONWebKey) bool {
	_, isRSA := k.Key.(*rsa.PublicKey)
	return isRSA && (k.Use == "" || k.Use == "sig") && (k.Algorithm == "" || k.Algorithm == string(jose.RS256))
}

// Keys are the public keys of an account service: fixed ones, or those that the
// service publishes, fetched when they are first needed, hourly, and when a token
// names one that is not known yet. Safe for concurrent use.
type Keys struct {
	service *service // nil: fixed
	flight  singleflight.Group

	mu      sync.Mutex
	known   []jose.JSONWebKey
	fetched time.Time // of the last success
	asked   time.Time // of the last attempt
}

// NewKeys returns the keys given, or, without any, those that the service of o
// publishes.
func NewKeys(o Options, fixed ...jose.JSONWebKey) *Keys {
	if len(fixed) > 0 {
		return &Keys{known: fixed}
	}
	return &Keys{service: newService(o)}
}

// find returns the keys that may have signed a token with this kid header: all,
// because the header is only a hint. It tolerates that the service cannot be asked.
func (k *Keys) find(ctx context.Context, kid string) []jose.JSONWebKey {
	k.mu.Lock()
	known, due := k.known, k.due(kid)
	k.mu.Unlock()
	if !due {
		return known
	}
	done := k.flight.DoChan("", func() (any, error) {
		// One caller asks for all who wait, so it goes on when that caller leaves.
		k.fetch(context.WithoutCancel(ctx), kid)
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known
}

// due reports whether to ask the service. Call it with mu held.
func (k *Keys) due(kid string) bool {
	if k.service == nil {
		return false
	}
	now := k.service.clock.Now()
	if sinceOrNever(k.asked, now) < keysPause {
		return false
	}
	return len(k.known) == 0 || sinceOrNever(k.fetched, now) >= keysLifetime || kid != "" && !hasKey(k.known, kid)
}

// sinceOrNever returns the time from then to now, and a very long one if the clock
// has jumped back, so that a jump cannot keep old keys.
func sinceOrNever(then, now time.Time) time.Duration {
	if then.IsZero() || now.Before(then) {
		return 1<<63 - 1
	}
	return now.Sub(then)
}

func hasKey(keys []jose.JSONWebKey, kid string) bool {
	for i := range keys {
		if keys[i].KeyID == kid {
			return true
		}
	}
	return false
}

// fetch asks the service, unless another caller has done so since k was due.
func (k *Keys) fetch(ctx context.Context, kid string) {
	k.mu.Lock()
	due, now := k.due(kid), k.service.clock.Now()
	k.mu.Unlock()
	if !due {
		return
	}
	keys, err := k.service.keys(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = now
	if err == nil {
		k.known, k.fetched = keys, now
	}
}
