package pebble

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// memo remembers the versions of rows that were read a moment ago, so that a
// commit need not read them again to check them: nearly every check names what
// its transaction has just read. What it says is what the engine would read.
//
// Invariant: while a commit may write a key, nobody recalls it, because whoever does
// holds the key's lock; and when the commit ends, the memo has nothing about the keys
// that it wrote but what it wrote. A reader tells the memo what it saw only if no
// commit to the stripe has ended since before it looked.
//
// Keys are remembered by two hashes of 64 bits with seeds of the process.
type memo struct {
	seed    maphash.Seed
	stripes [memoStripes]memoStripe
}

// The stripes have some slots each: room for a few thousand rows more than all transactions at one time work on.
const (
	memoStripes = 4096
	memoSlots   = 4
)

type memoStripe struct {
	mu    sync.Mutex // guards what follows
	ended uint64     // commits that have written to the stripe
	slots [memoSlots]memoSlot
}

type memoSlot struct {
	hash, second uint64 // both 0: empty
	seen         sighting
}

// sighting is what a check needs to know of a row. The zero sighting is that of a
// row that does not exist.
type sighting struct {
	version   kv.Version
	expires   int64 // as in header
	hasExpiry bool
}

// seenBy returns the version of the row for a check.
func (s sighting) seenBy(c *kv.Check, now time.Time) kv.Version {
	h := header{version: s.version, expires: s.expires, hasExpiry: s.hasExpiry}
	if !h.counts(now, c.IncludeExpired) {
		return 0
	}
	return s.version
}

func (m *memo) at(hash uint64) *memoStripe { return &m.stripes[hash%memoStripes] }

func (s *memoStripe) slot(hash uint64) *memoSlot { return &s.slots[hash/memoStripes%memoSlots] }

// clock returns what learn must be given about a row that is going to be read.
func (m *memo) clock(hash uint64) uint64 {
	s := m.at(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// learn remembers what was read after clock.
func (m *memo) learn(l *lookup, seen sighting) {
	if !l.remember {
		return
	}
	second := maphash.Bytes(m.seed, l.key)
	s := m.at(l.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == l.clock {
		*s.slot(l.hash) = memoSlot{l.hash, second, seen}
	}
}

// recall returns what is known of a row whose lock the caller holds.
func (m *memo) recall(at *place) (sighting, bool) {
	second := maphash.Bytes(m.seed, at.key)
	s := m.at(at.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot := s.slot(at.hash); slot.hash == at.hash && slot.second == second {
		return slot.seen, true
	}
	return sighting{}, false
}

// written returns how a row looks after a write.
func written(w *kv.Write, v kv.Version) sighting {
	if w.Delete {
		return sighting{}
	}
	return sighting{version: v, expires: w.ExpiresAt.UnixMicro(), hasExpiry: !w.ExpiresAt.IsZero()}
}

// wrote notes the end of a commit whose keys are still locked: with its version,
// or with 0 if nobody can say what became of it.
func (m *memo) wrote(t *kv.Txn, p *plan, v kv.Version) {
	for i := range p.writes {
		at, w := &p.writes[i], &t.Writes[i]
		s := m.at(at.hash)
		s.mu.Lock()
		s.ended++
		if slot := s.slot(at.hash); slot.hash == at.hash {
			*slot = memoSlot{}
			if v != 0 {
				*slot = memoSlot{at.hash, maphash.Bytes(m.seed, at.key), written(w, v)}
			}
		}
		s.mu.Unlock()
	}
}
