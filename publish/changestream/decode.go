package changestream

import (
	"errors"
	"fmt"
	"time"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/publish"
)

// structure is a STRUCT value with the names of its fields.
type structure struct {
	fields []*sppb.StructType_Field
	values []*structpb.Value
}

// field returns a field by its name, nil if there is none.
func (s structure) field(name string) (*sppb.Type, *structpb.Value) {
	for i, f := range s.fields {
		if f.GetName() == name && i < len(s.values) {
			return f.GetType(), s.values[i]
		}
	}
	return nil, nil
}

func (s structure) value(name string) *structpb.Value { _, v := s.field(name); return v }

func (s structure) text(name string) string { return s.value(name).GetStringValue() }

func (s structure) time(name string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s.text(name))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is not a timestamp", name)
	}
	return t.UTC(), nil
}

// json returns the text of a JSON value, which some clients have parsed already.
func (s structure) json(name string) (string, error) {
	v := s.value(name)
	switch v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return "", nil
	case *structpb.Value_StringValue:
		return v.GetStringValue(), nil
	}
	text, err := v.MarshalJSON()
	return string(text), err
}

// structures returns the elements of an array of structs.
func structures(t *sppb.Type, v *structpb.Value) ([]structure, error) {
	fields := t.GetArrayElementType().GetStructType().GetFields()
	list := v.GetListValue().GetValues()
	if len(list) > 0 && len(fields) == 0 {
		return nil, errors.New("not an array of structs")
	}
	all := make([]structure, len(list))
	for i, e := range list {
		values := e.GetListValue().GetValues()
		if len(values) != len(fields) {
			return nil, fmt.Errorf("a struct of %d fields has %d", len(fields), len(values))
		}
		all[i] = structure{fields, values}
	}
	return all, nil
}

func (s structure) list(name string) ([]structure, error) {
	t, v := s.field(name)
	if v == nil {
		return nil, nil
	}
	return structures(t, v)
}

// decode reads the column ChangeRecord.
func decode(t *sppb.Type, v *structpb.Value) ([]publish.Event, error) {
	records, err := structures(t, v)
	if err != nil {
		return nil, err
	}
	var events []publish.Event
	for _, r := range records {
		before := len(events)
		for _, kind := range []struct {
			name string
			read func(structure) (publish.Event, error)
		}{
			{"data_change_record", readChange}, {"heartbeat_record", readHeartbeat}, {"child_partitions_record", readChildren},
		} {
			list, err := r.list(kind.name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind.name, err)
			}
			for _, s := range list {
				e, err := kind.read(s)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", kind.name, err)
				}
				events = append(events, e)
			}
		}
		if len(events) == before {
			return nil, errors.New("a record of no known kind")
		}
	}
	return events, nil
}

func readChange(s structure) (publish.Event, error) {
	at, err := s.time("commit_timestamp")
	if err != nil {
		return publish.Event{}, err
	}
	mods, err := s.list("mods")
	if err != nil {
		return publish.Event{}, fmt.Errorf("mods: %w", err)
	}
	r := &changes.Raw{
		ModType: changes.ModType(s.text("mod_type")), TableName: s.text("table_name"), TransactionTag: s.text("transaction_tag"),
		System: s.value("is_system_transaction").GetBoolValue(), Mods: make([]changes.RawMod, len(mods)),
	}
	for i, m := range mods {
		keys, err1 := m.json("keys")
		old, err2 := m.json("old_values")
		now, err3 := m.json("new_values")
		if err := errors.Join(err1, err2, err3); err != nil {
			return publish.Event{}, fmt.Errorf("mod %d: %w", i+1, err)
		}
		r.Mods[i] = changes.RawMod{Keys: keys, OldValues: old, NewValues: now}
	}
	return publish.Event{Time: at, Change: r}, nil
}

func readHeartbeat(s structure) (publish.Event, error) {
	at, err := s.time("timestamp")
	return publish.Event{Time: at}, err
}

func readChildren(s structure) (publish.Event, error) {
	at, err := s.time("start_timestamp")
	if err != nil {
		return publish.Event{}, err
	}
	list, err := s.list("child_partitions")
	if err != nil {
		return publish.Event{}, fmt.Errorf("child_partitions: %w", err)
	}
	e := publish.Event{Time: at, Children: make([]publish.Child, len(list))}
	for i, c := range list {
		e.Children[i].Token = c.text("token")
		if e.Children[i].Token == "" {
			return publish.Event{}, errors.New("a child without a token")
		}
		for _, p := range c.value("parent_partition_tokens").GetListValue().GetValues() {
			if token := p.GetStringValue(); token != "" { // the first partitions may have a NULL
				e.Children[i].Parents = append(e.Children[i].Parents, token)
			}
		}
	}
	return e, nil
}
