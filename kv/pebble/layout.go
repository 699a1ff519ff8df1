package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// formatVersion is the version of the layout that this package writes. A folder
// with a larger one is refused.
const formatVersion = 1

// Kinds of entries: the first byte of a key.
const (
	kindMeta  = 'm'
	kindSpace = 's'
	kindRow   = 'r'
	kindFeed  = 'f'
)

var (
	formatKey  = []byte{kindMeta, 'f', 'o', 'r', 'm', 'a', 't'}
	ceilingKey = []byte{kindMeta, 'c', 'e', 'i', 'l', 'i', 'n', 'g'}
	nextIDKey  = []byte{kindMeta, 'n', 'e', 'x', 't'}
)

var errMalformed = errors.New("malformed")

func spaceKey(name string) []byte { return append([]byte{kindSpace}, name...) }

func idPrefix(kind byte, id uint64) []byte { return key.AppendUint([]byte{kind}, id) }

// Flags of a row. A row with any other flag is from a format that this package
// does not know.
const (
	rowHasExpiry = 1 << iota
	rowHasLink
	rowFlags = rowHasExpiry | rowHasLink
)

const (
	versionSize = 8
	expirySize  = 8
)

// header is a stored row taken apart. Its slices point into the stored bytes.
type header struct {
	version kv.Version
	// expires is in Unix microseconds; only if hasExpiry.
	expires   int64
	hasExpiry bool
	link      []byte
	value     []byte
}

func (h *header) expired(now time.Time) bool { return h.hasExpiry && h.expires <= now.UnixMicro() }

// counts reports whether a reader, or a check, sees the row at all.
func (h *header) counts(now time.Time, includeExpired bool) bool {
	return h.version != 0 && (includeExpired || !h.expired(now))
}

// row returns the row with the given key. The value is borrowed.
func (h *header) row(key []byte, now time.Time) kv.Row {
	r := kv.Row{Key: key, Value: h.value, Version: h.version}
	if h.link != nil {
		r.Link = string(h.link)
	}
	if h.hasExpiry {
		r.ExpiresAt = time.UnixMicro(h.expires).UTC()
		r.Expired = h.expired(now)
	}
	return r
}

// rowSize is the size of what appendRow appends.
func rowSize(w *kv.Write) int {
	n := 1 + versionSize + len(w.Value)
	if !w.ExpiresAt.IsZero() {
		n += expirySize
	}
	if w.Link != "" {
		n += uvarintSize(uint64(len(w.Link))) + len(w.Link)
	}
	return n
}

// appendRow encodes a row: flags, version, then, as the flags tell, the expiry in
// microseconds and the link behind its length as an uvarint, then the value.
func appendRow(dst []byte, w *kv.Write, v kv.Version) []byte {
	var flags byte
	if !w.ExpiresAt.IsZero() {
		flags |= rowHasExpiry
	}
	if w.Link != "" {
		flags |= rowHasLink
	}
	dst = append(dst, flags)
	dst = binary.BigEndian.AppendUint64(dst, uint64(v))
	if flags&rowHasExpiry != 0 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(w.ExpiresAt.UnixMicro()))
	}
	if flags&rowHasLink != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(w.Link)))
		dst = append(dst, w.Link...)
	}
	return append(dst, w.Value...)
}

// decode takes apart what appendRow made.
func (h *header) decode(b []byte) error {
	if len(b) < 1+versionSize || b[0]&^rowFlags != 0 {
		return errMalformed
	}
	flags := b[0]
	*h = header{version: kv.Version(binary.BigEndian.Uint64(b[1:])), value: b[1+versionSize:]}
	if h.version == 0 {
		return errMalformed
	}
	if flags != 0 {
		return h.decodeRest(flags)
	}
	return nil
}

// decodeRest takes the expiry and the link off the front of h.value.
func (h *header) decodeRest(flags byte) error {
	b := h.value
	if flags&rowHasExpiry != 0 {
		if len(b) < expirySize {
			return errMalformed
		}
		h.expires, h.hasExpiry = int64(binary.BigEndian.Uint64(b)), true
		b = b[expirySize:]
	}
	if flags&rowHasLink != 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n == 0 || n > kv.MaxLinkSize || n > uint64(len(b)-size) {
			return errMalformed
		}
		h.link, b = b[size:size+int(n)], b[size+int(n):]
	}
	h.value = b
	return nil
}

