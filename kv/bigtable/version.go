package bigtable

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Sizes in bytes.
const (
	writerSize  = 6
	versionSize = 8 + writerSize
)

// version is the version of a row as its state cell has it: p is kv's version, and
// the writer makes it unique. Because a row's p rises strictly, p alone tells the
// versions of one row apart.
type version struct {
	p      uint64
	writer [writerSize]byte
}

func (v version) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint64(b, v.p), v.writer[:]...)
}

// parseVersion reads the first versionSize bytes of b.
func parseVersion(b []byte) version {
	v := version{p: binary.BigEndian.Uint64(b)}
	copy(v.writer[:], b[8:])
	return v
}

// maxDrift is how far ahead of the clock a version may be that moves it.
const maxDrift = 10 * time.Second

// hybrid is the hybrid logical clock that versions come from. It never gives out
// a number twice.
//
// A version far ahead of the clock, from a process with a wrong one, must not drag
// the versions of all other rows along. Numbers above such a version come from a
// range of their own, [lowFar, far], which the normal ones jump over when they
// get there.
type hybrid struct {
	clock clock.Clock

	mu          sync.Mutex
	last        uint64
	lowFar, far uint64
}

// next returns a number above floor, and above all that were returned before if
// the floor is not far ahead of the clock.
func (h *hybrid) next(floor uint64) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := uint64(kv.VersionAt(h.clock.Now()))
	near := h.jump(max(h.last+1, now))
	if floor < near {
		h.last = near
		return near
	}
	if floor < near+uint64(maxDrift.Milliseconds())<<12 {
		h.last = h.jump(floor + 1)
		return h.last
	}
	p := max(floor, h.far) + 1
	if h.far == 0 {
		h.lowFar = p
	}
	h.far = p
	h.lowFar = min(h.lowFar, p)
	return p
}

// jump returns the smallest number from p on that is not in the far range.
func (h *hybrid) jump(p uint64) uint64 {
	if p >= h.lowFar && p <= h.far {
		return h.far + 1
	}
	return p
}

// raise makes all further numbers larger than p.
func (h *hybrid) raise(p uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = max(h.last, p)
}
