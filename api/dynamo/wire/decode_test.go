package wire

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// keySchemaElement and the others have the names of the service's model.
type keySchemaElement struct {
	AttributeName *string
	KeyType       *string
}

type table struct {
	TableName *string
}

type input struct {
	table
	Limit          *int32
	Units          *int64
	Size           float64
	ConsistentRead *bool
	Plain          bool
	Names          map[string]string `json:"ExpressionAttributeNames"`
	Attributes     []string          `json:"AttributesToGet,omitempty"`
	KeySchema      []keySchemaElement
	Schemas        map[string]*keySchemaElement
	Throughput     *struct{ ReadCapacityUnits *int64 }
	Single         keySchemaElement
	Requests       map[string][]keySchemaElement
	Keys           []map[string]AttributeValue
	Blob           []byte
	Item           AttributeMap
	Value          AttributeValue
	Values         map[string]AttributeValue
	Raw            jsontext.Value
	Hidden         string `json:"-"`
	secret         string
}

func ptr[T any](v T) *T { return &v }

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		body string
		want input
	}{
		{`{}`, input{}},
		{` { "TableName" : "t" } `, input{table: table{ptr("t")}}},
		{`{"TableName":"","tableName":"u","Unknown":[{"TableName":1}],"Hidden":"x","-":"x","secret":"y","table":{}}`, input{table: table{ptr("")}}},
		{`{"TableName":"a","TableName":"b","AttributesToGet":["a"],"AttributesToGet":["b"],"Single":{"KeyType":"a"},"Single":{"AttributeName":"b"}}`,
			input{table: table{ptr("b")}, Attributes: []string{"b"}, Single: keySchemaElement{AttributeName: ptr("b")}}},
		{`{"TableName":"a","TableName":null,"Limit":null,"Plain":null,"AttributesToGet":null,"Single":null,"Item":null,"Value":null,"Raw":null,"Blob":null,"Keys":null}`, input{}},
		{`{"TableName":"\u0041\"\\é\ud83d\ude00"}`, input{table: table{ptr("A\"\\é😀")}}},

		{`{"Limit":7,"Units":-7,"Size":1.5e1}`, input{Limit: ptr(int32(7)), Units: ptr(int64(-7)), Size: 15}},
		{`{"Limit":7.9,"Units":-7.9}`, input{Limit: ptr(int32(7)), Units: ptr(int64(-7))}},
		{`{"Limit":-0.9,"Units":9007199254740993.5}`, input{Limit: ptr(int32(0)), Units: ptr(int64(9007199254740993))}},
		{`{"Limit":1e1,"Units":25E-1}`, input{Limit: ptr(int32(10)), Units: ptr(int64(2))}},
		{`{"Limit":2147483648,"Units":9223372036854775808}`, input{Limit: ptr(int32(math.MaxInt32)), Units: ptr(int64(math.MaxInt64))}},
		{`{"Limit":-2147483649,"Units":-1e999}`, input{Limit: ptr(int32(math.MinInt32)), Units: ptr(int64(math.MinInt64))}},
		{`{"Limit":1e999}`, input{Limit: ptr(int32(math.MaxInt32))}},

		{`{"ConsistentRead":true,"Plain":true}`, input{ConsistentRead: ptr(true), Plain: true}},
		{`{"ConsistentRead":"YES","Plain":"1"}`, input{ConsistentRead: ptr(true), Plain: true}},
		{`{"ConsistentRead":"False","Plain":"true"}`, input{ConsistentRead: ptr(false), Plain: true}},
		{`{"ConsistentRead":"no"}`, input{ConsistentRead: ptr(false)}},
		{`{"ConsistentRead":"0"}`, input{ConsistentRead: ptr(false)}},

		{`{"ExpressionAttributeNames":{}}`, input{Names: map[string]string{}}},
		{`{"ExpressionAttributeNames":{"#a":"b","#a":"c","":""}}`, input{Names: map[string]string{"#a": "c", "": ""}}},
		{`{"AttributesToGet":[]}`, input{Attributes: []string{}}},
		{`{"KeySchema":[{"AttributeName":"a","KeyType":"HASH"},null,{}]}`,
			input{KeySchema: []keySchemaElement{{ptr("a"), ptr("HASH")}, {}, {}}}},
		{`{"Schemas":{"a":{"KeyType":"x"},"b":null}}`, input{Schemas: map[string]*keySchemaElement{"a": {KeyType: ptr("x")}, "b": nil}}},
		{`{"Requests":{"t":[{}]},"Keys":[{"a":{"S":"x"}},{}]}`,
			input{Requests: map[string][]keySchemaElement{"t": {{}}}, Keys: []map[string]AttributeValue{{"a": AttributeValue(`{"S":"x"}`)}, {}}}},

		{`{"Blob":"AAEC"}`, input{Blob: []byte{0, 1, 2}}},
		{`{"Blob":"AA=="}`, input{Blob: []byte{0}}},
		{`{"Blob":""}`, input{Blob: []byte{}}},
		{`{"Item": { "a" : {"N":3} } ,"Value":{},"Values":{":v":{"S":[]}},"Raw": [1, 2] }`,
			input{Item: AttributeMap(`{ "a" : {"N":3} }`), Value: AttributeValue(`{}`), Values: map[string]AttributeValue{":v": AttributeValue(`{"S":[]}`)}, Raw: jsontext.Value(`[1, 2]`)}},
	} {
		got := input{Hidden: "stays", secret: "away"}
		if err := Decode([]byte(tt.body), &got); err != nil {
			t.Errorf("%s: %v", tt.body, err)
		} else if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(input{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.body, diff)
		}
	}
}

