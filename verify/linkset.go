package verify

import (
	"hash/maphash"
	"slices"
)

// linkSet is the names of objects that rows point at, as hashes. Names are added,
// then the set is sealed, then it answers.
type linkSet struct {
	seed   maphash.Seed
	hashes []uint64 // sorted once sealed; the lowest bit says that the row is old
	seen   []bool   // objects met, by the place of their hash
}

func newLinkSet() *linkSet { return &linkSet{seed: maphash.MakeSeed()} }

func (s *linkSet) hash(name string) uint64 { return maphash.String(s.seed, name) &^ 1 }

// add notes a name. old says that the row has pointed at it for longer than the
// lag.
func (s *linkSet) add(name string, old bool) {
	h := s.hash(name)
	if old {
		h |= 1
	}
	s.hashes = append(s.hashes, h)
}

// seal ends the adding. Of two rows with one link the older counts.
func (s *linkSet) seal() {
	slices.Sort(s.hashes)
	n := 0
	for i, h := range s.hashes {
		if i+1 < len(s.hashes) && s.hashes[i+1]&^1 == h&^1 {
			continue // the next one is the same, or the same and old
		}
		s.hashes[n] = h
		n++
	}
	s.hashes = s.hashes[:n]
	s.seen = make([]bool, n)
}

func (s *linkSet) place(name string) int {
	h := s.hash(name)
	i, ok := slices.BinarySearch(s.hashes, h)
	if !ok && (i == len(s.hashes) || s.hashes[i] != h|1) {
		return -1
	}
	return i
}

// meet notes that there is an object of that name.
func (s *linkSet) meet(name string) (linked, old bool) {
	i := s.place(name)
	if i < 0 {
		return false, false
	}
	s.seen[i] = true
	return true, s.hashes[i]&1 != 0
}

// unmet reports whether name was added and no object of it was met.
func (s *linkSet) unmet(name string) bool {
	i := s.place(name)
	return i >= 0 && !s.seen[i]
}

// unmetCount is how many names there are for which unmet holds.
func (s *linkSet) unmetCount() int {
	n := 0
	for _, seen := range s.seen {
		if !seen {
			n++
		}
	}
	return n
}
