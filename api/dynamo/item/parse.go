package item

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// Parse reads the JSON of an attribute value. err is a SerializationException: it is
// no JSON, or JSON of a wrong type. invalid is the first fault of the value itself, a
// ValidationException, which is to be reported later, when the whole request is known
// to be of the right types; the Value that comes with it is of no use.
func Parse(raw []byte) (v Value, invalid, err error) {
	p := parser{in: raw}
	b, err := p.attribute(make([]byte, 0, len(raw)), 0)
	if err == nil {
		err = p.end()
	}
	return b, p.invalid, err
}

// ParseItem reads the JSON of an item, a key or another object of attribute values.
// What it returns is as with [Parse].
func ParseItem(raw []byte) (item Value, invalid, err error) {
	p := parser{in: raw}
	b, err := p.mapping(make([]byte, 0, len(raw)), 0)
	if err == nil {
		err = p.end()
	}
	return b, p.invalid, err
}

const maxName = 65535

// The texts of refusals.
const (
	modelPackage   = "com.amazonaws.dynamodb.v20120810."
	collectionText = "Unrecognized collection type class "
	stringType     = "java.lang.String"

	invalidPrefix = "One or more parameter values were invalid: "
)

var (
	errSyntax    = fault.Serialization("")
	errStructure = fault.Serialization("Start of structure or map found where not expected")
	errField     = fault.Serialization("Unexpected field type")
	errPayload   = fault.Serialization("Unexpected value type in payload")
	errToken     = fault.Serialization("Unexpected token received from parser")
	errMapArray  = fault.Serialization("Unrecognized collection type java.util.Map<java.lang.String, " + modelPackage + "AttributeValue>")

	errNoType     = fault.Validation("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes")
	errTwoTypes   = fault.Validation("Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported datatypes")
	errNullFalse  = fault.Validation(invalidPrefix + "Null attribute value types must have the value of true")
	errNoStrings  = fault.Validation(invalidPrefix + "An string set  may not be empty")
	errNoNumbers  = fault.Validation(invalidPrefix + "An number set  may not be empty")
	errNoBinaries = fault.Validation(invalidPrefix + "Binary sets should not be empty")
	errNumbers    = fault.Validation("Input collection contains duplicates")
	errDepth      = fault.Validation("Nesting Levels have exceeded supported limits: Attributes in the item have nested levels beyond supported limit")
	errNoName     = fault.Validation(invalidPrefix + "Empty attribute name")
	errLongName   = fault.Validation(invalidPrefix + "Attribute name is too large, must be at most 65535 bytes")
)

// parser reads JSON in one pass. Parts of a container are written one behind the other
// and put in order when all are there.
type parser struct {
	in      []byte
	at      int
	invalid error
	parts   []part // of the containers that are being read
	scratch []byte
}

// part is a piece of what was written: the name, if it is a member, and the value.
type part struct{ from, value, to int }

// reject remembers the first fault.
func (p *parser) reject(err error) {
	if p.invalid == nil {
		p.invalid = err
	}
}

// peek returns the next byte that is no white space, 0 at the end.
func (p *parser) peek() byte {
	for p.at < len(p.in) {
		switch c := p.in[p.at]; c {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return c
		}
	}
	return 0
}

// next reads c, if it is the next byte.
func (p *parser) next(c byte) bool {
	if p.peek() == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) end() error {
	if p.peek() != 0 || p.at < len(p.in) {
		return errSyntax
	}
	return nil
}

// text appends the next value, which must be a JSON string.
func (p *parser) text(b []byte) ([]byte, error) {
	if !p.next('"') {
		return b, errSyntax
	}
	from, escaped := p.at, false
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case '\\':
			escaped = true
			p.at++
		case '"':
			p.at++
			if !escaped {
				return append(b, p.in[from:p.at-1]...), nil
			}
			b, err := jsontext.AppendUnquote(b, p.in[from-1:p.at])
			if err != nil {
				return b, errSyntax
			}
			return b, nil
		}
		p.at++
	}
	return b, errSyntax
}

// skip passes over any value. It does not check that it is well formed.
func (p *parser) skip() error {
	depth := 0
	for {
		switch p.peek() {
		case 0:
			return errSyntax
		case '"':
			from := p.at
			for p.at++; ; p.at++ {
				if p.at >= len(p.in) {
					p.at = from
					return errSyntax
				}
				if c := p.in[p.at]; c == '"' {
					break
				} else if c == '\\' {
					p.at++
				}
			}
			p.at++
		case '{', '[':
			depth++
			p.at++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				return errSyntax
			}
			p.at++
		case ',', ':':
			if depth == 0 {
				return errSyntax
			}
			p.at++
			continue
		default:
			p.word()
		}
		if depth == 0 {
			return nil
		}
	}
}

