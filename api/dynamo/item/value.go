package item

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"
)

// Type is the type of an attribute value, which is the first byte of its encoding.
type Type byte

// The types. None is that of a Value without bytes, which stands for no value.
const (
	None Type = 0
	S    Type = 'S'
	N    Type = 'N'
	B    Type = 'B'
	SS   Type = 's'
	NS   Type = 'n'
	BS   Type = 'b'
	L    Type = 'L'
	M    Type = 'M'
	Null Type = '0'
	Bool Type = '?'
)

// String returns the type's name in the API, such as SS or BOOL.
func (t Type) String() string {
	switch t {
	case S, N, B, L, M:
		return string(rune(t))
	case SS:
		return "SS"
	case NS:
		return "NS"
	case BS:
		return "BS"
	case Null:
		return "NULL"
	case Bool:
		return "BOOL"
	}
	return ""
}

// IsSet tells whether values of the type are sets.
func (t Type) IsSet() bool { return t == SS || t == NS || t == BS }

// element is the type of a set's elements.
func (t Type) element() Type {
	switch t {
	case SS:
		return S
	case NS:
		return N
	case BS:
		return B
	}
	return None
}

// Value is one attribute value in the stored encoding. It is immutable, and may be a
// part of a larger slice. A Value of length 0 is no value.
type Value []byte

// Type returns the type.
func (v Value) Type() Type {
	if len(v) == 0 {
		return None
	}
	return Type(v[0])
}

// Bytes returns the content of a string or binary value, as a part of v.
func (v Value) Bytes() []byte {
	if t := v.Type(); t != S && t != B {
		return nil
	}
	return v[1:]
}

// Bool returns the content of a BOOL.
func (v Value) Bool() bool { return v.Type() == Bool && len(v) == 2 && v[1] == 1 }

// Number returns the content of an N.
func (v Value) Number() Number {
	if v.Type() != N || len(v) == 2 { // 0 has one byte
		return Number{}
	}
	return Number{code: string(v[1:])}
}

// Len is the number of a container's elements or members, or of the bytes of a string
// or binary value. It is 0 for other types.
func (v Value) Len() int {
	switch v.Type() {
	case S, B:
		return len(v) - 1
	case SS, NS, BS, L, M:
		n, _ := uvarint(v[1:])
		return n
	}
	return 0
}

// uvarint reads a count or length. There cannot be more of anything than bytes follow.
func uvarint(b []byte) (n int, rest []byte) {
	u, size := binary.Uvarint(b)
	if size <= 0 || u > uint64(len(b)-size) {
		return 0, nil
	}
	return int(u), b[size:]
}

// piece reads bytes with their length. ok is false at the end.
func piece(b []byte) (p, rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, nil, false
	}
	u, size := binary.Uvarint(b)
	if size <= 0 || u > uint64(len(b)-size) {
		return nil, nil, false
	}
	end := size + int(u)
	return b[size:end:end], b[end:], true
}

// Elements yields the elements of a set or list, in order.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if t := v.Type(); t != L && !t.IsSet() {
			return
		}
		_, rest := uvarint(v[1:])
		for {
			e, after, ok := piece(rest)
			if !ok || !yield(e) {
				return
			}
			rest = after
		}
	}
}

// Element returns the i-th element of a set or list, counted from 0, or none.
func (v Value) Element(i int) Value {
	if i < 0 || i >= v.Len() {
		return nil
	}
	for e := range v.Elements() {
		if i == 0 {
			return e
		}
		i--
	}
	return nil
}

// Members yields the members of a map, in the order of their names.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for name, e := range v.members() {
			if !yield(string(name), e) {
				return
			}
		}
	}
}

// members is Members with names that are parts of v.
func (v Value) members() iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		if v.Type() != M {
			return
		}
		_, rest := uvarint(v[1:])
		for {
			name, after, ok := piece(rest)
			if !ok {
				return
			}
			e, after, ok := piece(after)
			if !ok || !yield(name, e) {
				return
			}
			rest = after
		}
	}
}

// Member returns the member of a map, or none.
func (v Value) Member(name string) Value {
	for n, e := range v.members() {
		switch {
		case string(n) == name:
			return e
		case string(n) > name:
			return nil
		}
	}
	return nil
}