func TestWrongTypes(t *testing.T) {
	const model = "com.amazonaws.dynamodb.v20120810."
	// %s stands for the value.
	for member, texts := range map[string]map[string]string{
		`"TableName":%s`: {
			`true`: "TRUE_VALUE cannot be converted to String", `false`: "FALSE_VALUE cannot be converted to String",
			`23`: "NUMBER_VALUE cannot be converted to String", `-2147483648`: "NUMBER_VALUE cannot be converted to String",
			`34.56`: "DECIMAL_VALUE cannot be converted to String", `1e3`: "DECIMAL_VALUE cannot be converted to String",
			`[]`: "Unrecognized collection type class java.lang.String", `{}`: "Start of structure or map found where not expected",
		},
		`"AttributesToGet":["a",%s]`: {
			`true`: "TRUE_VALUE cannot be converted to String", `[]`: "Unrecognized collection type class java.lang.String",
			`{}`: "Start of structure or map found where not expected",
		},
		`"ExpressionAttributeNames":{"#a":%s}`: {`7`: "NUMBER_VALUE cannot be converted to String"},
		`"ConsistentRead":%s`: {
			`"23"`: "Unexpected token received from parser", `""`: "Unexpected token received from parser",
			`23`: "NUMBER_VALUE cannot be converted to Boolean", `34.56`: "DECIMAL_VALUE cannot be converted to Boolean",
			`[]`: "Unrecognized collection type class java.lang.Boolean", `{}`: "Start of structure or map found where not expected",
		},
		`"Limit":%s`: {
			`"23"`: "STRING_VALUE cannot be converted to Integer", `true`: "TRUE_VALUE cannot be converted to Integer",
			`false`: "FALSE_VALUE cannot be converted to Integer", `[]`: "Unrecognized collection type class java.lang.Integer",
			`{}`: "Start of structure or map found where not expected",
		},
		`"Units":%s`: {
			`"23"`: "STRING_VALUE cannot be converted to Long", `true`: "TRUE_VALUE cannot be converted to Long",
			`[]`: "Unrecognized collection type class java.lang.Long", `{}`: "Start of structure or map found where not expected",
		},
		`"Throughput":{"ReadCapacityUnits":%s}`: {`"23"`: "STRING_VALUE cannot be converted to Long"},
		`"Size":%s`: {
			`"23"`: "STRING_VALUE cannot be converted to Double", `false`: "FALSE_VALUE cannot be converted to Double",
			`[]`: "Unrecognized collection type class java.lang.Double", `{}`: "Start of structure or map found where not expected",
		},
		`"Blob":%s`: {
			`true`: "only base-64-encoded strings are convertible to bytes", `23`: "only base-64-encoded strings are convertible to bytes",
			`[]`: "Unrecognized collection type class java.nio.ByteBuffer", `{}`: "Start of structure or map found where not expected",
			`"23456"`: "Base64 encoded length is expected a multiple of 4 bytes but found: 5",
			`"=+/="`:  "Invalid last non-pad Base64 character dectected", `"+/+="`: "Invalid last non-pad Base64 character dectected",
			`"A\nA="`: "Invalid last non-pad Base64 character dectected", `"AAA\nAAA\n"`: "Invalid last non-pad Base64 character dectected",
		},
		`"KeySchema":%s`: {
			`"23"`: "Unexpected field type", `true`: "Unexpected field type", `34.56`: "Unexpected field type",
			`{}`: "Start of structure or map found where not expected",
		},
		`"ExpressionAttributeNames":%s`: {
			`"23"`: "Unexpected field type", `23`: "Unexpected field type",
			`[]`: "Unrecognized collection type java.util.Map<java.lang.String, java.lang.String>",
		},
		`"Schemas":%s`:  {`[]`: "Unrecognized collection type java.util.Map<java.lang.String, " + model + "KeySchemaElement>"},
		`"Requests":%s`: {`[]`: "Unrecognized collection type java.util.Map<java.lang.String, java.util.List<" + model + "KeySchemaElement>>"},
		`"Single":%s`: {
			`"23"`: "Unexpected field type", `false`: "Unexpected field type",
			`[]`: "Unrecognized collection type class " + model + "KeySchemaElement",
		},
		// What is in a list or a map is a value, no field.
		`"KeySchema":[{},%s]`: {
			`"23"`: "Unexpected value type in payload", `23`: "Unexpected value type in payload",
			`[]`: "Unrecognized collection type class " + model + "KeySchemaElement",
		},
		`"Schemas":{"a":%s}`: {
			`"23"`: "Unexpected value type in payload", `[]`: "Unrecognized collection type class " + model + "KeySchemaElement",
		},
		`"Value":%s`: {
			`"23"`: "Unexpected field type", `[]`: "Unrecognized collection type class " + model + "AttributeValue",
		},
		`"Values":{":v":%s}`: {
			`"23"`: "Unexpected value type in payload", `true`: "Unexpected value type in payload",
			`[]`: "Unrecognized collection type class " + model + "AttributeValue",
		},
		`"Values":%s`: {`[]`: "Unrecognized collection type java.util.Map<java.lang.String, " + model + "AttributeValue>"},
		`"Item":%s`: {
			`"23"`: "Unexpected field type", `34.56`: "Unexpected field type",
			`[]`: "Unrecognized collection type java.util.Map<java.lang.String, " + model + "AttributeValue>",
		},
	} {
		for value, want := range texts {
			body := "{" + strings.ReplaceAll(member, "%s", value) + "}"
			err := Decode([]byte(body), &input{})
			var f *fault.Error
			if !errors.As(err, &f) || f.Name != fault.SerializationException || f.Message != want {
				t.Errorf("%s\ngot  %v\nwant %s", body, err, want)
			}
		}
	}
}

