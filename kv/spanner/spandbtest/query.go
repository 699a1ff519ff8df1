package spandbtest

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"cloud.google.com/go/spanner/spansql"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// result is what a query found.
type result struct {
	rowType  *spannerpb.StructType
	rows     [][]*structpb.Value
	metadata *spannerpb.ResultSetMetadata
}

// query is a SELECT while it runs. The SQL that there is: columns and integers
// selected from one table, a WHERE of comparisons, IN, IS NULL, AND, OR and NOT
// over columns, integers, strings and parameters, ORDER BY columns, LIMIT; and
// such SELECTs without ORDER BY and LIMIT joined by UNION ALL.
type query struct {
	table  *table
	params map[string]any
	where  spansql.BoolExpr
	limit  int
}

func unsupported(what any) error {
	return status.Errorf(codes.Unimplemented, "SQL not supported: %v", what)
}

func (db *database) runQuery(t *transaction, req *spannerpb.ExecuteSqlRequest) (*result, error) {
	params := map[string]any{}
	for name, v := range req.GetParams().GetFields() {
		val, err := decodeParam(v, req.GetParamTypes()[name])
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "parameter %s: %v", name, err)
		}
		params[name] = val
	}
	total := &result{}
	// No name or string in the SQL that there is contains the words.
	for _, part := range strings.Split(req.GetSql(), " UNION ALL ") {
		q, err := spansql.ParseQuery(part)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "Syntax error: %v", err)
		}
		r, err := db.runSelect(t, q, params)
		if err != nil {
			return nil, err
		}
		if total.rowType == nil {
			total.rowType = r.rowType
		} else if len(total.rowType.GetFields()) != len(r.rowType.GetFields()) {
			return nil, status.Error(codes.InvalidArgument, "Queries in UNION ALL have mismatched column count")
		}
		total.rows = append(total.rows, r.rows...)
	}
	return total, nil
}

func (db *database) runSelect(t *transaction, q spansql.Query, params map[string]any) (*result, error) {
	if len(q.Select.From) != 1 || q.Select.Distinct || len(q.Select.GroupBy) > 0 || q.Offset != nil {
		return nil, unsupported(q.SQL())
	}
	from, ok := q.Select.From[0].(spansql.SelectFromTable)
	if !ok {
		return nil, unsupported(q.SQL())
	}
	table, err := db.table(string(from.Table))
	if err != nil {
		return nil, err
	}
	run := query{table: table, params: params, where: q.Select.Where, limit: math.MaxInt}
	if q.Limit != nil {
		if run.limit, err = run.limitOf(q.Limit); err != nil {
			return nil, err
		}
	}
	rows, err := run.rows(t, q.Order)
	if err != nil {
		return nil, err
	}
	return run.project(rows, q.Select)
}

// rows returns the rows that the condition holds for, in order, and makes a
// read-write transaction depend on them. Without an order they come in the opposite
// of the order of their keys.
func (q *query) rows(t *transaction, order []spansql.Order) ([]*row, error) {
	spans, pinned, err := q.spans()
	if err != nil {
		return nil, err
	}
	sorted, backwards := q.sortedByKey(order, pinned)
	if backwards {
		slices.Reverse(spans)
	}
	var found []*row
	for _, s := range spans {
		rows := within(t.rows(q.table), s)
		for i := range rows {
			r := rows[i]
			if backwards {
				r = rows[len(rows)-1-i]
			}
			if sorted && len(found) == q.limit {
				break
			}
			holds, err := q.holds(r)
			if err != nil {
				return nil, err
			}
			if holds {
				found = append(found, r)
			}
		}
		if t.snapshot == nil {
			at := int64(0)
			if n := len(q.table.log); n > 0 {
				at = q.table.log[n-1].at
			}
			t.reads = append(t.reads, read{table: q.table, span: s, at: at})
		}
	}
	if !sorted {
		if err := q.sort(found, order); err != nil {
			return nil, err
		}
	}
	return found[:min(q.limit, len(found))], nil
}

// sortedByKey reports whether an order is that of the keys, or its opposite, when
// the first pinned columns of the key have one value.
func (q *query) sortedByKey(order []spansql.Order, pinned int) (sorted, backwards bool) {
	if len(order) == 0 {
		return true, true
	}
	if len(order) > len(q.table.key)-pinned {
		return false, false
	}
	for i, o := range order {
		if !q.isColumn(o.Expr, q.table.key[pinned+i]) || o.Desc != order[0].Desc {
			return false, false
		}
	}
	return true, order[0].Desc
}

func (q *query) sort(rows []*row, order []spansql.Order) error {
	columns := make([]int, len(order))
	for i, o := range order {
		id, ok := o.Expr.(spansql.ID)
		if !ok {
			return unsupported(o.Expr.SQL())
		}
		var err error
		if columns[i], err = q.column(string(id)); err != nil {
			return err
		}
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		for i, c := range columns {
			if n := strings.Compare(string(encodeKey(nil, a.vals[c])), string(encodeKey(nil, b.vals[c]))); n != 0 {
				if order[i].Desc {
					return -n
				}
				return n
			}
		}
		return 0
	})
	return nil
}

func (q *query) limitOf(l spansql.LiteralOrParam) (int, error) {
	switch l := l.(type) {
	case spansql.IntegerLiteral:
		return int(l), nil
	case spansql.Param:
		if n, ok := q.params[string(l)].(int64); ok && n >= 0 {
			return int(n), nil
		}
	}
	return 0, status.Error(codes.InvalidArgument, "LIMIT must be a non-negative INT64")
}

