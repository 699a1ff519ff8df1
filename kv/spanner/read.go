package spanner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/holdfast-dev/holdfast/kv"
)

// querier is a transaction of any kind.
type querier interface {
	Query(ctx context.Context, stmt spanner.Statement) *spanner.RowIterator
}

const (
	// checkColumns are those that a check needs.
	checkColumns = "key, expires_at, committed_at"
	rowColumns   = checkColumns + ", value, " + linkColumn
)

// decodeRow reads checkColumns or rowColumns, and columns before them into before.
func decodeRow(r *spanner.Row, before ...any) (kv.Row, error) {
	var row kv.Row
	var link spanner.NullString
	var expires spanner.NullTime
	var committed time.Time
	into := append(before, &row.Key, &expires, &committed, &row.Value, &link)
	err := r.Columns(into[:min(r.Size(), len(into))]...)
	if err != nil {
		return kv.Row{}, fmt.Errorf("%w: %w", kv.ErrCorrupt, err)
	}
	if committed, err = committedAt(committed); err != nil {
		return kv.Row{}, err
	}
	row.Link, row.Version = link.StringVal, versionOf(committed)
	if expires.Valid {
		row.ExpiresAt = expires.Time.UTC()
	}
	return row, nil
}

// hide makes a row what a reader with the clock at now sees.
func hide(row kv.Row, now time.Time, includeExpired bool) kv.Row {
	row.Expired = !row.ExpiresAt.IsZero() && !now.Before(row.ExpiresAt)
	if row.Expired && !includeExpired {
		return kv.Row{}
	}
	return row
}

// place names a row in a map.
type place struct{ space, key string }

// maxStatementKeys bounds the keys in one statement, in bytes: a request may have
// 10 MB, and keys travel in base64.
const maxStatementKeys = 4 << 20

// statements ask for the rows at the given places, in as few statements as
// possible, nearly always one. Each row comes with the number of its space in
// spaces. The same spaces make the same text, so that Spanner knows it.
func statements(places []place, columns string) (stmts []spanner.Statement, spaces []string) {
	places = slices.Clone(places)
	slices.SortFunc(places, func(a, b place) int { return strings.Compare(a.space, b.space) })
	var sql strings.Builder
	params := map[string]any{}
	var keys [][]byte
	size := 0
	endSpace := func() {
		params["k"+strconv.Itoa(len(spaces)-1)] = keys
		keys = nil
	}
	begin := func(space string) {
		if sql.Len() > 0 {
			sql.WriteString(" UNION ALL ")
		}
		if len(spaces) == 0 || spaces[len(spaces)-1] != space {
			spaces = append(spaces, space)
		}
		n := len(spaces) - 1
		fmt.Fprintf(&sql, "SELECT %d AS space, %s FROM %s WHERE key IN UNNEST(@k%d)", n, columns, tableSQL(space), n)
	}
	end := func() {
		stmts = append(stmts, spanner.Statement{SQL: sql.String(), Params: params})
		sql.Reset()
		params, size = map[string]any{}, 0
	}
	for i, p := range places {
		switch {
		case i == 0:
			begin(p.space)
		case size+len(p.key) > maxStatementKeys:
			endSpace()
			end()
			begin(p.space)
		case p.space != places[i-1].space:
			endSpace()
			begin(p.space)
		}
		keys = append(keys, []byte(p.key))
		size += len(p.key)
	}
	if len(places) > 0 {
		endSpace()
		end()
	}
	return stmts, spaces
}

// fetch reads the rows that exist at the given places, as they are stored.
func fetch(ctx context.Context, q querier, stmts []spanner.Statement, spaces []string) (map[place]kv.Row, error) {
	rows := map[place]kv.Row{}
	for _, stmt := range stmts {
		err := q.Query(ctx, stmt).Do(func(r *spanner.Row) error {
			var n int64
			row, err := decodeRow(r, &n)
			if err != nil {
				return err
			}
			if n < 0 || n >= int64(len(spaces)) {
				return fmt.Errorf("%w: row of no space", kv.ErrCorrupt)
			}
			rows[place{spaces[n], string(row.Key)}] = row
			return nil
		})
		if err != nil {
			return nil, translate(ctx, err)
		}
	}
	return rows, nil
}

