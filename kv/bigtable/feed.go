package bigtable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/kv"
)

// feedPage bounds what one call of ReadFeed returns, in entries and in bytes.
const (
	feedPage      = 10_000
	feedPageBytes = 16 << 20
)

// ReadFeed implements kv.Engine. Entries that wait in their rows are forwarded first,
// so it returns every entry whose commit has returned.
func (e *Engine) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	entries, err := inSpaces(ctx, e, []string{space}, func() ([]kv.FeedEntry, error) { return e.readFeed(ctx, space, shard, after, limit) })
	if err != nil {
		return nil, fmt.Errorf("bigtable: read shard %d of the feed of space %s: %w", shard, space, err)
	}
	return entries, nil
}

func (e *Engine) readFeed(ctx context.Context, name string, number int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	s, err := e.space(ctx, name)
	if err != nil {
		return nil, err
	}
	from, err := parsePosition(after)
	if err != nil {
		return nil, err
	}
	if number >= s.FeedShards {
		return nil, fmt.Errorf("%w: the space has %d shards", kv.ErrInvalid, s.FeedShards)
	}
	cutoff := uint64(kv.VersionAt(e.opts.Clock.Now().Add(-s.FeedRetention)))
	limit = min(limit, feedPage)
	id := shardID{s.stream, number}
	// Who is behind anyhow need not wait for what comes last.
	known := e.feeds.published(id)
	behind := len(known.after(from, limit)) == limit
	prefix := s.shardKey(number)
	for last := []byte(nil); ; {
		if !behind {
			if err := e.catchUp(ctx, s, number); err != nil {
				return nil, err
			}
		}
		raw, err := e.readCell(ctx, "read head", e.streamTable, prefix+headKey, headCell)
		if err != nil {
			return nil, err
		}
		if raw == nil {
			return nil, e.stillThere(ctx, s)
		}
		h, err := parseHead(raw)
		if err != nil {
			return nil, err
		}
		e.feeds.sawPublished(id, h)
		entries, again, err := e.readPublished(ctx, prefix, h, from, cutoff, limit)
		switch {
		case again && bytes.Equal(raw, last):
			return nil, fmt.Errorf("%w: an entry that was published is missing", kv.ErrCorrupt)
		case again:
			last = raw
		case behind && err == nil && len(entries) < limit:
			behind = false
		default:
			return entries, err
		}
	}
}

// stillThere returns an error if a space was dropped by another process.
func (e *Engine) stillThere(ctx context.Context, s *space) error {
	now, _, err := e.readSpace(ctx, s.Name)
	if err != nil || now != nil && now.stage == existing && now.generation == s.generation {
		return err
	}
	e.forget(s.Name)
	if now != nil && now.stage == existing {
		return nil // created again, and empty
	}
	return spaceNotFound(s.Name)
}

// readerPatience is how long a reader waits for the owner of a shard before it takes
// it over. The owner looks every busyPoll.
const readerPatience = 4 * busyPoll

// catchUp makes sure that entries whose commits have returned are published. If another
// process owns the shard, it waits until that one has published them: those that
// are there now, not those that come meanwhile.
func (e *Engine) catchUp(ctx context.Context, s *space, number int) error {
	err := e.forward(ctx, s, number, false)
	if !errors.Is(err, errOwned) && !errors.Is(err, errLost) {
		return err
	}
	waiting, err := e.allHints(ctx, s.shardKey(number))
	if err != nil {
		return err
	}
	step := firstBackoff / 2
	for waited := time.Duration(0); waited < e.readerPatience; waited += step {
		if waiting, err = e.stillWaiting(ctx, s, waiting); err != nil || len(waiting) == 0 {
			return err
		}
		if err := pause(ctx, step); err != nil {
			return err
		}
		step = min(2*step, busyPoll/10)
	}
	for {
		if err := e.forward(ctx, s, number, true); !errors.Is(err, errLost) {
			return err
		}
	}
}

func (e *Engine) allHints(ctx context.Context, prefix string) ([]hint, error) {
	var all []hint
	for from := prefix; ; {
		page, err := e.readHints(ctx, prefix, from)
		if all = append(all, page...); err != nil || len(page) < hintPage {
			return all, err
		}
		from = page[len(page)-1].key + "\x00"
	}
}

// stillWaiting returns the hints whose entries are committed and still in their rows.
func (e *Engine) stillWaiting(ctx context.Context, s *space, hints []hint) ([]hint, error) {
	keys := make([]string, len(hints))
	for i, h := range hints {
		keys[i] = h.row
	}
	byKey := map[string]*row{}
	for keys = unique(keys, strings.Compare); len(keys) > 0; {
		n := min(len(keys), forwardRows)
		rows, err := e.outboxes(ctx, s, keys[:n])
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			byKey[r.key] = r
		}
		keys = keys[n:]
	}
	return slices.DeleteFunc(hints, func(h hint) bool {
		return !slices.ContainsFunc(byKey[h.row].outbox, func(o outboxEntry) bool { return o.p() == h.version.p })
	}), nil
}