// String returns an S. The text must be UTF-8.
func String(s string) Value { return append([]byte{byte(S)}, s...) }

// Bytes returns a B with a copy of b.
func Bytes(b []byte) Value { return append([]byte{byte(B)}, b...) }

// Num returns an N.
func Num(n Number) Value { return append([]byte{byte(N)}, n.bytes()...) }

// NullValue returns the NULL.
func NullValue() Value { return Value{byte(Null)} }

// BoolValue returns a BOOL.
func BoolValue(b bool) Value {
	if b {
		return Value{byte(Bool), 1}
	}
	return Value{byte(Bool), 0}
}

// List returns an L.
func List(elements ...Value) Value {
	return appendElements(nil, L, elements)
}

// Set returns a set of the given type. The elements must be of its element type; their
// order does not matter, and one that is there twice is kept once. It returns none if
// there are no elements.
func Set(t Type, elements ...Value) Value {
	if len(elements) == 0 {
		return nil
	}
	sorted := slices.Clone(elements)
	slices.SortFunc(sorted, func(a, b Value) int { return bytes.Compare(a, b) })
	return appendElements(nil, t, slices.CompactFunc(sorted, func(a, b Value) bool { return bytes.Equal(a, b) }))
}

func appendElements(dst []byte, t Type, elements []Value) Value {
	dst = appendCount(dst, t, len(elements))
	for _, e := range elements {
		dst = appendPiece(dst, e)
	}
	return dst
}

func appendCount(dst []byte, t Type, n int) []byte {
	return binary.AppendUvarint(append(dst, byte(t)), uint64(n))
}

func appendPiece(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// Map returns an M.
func Map(members map[string]Value) Value {
	b := make(builder, 0, len(members))
	for name, v := range members {
		b = append(b, member{[]byte(name), v})
	}
	return b.sorted().appendTo(nil)
}

// Empty is a map without members.
func Empty() Value { return Value{byte(M), 0} }

type member struct {
	name  []byte
	value Value
}

// builder gathers the members of a map.
type builder []member

func (b builder) sorted() builder {
	slices.SortFunc(b, func(x, y member) int { return bytes.Compare(x.name, y.name) })
	return b
}

// appendTo appends the map to dst. The members are in order.
func (b builder) appendTo(dst []byte) []byte {
	dst = appendCount(dst, M, len(b))
	for _, m := range b {
		dst = appendPiece(appendPiece(dst, m.name), m.value)
	}
	return dst
}

// Size is what a value counts against the limits of the service, in bytes. Names of an
// item's attributes count; the item itself, unlike maps in it, adds nothing of its own:
// see [ItemSize].
func (v Value) Size() int {
	const container, perElement = 3, 1
	n := 0
	switch v.Type() {
	case S, B:
		return len(v) - 1
	case N:
		return v.Number().size()
	case Null, Bool:
		return 1
	case SS, NS, BS:
		for e := range v.Elements() {
			n += e.Size()
		}
	case L:
		n = container
		for e := range v.Elements() {
			n += e.Size() + perElement
		}
	case M:
		n = container
		for name, e := range v.members() {
			n += len(name) + e.Size() + perElement
		}
	}
	return n
}

// ItemSize is the size of an item: its attributes' names and values.
func ItemSize(item Value) int {
	n := 0
	for name, v := range item.members() {
		n += len(name) + v.Size()
	}
	return n
}

// MaxDepth is how many lists and maps may be within each other.
const MaxDepth = 32

// Depth is how many lists and maps are within each other at most: 0 for a scalar.
func (v Value) Depth() int {
	n := 0
	switch v.Type() {
	case L:
		for e := range v.Elements() {
			n = max(n, e.Depth())
		}
	case M:
		for _, e := range v.members() {
			n = max(n, e.Depth())
		}
	default:
		return 0
	}
	return n + 1
}

// Equal tells whether two values are the same.
func Equal(a, b Value) bool { return bytes.Equal(a, b) }

// Compare orders two strings, numbers or binary values of one type. For others
// ordered is false.
func Compare(a, b Value) (order int, ordered bool) {
	t := a.Type()
	if t != b.Type() || t != S && t != N && t != B {
		return 0, false
	}
	return bytes.Compare(a[1:], b[1:]), true
}
