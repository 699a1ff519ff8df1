package item

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestJSONIsReadAndWritten(t *testing.T) {
	for in, want := range map[string]string{
		`{"S":""}`: ``,
		` { "S" : "a\"\\\u00e9\n\ud83d\ude00" } `: `{"S":"a\"\\é\n😀"}`,
		`{"N":"1e2"}`:            `{"N":"100"}`,
		`{"B":"aGk="}`:           ``,
		`{"B":""}`:               ``,
		`{"BOOL":"Yes"}`:         `{"BOOL":true}`,
		`{"BOOL":"0"}`:           `{"BOOL":false}`,
		`{"NULL":"true"}`:        `{"NULL":true}`,
		`{"SS":["b","a"]}`:       `{"SS":["a","b"]}`,
		`{"NS":["10","9","-1"]}`: `{"NS":["-1","9","10"]}`,
		`{"BS":["/w==","AA=="]}`: `{"BS":["AA==","/w=="]}`,
		`{"L":[]}`:               ``,
		`{"M":{}}`:               ``,
		`{"M":{"b":{"S":"2"},"a":{"L":[{"M":{}}]}}}`: `{"M":{"a":{"L":[{"M":{}}]},"b":{"S":"2"}}}`,
		`{"M":{"a":{"S":"1"},"a":{"S":"2"}}}`:        `{"M":{"a":{"S":"2"}}}`,
		`{"M":{"a":null}}`:                           `{"M":{}}`,
		`{"S":"a","N":null}`:                         `{"S":"a"}`,
		`{"S":"a","S":"b"}`:                          `{"S":"b"}`,
		`{"X":{"y":[1,"]",{}]},"S":"a","Z":tru}`:     `{"S":"a"}`,
		`{"M":{"q\"":{"S":"x"}}}`:                    ``,
		`{"M":{"c":{"S":""},"b":{"S":""},"c":{"N":"1"},"a":{"S":""},"b":{"NULL":true}}}`: `{"M":{"a":{"S":""},"b":{"NULL":true},"c":{"N":"1"}}}`,
	} {
		if want == "" {
			want = in
		}
		v := parse(t, in)
		if got := string(AppendJSON(nil, v)); got != want {
			t.Errorf("%s is written as %s", in, got)
		}
	}
}

