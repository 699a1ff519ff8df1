package streamtest

import (
	"fmt"
	"slices"
	"time"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

type emptyResponse = emptypb.Empty

// column is a field of a struct and its value.
type column struct {
	name  string
	typ   *sppb.Type
	value *structpb.Value
}

func scalar(code sppb.TypeCode) *sppb.Type { return &sppb.Type{Code: code} }

func arrayOf(t *sppb.Type) *sppb.Type {
	return &sppb.Type{Code: sppb.TypeCode_ARRAY, ArrayElementType: t}
}

var (
	text      = scalar(sppb.TypeCode_STRING)
	timestamp = scalar(sppb.TypeCode_TIMESTAMP)
	boolean   = scalar(sppb.TypeCode_BOOL)
	integer   = scalar(sppb.TypeCode_INT64)
	jsonType  = scalar(sppb.TypeCode_JSON)
)

func listOf(values ...*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

func timeOf(t time.Time) *structpb.Value {
	return structpb.NewStringValue(t.UTC().Format(time.RFC3339Nano))
}

// structOf returns the type and the value of a struct.
func (s *Server) structOf(columns ...column) (*sppb.Type, *structpb.Value) {
	if s.Shuffled {
		slices.Reverse(columns)
	}
	t := &sppb.StructType{}
	v := &structpb.ListValue{}
	for _, c := range columns {
		t.Fields = append(t.Fields, &sppb.StructType_Field{Name: c.name, Type: c.typ})
		v.Values = append(v.Values, c.value)
	}
	return &sppb.Type{Code: sppb.TypeCode_STRUCT, StructType: t}, structpb.NewListValue(v)
}

// json is a JSON value as its text or parsed.
func (s *Server) json(v string) *structpb.Value {
	if v == "" {
		return structpb.NewNullValue()
	}
	parsed := &structpb.Value{}
	if s.ParsedJSON && protojson.Unmarshal([]byte(v), parsed) == nil {
		return parsed
	}
	return structpb.NewStringValue(v)
}

func (s *Server) modColumns(m Mod) []column {
	return []column{{"keys", jsonType, s.json(m.Keys)}, {"new_values", jsonType, s.json(m.New)}, {"old_values", jsonType, s.json(m.Old)}}
}

func (s *Server) changeColumns(at time.Time, c *Change) []column {
	modType, _ := s.structOf(s.modColumns(Mod{})...)
	mods := make([]*structpb.Value, len(c.Mods))
	for i, m := range c.Mods {
		_, mods[i] = s.structOf(s.modColumns(m)...)
	}
	columnType, _ := s.structOf(column{"name", text, nil}, column{"type", jsonType, nil}, column{"is_primary_key", boolean, nil}, column{"ordinal_position", integer, nil})
	one := structpb.NewStringValue("1")
	return []column{
		{"commit_timestamp", timestamp, timeOf(at)},
		{"record_sequence", text, structpb.NewStringValue("00000000")},
		{"server_transaction_id", text, structpb.NewStringValue(fmt.Sprint("tx", at.UnixNano()))},
		{"is_last_record_in_transaction_in_partition", boolean, structpb.NewBoolValue(true)},
		{"table_name", text, structpb.NewStringValue(c.Table)},
		{"column_types", arrayOf(columnType), listOf()},
		{"mods", arrayOf(modType), listOf(mods...)},
		{"mod_type", text, structpb.NewStringValue(c.ModType)},
		{"value_capture_type", text, structpb.NewStringValue("OLD_AND_NEW_VALUES")},
		{"number_of_records_in_transaction", integer, one},
		{"number_of_partitions_in_transaction", integer, one},
		{"transaction_tag", text, structpb.NewStringValue(c.Tag)},
		{"is_system_transaction", boolean, structpb.NewBoolValue(c.System)},
	}
}

func heartbeatColumns(at time.Time) []column { return []column{{"timestamp", timestamp, timeOf(at)}} }

func (s *Server) childColumns(at time.Time, children ...*partition) []column {
	list := make([]*structpb.Value, len(children))
	columns := func(c *partition) []column {
		var parents []*structpb.Value
		for _, p := range c.parents {
			parents = append(parents, structpb.NewStringValue(p))
		}
		if len(parents) == 0 {
			parents = append(parents, structpb.NewNullValue())
		}
		return []column{{"token", text, structpb.NewStringValue(c.token)}, {"parent_partition_tokens", arrayOf(text), listOf(parents...)}}
	}
	typ, _ := s.structOf(columns(&partition{})...)
	for i, c := range children {
		_, list[i] = s.structOf(columns(c)...)
	}
	return []column{{"start_timestamp", timestamp, timeOf(at)}, {"record_sequence", text, structpb.NewStringValue("00000000")}, {"child_partitions", arrayOf(typ), listOf(list...)}}
}

// changeRecord is the one column of a row, with one element in one of its arrays.
func (s *Server) changeRecord(data, beat, children []column) (*sppb.Type, *structpb.Value) {
	field := func(name string, columns, empty []column) column {
		if columns == nil {
			t, _ := s.structOf(empty...)
			return column{name, arrayOf(t), listOf()}
		}
		t, v := s.structOf(columns...)
		return column{name, arrayOf(t), listOf(v)}
	}
	t, v := s.structOf(
		field("data_change_record", data, s.changeColumns(time.Time{}, &Change{})),
		field("heartbeat_record", beat, heartbeatColumns(time.Time{})),
		field("child_partitions_record", children, s.childColumns(time.Time{})),
	)
	return arrayOf(t), listOf(v)
}

func (s *Server) rowType() *sppb.StructType {
	t, _ := s.changeRecord(nil, nil, nil)
	return &sppb.StructType{Fields: []*sppb.StructType_Field{{Name: "ChangeRecord", Type: t}}}
}

func (s *Server) record(e event) *structpb.Value {
	if e.change == nil {
		return s.childRecord(e.at, e.children...)
	}
	_, v := s.changeRecord(s.changeColumns(e.at, e.change), nil, nil)
	return v.GetListValue().Values[0]
}

func (s *Server) childRecord(at time.Time, children ...*partition) *structpb.Value {
	_, v := s.changeRecord(nil, nil, s.childColumns(at, children...))
	return v.GetListValue().Values[0]
}

func (s *Server) heartbeatRecord(at time.Time) *structpb.Value {
	_, v := s.changeRecord(nil, heartbeatColumns(at), nil)
	return v.GetListValue().Values[0]
}

// sendRows answers with rows of texts.
func sendRows(out sppb.Spanner_ExecuteStreamingSqlServer, names []string, rows [][]string) error {
	t := &sppb.StructType{}
	for _, n := range names {
		t.Fields = append(t.Fields, &sppb.StructType_Field{Name: n, Type: text})
	}
	m := &sppb.PartialResultSet{Metadata: &sppb.ResultSetMetadata{RowType: t}}
	for _, row := range rows {
		for _, v := range row {
			m.Values = append(m.Values, structpb.NewStringValue(v))
		}
	}
	return out.Send(m)
}
