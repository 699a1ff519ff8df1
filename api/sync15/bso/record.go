package bso

import (
	"bytes"
	"fmt"
)

// record is an object of a body, as far as it has been read.
type record struct {
	Update
	id        idKind
	unknown   string // a complaint about the first unknown key
	payload   fault
	sortIndex integer
	ttl       integer
}

type idKind uint8

const (
	idMissing idKind = iota
	idText
	idInteger // whose text is the ID
	idOther
)

// fault is what is wrong with a field.
type fault uint8

const (
	faultNone fault = iota
	faultType
	faultRange
)

type integer struct {
	value int32
	given bool
	fault fault
}

// malformed returns what is wrong with the keys and types of r, or "".
func (r *record) malformed() string {
	switch {
	case r.unknown != "":
		return r.unknown
	case r.payload == faultType:
		return "invalid json: payload is not a string"
	case r.sortIndex.fault == faultType:
		return "invalid json: sortindex is not an integer"
	case r.ttl.fault == faultType:
		return "invalid json: ttl is not an integer"
	}
	return ""
}

// outOfRange returns what is wrong with the values of r, or "".
func (r *record) outOfRange() string {
	switch {
	case !ValidID(r.ID) || r.id == idInteger:
		return "invalid bso: id is not 1 to 64 printable ASCII characters"
	case r.sortIndex.fault == faultRange:
		return "invalid bso: sortindex has more than nine digits"
	case r.ttl.fault == faultRange:
		return "invalid bso: ttl is negative or has more than nine digits"
	}
	return ""
}

// record reads an object, which must follow. It returns false if that is not JSON;
// any other fault is left in r.
func (s *scanner) record(r *record) bool {
	s.i++
	if s.take('}') {
		return true
	}
	for {
		key, ok := s.str()
		if !ok || !s.take(':') || !s.member(r, key) {
			return false
		}
		if s.take('}') {
			r.SortIndex, r.HasSortIndex = r.sortIndex.value, r.sortIndex.given
			r.TTL, r.HasTTL = r.ttl.value, r.ttl.given
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

func (s *scanner) member(r *record, key []byte) bool {
	switch string(key) {
	case "payload":
		return s.payload(r)
	case "id":
		return s.id(r)
	case "sortindex":
		return s.integer(&r.sortIndex, -maxInteger)
	case "ttl":
		return s.integer(&r.ttl, 0)
	case "modified", "collection":
		return s.skip()
	}
	if r.unknown == "" {
		r.unknown = fmt.Sprintf("unknown field %q", key[:min(len(key), 64)])
	}
	return s.skip()
}

func (s *scanner) payload(r *record) (ok bool) {
	r.Payload, r.HasPayload, r.payload = nil, false, faultNone
	switch s.kind() {
	case kindString:
		r.Payload, ok = s.str()
		r.HasPayload = true
		return ok
	case kindNull:
		return s.skip()
	}
	r.payload = faultType
	return s.skip()
}

func (s *scanner) id(r *record) bool {
	r.ID, r.id = "", idOther
	switch s.kind() {
	case kindString:
		text, ok := s.str()
		r.ID, r.id = string(text), idText
		return ok
	case kindNumber:
		text, ok := s.number()
		if isInteger(text) {
			r.ID, r.id = string(text), idInteger
		}
		return ok
	}
	return s.skip()
}

// integer reads a field whose values lie between least and maxInteger.
func (s *scanner) integer(n *integer, least int64) bool {
	*n = integer{}
	switch s.kind() {
	case kindNumber:
	case kindNull:
		return s.skip()
	default:
		n.fault = faultType
		return s.skip()
	}
	text, ok := s.number()
	if !isInteger(text) {
		n.fault = faultType
		return ok
	}
	value := parseInteger(text)
	if value < least || value > maxInteger {
		n.fault = faultRange
		return ok
	}
	n.value, n.given = int32(value), true
	return ok
}

// isInteger tells a JSON number without fraction and exponent from others: 3.0 is
// not an integer.
func isInteger(number []byte) bool { return !bytes.ContainsAny(number, ".eE") }

// parseInteger returns the value of an integer's text, or something out of range.
func parseInteger(text []byte) int64 {
	digits := bytes.TrimPrefix(text, []byte("-"))
	var v int64
	for _, c := range digits {
		v = min(v*10+int64(c-'0'), maxInteger+1)
	}
	if len(digits) < len(text) {
		return -v
	}
	return v
}

// knownBad reports whether a payload was encrypted by a client with a certain bug:
// its IV, a member of the JSON in the payload, is all zero. Such keys are refused.
func knownBad(collection string, payload []byte) bool {
	if collection != "crypto" {
		return false
	}
	for {
		i := bytes.Index(payload, []byte(`IV":`))
		if i < 0 {
			return false
		}
		payload = bytes.TrimLeft(payload[i+4:], " \t\n\v\f\r")
		if bytes.HasPrefix(payload, []byte(`"AAAAAAAAAAAAAAAAAAAAAA=="`)) {
			return true
		}
	}
}