// readPublished reads entries behind from. again: the head has changed meanwhile.
func (e *Engine) readPublished(ctx context.Context, prefix string, h head, from place, cutoff uint64, limit int) (out []kv.FeedEntry, again bool, err error) {
	if from == (place{}) {
		return e.readYoung(ctx, prefix, h, cutoff, limit)
	}
	if from.less(h.trimmed) {
		return nil, false, kv.ErrFeedTrimmed
	}
	entries, again, err := e.readPlaces(ctx, prefix, h, from, limit)
	if err == nil && len(entries) > 0 && entries[0].time < cutoff {
		err = kv.ErrFeedTrimmed
	}
	if err != nil || again {
		return nil, again, err
	}
	return feedEntries(entries), false, nil
}

// readYoung reads from the first entry that is not too old.
func (e *Engine) readYoung(ctx context.Context, prefix string, h head, cutoff uint64, limit int) ([]kv.FeedEntry, bool, error) {
	if h.time < cutoff {
		return nil, false, nil
	}
	for from := h.trimmed; ; {
		entries, again, err := e.readPlaces(ctx, prefix, h, from, limit)
		if err != nil || again || len(entries) == 0 {
			return nil, again, err
		}
		from = entries[len(entries)-1].place
		for i := range entries {
			if entries[i].time >= cutoff {
				return feedEntries(entries[i:]), false, nil
			}
		}
	}
}

func feedEntries(entries []entry) []kv.FeedEntry {
	out := make([]kv.FeedEntry, len(entries))
	for i, en := range entries {
		out[i] = kv.FeedEntry{Position: en.place.position(), Key: []byte(en.key), Version: kv.Version(en.version), Data: en.data}
	}
	return out
}

// readPlaces reads the entries that the head has behind from. If one is missing, the
// head must have changed: again.
func (e *Engine) readPlaces(ctx context.Context, prefix string, h head, from place, limit int) ([]entry, bool, error) {
	places := h.after(from, limit)
	if len(places) == 0 {
		return nil, false, nil
	}
	entries, err := e.readEntries(ctx, prefix, places, limit)
	if err != nil {
		return nil, false, err
	}
	for i := range entries {
		if entries[i].place != places[i] {
			return nil, true, nil
		}
	}
	return entries, len(entries) == 0, nil
}

// readEntries reads entries from the first to the last of places, at most limit, and
// at least one if there is any. Places in between that are not published, because
// their owner lost the shard, are left out.
func (e *Engine) readEntries(ctx context.Context, prefix string, places []place, limit int) ([]entry, error) {
	var ranges bt.RowRangeList
	for i := 0; i < len(places); {
		first, last := places[i], places[i]
		for ; i < len(places) && places[i].epoch == first.epoch; i++ {
			last = places[i]
		}
		ranges = append(ranges, bt.NewRange(prefix+entryKey(first), prefix+entryKey(last)+"\x00"))
	}
	var entries []entry
	var bad error
	size := 0
	err := e.read(ctx, "read entries", e.streamTable, pageTimeout, ranges, func() { entries, size = nil, 0 }, func(r bt.Row) bool {
		en, err := parseEntry(newest(r, entryCell))
		if bad = err; err != nil {
			return false
		}
		en.place, bad = parseEntryKey(r.Key()[len(prefix):])
		entries = append(entries, en)
		size += len(en.data) + len(en.key)
		return bad == nil && size < feedPageBytes
	}, bt.LimitRows(int64(limit)), bt.RowFilter(entryCell.filter()))
	if err == nil {
		err = bad
	}
	return entries, err
}

// trim removes entries that are too old from the shards that this process owns.
func (e *Engine) trim(ctx context.Context, s *space) {
	for number := range s.FeedShards {
		if err := e.trimShard(ctx, s, number); err != nil && ctx.Err() == nil {
			e.log.Debug("bigtable: feed not trimmed", "space", s.Name, "shard", number, "error", err)
		}
	}
}

// trimPage bounds how many entries are removed in one go.
const trimPage = 1000

func (e *Engine) trimShard(ctx context.Context, s *space, number int) error {
	sh := e.feeds.shard(shardID{s.stream, number})
	select {
	case sh.semaphore <- struct{}{}:
		defer func() { <-sh.semaphore }()
	default:
		return nil // busy
	}
	prefix := s.shardKey(number)
	cutoff := uint64(kv.VersionAt(e.opts.Clock.Now().Add(-s.FeedRetention)))
	for sh.owned {
		entries, again, err := e.readPlaces(ctx, prefix, sh.head, sh.head.trimmed, trimPage)
		if err != nil || again {
			return err
		}
		var keys []string
		next := sh.head
		for _, en := range entries {
			if en.time >= cutoff {
				break
			}
			keys = append(keys, prefix+entryKey(en.place))
			next.trimmed = en.place
		}
		if len(keys) == 0 {
			return nil
		}
		// First the head, so that a reader who misses an entry finds out why.
		if err := e.setHead(ctx, "trim", prefix, sh, next); err != nil {
			sh.owned = false
			return err
		}
		if err := e.deleteRows(ctx, "trim entries", e.streamTable, keys); err != nil {
			return err
		}
	}
	return nil
}
