package storage

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/kv"
)

// head is the value of a user's row in sync_heads.
type head struct {
	// owner is who the key is a hash of, for those who look after the server.
	owner User
	// last is the newest timestamp that the user was ever given. It survives the
	// deletion of everything, so that timestamps rise strictly whatever happens.
	last Timestamp
	// tombstone is when a collection was deleted last, 0 if none was since the
	// storage was empty.
	tombstone Timestamp
	// lives counts the lives given to collections.
	lives       uint64
	collections []collection
}

// collection is one entry of a head.
type collection struct {
	id   uint32
	life uint64
	// modified is 0 while the collection only has batches in it: it does not
	// exist for any reader yet.
	modified Timestamp
	// count, bytes and expiring describe the rows in bsos: how many, the sum of
	// their payload lengths, and how many of them have an expiry.
	count, bytes, expiring int64
}

func (c *collection) exists() bool { return c != nil && c.modified != 0 }

// find returns the entry of a collection, or nil. The pointer dies with the next
// change of h.collections.
func (h *head) find(id uint32) *collection {
	for i := range h.collections {
		if h.collections[i].id == id {
			return &h.collections[i]
		}
	}
	return nil
}

// touch returns the entry of a collection and makes it if there is none.
func (h *head) touch(id uint32) *collection {
	if c := h.find(id); c != nil {
		return c
	}
	h.lives++
	h.collections = append(h.collections, collection{id: id, life: h.lives})
	return &h.collections[len(h.collections)-1]
}

func (h *head) remove(id uint32) {
	h.collections = slices.DeleteFunc(h.collections, func(c collection) bool { return c.id == id })
}

// modified returns the timestamp of the whole storage.
func (h *head) modified() Timestamp {
	t := h.tombstone
	for i := range h.collections {
		t = max(t, h.collections[i].modified)
	}
	return t
}

func (h *head) bytes() int64 {
	var sum int64
	for i := range h.collections {
		sum += h.collections[i].bytes
	}
	return sum
}

func (h *head) expiring() bool {
	return slices.ContainsFunc(h.collections, func(c collection) bool { return c.expiring > 0 })
}

// headFormat is the first byte of a stored head.
const headFormat = 1

func (h *head) encode() []byte {
	b := make([]byte, 0, 64+len(h.owner.FxaUID)+len(h.owner.FxaKID)+24*len(h.collections))
	b = append(b, headFormat)
	b = binary.AppendUvarint(b, h.owner.UID)
	for _, s := range [...]string{h.owner.FxaUID, h.owner.FxaKID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.AppendUvarint(b, uint64(h.last))
	b = binary.AppendUvarint(b, uint64(h.tombstone))
	b = binary.AppendUvarint(b, h.lives)
	for i := range h.collections {
		c := &h.collections[i]
		b = binary.AppendUvarint(b, uint64(c.id))
		b = binary.AppendUvarint(b, c.life)
		b = binary.AppendUvarint(b, uint64(c.modified))
		b = binary.AppendUvarint(b, uint64(c.count))
		b = binary.AppendUvarint(b, uint64(c.bytes))
		b = binary.AppendUvarint(b, uint64(c.expiring))
	}
	return b
}

func decodeHead(row kv.Row) (*head, error) {
	h := &head{}
	if !row.Exists() {
		return h, nil
	}
	r := valueReader{rest: row.Value}
	if f := r.byte(); f != headFormat {
		return nil, fmt.Errorf("%w: head of format %d", kv.ErrCorrupt, f)
	}
	h.owner = User{UID: r.uint(), FxaUID: r.text(), FxaKID: r.text()}
	h.last, h.tombstone, h.lives = Timestamp(r.uint()), Timestamp(r.uint()), r.uint()
	h.collections = make([]collection, 0, len(r.rest)/8)
	for len(r.rest) > 0 && !r.bad {
		h.collections = append(h.collections, collection{
			id: uint32(r.uint()), life: r.uint(), modified: Timestamp(r.uint()),
			count: int64(r.uint()), bytes: int64(r.uint()), expiring: int64(r.uint()),
		})
	}
	if r.bad {
		return nil, fmt.Errorf("%w: head ends early", kv.ErrCorrupt)
	}
	return h, nil
}

// valueReader takes a stored value apart.
type valueReader struct {
	rest []byte
	bad  bool
}

func (r *valueReader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *valueReader) uint() uint64 {
	u, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return u
}

// text reads a string behind its length.
func (r *valueReader) text() string {
	n := r.uint()
	if n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *valueReader) int() int64 {
	i, n := binary.Varint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return i
}
