package spandbtest

import (
	"cmp"
	"fmt"
	"slices"

	"cloud.google.com/go/spanner/spansql"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// holds evaluates the condition. NULL counts as false, which is right as long as
// NOT is not applied to comparisons with it.
func (q *query) holds(r *row) (bool, error) {
	if q.where == nil {
		return true, nil
	}
	v, err := q.eval(q.where, r)
	b, _ := v.(bool)
	return b, err
}

func (q *query) eval(e spansql.Expr, r *row) (any, error) {
	switch e := e.(type) {
	case spansql.ID:
		i, err := q.column(string(e))
		if err != nil {
			return nil, err
		}
		return r.vals[i], nil
	case spansql.Param:
		v, ok := q.params[string(e)]
		if !ok {
			return nil, status.Errorf(codes.InvalidArgument, "No parameter found for binding: %s", string(e))
		}
		return v, nil
	case spansql.IntegerLiteral:
		return int64(e), nil
	case spansql.StringLiteral:
		return string(e), nil
	case spansql.BoolLiteral:
		return bool(e), nil
	case spansql.Paren:
		return q.eval(e.Expr, r)
	case spansql.IsOp:
		v, err := q.eval(e.LHS, r)
		if _, ok := e.RHS.(spansql.NullLiteral); !ok {
			return nil, unsupported(e.SQL())
		}
		return (v == nil) != e.Neg, err
	case spansql.LogicalOp:
		return q.logical(e, r)
	case spansql.InOp:
		return q.in(e, r)
	case spansql.ComparisonOp:
		return q.compare(e, r)
	}
	return nil, unsupported(e.SQL())
}

func (q *query) logical(e spansql.LogicalOp, r *row) (any, error) {
	right, err := q.eval(e.RHS, r)
	if err != nil {
		return nil, err
	}
	b, _ := right.(bool)
	if e.Op == spansql.Not {
		return !b, nil
	}
	left, err := q.eval(e.LHS, r)
	a, _ := left.(bool)
	if e.Op == spansql.And {
		return a && b, err
	}
	return a || b, err
}

func (q *query) in(e spansql.InOp, r *row) (any, error) {
	v, err := q.eval(e.LHS, r)
	if err != nil || v == nil {
		return nil, err
	}
	for _, rhs := range e.RHS {
		x, err := q.eval(rhs, r)
		if err != nil {
			return nil, err
		}
		list, ok := x.([]any)
		if !ok {
			list = []any{x}
		}
		if slices.Contains(list, v) {
			return !e.Neg, nil
		}
	}
	return e.Neg, nil
}

func (q *query) compare(e spansql.ComparisonOp, r *row) (any, error) {
	a, err := q.eval(e.LHS, r)
	if err != nil {
		return nil, err
	}
	b, err := q.eval(e.RHS, r)
	if err != nil || a == nil || b == nil {
		return nil, err
	}
	if fmt.Sprintf("%T", a) != fmt.Sprintf("%T", b) {
		return nil, status.Errorf(codes.InvalidArgument, "No matching signature for operator in %s", e.SQL())
	}
	n := cmp.Compare(string(encodeKey(nil, a)), string(encodeKey(nil, b)))
	switch e.Op {
	case spansql.Lt:
		return n < 0, nil
	case spansql.Le:
		return n <= 0, nil
	case spansql.Gt:
		return n > 0, nil
	case spansql.Ge:
		return n >= 0, nil
	case spansql.Eq:
		return n == 0, nil
	case spansql.Ne:
		return n != 0, nil
	}
	return nil, unsupported(e.SQL())
}