func TestEveryPrefixOfARequestIsRefused(t *testing.T) {
	const body = `{"TableName":"t","KeySchema":[{"KeyType":"HASH"}],"Item":{"a":{"S":"x"}},"Unknown":[1,{}],"Limit":12}`
	if err := Decode([]byte(body), &input{}); err != nil {
		t.Fatal(err)
	}
	for i := range body {
		var f *fault.Error
		if err := Decode([]byte(body[:i]), &input{}); !errors.As(err, &f) || f.Name != fault.SerializationException {
			t.Errorf("%s: %v", body[:i], err)
		}
	}
	if err := Decode([]byte(body+"x"), &input{}); err == nil {
		t.Error("something behind the end passes")
	}
}

func TestGoTypeThatNoRequestHasIsABug(t *testing.T) {
	var wrong struct{ A chan int }
	var f *fault.Error
	if err := Decode([]byte(`{"A":1}`), &wrong); err == nil || errors.As(err, &f) {
		t.Error(err)
	}
}

// FuzzDecode compares with a JSON library, which is stricter: what it accepts means
// the same here.
func FuzzDecode(f *testing.F) {
	type members struct {
		TableName  *string
		Limit      *int32
		Units      int64
		Size       float64
		Read       *bool
		Names      map[string]string
		Attributes []string
		Schema     []keySchemaElement
		Schemas    map[string]*keySchemaElement
		Nested     map[string][]map[string]keySchemaElement
		Raw        jsontext.Value
		Values     map[string]jsontext.Value
	}
	f.Add(`{"TableName":"t","Limit":3,"Units":4,"Size":1.5,"Read":true,"Names":{"a":"b"},"Attributes":["a",null],"Schema":[{"KeyType":"x"}],"Schemas":{"a":null},"Raw":[1],"Values":{"a":{}}}`)
	f.Add(`{"Nested":{"a":[{"b":{"AttributeName":"c"}}]},"Unknown":{"a":[]},"TableName":"\ud83d\ude00"}`)
	f.Add(`{"Limit":1e400,"Units":-1.5,"Read":"no"}`)
	f.Fuzz(func(t *testing.T, body string) {
		var got members
		err := Decode([]byte(body), &got)
		var refused *fault.Error
		if err != nil && (!errors.As(err, &refused) || refused.Name != fault.SerializationException) {
			t.Fatal(err)
		}
		if err == nil && !jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true)) {
			t.Error("what is no JSON is accepted")
		}
		var want members
		if json.Unmarshal([]byte(body), &want) != nil {
			return
		}
		if strings.Contains(body, "null") { // which the library keeps as raw JSON
			want.Raw, want.Values, got.Raw, got.Values = nil, nil, nil, nil
		}
		if err != nil {
			t.Errorf("%v for %s", err, body)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	})
}
