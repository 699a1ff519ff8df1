package bigtable

import (
	"bytes"
	"context"
	"fmt"

	bt "cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

// Get implements kv.Engine. Several rows are read twice: if no row's version changed
// between the readings, all of them were there together at one instant, because a
// transaction changes all its rows' versions at one instant and no version ever
// recurs.
func (e *Engine) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	rows, err := inSpaces(ctx, e, refSpaces(refs), func() ([]kv.Row, error) { return e.get(ctx, refs) })
	if err != nil {
		return nil, fmt.Errorf("bigtable: get %d rows: %w", len(refs), err)
	}
	return rows, nil
}

func refSpaces(refs []kv.Ref) []string {
	names := make([]string, len(refs))
	for i := range refs {
		names[i] = refs[i].Space
	}
	return names
}

// inSpaces runs fn as a call of the engine. If a table is missing, the space may have
// been dropped and created again by another process: fn runs once more with what
// the catalog says now.
func inSpaces[T any](ctx context.Context, e *Engine, names []string, fn func() (T, error)) (T, error) {
	var none T
	if err := e.enter(ctx); err != nil {
		return none, err
	}
	defer e.leave()
	v, err := fn()
	if !isCode(err, codes.NotFound) {
		return v, err
	}
	for _, n := range names {
		e.forget(n)
	}
	if v, err = fn(); isCode(err, codes.NotFound) {
		err = fmt.Errorf("%w: a table of an existing space is missing", kv.ErrCorrupt)
	}
	return v, err
}

func (e *Engine) get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	places := make([]*row, len(refs))
	for i, ref := range refs {
		s, err := e.space(ctx, ref.Space)
		if err != nil {
			return nil, err
		}
		places[i] = &row{space: s, key: string(ref.Key)}
	}
	images, err := e.snapshot(ctx, places)
	if err != nil {
		return nil, err
	}
	now := e.opts.Clock.Now().UnixMicro()
	rows := make([]kv.Row, len(refs))
	for i, ref := range refs {
		if rows[i], err = images[i].row(bytes.Clone(ref.Key), now, ref.IncludeExpired); err != nil {
			return nil, fmt.Errorf("row %q of space %s: %w", ref.Key, ref.Space, err)
		}
		rows[i].Value = bytes.Clone(rows[i].Value)
	}
	return rows, nil
}

// snapshotTries is how often a snapshot is tried without locks.
const snapshotTries = 8

// snapshot reads the images of rows at one instant. It places no locks unless others
// keep changing the rows under it.
func (e *Engine) snapshot(ctx context.Context, places []*row) ([]image, error) {
	for try := range snapshotTries {
		first, err := e.collect(ctx, places, rowFilter)
		if err != nil || len(places) == 1 {
			return first, err
		}
		second, err := e.collect(ctx, places, stateFilter)
		if err != nil {
			return nil, err
		}
		if sameVersions(first, second) {
			return first, nil
		}
		if err := pause(ctx, firstBackoff<<min(try, 3)/4); err != nil {
			return nil, err
		}
	}
	return e.lockedSnapshot(ctx, places)
}

func sameVersions(a, b []image) bool {
	for i := range a {
		if a[i].version != b[i].version || a[i].live != b[i].live {
			return false
		}
	}
	return true
}

// collect reads the image of each row, all rows of a table in one call.
func (e *Engine) collect(ctx context.Context, places []*row, filter bt.Filter) ([]image, error) {
	rows, err := e.readAll(ctx, places, filter)
	if err != nil {
		return nil, err
	}
	return e.images(ctx, rows)
}

