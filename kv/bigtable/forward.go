package bigtable

import (
	"bytes"
	"context"
	"slices"
	"strings"

	bt "cloud.google.com/go/bigtable"
)

// The forwarder moves entries from the rows they were committed in to the places
// where readers find them. Whoever owns a shard does it: in the background, and
// when somebody reads the shard. The order of steps is
//
//  1. write the entries to places of the own epoch that nobody looks at yet
//  2. compare-and-set the head: now they are published
//  3. delete them from their rows
//
// If the second fails somebody else owns the shard. Who takes a shard over first
// repeats the third for all that was published before.

// wakeFeed tells the forwarder that a row has a new entry, if it has.
func (e *Engine) wakeFeed(s *space, key string, feed []byte) {
	if feed == nil {
		return
	}
	f := &e.feeds
	f.mu.Lock()
	f.woken[shardID{s.stream, s.shardOf(key)}] = s
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Bounds of what is forwarded in one go.
const (
	forwardRows    = 64
	forwardBytes   = 4 << 20
	forwardEntries = 1000
)

// outgoing is an entry on its way from its row.
type outgoing struct {
	entry
	at bt.Timestamp
}

// forward publishes all entries whose hints are there when it is called. If the shard
// has another owner it returns errOwned, unless force is set or there is nothing
// to forward.
func (e *Engine) forward(ctx context.Context, s *space, number int, force bool) error {
	sh := e.feeds.shard(shardID{s.stream, number})
	select {
	case sh.semaphore <- struct{}{}:
		defer func() { <-sh.semaphore }()
	case <-ctx.Done():
		return ctx.Err()
	}
	prefix := s.shardKey(number)
	from := prefix
	for {
		hints, err := e.readHints(ctx, prefix, from)
		if err != nil || len(hints) == 0 {
			return err
		}
		from = hints[len(hints)-1].key + "\x00"
		// New hints come behind the old ones: nobody may chase them for ever.
		last := len(hints) < hintPage
		for len(hints) > 0 {
			n := min(len(hints), forwardRows)
			if err := e.forwardHints(ctx, s, number, sh, hints[:n], force); err != nil {
				return err
			}
			hints = hints[n:]
		}
		if last {
			return nil
		}
	}
}

// forwardHints publishes the entries of hinted rows, and removes the hints that have
// done their work.
func (e *Engine) forwardHints(ctx context.Context, s *space, number int, sh *shard, hints []hint, force bool) error {
	keys := make([]string, len(hints))
	for i, h := range hints {
		keys[i] = h.row
	}
	for {
		rows, err := e.outboxes(ctx, s, unique(keys, strings.Compare))
		if err != nil {
			return err
		}
		out, whole, err := gather(rows)
		if err != nil {
			return err
		}
		if len(out) > 0 && !sh.owned {
			// What was published before may still be in the rows: they are read
			// again once it is not.
			if err := e.takeOver(ctx, s, number, sh, force); err != nil {
				return err
			}
			continue
		}
		if len(out) > 0 {
			if err := e.publish(ctx, s, number, sh, out); err != nil {
				return err
			}
		}
		if whole {
			return e.removeHints(ctx, hints, rows)
		}
	}
}

// unique sorts a and leaves out what is there twice.
func unique[T comparable](a []T, compare func(T, T) int) []T {
	a = slices.Clone(a)
	slices.SortFunc(a, compare)
	return slices.Compact(a)
}

func (id txID) compare(other txID) int { return bytes.Compare(id[:], other[:]) }

// outboxes reads rows with their entries. Locks of decided transactions are taken
// away first, which is what puts their entries there.
func (e *Engine) outboxes(ctx context.Context, s *space, keys []string) ([]*row, error) {
	all := make([]*row, 0, len(keys))
	for len(keys) > 0 {
		rows, err := e.readRows(ctx, "read outboxes", s, keys, feedFilter)
		if err != nil {
			return nil, err
		}
		var ids []txID
		for _, k := range keys {
			if rows[k].state.locked {
				ids = append(ids, rows[k].state.tx)
			}
		}
		decisions, err := e.decide(ctx, unique(ids, txID.compare))
		if err != nil {
			return nil, err
		}
		var again []string
		for _, k := range keys {
			r := rows[k]
			rec := decisions[r.state.tx]
			if !r.state.locked || !rec.decided() {
				all = append(all, r)
				continue
			}
			if _, err := e.finish(ctx, r, rec); err != nil {
				return nil, err
			}
			again = append(again, k)
		}
		keys = again
	}
	return all, nil
}

// gather lists the entries of rows, each row's in the order of its commits. It is
// not whole if there are more than fit.
func gather(rows []*row) (out []outgoing, whole bool, err error) {
	size := 0
	for _, r := range rows {
		for _, o := range r.outbox {
			if size > forwardBytes || len(out) == forwardEntries {
				return out, false, nil
			}
			_, data, err := decodeOutbox(o.data)
			if err != nil {
				return nil, false, err
			}
			size += len(data) + len(r.key)
			out = append(out, outgoing{entry: entry{version: o.p(), key: r.key, data: data}, at: o.at})
		}
	}
	return out, true, nil
}

// publish appends entries to a shard that this process owns, and takes them out of
// their rows.
func (e *Engine) publish(ctx context.Context, s *space, number int, sh *shard, out []outgoing) error {
	// A request whose fate is unknown may be carried out at any time, in places where
	// other entries must not come then: whatever goes wrong ends the epoch.
	owned := false
	defer func() { sh.owned = owned }()
	prefix := s.shardKey(number)
	next := sh.head
	next.epochs = slices.Clone(next.epochs)
	current := next.current()
	var keys []string
	var ms []*mutation
	for i := range out {
		en := &out[i].entry
		en.place = place{current.number, current.published}
		current.published++
		next.time = max(next.time, en.version)
		en.time = next.time
		keys = append(keys, prefix+entryKey(en.place))
		ms = append(ms, newMutation().set(entryCell, en.encode()))
	}
	if err := e.plain(ctx, "write entries", e.streamTable, keys, ms); err != nil {
		return err
	}
	if err := e.setHead(ctx, "publish", prefix, sh, next); err != nil {
		return err
	}
	if err := e.clearOutboxes(ctx, s, out); err != nil {
		return err
	}
	// That goes into the row with the next change.
	sh.head.current().acknowledged = current.published
	owned = true
	return nil
}

// clearOutboxes deletes entries from the rows they came in.
func (e *Engine) clearOutboxes(ctx context.Context, s *space, out []outgoing) error {
	byRow := map[string]*mutation{}
	var keys []string
	var ms []*mutation
	for _, o := range out {
		m := byRow[o.key]
		if m == nil {
			m = newMutation()
			byRow[o.key] = m
			keys = append(keys, o.key)
			ms = append(ms, m)
		}
		m.deleteAt(outboxCell, o.at)
	}
	if len(keys) == 0 {
		return nil
	}
	return e.plain(ctx, "clear outboxes", s.table, keys, ms)
}

// removeHints removes the hints that have done their work.
func (e *Engine) removeHints(ctx context.Context, hints []hint, rows []*row) error {
	byKey := make(map[string]*row, len(rows))
	for _, r := range rows {
		byKey[r.key] = r
	}
	var keys []string
	for _, h := range hints {
		r := byKey[h.row]
		if h.settled(r) {
			keys = append(keys, h.key)
		} else if h.tx == (txID{}) {
			if err := e.touch(ctx, h, r); err != nil {
				return err
			}
		}
	}
	return e.deleteRows(ctx, "remove hints", e.outboxTable, keys)
}