// word reads a number or a literal.
func (p *parser) word() string {
	p.peek()
	from := p.at
	for p.at < len(p.in) && !strings.ContainsRune(" \t\r\n,:{}[]\"", rune(p.in[p.at])) {
		p.at++
	}
	if p.at == from && p.at < len(p.in) {
		p.at++
	}
	return string(p.in[from:p.at])
}

// each calls read before each member of an object, with its name, which is valid until
// read returns. A member that is null is passed over.
func (p *parser) each(read func(name []byte) error) error {
	if !p.next('{') {
		return errSyntax
	}
	if p.next('}') {
		return nil
	}
	var buf [32]byte
	for {
		name, err := p.text(buf[:0])
		if err != nil || !p.next(':') {
			return errSyntax
		}
		if p.peek() == 'n' {
			err = p.skip()
		} else {
			err = read(name)
		}
		if err != nil {
			return err
		}
		if p.next('}') {
			return nil
		}
		if !p.next(',') {
			return errSyntax
		}
	}
}

// elements calls read before each element of an array.
func (p *parser) elements(read func() error) error {
	switch p.peek() {
	case '[':
		p.at++
	case '{':
		return errStructure
	default:
		return errField
	}
	if p.next(']') {
		return nil
	}
	for {
		if err := read(); err != nil {
			return err
		}
		if p.next(']') {
			return nil
		}
		if !p.next(',') {
			return errSyntax
		}
	}
}

// attribute appends an attribute value that is within depth lists and maps.
func (p *parser) attribute(b []byte, depth int) ([]byte, error) {
	switch p.peek() {
	case '{':
	case 'n':
		p.reject(errNoType)
		return b, p.skip()
	case '[':
		return b, fault.Serialization("%s", collectionText+modelPackage+"AttributeValue")
	case 0:
		return b, errSyntax
	default:
		return b, errPayload
	}
	from := len(b)
	given := None
	err := p.each(func(name []byte) (err error) {
		t := typeOf(name)
		if t == None {
			return p.skip()
		}
		if given != None && given != t {
			p.reject(errTwoTypes)
		}
		given = t
		b, err = p.content(b[:from], t, depth)
		return err
	})
	if given == None && err == nil {
		p.reject(errNoType)
	}
	return b, err
}

// typeOf returns the type that a name stands for, or None.
func typeOf(name []byte) Type {
	switch string(name) {
	case "S", "N", "B", "L", "M":
		return Type(name[0])
	case "SS", "NS", "BS":
		return Type(name[0] + 'a' - 'A')
	case "NULL":
		return Null
	case "BOOL":
		return Bool
	}
	return None
}

func (p *parser) content(b []byte, t Type, depth int) ([]byte, error) {
	switch t {
	case S, N, B:
		return p.scalar(b, t)
	case SS, NS, BS:
		return p.set(b, t)
	case Bool:
		is, err := p.boolean()
		return append(b, BoolValue(is)...), err
	case Null:
		is, err := p.boolean()
		if !is && err == nil {
			p.reject(errNullFalse)
		}
		return append(b, byte(Null)), err
	}
	if depth >= MaxDepth {
		p.reject(errDepth)
		return b, p.skip()
	}
	if t == L {
		return p.list(b, depth+1)
	}
	return p.mapping(b, depth+1)
}

// scalar appends an S, N or B.
func (p *parser) scalar(b []byte, t Type) ([]byte, error) {
	if c := p.peek(); c != '"' {
		return b, p.notText(c, t)
	}
	b = append(b, byte(t))
	if t == S {
		return p.text(b)
	}
	var buf [64]byte
	text, err := p.text(buf[:0])
	switch {
	case err != nil:
		return b, err
	case t == B:
		return AppendBase64(b, text)
	}
	n, err := ParseNumber(string(text))
	if err != nil {
		p.reject(err)
	}
	return n.AppendKey(b), nil
}

// notText is the refusal of what begins with c where a string has to be.
func (p *parser) notText(c byte, t Type) error {
	java := stringType
	if t == B {
		java = "java.nio.ByteBuffer"
	}
	switch {
	case c == 0:
		return errSyntax
	case c == '[':
		return fault.Serialization("%s", collectionText+java)
	case c == '{':
		return errStructure
	case t == B:
		return fault.Serialization("only base-64-encoded strings are convertible to bytes")
	}
	return p.cannot("String")
}

// cannot is the refusal of the next word where the type has to be.
func (p *parser) cannot(java string) error {
	given := "NUMBER_VALUE"
	switch word := p.word(); {
	case word == "true":
		given = "TRUE_VALUE"
	case word == "false":
		given = "FALSE_VALUE"
	case strings.ContainsAny(word, ".eE"):
		given = "DECIMAL_VALUE"
	}
	return fault.Serialization("%s cannot be converted to %s", given, java)
}

