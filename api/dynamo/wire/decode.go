package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// AttributeValue is the JSON of one attribute value: an object, not looked into.
type AttributeValue jsontext.Value

// AttributeMap is the JSON of attribute values by name, such as an item or a key: an
// object, not looked into.
type AttributeMap jsontext.Value

// Decode fills the structure that into points to with the members of a request. What
// is not well formed, or of a wrong JSON type, is a SerializationException.
//
// The name of a member is that of the Go field, or of its json tag. Unknown members
// are ignored, null is as a member that is not there, and of one that is repeated the
// last counts. Fields are strings, booleans, int and int32 (Integer), int64 (Long),
// floats (Double), []byte (base64), slices, maps by strings, structures, pointers to
// these, and raw JSON: [AttributeValue], [AttributeMap], or [jsontext.Value] for JSON
// of any type. The name of a structure's Go type, with a capital, is its name in the
// service's model. Raw JSON is a part of body.
//
// A fraction given for a whole number is cut off, and a number out of range becomes
// the nearest one in it.
func Decode(body []byte, into any) error {
	d := decoder{body: body, tokens: jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))}
	if err := d.value(reflect.ValueOf(into).Elem(), false); err != nil {
		return err
	}
	if _, err := d.tokens.ReadToken(); err != io.EOF {
		return errNoRequest
	}
	return nil
}

// The texts of refusals. <T> is the Java type that is wanted.
const (
	textConvert     = "%s cannot be converted to %s"
	textCollection  = "Unrecognized collection type %s"
	textStructure   = "Start of structure or map found where not expected"
	textFieldType   = "Unexpected field type"
	textPayload     = "Unexpected value type in payload"
	textToken       = "Unexpected token received from parser"
	textNoBlob      = "only base-64-encoded strings are convertible to bytes"
	textBlobLength  = "Base64 encoded length is expected a multiple of 4 bytes but found: %d"
	textBlobContent = "Invalid last non-pad Base64 character dectected"
)

var (
	attributeValueType = reflect.TypeFor[AttributeValue]()
	attributeMapType   = reflect.TypeFor[AttributeMap]()
	rawType            = reflect.TypeFor[jsontext.Value]()
	blobType           = reflect.TypeFor[[]byte]()
)

type decoder struct {
	body   []byte
	tokens *jsontext.Decoder
}

// value reads the next value into v. An element is one of a list or a map.
func (d *decoder) value(v reflect.Value, element bool) error {
	v.SetZero() // it may have been given before
	kind := d.tokens.PeekKind()
	switch t := v.Type(); {
	case kind == jsontext.KindInvalid:
		return errNoRequest
	case kind == 'n':
		_, err := d.raw()
		return err
	case t == rawType:
		return d.keep(v)
	case t == attributeValueType:
		return d.object(v, kind, element, d.keep)
	case t == attributeMapType:
		return d.object(v, kind, false, d.keep)
	case t == blobType:
		return d.blob(v, kind)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem(), element)
	case reflect.Struct:
		return d.object(v, kind, element, d.structure)
	case reflect.Map:
		return d.object(v, kind, false, d.mapping)
	case reflect.Slice:
		return d.list(v, kind)
	}
	return d.scalar(v, kind)
}

// raw returns the next value as it is written.
func (d *decoder) raw() (jsontext.Value, error) {
	read, err := d.tokens.ReadValue()
	if err != nil {
		return nil, errNoRequest
	}
	end := d.tokens.InputOffset()
	return d.body[end-int64(len(read)) : end : end], nil
}

func (d *decoder) keep(v reflect.Value) error {
	raw, err := d.raw()
	v.SetBytes(raw)
	return err
}

// object reads what must be a JSON object.
func (d *decoder) object(v reflect.Value, kind jsontext.Kind, element bool, read func(reflect.Value) error) error {
	switch {
	case kind == '{':
		return read(v)
	case kind == '[' && v.Kind() == reflect.Map, kind == '[' && v.Type() == attributeMapType:
		return fault.Serialization(textCollection, javaType(v.Type()))
	case kind == '[':
		return fault.Serialization(textCollection, "class "+javaType(v.Type()))
	case element:
		return fault.Serialization(textPayload)
	}
	return fault.Serialization(textFieldType)
}

// members calls read for each member, whose name it gets, until the end of an object.
func (d *decoder) members(read func(name string) error) error {
	if err := d.bracket(); err != nil {
		return err
	}
	for d.tokens.PeekKind() != '}' {
		name, err := d.tokens.ReadToken()
		if err != nil {
			return errNoRequest
		}
		if err := read(name.String()); err != nil {
			return err
		}
	}
	return d.bracket()
}

// bracket reads one, whichever comes next.
func (d *decoder) bracket() error {
	if _, err := d.tokens.ReadToken(); err != nil {
		return errNoRequest
	}
	return nil
}

func (d *decoder) structure(v reflect.Value) error {
	fields := fieldsOf(v.Type())
	return d.members(func(name string) error {
		if index, ok := fields[name]; ok {
			return d.value(v.FieldByIndex(index), false)
		}
		_, err := d.raw()
		return err
	})
}

func (d *decoder) mapping(v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	return d.members(func(name string) error {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e, true); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), e)
		return nil
	})
}

