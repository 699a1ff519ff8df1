package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// decodeRow returns the row with a key from the columns value, link, expires_at and
// version. Key and Value are copied into one piece of memory.
func decodeRow(key []byte, v [][]byte, now time.Time) (kv.Row, error) {
	version, err := decodeInt(v[3])
	if err != nil {
		return kv.Row{}, err
	}
	buf := make([]byte, len(key)+len(v[0]))
	n := copy(buf, key)
	copy(buf[n:], v[0])
	row := kv.Row{Key: buf[:n:n], Value: buf[n:], Link: string(v[1]), Version: kv.Version(version)}
	if v[2] != nil {
		micros, err := decodeInt(v[2])
		if err != nil {
			return kv.Row{}, err
		}
		row.ExpiresAt = time.UnixMicro(micros).UTC()
		row.Expired = !row.ExpiresAt.After(now)
	}
	return row, nil
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
		q := newGetQuery(e, refs, names, spaces)
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
	// asked has the refs of each space in the order of the statement's parameter.
	asked [][]int
}

func newGetQuery(e *Engine, refs []kv.Ref, names []string, spaces map[string]*space) *getQuery {
	q := &getQuery{refs: refs, asked: make([][]int, len(names))}
	var b strings.Builder
	for part, name := range names {
		keys := byteaArray()
		for i := range refs {
			if refs[i].Space == name {
				q.asked[part] = append(q.asked[part], i)
				keys.append(refs[i].Key)
			}
		}
		q.array(&keys)
		if part > 0 {
			b.WriteString(" union all ")
		}
		fmt.Fprintf(&b, "select *, %d from %sget_%d($%d)", part, e.prefix, spaces[name].id, part+1)
	}
	q.sql = b.String()
	return q
}

// take puts a row where it was asked for.
func (q *getQuery) take(v [][]byte, now time.Time, rows []kv.Row) error {
	n, err := decodeInt(v[0])
	if err != nil {
		return err
	}
	part, err := decodeInt(v[5])
	if err != nil {
		return err
	}
	if part < 0 || part >= int64(len(q.asked)) || n < 1 || n > int64(len(q.asked[part])) {
		return fmt.Errorf("%w: row %d of part %d", errWire, n, part)
	}
	i := q.asked[part][n-1]
	row, err := decodeRow(q.refs[i].Key, v[1:], now)
	if err == nil && (q.refs[i].IncludeExpired || !row.Expired) {
		rows[i] = row
	}
	return err
}
