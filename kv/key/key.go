// Package key encodes typed values into keys whose byte order is the order of
// the values, part by part, and in which no encoded part is a prefix of another
// of the same type. So a key of several parts sorts by its first part, then the
// second, and a scan of a prefix of whole parts never meets foreign rows.
//
// The reader must know the types of the parts: they are not stored.
package key

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"time"
)

// ErrMalformed is returned for bytes that no Append function produces.
var ErrMalformed = errors.New("malformed key")

// Strings and byte strings: every 0x00 becomes 0x00 0xFF, and 0x00 0x01 ends the
// part. The terminator is smaller than every continuation, so a string sorts
// before the strings that it is a prefix of.
const (
	escape     = 0x00
	escapedNul = 0xff
	terminator = 0x01
)

// AppendString appends s.
func AppendString(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		dst = append(dst, s[i])
		if s[i] == escape {
			dst = append(dst, escapedNul)
		}
	}
	return append(dst, escape, terminator)
}

// AppendBytes appends b, encoded like a string.
func AppendBytes(dst, b []byte) []byte {
	for _, c := range b {
		dst = append(dst, c)
		if c == escape {
			dst = append(dst, escapedNul)
		}
	}
	return append(dst, escape, terminator)
}

// AppendUint appends u in one to nine bytes: the number of significant bytes,
// then these, most significant first.
func AppendUint(dst []byte, u uint64) []byte {
	n := (bits.Len64(u) + 7) / 8
	dst = append(dst, byte(n))
	for i := n - 1; i >= 0; i-- {
		dst = append(dst, byte(u>>(8*i)))
	}
	return dst
}

// AppendInt appends i in eight bytes, the sign flipped.
func AppendInt(dst []byte, i int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(i)^1<<63)
}

// AppendTime appends t to the nanosecond. Times before 1678 or after 2261 are
// brought to the nearest time that fits.
func AppendTime(dst []byte, t time.Time) []byte {
	const lo, hi = -1 << 63, 1<<63 - 1
	switch {
	case t.Before(time.Unix(0, lo)):
		return AppendInt(dst, lo)
	case t.After(time.Unix(0, hi)):
		return AppendInt(dst, hi)
	}
	return AppendInt(dst, t.UnixNano())
}

// Reader takes a key apart. After the first failure all further results are zero
// and Err tells. It does not copy: byte strings without a zero byte point into
// the key.
type Reader struct {
	rest []byte
	err  error
}

// NewReader returns a Reader at the beginning of key.
func NewReader(key []byte) *Reader { return &Reader{rest: key} }

// Err returns ErrMalformed if anything read so far was not what was asked for.
func (r *Reader) Err() error { return r.err }

// Rest returns the bytes not read yet.
func (r *Reader) Rest() []byte { return r.rest }

// Done returns ErrMalformed if a read failed or bytes are left over.
func (r *Reader) Done() error {
	if r.err == nil && len(r.rest) > 0 {
		r.fail()
	}
	return r.err
}

func (r *Reader) fail() {
	r.rest, r.err = nil, ErrMalformed
}

// Bytes reads a byte string.
func (r *Reader) Bytes() []byte {
	var unescaped []byte
	start := 0
	for i := 0; i+1 < len(r.rest); i++ {
		if r.rest[i] != escape {
			continue
		}
		switch r.rest[i+1] {
		case terminator:
			b := r.rest[start:i]
			if unescaped != nil {
				b = append(unescaped, b...)
			}
			r.rest = r.rest[i+2:]
			return b
		case escapedNul:
			unescaped = append(unescaped, r.rest[start:i+1]...)
			start = i + 2
			i++
		default:
			r.fail()
			return nil
		}
	}
	r.fail()
	return nil
}

// String reads a string.
func (r *Reader) String() string { return string(r.Bytes()) }

// Uint reads an unsigned integer.
func (r *Reader) Uint() uint64 {
	if len(r.rest) == 0 || r.rest[0] > 8 || len(r.rest) < 1+int(r.rest[0]) {
		r.fail()
		return 0
	}
	n := int(r.rest[0])
	if n > 0 && r.rest[1] == 0 {
		r.fail() // not the shortest form
		return 0
	}
	var u uint64
	for _, b := range r.rest[1 : 1+n] {
		u = u<<8 | uint64(b)
	}
	r.rest = r.rest[1+n:]
	return u
}

// Int reads a signed integer.
func (r *Reader) Int() int64 {
	if len(r.rest) < 8 {
		r.fail()
		return 0
	}
	u := binary.BigEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return int64(u ^ 1<<63)
}

// Time reads a time, in UTC.
func (r *Reader) Time() time.Time {
	i := r.Int()
	if r.err != nil {
		return time.Time{}
	}
	return time.Unix(0, i).UTC()
}