func (d *decoder) list(v reflect.Value, kind jsontext.Kind) error {
	switch kind {
	case '[':
	case '{':
		return fault.Serialization(textStructure)
	default:
		return fault.Serialization(textFieldType)
	}
	if err := d.bracket(); err != nil {
		return err
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for d.tokens.PeekKind() != ']' {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e, true); err != nil {
			return err
		}
		v.Set(reflect.Append(v, e))
	}
	return d.bracket()
}

func (d *decoder) blob(v reflect.Value, kind jsontext.Kind) error {
	switch kind {
	case '"':
	case '[':
		return fault.Serialization(textCollection, "class "+javaType(v.Type()))
	case '{':
		return fault.Serialization(textStructure)
	default:
		return fault.Serialization(textNoBlob)
	}
	token, err := d.tokens.ReadToken()
	if err != nil {
		return errNoRequest
	}
	text := token.String()
	if len(text)%4 != 0 {
		return fault.Serialization(textBlobLength, len(text))
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") { // which the decoder skips
		return fault.Serialization(textBlobContent)
	}
	v.SetBytes(b)
	return nil
}

// scalar reads a string, a boolean or a number.
func (d *decoder) scalar(v reflect.Value, kind jsontext.Kind) error {
	switch kind {
	case '[':
		return fault.Serialization(textCollection, "class "+javaType(v.Type()))
	case '{':
		return fault.Serialization(textStructure)
	}
	token, err := d.tokens.ReadToken()
	if err != nil {
		return errNoRequest
	}
	text := token.String()
	switch v.Kind() {
	case reflect.String:
		if kind != '"' {
			return wrongType(kind, text, v)
		}
		v.SetString(text)
	case reflect.Bool:
		switch kind {
		case '0':
			return wrongType(kind, text, v)
		case 't', 'f':
			v.SetBool(kind == 't')
		default:
			truth, ok := truths[strings.ToLower(text)]
			if !ok {
				return fault.Serialization(textToken)
			}
			v.SetBool(truth)
		}
	case reflect.Int, reflect.Int32:
		if kind != '0' {
			return wrongType(kind, text, v)
		}
		v.SetInt(max(math.MinInt32, min(math.MaxInt32, whole(text))))
	case reflect.Int64:
		if kind != '0' {
			return wrongType(kind, text, v)
		}
		v.SetInt(whole(text))
	case reflect.Float32, reflect.Float64:
		if kind != '0' {
			return wrongType(kind, text, v)
		}
		f, _ := strconv.ParseFloat(text, v.Type().Bits()) // out of range it is infinite
		v.SetFloat(f)
	default:
		return fmt.Errorf("wire: BUG: a request has a member of the Go type %s", v.Type())
	}
	return nil
}

// truths are the strings that stand for a boolean.
var truths = map[string]bool{"true": true, "1": true, "yes": true, "false": false, "0": false, "no": false}

func wrongType(kind jsontext.Kind, text string, v reflect.Value) error {
	given := "STRING_VALUE"
	switch {
	case kind == 't':
		given = "TRUE_VALUE"
	case kind == 'f':
		given = "FALSE_VALUE"
	case kind == '0' && strings.ContainsAny(text, ".eE"):
		given = "DECIMAL_VALUE"
	case kind == '0':
		given = "NUMBER_VALUE"
	}
	return fault.Serialization(textConvert, given, strings.TrimPrefix(javaType(v.Type()), "java.lang."))
}

// whole returns a JSON number without its fraction.
func whole(text string) int64 {
	if !strings.ContainsAny(text, "eE") {
		text, _, _ = strings.Cut(text, ".")
		n, _ := strconv.ParseInt(text, 10, 64) // out of range it is the nearest
		return n
	}
	f, _ := strconv.ParseFloat(text, 64)
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

const modelPackage = "com.amazonaws.dynamodb.v20120810."

// javaType is the name of a type in texts of the service.
func javaType(t reflect.Type) string {
	switch t {
	case attributeValueType, rawType:
		return modelPackage + "AttributeValue"
	case attributeMapType:
		return "java.util.Map<java.lang.String, " + modelPackage + "AttributeValue>"
	case blobType:
		return "java.nio.ByteBuffer"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return javaType(t.Elem())
	case reflect.Slice:
		return "java.util.List<" + javaType(t.Elem()) + ">"
	case reflect.Map:
		return "java.util.Map<java.lang.String, " + javaType(t.Elem()) + ">"
	case reflect.Struct:
		return modelPackage + modelName(t)
	case reflect.Bool:
		return "java.lang.Boolean"
	case reflect.Int, reflect.Int32:
		return "java.lang.Integer"
	case reflect.Int64:
		return "java.lang.Long"
	case reflect.Float32, reflect.Float64:
		return "java.lang.Double"
	}
	return "java.lang.String"
}

func modelName(t reflect.Type) string {
	if name := t.Name(); name != "" {
		return strings.ToUpper(name[:1]) + name[1:]
	}
	return ""
}

// fieldCache remembers what fieldsOf found, by type. Types do not change.
var fieldCache sync.Map

// fieldsOf returns the members of a structure, by name.
func fieldsOf(t reflect.Type) map[string][]int {
	if known, ok := fieldCache.Load(t); ok {
		return known.(map[string][]int)
	}
	fields := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		if name := memberName(f); name != "" {
			fields[name] = f.Index
		}
	}
	fieldCache.Store(t, fields)
	return fields
}

// memberName returns the JSON name of a field, empty for none. The fields of an
// embedded structure are members by themselves.
func memberName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported(), f.Anonymous, name == "-":
		return ""
	case name == "":
		return f.Name
	}
	return name
}
