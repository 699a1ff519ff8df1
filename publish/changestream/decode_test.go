package changestream

import (
	"testing"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// No record may be left out without a word.
func TestDecodeRefusesWhatItDoesNotKnow(t *testing.T) {
	array := func(fields ...*sppb.StructType_Field) *sppb.Type {
		return &sppb.Type{Code: sppb.TypeCode_ARRAY, ArrayElementType: &sppb.Type{Code: sppb.TypeCode_STRUCT, StructType: &sppb.StructType{Fields: fields}}}
	}
	field := func(name string, typ *sppb.Type) *sppb.StructType_Field {
		return &sppb.StructType_Field{Name: name, Type: typ}
	}
	list := func(v ...*structpb.Value) *structpb.Value {
		return structpb.NewListValue(&structpb.ListValue{Values: v})
	}
	text := &sppb.Type{Code: sppb.TypeCode_STRING}
	beat := array(field("heartbeat_record", array(field("timestamp", text))))
	child := array(field("child_partitions_record", array(field("start_timestamp", text), field("child_partitions", array(field("token", text))))))
	good := structpb.NewStringValue("2026-08-20T10:00:00Z")
	for _, c := range []struct {
		name  string
		typ   *sppb.Type
		value *structpb.Value
		ok    bool
	}{
		{"a heartbeat", beat, list(list(list(list(good)))), true},
		{"no record", beat, list(), true},
		{"a record of a new kind", array(field("new_record", array(field("x", text)))), list(list(list(list(good)))), false},
		{"a record without any", beat, list(list(list())), false},
		{"a heartbeat without a time", beat, list(list(list(list(structpb.NewNullValue())))), false},
		{"a struct with fields missing", beat, list(list(list(list()))), false},
		{"not a struct", beat, list(good), false},
		{"not an array of structs", &sppb.Type{Code: sppb.TypeCode_ARRAY, ArrayElementType: text}, list(good), false},
		{"a child without a token", child, list(list(list(list(good, list(list(structpb.NewStringValue(""))))))), false},
		{"a child", child, list(list(list(list(good, list(list(structpb.NewStringValue("t"))))))), true},
	} {
		if _, err := decode(c.typ, c.value); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
