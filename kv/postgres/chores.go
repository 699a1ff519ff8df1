package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

const (
	// tombstoneAge is how long tombstones are kept, and how far the floor stays
	// behind the clock, so that it lifts no version where clocks agree.
	tombstoneAge = time.Minute
	// trimEvery is how many commits with entries to a feed there are, by this
	// process, between two trims of it.
	trimEvery = 128
	// trimBatch is how many entries are removed in one transaction.
	trimBatch = 1000
)

// chores remove what nobody needs any more, now and then after commits. Several
// processes may do them; one at a time works, the others let it be.
type chores struct {
	mu    sync.Mutex
	swept time.Time
	// fed counts commits with entries, by the id of their space.
	fed map[int64]int
	// running: one goroutine is at it.
	running bool
}

// due returns whether to sweep and which feeds to trim after a commit.
func (c *chores) due(rows []touched, now time.Time) (sweep bool, trim []*space) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fed == nil {
		c.fed = map[int64]int{}
	}
	var last *space
	for i := range rows {
		r := &rows[i]
		if r.write != nil && r.write.Delete && now.Sub(c.swept).Abs() >= tombstoneAge {
			sweep = true
		}
		if hasEntry(r) && r.space != last {
			last = r.space
			if c.fed[last.id]++; c.fed[last.id]%trimEvery == 0 {
				trim = append(trim, last)
			}
		}
	}
	if c.running || !sweep && len(trim) == 0 {
		return false, nil
	}
	c.running = true
	if sweep {
		c.swept = now
	}
	return sweep, trim
}

func (c *chores) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
}

// afterCommit starts what is due. Failures wait for the next time.
func (e *Engine) afterCommit(rows []touched, now time.Time) {
	sweep, trim := e.chores.due(rows, now)
	if !sweep && len(trim) == 0 {
		return
	}
	e.inBackground(func(ctx context.Context) {
		defer e.chores.done()
		if sweep {
			if err := e.sweep(ctx, now); err != nil && ctx.Err() == nil {
				e.log.Warn("postgres: tombstones not swept", "error", err)
			}
		}
		for _, s := range trim {
			if err := e.trim(ctx, s, now); err != nil && ctx.Err() == nil && !spaceGone(err) {
				e.log.Warn("postgres: feed not trimmed", "space", s.Name, "error", err)
			}
		}
	})
}

// sweep removes the tombstones of deletions longer than tombstoneAge ago.
func (e *Engine) sweep(ctx context.Context, now time.Time) error {
	covered := int64(kv.VersionAt(now.Add(-tombstoneAge)))
	return e.roundTrip(ctx, "select "+e.prefix+"sweep($1)", new(args).int8(covered), ignore)
}

// trim removes the entries of a feed that are too old to be read.
func (e *Engine) trim(ctx context.Context, s *space, now time.Time) error {
	cutoff := now.Add(-s.FeedRetention).UnixMicro()
	for shard := range s.FeedShards {
		for removed := int64(trimBatch); removed == trimBatch; {
			a := new(args).int8(s.id).int4(shard).int8(cutoff).int4(trimBatch)
			err := e.roundTrip(ctx, "select "+e.prefix+"trim($1, $2, $3, $4)", a, func(v [][]byte) (err error) {
				removed, err = decodeInt(v[0])
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func ignore([][]byte) error { return nil }
