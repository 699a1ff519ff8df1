package hawk

import (
	"hash/maphash"
	"sync"
)

// ReplayGuard notices a request that somebody recorded and sends again. Because
// clients may be a year off ([Tolerance]), it cannot remember every nonce for as
// long as its timestamp is acceptable; it remembers a bounded number, the latest
// ones, and forgets them all at a restart. It is meant for requests that change
// something. Safe for concurrent use.
//
// It keeps 64-bit hashes under a seed of its own, so nobody can construct two
// requests that it takes for the same; that two meet by chance has a probability
// of about size/2⁶³ per request.
type ReplayGuard struct {
	seed   maphash.Seed
	shards [shards]struct {
		mu   sync.Mutex
		seen generations[uint64, struct{}]
	}
}

// NewReplayGuard returns a guard that remembers between size and twice size
// requests, at some 20 bytes each.
func NewReplayGuard(size int) *ReplayGuard {
	g := &ReplayGuard{seed: maphash.MakeSeed()}
	for i := range g.shards {
		g.shards[i].seen.limit = max(size/shards, 1)
	}
	return g
}

// Seen reports whether a request with the id, ts and nonce of h was seen before,
// and remembers it. Call it only after h has been verified, or strangers fill the
// memory.
func (g *ReplayGuard) Seen(h Header) bool {
	var m maphash.Hash
	m.SetSeed(g.seed)
	for _, s := range [...]string{h.ID, h.TS, h.Nonce} {
		m.WriteString(s)
		m.WriteByte('"') // occurs in no attribute
	}
	hash := m.Sum64()
	s := &g.shards[hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.seen.get(hash); ok {
		return true
	}
	s.seen.put(hash, struct{}{})
	return false
}
