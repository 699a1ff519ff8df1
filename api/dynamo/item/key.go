package item

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
)

// Keys of rows begin with a hash of the partition key, which spreads partitions that
// are named one after the other, and has those of one partition lie together. Then
// comes the partition key, and the sort key in a form that sorts.
//
// The longest key of a table is 1,286 bytes, that of an index 3,594.
const (
	// HashSize is the length of the hash.
	HashSize = 4
	// maxInline is how long a partition key can be without being replaced by its hash.
	maxInline = 255
	// digestFlag marks the tag of one that is.
	digestFlag = 0x80
)

// partition returns the hash and the partition key, as keys begin.
func partition(hash Value) []byte {
	b := make([]byte, HashSize, 64)
	b = appendPartition(b, hash)
	sum := sha256.Sum256(b[HashSize:])
	copy(b, sum[:HashSize])
	return b
}

// appendPartition appends a partition key, which is only compared for equality.
func appendPartition(dst []byte, hash Value) []byte {
	tag, content := hash[0], hash[1:]
	if len(content) <= maxInline {
		return append(append(dst, tag, byte(len(content))), content...)
	}
	sum := sha256.Sum256(content)
	return append(append(dst, tag|digestFlag), sum[:]...)
}

// Key returns the key of an item's row. Both values are an S, N or B; sort is none in a
// table without a sort key.
func Key(hash, sort Value) []byte {
	return append(partition(hash), sort...)
}

// IndexKey returns the key of an item's row in a global index, by the index's own key
// and that of the item, which makes it unique. A sort key is none where there is none.
func IndexKey(hash, sort, baseHash, baseSort Value) []byte {
	b := appendOrdered(partition(hash), sort)
	return append(appendPartition(b, baseHash), baseSort...)
}

// LocalKey returns the key of an item's row in a local index, by the item's partition
// key, the index's sort key and the item's sort key.
func LocalKey(hash, sort, baseSort Value) []byte {
	return append(appendOrdered(partition(hash), sort), baseSort...)
}

// appendOrdered appends a sort key that something follows.
func appendOrdered(dst []byte, sort Value) []byte {
	switch sort.Type() {
	case None:
		return dst
	case N:
		return append(dst, sort...)
	}
	return append(appendEscaped(append(dst, sort[0]), sort[1:]), 0, 1)
}

func appendEscaped(dst, b []byte) []byte {
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 {
			return append(dst, b...)
		}
		dst = append(append(dst, b[:i+1]...), 0xff)
		b = b[i+1:]
	}
}

// Range is the keys from Start up to, but without, End. An End of length 0 is none.
type Range struct{ Start, End []byte }

// Partition returns the range of a partition's keys.
func Partition(hash Value) Range {
	p := partition(hash)
	return Range{p, successor(p)}
}

// successor returns the first key behind all that begin with p.
func successor(p []byte) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] != 0xff {
			s := bytes.Clone(p[:i+1])
			s[i]++
			return s
		}
	}
	return nil
}

// Operator is how a sort key is compared.
type Operator int

// The operators of key conditions.
const (
	EqualTo Operator = iota
	LessThan
	AtMost
	GreaterThan
	AtLeast
	Between
	BeginsWith
)

// Sorted returns the range of a partition's keys whose sort key compares so with value,
// and, for Between, is at most high. inIndex tells that the keys are those of an index,
// where something follows the sort key.
func Sorted(hash Value, op Operator, value, high Value, inIndex bool) Range {
	p := append(partition(hash), value[0])
	all := successor(p)
	// at is the first key with a sort key of v or more; past is behind the last with v.
	at := func(v Value) []byte {
		if inIndex && v.Type() != N {
			return append(appendEscaped(bytes.Clone(p), v[1:]), 0, 1)
		}
		return append(bytes.Clone(p), v[1:]...)
	}
	past := func(v Value) []byte {
		if inIndex {
			return successor(at(v))
		}
		return append(at(v), 0)
	}
	switch op {
	case LessThan:
		return Range{p, at(value)}
	case AtMost:
		return Range{p, past(value)}
	case GreaterThan:
		return Range{past(value), all}
	case AtLeast:
		return Range{at(value), all}
	case Between:
		return Range{at(value), past(high)}
	case BeginsWith:
		prefix := appendPrefix(p, value, inIndex)
		return Range{prefix, successor(prefix)}
	}
	return Range{at(value), past(value)}
}

func appendPrefix(p []byte, value Value, inIndex bool) []byte {
	if inIndex {
		return appendEscaped(bytes.Clone(p), value[1:])
	}
	return append(bytes.Clone(p), value[1:]...)
}

// Segment returns the range of the i-th of n parts of all keys, counted from 0. n is at
// least 1.
func Segment(i, n int) Range {
	return Range{segmentStart(i, n), segmentStart(i+1, n)}
}

// segmentStart is none for the end of all keys.
func segmentStart(i, n int) []byte {
	if i == n {
		return nil
	}
	at := (uint64(i)<<32 + uint64(n) - 1) / uint64(n)
	return binary.BigEndian.AppendUint32(nil, uint32(at))
}

// TTLShards is how many shards the index of expiring items has.
const TTLShards = 16

// TTLKey returns the key of an item's entry in the index of expiring items: by shard,
// time in Unix seconds, account (12 digits), the table's name (at most 255 bytes), and
// the key of the item's row.
func TTLKey(expiry uint64, account, table string, key []byte) []byte {
	b := append(make([]byte, 0, 11+len(account)+len(table)+len(key)), TTLShard(key))
	b = binary.BigEndian.AppendUint64(b, expiry)
	b = append(append(b, byte(len(account))), account...)
	b = append(append(b, byte(len(table))), table...)
	return append(b, key...)
}

// TTLShard returns the shard of the row with that key.
func TTLShard(key []byte) byte {
	h := fnv.New64a()
	h.Write(key) // never fails
	return byte(h.Sum64() % TTLShards)
}

// TTLEntry is what a key of the index of expiring items says.
type TTLEntry struct {
	Expiry         uint64 // Unix seconds
	Account, Table string
	Key            []byte // of the item's row
}

// ParseTTLKey reads a key that TTLKey has made.
func ParseTTLKey(b []byte) (e TTLEntry, ok bool) {
	if len(b) < 10 {
		return e, false
	}
	e.Expiry = binary.BigEndian.Uint64(b[1:])
	rest := b[9:]
	for _, s := range []*string{&e.Account, &e.Table} {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return e, false
		}
		*s, rest = string(rest[1:1+int(rest[0])]), rest[1+int(rest[0]):]
	}
	e.Key = rest
	return e, len(rest) > HashSize && TTLShard(rest) == b[0]
}