// feedPlace is where an entry stands in its shard.
type feedPlace struct {
	version kv.Version
	index   uint32
}

const feedPlaceSize = versionSize + 4

func (p feedPlace) less(q feedPlace) bool {
	return p.version < q.version || p.version == q.version && p.index < q.index
}

// next is the smallest place behind p.
func (p feedPlace) next() feedPlace {
	if p.index++; p.index == 0 {
		p.version++
	}
	return p
}

func (p feedPlace) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.version))
	return binary.BigEndian.AppendUint32(dst, p.index)
}

func decodeFeedPlace(b []byte) (feedPlace, error) {
	if len(b) != feedPlaceSize {
		return feedPlace{}, errMalformed
	}
	return feedPlace{kv.Version(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint32(b[versionSize:])}, nil
}

// position writes p in 24 hexadecimal digits.
func (p feedPlace) position() kv.Position {
	return kv.Position(fmt.Sprintf("%016x%08x", uint64(p.version), p.index))
}

// parsePosition reads what position wrote, and "" as the beginning.
func parsePosition(s kv.Position) (feedPlace, error) {
	if s == "" {
		return feedPlace{}, nil
	}
	if len(s) == 2*feedPlaceSize {
		v, err1 := strconv.ParseUint(string(s[:2*versionSize]), 16, 64)
		i, err2 := strconv.ParseUint(string(s[2*versionSize:]), 16, 32)
		if p := (feedPlace{kv.Version(v), uint32(i)}); err1 == nil && err2 == nil && p.position() == s {
			return p, nil
		}
	}
	return feedPlace{}, fmt.Errorf("%w: %q is no position of a feed", kv.ErrInvalid, s)
}

// shardOf is part of the format: entries of a key must stay in their shard.
func shardOf(k []byte, shards int) int {
	h := fnv.New64a()
	_, _ = h.Write(k)
	return int(h.Sum64() % uint64(shards))
}

func feedEntrySize(w *kv.Write) int {
	return uvarintSize(uint64(len(w.Key))) + len(w.Key) + len(w.Feed)
}

// appendFeedEntry encodes the value of a feed entry: the key behind its length as
// an uvarint, then the data.
func appendFeedEntry(dst []byte, w *kv.Write) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(w.Key)))
	dst = append(dst, w.Key...)
	return append(dst, w.Feed...)
}

func decodeFeedEntry(b []byte) (k, data []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n == 0 || n > kv.MaxKeySize || n > uint64(len(b)-size) {
		return nil, nil, errMalformed
	}
	b = b[size:]
	return b[:n], b[n:], nil
}

// encodeSpace encodes the value of a space: id, links (0 or 1), shards and
// retention in nanoseconds, all as uvarints.
func encodeSpace(id uint64, o kv.SpaceOptions) []byte {
	var links uint64
	if o.Links {
		links = 1
	}
	b := binary.AppendUvarint(nil, id)
	b = binary.AppendUvarint(b, links)
	b = binary.AppendUvarint(b, uint64(o.FeedShards))
	return binary.AppendUvarint(b, uint64(o.FeedRetention))
}

func decodeSpace(b []byte) (id uint64, o kv.SpaceOptions, err error) {
	var f [4]uint64
	for i := range f {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return 0, o, errMalformed
		}
		f[i], b = n, b[size:]
	}
	o = kv.SpaceOptions{Links: f[1] == 1, FeedShards: int(f[2]), FeedRetention: time.Duration(f[3])}
	if len(b) != 0 || f[0] == 0 || f[1] > 1 || f[2] > kv.MaxFeedShards || o.FeedRetention < 0 || (f[2] > 0) != (f[3] > 0) {
		return 0, o, errMalformed
	}
	return f[0], o, nil
}

func uvarintSize(n uint64) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}
