package bigtable

import (
	"encoding/binary"
	"fmt"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/kv"
)

// cell names the one cell that a compare-and-set looks at.
type cell struct{ family, column string }

var (
	stateCell   = cell{"m", "s"} // of a row
	itemCell    = cell{"d", "i"}
	outboxCell  = cell{"o", "e"}
	recordCell  = cell{"t", "s"} // of a transaction
	catalogCell = cell{"c", "v"}
	headCell    = cell{"h", "v"} // of a feed's shard
	entryCell   = cell{"r", "v"} // of a published entry
	hintCell    = cell{"h", "v"}
)

// filter passes the newest version of the cell only. The limit must come before
// any filter on values, or those would match superseded versions too.
func (c cell) filter(more ...bt.Filter) bt.Filter {
	return bt.ChainFilters(append([]bt.Filter{
		bt.FamilyFilter("^" + c.family + "$"), bt.ColumnFilter("^" + c.column + "$"), bt.LatestNFilter(1),
	}, more...)...)
}

// predicate is the condition of a compare-and-set: filter passes a cell, or, if it
// is negated, none.
type predicate struct {
	filter  bt.Filter
	negated bool
}

// is holds if the cell has exactly this value; nil: if there is no cell.
func (c cell) is(value []byte) predicate {
	if value == nil {
		return predicate{filter: c.filter(), negated: true}
	}
	return predicate{filter: c.filter(bt.ValueRangeFilter(value, append(value[:len(value):len(value)], 0)))}
}

// begins holds if the cell's value begins with prefix.
func (c cell) begins(prefix []byte) predicate {
	return predicate{filter: c.filter(bt.ValueRangeFilter(prefix, kv.PrefixEnd(prefix)))}
}

// olderThan holds for a row that is not locked and has a version below p, or none.
func olderThan(p uint64) predicate {
	from := binary.BigEndian.AppendUint64([]byte{tagUnlocked}, p)
	return predicate{filter: stateCell.filter(bt.ValueRangeFilter(from, []byte{tagEnd})), negated: true}
}

// Limits of the service for one request on one row.
const (
	maxRowKey    = 4 << 10
	maxCell      = 100 << 20
	maxMutations = 100_000
)

// mutation collects changes of one row and what is needed to check them.
type mutation struct {
	bt    *bt.Mutation
	ops   int
	large int // the size of the largest cell
}

func newMutation() *mutation { return &mutation{bt: bt.NewMutation()} }

// set sets a cell at timestamp 0, where a later write replaces it whatever the
// clocks say.
func (m *mutation) set(c cell, value []byte) *mutation { return m.setAt(c, 0, value) }

func (m *mutation) setAt(c cell, at bt.Timestamp, value []byte) *mutation {
	m.bt.Set(c.family, c.column, at, value)
	m.ops++
	m.large = max(m.large, len(value))
	return m
}

func (m *mutation) deleteFamily(c cell) *mutation {
	m.bt.DeleteCellsInFamily(c.family)
	m.ops++
	return m
}

// deleteAt deletes the version of the cell that has the timestamp.
func (m *mutation) deleteAt(c cell, at bt.Timestamp) *mutation {
	m.bt.DeleteTimestampRange(c.family, c.column, at, at+1000)
	m.ops++
	return m
}

func (m *mutation) deleteRow() *mutation {
	m.bt.DeleteRow()
	m.ops++
	return m
}

// check refuses what the service would refuse.
func (m *mutation) check(key string) error {
	switch {
	case len(key) == 0 || len(key) > maxRowKey:
		return fmt.Errorf("%w: row key of %d bytes", kv.ErrTooLarge, len(key))
	case m.large > maxCell:
		return fmt.Errorf("%w: cell of %d bytes", kv.ErrTooLarge, m.large)
	case m.ops == 0 || m.ops > maxMutations:
		return fmt.Errorf("%w: %d mutations of a row", kv.ErrTooLarge, m.ops)
	}
	return nil
}

// entryTime is the timestamp of the outbox entry of the version p: in milliseconds
// it is p itself, so that entries of a row stand in the order of its commits.
func entryTime(p uint64) bt.Timestamp { return bt.Timestamp(p) * 1000 }