// readAll reads rows of several spaces, in the order of places, which may name a row
// twice.
func (e *Engine) readAll(ctx context.Context, places []*row, filter bt.Filter) ([]*row, error) {
	keys := map[*space][]string{}
	for _, p := range places {
		keys[p.space] = append(keys[p.space], p.key)
	}
	results := make(map[*space]map[string]*row, len(keys))
	if len(keys) == 1 {
		for s, ks := range keys {
			rows, err := e.readRows(ctx, "read rows", s, ks, filter)
			if err != nil {
				return nil, err
			}
			results[s] = rows
		}
	} else {
		g, ctx := errgroup.WithContext(ctx)
		type result struct {
			space *space
			rows  map[string]*row
		}
		done := make(chan result, len(keys))
		for s, ks := range keys {
			g.Go(func() error {
				rows, err := e.readRows(ctx, "read rows", s, ks, filter)
				done <- result{s, rows}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		close(done)
		for r := range done {
			results[r.space] = r.rows
		}
	}
	all := make([]*row, len(places))
	for i, p := range places {
		all[i] = results[p.space][p.key]
	}
	return all, nil
}

// Bounds of a page of a scan.
const (
	pageRows  = 1000
	pageBytes = 8 << 20
)

// Scan implements kv.Engine. It reads pages, so that a slow fn holds up no stream.
func (e *Engine) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if err := e.scan(ctx, space, r, fn); err != nil {
		return fmt.Errorf("bigtable: scan space %s: %w", space, err)
	}
	return nil
}

func (e *Engine) scan(ctx context.Context, name string, r kv.Range, fn func(kv.Row) bool) error {
	c := cursor{start: string(r.Start), end: string(r.End), reverse: r.Reverse}
	c.done = r.End != nil && string(r.Start) >= string(r.End)
	left := r.Limit
	for again := false; ; again = true {
		var rows []*row
		var images []image
		_, err := inSpaces(ctx, e, []string{name}, func() (struct{}, error) {
			s, err := e.space(ctx, name)
			if err != nil || c.done {
				return struct{}{}, err
			}
			next := c
			most := pageRows
			if r.Limit > 0 && !again {
				most = min(most, r.Limit+8) // a few may be tombstones
			}
			if rows, err = e.readPage(ctx, s, &next, most); err == nil {
				images, err = e.images(ctx, rows)
			}
			if err == nil {
				c = next
			}
			return struct{}{}, err
		})
		if err != nil {
			return err
		}
		now := e.opts.Clock.Now().UnixMicro()
		for i := range rows {
			row, err := images[i].row([]byte(rows[i].key), now, r.IncludeExpired)
			if err != nil {
				return fmt.Errorf("row %q: %w", rows[i].key, err)
			}
			if !row.Exists() {
				continue
			}
			if !fn(row) {
				return nil
			}
			if left--; left == 0 {
				return nil
			}
		}
		if c.done {
			return nil
		}
	}
}

// cursor is the part of a range that is still to be read. An empty end is none.
type cursor struct {
	start, end string
	reverse    bool
	done       bool
}

// readPage reads the next rows of a range.
func (e *Engine) readPage(ctx context.Context, s *space, c *cursor, most int) ([]*row, error) {
	var rows []*row
	var bad error
	size, full := 0, false
	opts := []bt.ReadOption{bt.RowFilter(rowFilter), bt.LimitRows(int64(most))}
	if c.reverse {
		opts = append(opts, bt.ReverseScan())
	}
	begin := func() { rows, size, full = nil, 0, false }
	err := e.read(ctx, "scan", s.table, pageTimeout, bt.NewRange(c.start, c.end), begin, func(r bt.Row) bool {
		row, err := decodeRow(s, r)
		if bad = err; err != nil {
			return false
		}
		rows = append(rows, row)
		size += len(row.item) + len(row.state.raw)
		full = size >= pageBytes || len(rows) == most
		return !full
	}, opts...)
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	switch {
	case !full:
		c.done = true
	case c.reverse:
		c.end = rows[len(rows)-1].key
		c.done = c.end <= c.start
	default:
		c.start = rows[len(rows)-1].key + "\x00"
		c.done = c.end != "" && c.start >= c.end
	}
	return rows, nil
}
