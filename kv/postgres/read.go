package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// headSize is how much of a key is in the index as it is. The index of a table
// says the same.
const headSize = 2600

func head(key []byte) []byte { return key[:min(headSize, len(key))] }

// decodeRow fills row from the columns key, value, link, expires_at and version.
// Key and Value are copied into one piece of memory.
func decodeRow(v [][]byte, now time.Time, row *kv.Row) error {
	version, err := decodeInt(v[4])
	if err != nil {
		return err
	}
	buf := make([]byte, len(v[0])+len(v[1]))
	n := copy(buf, v[0])
	copy(buf[n:], v[1])
	*row = kv.Row{Key: buf[:n:n], Value: buf[n:], Link: string(v[2]), Version: kv.Version(version)}
	if v[3] != nil {
		micros, err := decodeInt(v[3])
		if err != nil {
			return err
		}
		row.ExpiresAt = time.UnixMicro(micros).UTC()
		row.Expired = !row.ExpiresAt.After(now)
	}
	return nil
}

// Get implements kv.Engine.
func (e *Engine) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	rows, err := e.get(ctx, refs)
	if err != nil {
		return nil, fmt.Errorf("postgres: get: %w", interrupted(ctx, err))
	}
	return rows, nil
}

func (e *Engine) get(ctx context.Context, refs []kv.Ref) (rows []kv.Row, err error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	names := distinct(len(refs), func(i int) string { return refs[i].Space })
	err = e.withSpaces(ctx, names, func(spaces map[string]*space) error {
		now := e.clock.Now()
		q := newGetQuery(refs, names, spaces)
		rows = make([]kv.Row, len(refs))
		err := e.roundTrip(ctx, q.sql, &q.args, func(v [][]byte) error { return q.take(v, now, rows) })
		for i := range rows {
			if rows[i].Key == nil {
				rows[i].Key = slices.Clone(refs[i].Key)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// getQuery is one statement for all refs, so that they are read from one snapshot.
type getQuery struct {
	args
	sql  string
	refs []kv.Ref
	// wanted has for each space, in the order of the statement, the refs by key.
	wanted []map[string][]int
}

func newGetQuery(refs []kv.Ref, names []string, spaces map[string]*space) *getQuery {
	q := &getQuery{refs: refs}
	at := make(map[string]int, len(names))
	for i, name := range names {
		at[name] = i
		q.wanted = append(q.wanted, map[string][]int{})
	}
	for i := range refs {
		by := q.wanted[at[refs[i].Space]]
		by[string(refs[i].Key)] = append(by[string(refs[i].Key)], i)
	}
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteString(" union all ")
		}
		fmt.Fprintf(&b, "select key, value, link, expires_at, version, %d from %s where substr(key, 1, %d) = ", i, spaces[name].table, headSize)
		q.addKeys(&b, q.wanted[i])
	}
	q.sql = b.String()
	return q
}

// addKeys says which rows of a space are wanted. Only long keys need to be compared
// as a whole, beyond what the index does.
func (q *getQuery) addKeys(b *strings.Builder, wanted map[string][]int) {
	heads, keys := byteaArray(), byteaArray()
	long := false
	var one []byte
	for key := range wanted {
		one = []byte(key)
		heads.append(head(one))
		keys.append(one)
		long = long || len(key) >= headSize
	}
	next := func() string { return "$" + strconv.Itoa(len(q.values)) }
	if len(wanted) == 1 && !long {
		q.bytes(one)
		b.WriteString(next())
		return
	}
	q.array(&heads)
	b.WriteString("any(" + next() + ")")
	if long {
		q.array(&keys)
		b.WriteString(" and key = any(" + next() + ")")
	}
}

// take puts a row where it was asked for.
func (q *getQuery) take(v [][]byte, now time.Time, rows []kv.Row) error {
	part, err := decodeInt(v[5])
	if err != nil {
		return err
	}
	for _, i := range q.wanted[part][string(v[0])] {
		var row kv.Row
		if err := decodeRow(v, now, &row); err != nil {
			return err
		}
		if !q.refs[i].IncludeExpired && row.Expired {
			continue
		}
		rows[i] = row
	}
	return nil
}
