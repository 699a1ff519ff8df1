package hawk

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"
)

// shards of a Cache or ReplayGuard have a mutex each, so that requests rarely
// wait for one another. A power of two.
const shards = 16

// Cache remembers verified tokens and their keys, because checking one from
// scratch costs many times what the MAC of a request costs. Only tokens with a
// valid signature are kept; their expiry is checked at each call. Safe for
// concurrent use.
type Cache struct {
	keyring *Keyring
	seed    maphash.Seed
	shards  [shards]struct {
		mu     sync.Mutex
		tokens generations[uint64, cachedToken]
	}
}

type cachedToken struct {
	text  string
	token *Token
}

// NewCache returns an empty cache before k which keeps between size and twice
// size tokens, about 1.5 KiB each, the recently used ones.
func NewCache(k *Keyring, size int) *Cache {
	c := &Cache{keyring: k, seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].tokens.limit = max(size/shards, 1)
	}
	return c
}

// Verify is [Keyring.Verify].
func (c *Cache) Verify(token string, now time.Time) (*Token, error) {
	t, err := c.VerifyIgnoringExpiry(token)
	if err != nil {
		return nil, err
	}
	if err := t.CheckExpiry(now); err != nil {
		return nil, err
	}
	return t, nil
}

// VerifyIgnoringExpiry is [Keyring.VerifyIgnoringExpiry].
func (c *Cache) VerifyIgnoringExpiry(token string) (*Token, error) {
	hash := maphash.String(c.seed, token)
	s := &c.shards[hash%shards]
	s.mu.Lock()
	cached, ok := s.tokens.get(hash)
	s.mu.Unlock()
	if ok && cached.text == token {
		return cached.token, nil
	}
	t, err := c.keyring.VerifyIgnoringExpiry(token)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	// A copy: the token is a part of a request's headers.
	s.tokens.put(hash, cachedToken{text: strings.Clone(token), token: t})
	s.mu.Unlock()
	return t, nil
}

// generations is a map that forgets. New and used keys live in young; when that
// holds limit keys it becomes old, and what was old until then is dropped. So the
// limit keys used last are always there, and never more than twice as many.
type generations[K comparable, V any] struct {
	limit      int
	young, old map[K]V
}

func (g *generations[K, V]) get(k K) (V, bool) {
	if v, ok := g.young[k]; ok {
		return v, true
	}
	v, ok := g.old[k]
	if ok {
		g.put(k, v)
	}
	return v, ok
}

func (g *generations[K, V]) put(k K, v V) {
	if len(g.young) >= g.limit {
		g.young, g.old = g.old, g.young
		clear(g.young)
	}
	if g.young == nil {
		g.young = make(map[K]V)
	}
	g.young[k] = v
}
