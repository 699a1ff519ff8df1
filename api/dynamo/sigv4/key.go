package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"strings"
	"sync"
)

// key is what a client signs with: its secret, narrowed to a day, region and service.
type key = [sha256.Size]byte

func signingKey(secret, date, region, service string) key {
	k := []byte("AWS4" + secret)
	for _, part := range [...]string{date, region, service, terminator} {
		k = sign(k, part)
	}
	return key(k)
}

func sign(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// keyCache remembers signing keys, because deriving one costs four times what a
// signature does. It holds only keys that have signed a request, so that nobody
// without a secret can fill it. New and used keys live in young; when that holds
// limit of them it becomes old, and what was old until then is dropped.
type keyCache struct {
	limit      int
	mu         sync.Mutex
	young, old map[keyScope]derived
}

type keyScope struct{ accessKeyID, date, region string }

// derived is a signing key, and from what secret: a secret may be replaced.
type derived struct {
	secret string
	key    key
}

func (c *keyCache) get(s *signature, secret string) (key, bool) {
	scope := keyScope{s.accessKeyID, s.date, s.region}
	c.mu.Lock()
	d, ok := c.young[scope]
	if !ok {
		if d, ok = c.old[scope]; ok {
			c.keep(scope.clone(), d)
		}
	}
	c.mu.Unlock()
	if !ok || subtle.ConstantTimeCompare([]byte(d.secret), []byte(secret)) != 1 {
		return key{}, false
	}
	return d.key, true
}

func (c *keyCache) put(s *signature, secret string, k key) {
	scope := keyScope{s.accessKeyID, s.date, s.region}.clone()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(scope, derived{secret, k})
}

// keep adds to young. The caller holds mu.
func (c *keyCache) keep(scope keyScope, d derived) {
	if len(c.young) >= c.limit {
		c.young, c.old = c.old, c.young
		clear(c.young)
	}
	if c.young == nil {
		c.young = make(map[keyScope]derived)
	}
	c.young[scope] = d
}

// clone is free of the request's header, which would live as long as the key.
func (s keyScope) clone() keyScope {
	return keyScope{strings.Clone(s.accessKeyID), strings.Clone(s.date), strings.Clone(s.region)}
}
