package bigtable

import (
	"context"
	"encoding/binary"
	"time"

	bt "cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

// tombstoneRound is one search through a table.
type tombstoneRound struct {
	next string
	// rest is how many passes are left until the next round.
	rest int
}

// ttlSpace is where package expiry keeps its index, and reads again and again where
// it has deleted everything. Its tombstones live no longer than they must.
const (
	ttlSpace     = DefaultSystemPrefix + "ttl_index__"
	ttlRetention = 10 * time.Minute
)

// tombstonePages bounds how much of a table one pass looks at.
const tombstonePages = 4

// sweepTombstones goes on with the search for old tombstones and placeholders in a
// table.
func (e *Engine) sweepTombstones(ctx context.Context, s *space) error {
	if e.sweep.tombstones == nil {
		e.sweep.tombstones = map[string]*tombstoneRound{}
	}
	round := e.sweep.tombstones[s.table.name]
	if round == nil {
		round = &tombstoneRound{}
		e.sweep.tombstones[s.table.name] = round
	}
	if round.rest--; round.rest > 0 {
		return nil
	}
	retention := e.opts.TombstoneRetention
	if s.Name == ttlSpace {
		retention = min(retention, ttlRetention)
	}
	for range tombstonePages {
		next, err := e.sweepTombstonePage(ctx, s, round.next, retention)
		if isCode(err, codes.NotFound) {
			e.forget(s.Name)
			return nil
		}
		if err != nil {
			return err
		}
		if round.next = next; next == "" {
			round.rest = e.passes(retention / 4)
			return nil
		}
	}
	return nil
}

// sweepTombstonePage removes old tombstones and placeholders, and returns where the
// next page begins: "" if this was the last. It writes the floor down first:
// nothing else will tell of their versions.
func (e *Engine) sweepTombstonePage(ctx context.Context, s *space, from string, retention time.Duration) (next string, err error) {
	cutoff := binary.BigEndian.AppendUint64([]byte{tagUnlocked}, uint64(kv.VersionAt(e.opts.Clock.Now().Add(-retention))))
	var old []string
	var floor uint64
	states := map[string][]byte{}
	var bad error
	rows := 0
	err = e.read(ctx, "search tombstones", s.table, pageTimeout, bt.InfiniteRange(from), func() { old, rows, floor = nil, 0, 0 }, func(r bt.Row) bool {
		st, err := parseState(newest(r, stateCell))
		if bad = err; err != nil {
			return false
		}
		rows++
		next = r.Key() + "\x00"
		if !st.live() {
			old = append(old, r.Key())
			states[r.Key()] = st.raw
			floor = max(floor, st.version.p)
		}
		return true
	}, bt.LimitRows(sweepPage), bt.RowFilter(stateCell.filter(bt.ValueRangeFilter([]byte{tagUnlocked}, cutoff))))
	if err == nil {
		err = bad
	}
	if err != nil {
		return "", err
	}
	if rows < sweepPage {
		next = ""
	}
	if len(old) == 0 {
		return next, nil
	}
	if err := e.raiseFloor(ctx, floor); err != nil {
		return "", err
	}
	current, err := e.readRows(ctx, "read tombstones", s, old, feedFilter)
	if err != nil {
		return "", err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for _, key := range old {
		if len(current[key].outbox) > 0 {
			continue
		}
		g.Go(func() error {
			_, err := e.cas(gctx, "remove tombstone", s.table, key, stateCell.is(states[key]), newMutation().deleteRow())
			return err
		})
	}
	return next, g.Wait()
}