// project makes the columns of the result.
func (q *query) project(rows []*row, s spansql.Select) (*result, error) {
	res := &result{rowType: &spannerpb.StructType{}, rows: make([][]*structpb.Value, len(rows))}
	for i, expr := range s.List {
		field := &spannerpb.StructType_Field{Type: &spannerpb.Type{Code: spannerpb.TypeCode_INT64}}
		if id, ok := expr.(spansql.ID); ok {
			column, err := q.column(string(id))
			if err != nil {
				return nil, err
			}
			field.Name = q.table.columns[column].name
			field.Type = &spannerpb.Type{Code: typeCode(q.table.columns[column].typ)}
		} else if _, ok := expr.(spansql.IntegerLiteral); !ok {
			return nil, unsupported(expr.SQL())
		}
		if i < len(s.ListAliases) && s.ListAliases[i] != "" {
			field.Name = string(s.ListAliases[i])
		}
		res.rowType.Fields = append(res.rowType.Fields, field)
		for n, r := range rows {
			v, err := q.eval(expr, r)
			if err != nil {
				return nil, err
			}
			res.rows[n] = append(res.rows[n], encodeValue(v))
		}
	}
	return res, nil
}

// messages cuts a result into pieces, each with a token of its own, without which
// the client would keep the rows back.
func (r *result) messages(id int64) []*spannerpb.PartialResultSet {
	var all []*spannerpb.PartialResultSet
	m := &spannerpb.PartialResultSet{Metadata: r.metadata}
	size := 0
	for i, row := range r.rows {
		m.Values = append(m.Values, row...)
		for _, v := range row {
			size += len(v.GetStringValue()) + 8
		}
		if size >= bytesPerMessage || (i+1)%rowsPerMessage == 0 {
			all = append(all, m)
			m, size = &spannerpb.PartialResultSet{}, 0
		}
	}
	all = append(all, m)
	for i, m := range all {
		m.ResumeToken = fmt.Appendf(nil, "%d/%d", id, i)
	}
	all[len(all)-1].Last = true
	return all
}

// spans returns the ranges of keys that can match: those that comparisons of the
// first columns of the key leave. The first pinned columns have one value.
func (q *query) spans() (spans []span, pinned int, err error) {
	prefixes := []string{""}
	for _, column := range q.table.key {
		points, bounds, err := q.bounds(column)
		if err != nil {
			return nil, 0, err
		}
		if points == nil {
			for _, p := range prefixes {
				spans = append(spans, bounds.behind(p))
			}
			return spans, pinned, nil
		}
		var next []string
		for _, p := range prefixes {
			for _, v := range points {
				next = append(next, string(encodeKey([]byte(p), v)))
			}
		}
		slices.Sort(next)
		if prefixes = slices.Compact(next); len(prefixes) == 1 {
			pinned++
		}
	}
	for _, p := range prefixes {
		spans = append(spans, span{lo: p, hi: prefixEnd(p)})
	}
	return spans, pinned, nil
}

// behind returns the span of the keys that begin with p and go on within s.
func (s span) behind(p string) span {
	out := span{lo: p + s.lo, hi: prefixEnd(p)}
	if s.hi != "" {
		out.hi = p + s.hi
	}
	return out
}

// bounds returns the values that a column must have one of, or else the bounds
// of its encoding.
func (q *query) bounds(column int) (points []any, s span, err error) {
	for _, c := range conjuncts(q.where) {
		if in, ok := c.(spansql.InOp); ok && !in.Neg && in.Unnest && len(in.RHS) == 1 && q.isColumn(in.LHS, column) {
			list, err := q.eval(in.RHS[0], nil)
			if err != nil {
				return nil, span{}, err
			}
			points = append([]any{}, list.([]any)...)
			return points, span{}, nil
		}
		op, ok := c.(spansql.ComparisonOp)
		if !ok || !q.isColumn(op.LHS, column) {
			continue
		}
		param, ok := op.RHS.(spansql.Param)
		if !ok {
			continue
		}
		v := q.params[string(param)]
		enc := string(encodeKey(nil, v))
		switch op.Op {
		case spansql.Eq:
			return []any{v}, span{}, nil
		case spansql.Ge:
			s.lo = max(s.lo, enc)
		case spansql.Gt:
			s.lo = max(s.lo, prefixEnd(enc))
		case spansql.Lt:
			s.hi = lower(s.hi, enc)
		case spansql.Le:
			s.hi = lower(s.hi, prefixEnd(enc))
		}
	}
	return nil, s, nil
}

func lower(a, b string) string {
	if a == "" {
		return b
	}
	return min(a, b)
}

func (q *query) column(name string) (int, error) {
	i, err := q.table.columnIndex(name)
	if err != nil {
		return 0, status.Errorf(codes.InvalidArgument, "Unrecognized name: %s", name)
	}
	return i, nil
}

func (q *query) isColumn(e spansql.Expr, column int) bool {
	id, ok := e.(spansql.ID)
	return ok && strings.EqualFold(string(id), q.table.columns[column].name)
}

func conjuncts(e spansql.BoolExpr) []spansql.BoolExpr {
	switch e := e.(type) {
	case nil:
		return nil
	case spansql.Paren:
		if inner, ok := e.Expr.(spansql.BoolExpr); ok {
			return conjuncts(inner)
		}
	case spansql.LogicalOp:
		if e.Op == spansql.And {
			return append(conjuncts(e.LHS), conjuncts(e.RHS)...)
		}
	}
	return []spansql.BoolExpr{e}
}