// snapshot reads at one instant, and returns that instant.
func (e *Engine) snapshot(ctx context.Context, places []place, columns string) (map[place]kv.Row, time.Time, error) {
	stmts, spaces := statements(places, columns)
	tx := e.client.Single()
	if len(stmts) > 1 {
		tx = e.client.ReadOnlyTransaction()
		defer tx.Close()
	}
	rows, err := fetch(ctx, tx, stmts, spaces)
	if err != nil {
		return nil, time.Time{}, err
	}
	at, err := tx.Timestamp()
	return rows, at, err
}

// Get implements kv.Engine.
func (e *Engine) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	places := make([]place, len(refs))
	for i, ref := range refs {
		if _, err := e.space(ctx, ref.Space); err != nil {
			return nil, fmt.Errorf("spanner: get: %w", err)
		}
		places[i] = place{ref.Space, string(ref.Key)}
	}
	stored, _, err := e.snapshot(ctx, places, rowColumns)
	if err != nil {
		return nil, fmt.Errorf("spanner: get: %w", e.forget(err))
	}
	now := e.clock.Now()
	rows := make([]kv.Row, len(refs))
	for i, ref := range refs {
		rows[i] = hide(stored[places[i]], now, ref.IncludeExpired)
		rows[i].Key, rows[i].Value = bytes.Clone(ref.Key), bytes.Clone(rows[i].Value)
	}
	return rows, nil
}

// forget drops what is remembered of spaces if err says that one is not there.
func (e *Engine) forget(err error) error {
	if errors.Is(err, errNoTable) {
		e.spaces.Store(&map[string]kv.SpaceOptions{})
	}
	return missingSpace(err)
}

// scanPage is how many rows one statement of a scan asks for. They are not held
// in memory together; a new statement makes sure that a slow callback does not
// read at a time for which Spanner no longer keeps versions.
const scanPage = 1000

// Scan implements kv.Engine.
func (e *Engine) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if err := e.scan(ctx, space, r, fn); err != nil {
		return fmt.Errorf("spanner: scan space %s: %w", space, e.forget(err))
	}
	return nil
}

func (e *Engine) scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if _, err := e.space(ctx, space); err != nil {
		return err
	}
	r.Start, r.End = bytes.Clone(r.Start), bytes.Clone(r.End)
	for left := r.Limit; ; {
		size := scanPage
		if r.Limit > 0 {
			size = min(size, left)
		}
		now := e.clock.Now()
		rows, stopped := 0, false
		iter := e.client.Single().Query(ctx, pageStatement(space, r, now, size))
		err := iter.Do(func(sr *spanner.Row) error {
			row, err := decodeRow(sr)
			if err != nil {
				return err
			}
			rows++
			if r.Reverse {
				r.End = bytes.Clone(row.Key)
			} else {
				r.Start = append(bytes.Clone(row.Key), 0)
			}
			if !fn(hide(row, now, true)) {
				stopped = true
				return errStop
			}
			return nil
		})
		if stopped {
			return nil
		}
		if err != nil {
			return translate(ctx, err)
		}
		if left -= rows; rows < size || r.Limit > 0 && left <= 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// errStop ends an iteration.
var errStop = errors.New("stop")

// pageStatement asks for the first rows of a range.
func pageStatement(space string, r kv.Range, now time.Time, size int) spanner.Statement {
	params := map[string]any{"size": int64(size)}
	var where []string
	if len(r.Start) > 0 {
		where = append(where, "key >= @start")
		params["start"] = r.Start
	}
	if r.End != nil {
		where = append(where, "key < @end")
		params["end"] = r.End
	}
	if !r.IncludeExpired {
		where = append(where, "(expires_at IS NULL OR expires_at > @now)")
		params["now"] = now
	}
	sql := "SELECT " + rowColumns + " FROM " + tableSQL(space)
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	sql += " ORDER BY key"
	if r.Reverse {
		sql += " DESC"
	}
	return spanner.Statement{SQL: sql + " LIMIT @size", Params: params}
}
