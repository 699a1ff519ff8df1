package spandbtest

import (
	"fmt"
	"math"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// mutate adds one mutation to a commit.
func (db *database) mutate(p *pendingRows, m *spannerpb.Mutation) error {
	switch op := m.GetOperation().(type) {
	case *spannerpb.Mutation_Insert:
		return db.write(p, op.Insert, func(exists bool) error {
			if exists {
				return status.Errorf(codes.AlreadyExists, "Row already exists in table %s", op.Insert.GetTable())
			}
			return nil
		}, false)
	case *spannerpb.Mutation_Update:
		return db.write(p, op.Update, func(exists bool) error {
			if !exists {
				return status.Errorf(codes.NotFound, "Row not found in table %s", op.Update.GetTable())
			}
			return nil
		}, false)
	case *spannerpb.Mutation_InsertOrUpdate:
		return db.write(p, op.InsertOrUpdate, func(bool) error { return nil }, false)
	case *spannerpb.Mutation_Replace:
		return db.write(p, op.Replace, func(bool) error { return nil }, true)
	case *spannerpb.Mutation_Delete_:
		return db.remove(p, op.Delete)
	}
	return status.Errorf(codes.Unimplemented, "mutation %T", m.GetOperation())
}

// missing is how Spanner says it of a mutation.
func missing(table string) error { return status.Errorf(codes.NotFound, "Table not found: %s", table) }

// write applies a mutation that has values. replace forgets the columns that it
// does not name.
func (db *database) write(p *pendingRows, w *spannerpb.Mutation_Write, allow func(exists bool) error, replace bool) error {
	t, err := db.table(w.GetTable())
	if err != nil {
		return missing(w.GetTable())
	}
	columns := make([]int, len(w.GetColumns()))
	for i, name := range w.GetColumns() {
		if columns[i], err = t.columnIndex(name); err != nil {
			return err
		}
	}
	for _, list := range w.GetValues() {
		if len(list.GetValues()) != len(columns) {
			return status.Error(codes.InvalidArgument, "wrong number of values")
		}
		vals, given := make([]any, len(t.columns)), make([]bool, len(t.columns))
		for i, v := range list.GetValues() {
			c := t.columns[columns[i]]
			if vals[columns[i]], err = decodeColumn(v, c, p.at); err != nil {
				return err
			}
			given[columns[i]] = true
		}
		key, err := t.encodeKeyOf(vals)
		if err != nil {
			return err
		}
		r := p.row(t, key)
		if err := allow(r.new != nil); err != nil {
			return err
		}
		for i, c := range t.columns {
			if !given[i] && r.new != nil && !replace {
				vals[i] = r.new.vals[i]
			}
			if vals[i] == nil && c.notNull {
				return status.Errorf(codes.FailedPrecondition, "%s must not be NULL in table %s", c.name, t.name())
			}
		}
		r.new = &row{key: key, vals: vals}
	}
	return nil
}

// commitTimestamp is the placeholder that a client writes for the time of the
// commit.
const commitTimestamp = "spanner.commit_timestamp()"

func decodeColumn(v *structpb.Value, c column, at int64) (any, error) {
	if v.GetStringValue() == commitTimestamp && c.typ.Base == timestampType {
		if !c.commitTS {
			return nil, status.Errorf(codes.FailedPrecondition, "column %s does not allow commit timestamps", c.name)
		}
		return fromMicro(at), nil
	}
	val, err := decodeValue(v, typeCode(c.typ))
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "column %s: %v", c.name, err)
	}
	size := 0
	switch val := val.(type) {
	case string:
		size = len([]rune(val))
	case bytesValue:
		size = len(val)
	}
	if most := min(c.typ.Len, maxCell); c.typ.Len > 0 && int64(size) > most {
		return nil, status.Errorf(codes.FailedPrecondition, "New value exceeds the maximum size limit for column %s: %d", c.name, most)
	}
	return val, nil
}

// maxCell is the largest cell, in bytes.
const maxCell = 10 << 20

// maxKey is the largest primary key, in bytes.
const maxKey = 8 << 10

func (t *table) encodeKeyOf(vals []any) (string, error) {
	var key []byte
	for _, i := range t.key {
		key = encodeKey(key, vals[i])
	}
	if len(key) > 2*maxKey+64 { // bytes 0 take two
		return "", status.Errorf(codes.FailedPrecondition, "key of table %s is too large", t.name())
	}
	return string(key), nil
}

// remove applies a mutation that deletes.
func (db *database) remove(p *pendingRows, d *spannerpb.Mutation_Delete) error {
	t, err := db.table(d.GetTable())
	if err != nil {
		return missing(d.GetTable())
	}
	set := d.GetKeySet()
	var spans []span
	for _, k := range set.GetKeys() {
		key, err := t.encodeListed(k, len(t.key))
		if err != nil {
			return err
		}
		p.row(t, key).new = nil
	}
	for _, r := range set.GetRanges() {
		s, err := t.encodeRange(r)
		if err != nil {
			return err
		}
		spans = append(spans, s)
	}
	if set.GetAll() {
		spans = append(spans, span{})
	}
	for _, s := range spans {
		for _, r := range within(t.rows, s) {
			p.row(t, r.key).new = nil
		}
	}
	return nil
}

// encodeListed encodes a key, or the first parts of one.
func (t *table) encodeListed(list *structpb.ListValue, want int) (string, error) {
	var key []byte
	if n := len(list.GetValues()); n > len(t.key) || want > 0 && n != want {
		return "", status.Errorf(codes.InvalidArgument, "wrong number of key parts for table %s", t.name())
	}
	for i, v := range list.GetValues() {
		val, err := decodeValue(v, typeCode(t.columns[t.key[i]].typ))
		if err != nil {
			return "", status.Errorf(codes.InvalidArgument, "key of table %s: %v", t.name(), err)
		}
		key = encodeKey(key, val)
	}
	return string(key), nil
}

func (t *table) encodeRange(r *spannerpb.KeyRange) (span, error) {
	var s span
	var err error
	bound := func(list *structpb.ListValue, after bool) string {
		key, e := t.encodeListed(list, 0)
		if e != nil {
			err = e
		}
		if after {
			return prefixEnd(key)
		}
		return key
	}
	switch {
	case r.GetStartClosed() != nil:
		s.lo = bound(r.GetStartClosed(), false)
	default:
		s.lo = bound(r.GetStartOpen(), true)
	}
	switch {
	case r.GetEndClosed() != nil:
		s.hi = bound(r.GetEndClosed(), true)
	default:
		s.hi = bound(r.GetEndOpen(), false)
	}
	return s, err
}

// prefixEnd returns the smallest string above all that begin with p.
func prefixEnd(p string) string {
	b := []byte(p)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != math.MaxUint8 {
			b[i]++
			return string(b[:i+1])
		}
	}
	return ""
}

// typeError says that a value is not of its type.
func typeError(v *structpb.Value, code spannerpb.TypeCode) error {
	return fmt.Errorf("could not parse %.40q as %s", v.String(), code)
}
