package spandbtest

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"cloud.google.com/go/spanner/spansql"
	"google.golang.org/protobuf/types/known/structpb"
)

// Values are nil, bool, int64, float64, string, bytesValue, time.Time or []any.

// bytesValue is a value of type BYTES.
type bytesValue string

const timestampType = spansql.Timestamp

func typeCode(t spansql.Type) spannerpb.TypeCode {
	switch t.Base {
	case spansql.Bool:
		return spannerpb.TypeCode_BOOL
	case spansql.Int64:
		return spannerpb.TypeCode_INT64
	case spansql.Float64:
		return spannerpb.TypeCode_FLOAT64
	case spansql.String:
		return spannerpb.TypeCode_STRING
	case spansql.Bytes:
		return spannerpb.TypeCode_BYTES
	case spansql.Timestamp:
		return spannerpb.TypeCode_TIMESTAMP
	case spansql.JSON:
		return spannerpb.TypeCode_JSON
	}
	return spannerpb.TypeCode_TYPE_CODE_UNSPECIFIED
}

func decodeValue(v *structpb.Value, code spannerpb.TypeCode) (any, error) {
	switch v.GetKind().(type) {
	case *structpb.Value_NullValue, nil:
		return nil, nil
	case *structpb.Value_BoolValue:
		if code == spannerpb.TypeCode_BOOL {
			return v.GetBoolValue(), nil
		}
	case *structpb.Value_NumberValue:
		if code == spannerpb.TypeCode_FLOAT64 {
			return v.GetNumberValue(), nil
		}
	case *structpb.Value_StringValue:
		return decodeString(v, code)
	}
	return nil, typeError(v, code)
}

func decodeString(v *structpb.Value, code spannerpb.TypeCode) (any, error) {
	s := v.GetStringValue()
	var val any
	var err error
	switch code {
	case spannerpb.TypeCode_INT64:
		val, err = strconv.ParseInt(s, 10, 64)
	case spannerpb.TypeCode_STRING, spannerpb.TypeCode_JSON:
		val = s
	case spannerpb.TypeCode_BYTES:
		var b []byte
		b, err = base64.StdEncoding.DecodeString(s)
		val = bytesValue(b)
	case spannerpb.TypeCode_TIMESTAMP:
		var at time.Time
		at, err = time.Parse(time.RFC3339Nano, s)
		val = at.UTC()
	default:
		err = strconv.ErrSyntax
	}
	if err != nil {
		return nil, typeError(v, code)
	}
	return val, nil
}

// decodeParam decodes a parameter of a query.
func decodeParam(v *structpb.Value, t *spannerpb.Type) (any, error) {
	if t.GetCode() != spannerpb.TypeCode_ARRAY {
		return decodeValue(v, t.GetCode())
	}
	list := []any{}
	for _, e := range v.GetListValue().GetValues() {
		val, err := decodeValue(e, t.GetArrayElementType().GetCode())
		if err != nil {
			return nil, err
		}
		list = append(list, val)
	}
	return list, nil
}

func encodeValue(v any) *structpb.Value {
	switch v := v.(type) {
	case bool:
		return structpb.NewBoolValue(v)
	case int64:
		return structpb.NewStringValue(strconv.FormatInt(v, 10))
	case float64:
		return structpb.NewNumberValue(v)
	case string:
		return structpb.NewStringValue(v)
	case bytesValue:
		return structpb.NewStringValue(base64.StdEncoding.EncodeToString([]byte(v)))
	case time.Time:
		return structpb.NewStringValue(v.Format(time.RFC3339Nano))
	}
	return structpb.NewNullValue()
}

// encodeKey appends a part of a key. The order of encoded keys is that of their
// parts, and no encoded part is a prefix of another.
func encodeKey(key []byte, v any) []byte {
	const null, some = 0, 1
	escaped := func(s string) []byte {
		key = append(key, some)
		for i := range len(s) {
			if key = append(key, s[i]); s[i] == 0 {
				key = append(key, 0xff)
			}
		}
		return append(key, 0, 1)
	}
	integer := func(n int64) []byte { return binary.BigEndian.AppendUint64(key, uint64(n)^1<<63) }
	switch v := v.(type) {
	case bool:
		if v {
			return append(key, some, 1)
		}
		return append(key, some, 0)
	case int64:
		key = append(key, some)
		return integer(v)
	case string:
		return escaped(v)
	case bytesValue:
		return escaped(string(v))
	case time.Time:
		key = append(key, some)
		key = integer(v.Unix())
		return binary.BigEndian.AppendUint32(key, uint32(v.Nanosecond()))
	}
	return append(key, null)
}
