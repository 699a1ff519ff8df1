package item

import (
	"encoding/base64"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendJSON appends the JSON of an attribute value, such as {"S":"a"}.
func AppendJSON(dst []byte, v Value) []byte {
	t := v.Type()
	dst = append(append(append(dst, `{"`...), t.String()...), `":`...)
	switch t {
	case S, N, B:
		dst = appendScalar(dst, v)
	case Bool:
		if v.Bool() {
			dst = append(dst, "true"...)
		} else {
			dst = append(dst, "false"...)
		}
	case Null:
		dst = append(dst, "true"...)
	case SS, NS, BS:
		dst = appendArray(dst, v, appendScalar)
	case L:
		dst = appendArray(dst, v, AppendJSON)
	case M:
		dst = AppendItemJSON(dst, v)
	}
	return append(dst, '}')
}

// AppendItemJSON appends the JSON of an item: an object of attribute values.
func AppendItemJSON(dst []byte, item Value) []byte {
	dst = append(dst, '{')
	first := true
	for name, v := range item.members() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = AppendJSON(append(appendQuoted(dst, name), ':'), v)
	}
	return append(dst, '}')
}

func appendArray(dst []byte, v Value, each func([]byte, Value) []byte) []byte {
	dst = append(dst, '[')
	first := true
	for e := range v.Elements() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = each(dst, e)
	}
	return append(dst, ']')
}

// appendScalar appends the content of an S, N or B as a JSON string.
func appendScalar(dst []byte, v Value) []byte {
	switch v.Type() {
	case S:
		return appendQuoted(dst, v.Bytes())
	case N:
		return append(v.Number().appendText(append(dst, '"')), '"')
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), v.Bytes()), '"')
}

// appendQuoted appends a JSON string. Nearly all need no escapes.
func appendQuoted(dst, s []byte) []byte {
	for _, c := range s {
		if c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			dst, _ = jsontext.AppendQuote(dst, s) // replaces what is no UTF-8
			return dst
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
