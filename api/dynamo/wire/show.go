package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxShown bounds a value in a text, in bytes: the body of a request may be a
// thousand times as long.
const maxShown = 16 << 10

// show prints a value as the service does, or returns false for one that is not there.
func show(value any) (string, bool) {
	if absent(value) {
		return "null", false
	}
	var p printer
	p.value(reflect.ValueOf(value))
	if len(p.b) <= maxShown {
		return string(p.b), true
	}
	cut := maxShown
	for !utf8.RuneStart(p.b[cut]) {
		cut--
	}
	return string(p.b[:cut]) + "...", true
}

// printer prints like the toString methods of Java: [a, b], {k=v}, Name(member=x).
type printer struct {
	b []byte
}

func (p *printer) value(v reflect.Value) {
	if len(p.b) > maxShown {
		return
	}
	switch v.Type() {
	case rawType, attributeValueType, attributeMapType:
		p.text(v.Bytes(), v.IsNil())
		return
	case blobType:
		p.b = base64.StdEncoding.AppendEncode(p.b, v.Bytes())
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			p.b = append(p.b, "null"...)
			return
		}
		p.value(v.Elem())
	case reflect.Slice:
		p.b = append(p.b, '[')
		for i := range v.Len() {
			p.separate(i)
			p.value(v.Index(i))
		}
		p.b = append(p.b, ']')
	case reflect.Map:
		p.mapping(v)
	case reflect.Struct:
		p.structure(v)
	default:
		p.b = fmt.Append(p.b, v)
	}
}

func (p *printer) separate(i int) {
	if i > 0 {
		p.b = append(p.b, ", "...)
	}
}

// text prints raw JSON as it was sent.
func (p *printer) text(b []byte, absent bool) {
	if absent {
		b = []byte("null")
	}
	p.b = append(p.b, b[:min(len(b), maxShown+1)]...)
}

func (p *printer) mapping(v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	p.b = append(p.b, '{')
	for i, k := range keys {
		p.separate(i)
		p.b = append(append(p.b, k.String()...), '=')
		p.value(v.MapIndex(k))
	}
	p.b = append(p.b, '}')
}

func (p *printer) structure(v reflect.Value) {
	p.b = append(append(p.b, modelName(v.Type())...), '(')
	i := 0
	for _, f := range reflect.VisibleFields(v.Type()) {
		name := memberName(f)
		if name == "" {
			continue
		}
		p.separate(i)
		i++
		p.b = append(append(p.b, strings.ToLower(name[:1])+name[1:]...), '=')
		p.value(v.FieldByIndex(f.Index))
	}
	p.b = append(p.b, ')')
}

// membersOf counts the members of a JSON object.
func membersOf(object jsontext.Value) int64 {
	d := jsontext.NewDecoder(bytes.NewReader(object), jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil {
		return 0
	}
	var n int64
	for d.PeekKind() == '"' && d.SkipValue() == nil && d.SkipValue() == nil {
		n++
	}
	return n
}
