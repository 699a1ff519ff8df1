package bso

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of values that are skipped, as the public service
// bounds it.
const maxDepth = 128

// scanner reads JSON (RFC 8259) from b, which must be valid UTF-8. It knows what
// follows at i and nothing else. After an error it must not be used any more.
//
// Strings with escapes are decoded in place, so b is not the same afterwards: a
// payload of the Sync clients is JSON itself and always has escapes, and copying
// into fresh memory would cost more than reading it.
type scanner struct {
	b []byte
	i int
}

type kind uint8

const (
	kindNone kind = iota // no value starts here
	kindObject
	kindArray
	kindString
	kindNumber
	kindNull
	kindBool
)

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there, 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.i == len(s.b) {
		return 0
	}
	return s.b[s.i]
}

// take skips white space and c, if c is there.
func (s *scanner) take(c byte) bool {
	if s.next() != c || s.i == len(s.b) {
		return false
	}
	s.i++
	return true
}

func (s *scanner) atEnd() bool {
	s.space()
	return s.i == len(s.b)
}

// kind tells which value follows by its first byte.
func (s *scanner) kind() kind {
	switch c := s.next(); c {
	case '{':
		return kindObject
	case '[':
		return kindArray
	case '"':
		return kindString
	case 'n':
		return kindNull
	case 't', 'f':
		return kindBool
	default:
		if c == '-' || isDigit(c) {
			return kindNumber
		}
		return kindNone
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// str reads a string and returns its value, a part of s.b. Lone surrogates in \u
// escapes are refused: they have no UTF-8 form, and replacing them would change
// what the client stores.
func (s *scanner) str() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	start := s.i
	s.i += plain(s.b[s.i:])
	if s.i == len(s.b) {
		return nil, false
	}
	if s.b[s.i] == '"' {
		s.i++
		return s.b[start : s.i-1 : s.i-1], true
	}
	end := s.i // of what is decoded so far; never beyond s.i
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			s.i++
			return s.b[start:end:end], true
		case '\\':
			n, ok := s.escape(s.b[end:])
			if !ok {
				return nil, false
			}
			end += n
		default:
			return nil, false // a control character
		}
		n := plain(s.b[s.i:])
		copy(s.b[end:], s.b[s.i:s.i+n])
		end += n
		s.i += n
	}
	return nil, false
}

// escape reads an escape sequence and writes its value to dst, which may overlap
// the sequence but not what follows. It returns the number of bytes written.
func (s *scanner) escape(dst []byte) (int, bool) {
	if s.i+1 >= len(s.b) {
		return 0, false
	}
	c := s.b[s.i+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return s.escapeUnicode(dst)
	default:
		return 0, false
	}
	dst[0] = c
	s.i += 2
	return 1, true
}

func (s *scanner) escapeUnicode(dst []byte) (int, bool) {
	r, ok := s.unit()
	if !ok {
		return 0, false
	}
	if utf16.IsSurrogate(r) {
		low, ok := s.unit()
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return 0, false
		}
	}
	return utf8.EncodeRune(dst, r), true // at most half as long as the escape
}

// unit reads \uXXXX.
func (s *scanner) unit() (rune, bool) {
	if s.i+6 > len(s.b) || s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range s.b[s.i+2 : s.i+6] {
		v := unhex(c)
		if v < 0 {
			return 0, false
		}
		r = r<<4 | rune(v)
	}
	s.i += 6
	return r, true
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special returns a word with the high bit of each byte of w that is a quote, a
// backslash or a control character. Bits above the lowest one set may be wrong.
func special(w uint64) uint64 {
	quote := w ^ '"'*ones
	slash := w ^ '\\'*ones
	return ((quote-ones)&^quote | (slash-ones)&^slash | (w-' '*ones)&^w) & highs
}

// plain returns the length of the longest prefix of b that needs no escape within a
// JSON string. It looks at eight bytes at a time.
func plain(b []byte) int {
	i := 0
	for ; i+16 <= len(b); i += 16 {
		first := special(binary.LittleEndian.Uint64(b[i:]))
		second := special(binary.LittleEndian.Uint64(b[i+8:]))
		if first != 0 {
			return i + bits.TrailingZeros64(first)/8
		}
		if second != 0 {
			return i + 8 + bits.TrailingZeros64(second)/8
		}
	}
	for ; i < len(b); i++ {
		if isSpecial(b[i]) {
			break
		}
	}
	return i
}

func isSpecial(c byte) bool { return c < ' ' || c == '"' || c == '\\' }

// number reads a number and returns its text.
func (s *scanner) number() ([]byte, bool) {
	start := s.i
	if s.i < len(s.b) && s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case !s.digits():
		return nil, false
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return nil, false
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return nil, false
		}
	}
	return s.b[start:s.i], true
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && isDigit(s.b[s.i]) {
		s.i++
	}
	return s.i > start
}

func (s *scanner) literal(text string) bool {
	if !bytes.HasPrefix(s.b[s.i:], []byte(text)) {
		return false
	}
	s.i += len(text)
	return true
}

// skip reads any value and forgets it. It keeps its own stack, one bit for each
// open array (0) or object (1), so depth costs nothing.
func (s *scanner) skip() bool {
	var objects [maxDepth / 64]uint64
	depth := 0
	for {
		opened := false
		switch k := s.kind(); k {
		case kindObject, kindArray:
			if depth == maxDepth {
				return false
			}
			s.i++
			bit := uint64(1) << (depth % 64)
			objects[depth/64] &^= bit
			if k == kindObject {
				objects[depth/64] |= bit
			}
			depth++
			opened = true
		default:
			if !s.scalar(k) {
				return false
			}
		}
		// Close what ends here, then go on to the next element, if there is one.
		for ; ; opened = false {
			if depth == 0 {
				return true
			}
			inObject := objects[(depth-1)/64]>>((depth-1)%64)&1 == 1
			if inObject && s.take('}') || !inObject && s.take(']') {
				depth--
				continue
			}
			if !opened && !s.take(',') || inObject && !s.name() {
				return false
			}
			break
		}
	}
}

// name reads the name of an object's member and the colon.
func (s *scanner) name() bool {
	s.space()
	_, ok := s.str()
	return ok && s.take(':')
}

func (s *scanner) scalar(k kind) bool {
	ok := false
	switch k {
	case kindString:
		_, ok = s.str()
	case kindNumber:
		_, ok = s.number()
	case kindNull:
		ok = s.literal("null")
	case kindBool:
		ok = s.literal("true") || s.literal("false")
	}
	return ok
}
