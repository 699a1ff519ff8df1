package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-dev/holdfast/kv"
)

// A scan reads page after page, each a statement of its own, and holds no
// connection while fn runs. A page ends after so many rows or, with the row that
// crosses the border, after so many bytes of values.
const (
	firstPage = 100 // for callers that stop soon
	fullPage  = 1000
	pageBytes = 4 << 20
)

// Scan implements kv.Engine.
func (e *Engine) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if err := e.scan(ctx, space, r, fn); err != nil {
		return fmt.Errorf("postgres: scan of space %s: %w", space, interrupted(ctx, err))
	}
	return nil
}

func (e *Engine) scan(ctx context.Context, name string, r kv.Range, fn func(kv.Row) bool) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	var sp *space
	var page []kv.Row
	s := scanner{engine: e, pool: e.pool, r: r, now: e.clock.Now(), size: firstPage}
	err := e.withSpaces(ctx, []string{name}, func(spaces map[string]*space) (err error) {
		sp = spaces[name]
		page, err = s.page(ctx, sp)
		return err
	})
	for seen := 0; err == nil && len(page) > 0; {
		for _, row := range page {
			if seen++; !fn(row) || seen == r.Limit {
				return nil
			}
		}
		if s.done {
			return nil
		}
		if s.size == firstPage {
			s.size = fullPage
			s.chooseServer(ctx)
		}
		if s.r.Limit > 0 {
			s.r.Limit = r.Limit - seen
		}
		page, err = s.pageFromEither(ctx, sp)
		if spaceGone(err) {
			err = fmt.Errorf("%w: it was dropped meanwhile", kv.ErrSpaceNotFound)
		}
	}
	return err
}

// scanner reads the pages of one scan.
type scanner struct {
	engine *Engine
	pool   *pgxpool.Pool // where the next page comes from
	r      kv.Range      // what is left of the range
	now    time.Time
	size   int
	// done: the last page reached the end.
	done bool
}

// chooseServer lets a standby read what is left, if there is one.
func (s *scanner) chooseServer(ctx context.Context) {
	if pool := s.engine.usable(ctx); pool != nil {
		s.pool = pool
	}
}

// pageFromEither goes on at the primary if the standby fails, as it may because of
// what it replays.
func (s *scanner) pageFromEither(ctx context.Context, sp *space) ([]kv.Row, error) {
	page, err := s.page(ctx, sp)
	if err != nil && s.pool != s.engine.pool {
		s.engine.restStandby(ctx, err)
		s.pool = s.engine.pool
		page, err = s.page(ctx, sp)
	}
	return page, err
}

// page reads rows at the beginning of what is left of the range, and cuts them
// off it.
func (s *scanner) page(ctx context.Context, sp *space) ([]kv.Row, error) {
	size := s.size
	if s.r.Limit > 0 {
		size = min(size, s.r.Limit)
	}
	a := new(args).bytes(s.r.Start).nullableBytes(s.r.End).bool(s.r.Reverse)
	a.int8(s.now.UnixMicro()).bool(s.r.IncludeExpired).int4(size).int8(pageBytes)
	sql := fmt.Sprintf("select * from %sscan_%d($1, $2, $3, $4, $5, $6, $7)", s.engine.prefix, sp.id)
	var rows []kv.Row
	bytes := 0
	err := roundTrip(ctx, s.pool, sql, a, func(v [][]byte) error {
		row, err := decodeRow(v[0], v[1:], s.now)
		bytes += len(row.Value)
		rows = append(rows, row)
		return err
	})
	if err != nil || len(rows) == 0 {
		s.done = true
		return nil, err
	}
	s.done = len(rows) < size && bytes < pageBytes
	last := rows[len(rows)-1].Key
	if s.r.Reverse {
		s.r.End = last
	} else {
		s.r.Start = append(last[:len(last):len(last)], 0)
	}
	return rows, nil
}