// AppendBase64 appends what text stands for, or returns a SerializationException.
func AppendBase64(dst, text []byte) ([]byte, error) {
	if len(text)%4 != 0 {
		return dst, fault.Serialization("Base64 encoded length is expected a multiple of 4 bytes but found: %d", len(text))
	}
	from := len(dst)
	dst = slices.Grow(dst, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(dst[from:cap(dst)], text)
	if err != nil || bytes.ContainsAny(text, "\r\n") { // which the decoder skips
		return dst, fault.Serialization("Invalid last non-pad Base64 character dectected")
	}
	return dst[:from+n], nil
}

func (p *parser) boolean() (bool, error) {
	switch c := p.peek(); c {
	case 0:
		return false, errSyntax
	case '[':
		return false, fault.Serialization("%s", collectionText+"java.lang.Boolean")
	case '{':
		return false, errStructure
	case 't', 'f':
		return p.word() == "true", nil
	case '"':
		text, err := p.text(nil)
		if err != nil {
			return false, err
		}
		switch strings.ToLower(string(text)) {
		case "true", "1", "yes":
			return true, nil
		case "false", "0", "no":
			return false, nil
		}
		return false, errToken
	}
	return false, p.cannot("Boolean")
}

func (p *parser) set(b []byte, t Type) ([]byte, error) {
	from, first := len(b), len(p.parts)
	err := p.elements(func() (err error) {
		at := len(b)
		b, err = p.scalar(b, t.element())
		p.parts = append(p.parts, part{at, at, len(b)})
		return err
	})
	if err != nil {
		return b, err
	}
	parts := p.parts[first:]
	if len(parts) == 0 {
		p.reject(map[Type]error{SS: errNoStrings, NS: errNoNumbers, BS: errNoBinaries}[t])
	}
	given := slices.Clone(parts)
	slices.SortFunc(parts, func(x, y part) int { return bytes.Compare(b[x.from:x.to], b[y.from:y.to]) })
	for i := 1; i < len(parts); i++ {
		if x, y := parts[i-1], parts[i]; bytes.Equal(b[x.from:x.to], b[y.from:y.to]) {
			p.reject(duplicates(t, b, given))
			break
		}
	}
	return p.finish(b, from, first, t), nil
}

// duplicates is the fault of a set with an element that is there twice.
func duplicates(t Type, b []byte, given []part) error {
	if t == NS {
		return errNumbers
	}
	elements := make([]string, len(given))
	for i, e := range given {
		if elements[i] = string(b[e.from+1 : e.to]); t == BS {
			elements[i] = base64.StdEncoding.EncodeToString(b[e.from+1 : e.to])
		}
	}
	list := "[" + strings.Join(elements, ", ") + "]"
	if t == BS {
		return fault.Validation("%s", invalidPrefix+"Input collection "+list+"of type BS contains duplicates.")
	}
	return fault.Validation("%s", invalidPrefix+"Input collection "+list+" contains duplicates.")
}

func (p *parser) list(b []byte, depth int) ([]byte, error) {
	from, first := len(b), len(p.parts)
	err := p.elements(func() (err error) {
		at := len(b)
		b, err = p.attribute(b, depth)
		p.parts = append(p.parts, part{at, at, len(b)})
		return err
	})
	if err != nil {
		return b, err
	}
	return p.finish(b, from, first, L), nil
}

func (p *parser) mapping(b []byte, depth int) ([]byte, error) {
	switch p.peek() {
	case '{':
	case '[':
		return b, errMapArray
	case 0:
		return b, errSyntax
	default:
		return b, errField
	}
	from, first := len(b), len(p.parts)
	err := p.each(func(name []byte) (err error) {
		if len(name) == 0 {
			p.reject(errNoName)
		} else if len(name) > maxName {
			p.reject(errLongName)
		}
		at := len(b)
		b = append(b, name...)
		value := len(b)
		b, err = p.attribute(b, depth)
		p.parts = append(p.parts, part{at, value, len(b)})
		return err
	})
	if err != nil {
		return b, err
	}
	byName := func(x, y part) int { return bytes.Compare(b[x.from:x.value], b[y.from:y.value]) }
	if parts := p.parts[first:]; !slices.IsSortedFunc(parts, byName) {
		slices.SortStableFunc(parts, byName)
	}
	last := first // of members of one name the last counts
	for i := first; i < len(p.parts); i++ {
		if i > first && byName(p.parts[last-1], p.parts[i]) == 0 {
			last--
		}
		p.parts[last] = p.parts[i]
		last++
	}
	p.parts = p.parts[:last]
	return p.finish(b, from, first, M), nil
}

// finish writes the parts from first on as a container, over what was written of them.
func (p *parser) finish(b []byte, from, first int, t Type) []byte {
	p.scratch = append(p.scratch[:0], b[from:]...)
	b = appendCount(b[:from], t, len(p.parts)-first)
	for _, e := range p.parts[first:] {
		if t == M {
			b = appendPiece(b, p.scratch[e.from-from:e.value-from])
		}
		b = appendPiece(b, p.scratch[e.value-from:e.to-from])
	}
	p.parts = p.parts[:first]
	return b
}