func TestWhatIsNoValueIsRefused(t *testing.T) {
	const (
		validation    = "ValidationException: "
		serialization = "SerializationException: "
		invalid       = validation + "One or more parameter values were invalid: "
		collection    = serialization + "Unrecognized collection type "
	)
	for in, want := range map[string]string{
		`{}`:                            validation + "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
		`{"X":1}`:                       validation + "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
		`{"S":null}`:                    validation + "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
		`null`:                          validation + "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
		`{"S":"a","N":"1"}`:             validation + "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported datatypes",
		`{"NULL":false}`:                invalid + "Null attribute value types must have the value of true",
		`{"SS":[]}`:                     invalid + "An string set  may not be empty",
		`{"NS":[]}`:                     invalid + "An number set  may not be empty",
		`{"BS":[]}`:                     invalid + "Binary sets should not be empty",
		`{"L":[{"M":{"x":{"SS":[]}}}]}`: invalid + "An string set  may not be empty",
		`{"SS":["b","a","b"]}`:          invalid + "Input collection [b, a, b] contains duplicates.",
		`{"BS":["/w==","/w=="]}`:        invalid + "Input collection [/w==, /w==]of type BS contains duplicates.",
		`{"NS":["1","2","1.0"]}`:        validation + "Input collection contains duplicates",
		`{"N":"x"}`:                     validation + "The parameter cannot be converted to a numeric value: x",
		`{"NS":["1","x"]}`:              validation + "The parameter cannot be converted to a numeric value: x",
		`{"M":{"":{"S":"a"}}}`:          invalid + "Empty attribute name",
		`{"M":{"` + strings.Repeat("n", 65536) + `":{"S":"a"}}}`: invalid + "Attribute name is too large, must be at most 65535 bytes",
		`{"L":[{},{"N":"x"}]}`: validation + "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",

		`7`:                serialization + "Unexpected value type in payload",
		`"S"`:              serialization + "Unexpected value type in payload",
		`[]`:               collection + "class com.amazonaws.dynamodb.v20120810.AttributeValue",
		`{"S":true}`:       serialization + "TRUE_VALUE cannot be converted to String",
		`{"S":false}`:      serialization + "FALSE_VALUE cannot be converted to String",
		`{"N":3}`:          serialization + "NUMBER_VALUE cannot be converted to String",
		`{"N":3.5}`:        serialization + "DECIMAL_VALUE cannot be converted to String",
		`{"S":[]}`:         collection + "class java.lang.String",
		`{"S":{}}`:         serialization + "Start of structure or map found where not expected",
		`{"B":1}`:          serialization + "only base-64-encoded strings are convertible to bytes",
		`{"B":[]}`:         collection + "class java.nio.ByteBuffer",
		`{"B":{}}`:         serialization + "Start of structure or map found where not expected",
		`{"B":"abc"}`:      serialization + "Base64 encoded length is expected a multiple of 4 bytes but found: 3",
		`{"B":"ab=c"}`:     serialization + "Invalid last non-pad Base64 character dectected",
		`{"B":"ab\n="}`:    serialization + "Invalid last non-pad Base64 character dectected",
		`{"BOOL":1}`:       serialization + "NUMBER_VALUE cannot be converted to Boolean",
		`{"BOOL":"maybe"}`: serialization + "Unexpected token received from parser",
		`{"BOOL":[]}`:      collection + "class java.lang.Boolean",
		`{"NULL":{}}`:      serialization + "Start of structure or map found where not expected",
		`{"SS":"a"}`:       serialization + "Unexpected field type",
		`{"SS":{}}`:        serialization + "Start of structure or map found where not expected",
		`{"SS":[1]}`:       serialization + "NUMBER_VALUE cannot be converted to String",
		`{"L":7}`:          serialization + "Unexpected field type",
		`{"L":["a"]}`:      serialization + "Unexpected value type in payload",
		`{"M":"a"}`:        serialization + "Unexpected field type",
		`{"M":[]}`:         collection + "java.util.Map<java.lang.String, com.amazonaws.dynamodb.v20120810.AttributeValue>",
		`{"M":{"a":1}}`:    serialization + "Unexpected value type in payload",
		// The type of a later part counts more than a fault of an earlier one.
		`{"L":[{},{"S":1}]}`: serialization + "NUMBER_VALUE cannot be converted to String",
	} {
		_, fault, err := Parse([]byte(in))
		if err == nil {
			err = fault
		}
		if err == nil || err.Error() != want {
			t.Errorf("%.60s: %v\nwant %s", in, err, want)
		}
	}
	for _, in := range []string{``, `{`, `{"S"`, `{"S":`, `{"S":"a`, `{"S":"a"`, `{"S":"\`, `{"S":"\q"}`, `{"S":"a"}x`, `{"S" "a"}`, `{"L":[`, `{"L":[{"S":"a"}`, `{"L":[,]}`, `{"X":[}`, `{"X":"`, `{"M":{"a"}}`, `{,}`, `{"X":}`} {
		if _, _, err := Parse([]byte(in)); err == nil || !strings.HasPrefix(err.Error(), "SerializationException") {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestItemsAreRead(t *testing.T) {
	item := parseItem(t, `{"id":{"S":"1"},"a":{"N":"2"}}`)
	if got := string(AppendItemJSON(nil, item)); got != `{"a":{"N":"2"},"id":{"S":"1"}}` {
		t.Error(got)
	}
	for in, want := range map[string]string{
		`[]`: "SerializationException: Unrecognized collection type java.util.Map<java.lang.String, com.amazonaws.dynamodb.v20120810.AttributeValue>",
		`1`:  "SerializationException: Unexpected field type", ``: "SerializationException",
		`{"a":{}}`: "ValidationException: Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
	} {
		_, invalid, err := ParseItem([]byte(in))
		if err == nil {
			err = invalid
		}
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// What is written is what was read, and other readers of JSON see the same.
func TestJSONRoundTrips(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		item := drawMap(r, 3)
		text := AppendItemJSON(nil, item)
		again, invalid, err := ParseItem(text)
		if err != nil || invalid != nil || !Equal(again, item) {
			r.Errorf("%s is read as %x, not %x: %v, %v", text, again, item, invalid, err)
		}
		var plain any
		if err := json.Unmarshal(text, &plain); err != nil {
			r.Fatalf("%s: %v", text, err)
		}
		spaced, err := json.MarshalIndent(plain, " ", "\t")
		if err != nil {
			r.Fatal(err)
		}
		var twice any
		again, _, err = ParseItem(spaced)
		if err != nil || !Equal(again, item) {
			r.Errorf("%s: %v", spaced, err)
		}
		if err := json.Unmarshal(AppendItemJSON(nil, again), &twice); err != nil || !reflect.DeepEqual(plain, twice) {
			r.Errorf("%s became %v: %v", spaced, twice, err)
		}
	})
}

func FuzzParseItem(f *testing.F) {
	for _, s := range []string{`{"a":{"S":"x"}}`, `{"a":{"L":[{"M":{"b":{"NS":["1","2"]}}}]}}`, `{"a":{"B":"AA=="},"a":{"NULL":true}}`, `{"x":[1,{"y":"\u0041"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		item, invalid, err := ParseItem(raw)
		if err != nil || invalid != nil {
			return
		}
		text := AppendItemJSON(nil, item)
		again, invalid, err := ParseItem(text)
		if err != nil || invalid != nil || string(AppendItemJSON(nil, again)) != string(text) {
			t.Errorf("%q is written as %s and read again: %v, %v", raw, text, invalid, err)
		}
		if json.Valid(raw) && !json.Valid(text) {
			t.Errorf("%q is written as %q", raw, text)
		}
	})
}

// sample is an item of about 1 KB.
func sample() []byte {
	return fmt.Appendf(nil, `{"pk":{"S":"user#12345"},"sk":{"N":"1719692400"},"name":{"S":%q},"tags":{"SS":["a","b","c"]},`+
		`"address":{"M":{"street":{"S":"1 Long Street"},"zip":{"N":"12345"},"lines":{"L":[{"S":"one"},{"S":"two"}]}}},"data":{"S":%q}}`,
		"Somebody", strings.Repeat("x", 700))
}

func BenchmarkParseItem(b *testing.B) {
	raw := sample()
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, _, err := ParseItem(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendItemJSON(b *testing.B) {
	item, _, _ := ParseItem(sample())
	var buf []byte
	b.ReportAllocs()
	b.SetBytes(int64(len(item)))
	for b.Loop() {
		buf = AppendItemJSON(buf[:0], item)
	}
}
