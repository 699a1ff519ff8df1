package pebble

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/kv"
)

// shardPrefix is the key of the shard's trim mark, and the prefix of its entries.
func (s *space) shardPrefix(shard int) []byte {
	return append(append(make([]byte, 0, maxPrefixSize+1), s.feed...), byte(shard))
}

// cutoff is the smallest version that is young enough to be read.
func (s *space) cutoff(now time.Time) kv.Version { return kv.VersionAt(now.Add(-s.FeedRetention)) }

// ReadFeed implements kv.Engine. It waits for commits in flight that carry
// entries of the space, so it returns every entry whose commit has returned.
func (e *Engine) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) (entries []kv.FeedEntry, err error) {
	defer e.survive(&err)
	entries, err = e.readFeed(ctx, space, shard, after, limit)
	if err != nil {
		return nil, fmt.Errorf("pebble: read shard %d of the feed of space %s: %w", shard, space, e.explain(err))
	}
	return entries, nil
}

func (e *Engine) readFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	s, err := e.space(space)
	if err != nil {
		return nil, err
	}
	from, err := parsePosition(after)
	if err != nil {
		return nil, err
	}
	if shard >= s.FeedShards {
		return nil, fmt.Errorf("%w: the space has %d shards", kv.ErrInvalid, s.FeedShards)
	}
	now := e.clock.Now()
	bound, err := e.flights.awaitFeed(ctx, s.id)
	if err != nil {
		return nil, err
	}
	it, err := e.shardIter(s, shard, bound)
	if err != nil {
		return nil, err
	}
	entries, err := readShard(it, from, s.cutoff(now), limit)
	if err := firstOf(err, translate(it.Close())); err != nil {
		return nil, err
	}
	if err := firstOf(e.settleSpace(s), e.failed()); err != nil {
		return nil, err
	}
	return entries, nil
}

// shardIter walks a shard: its trim mark and the entries with versions below
// bound.
func (e *Engine) shardIter(s *space, shard int, bound kv.Version) (*shardIter, error) {
	prefix := s.shardPrefix(shard)
	it, err := e.db.NewIter(&pebbledb.IterOptions{
		LowerBound: prefix,
		UpperBound: feedPlace{version: bound}.append(slices.Clone(prefix)),
	})
	return &shardIter{Iterator: it, prefix: prefix}, translate(err)
}

type shardIter struct {
	*pebbledb.Iterator
	prefix []byte
}

// mark returns the place of the last entry that was removed, if any was.
func (it *shardIter) mark() (feedPlace, error) {
	if !it.First() || len(it.Key()) > len(it.prefix) {
		return feedPlace{}, it.Error()
	}
	b, err := it.ValueAndErr()
	if err != nil {
		return feedPlace{}, translate(err)
	}
	mark, err := decodeFeedPlace(b)
	if err != nil {
		return feedPlace{}, fmt.Errorf("%w: trim mark", kv.ErrCorrupt)
	}
	return mark, nil
}

// seek goes to the first entry at or behind p.
func (it *shardIter) seek(p feedPlace) bool { return it.SeekGE(p.append(slices.Clone(it.prefix))) }

func (it *shardIter) place() (feedPlace, error) {
	p, err := decodeFeedPlace(it.Key()[len(it.prefix):])
	if err != nil {
		return feedPlace{}, fmt.Errorf("%w: key of a feed entry", kv.ErrCorrupt)
	}
	return p, nil
}

func (it *shardIter) entry() (kv.FeedEntry, error) {
	p, err := it.place()
	if err != nil {
		return kv.FeedEntry{}, err
	}
	b, err := it.ValueAndErr()
	if err != nil {
		return kv.FeedEntry{}, translate(err)
	}
	k, data, err := decodeFeedEntry(slices.Clone(b))
	if err != nil {
		return kv.FeedEntry{}, fmt.Errorf("%w: feed entry at %s", kv.ErrCorrupt, p.position())
	}
	return kv.FeedEntry{Position: p.position(), Key: slices.Clip(k), Version: p.version, Data: data}, nil
}

// readShard reads entries behind from, and not below cutoff. An entry that has
// become too old is lost to the reader whether it was removed yet or not.
func readShard(it *shardIter, from feedPlace, cutoff kv.Version, limit int) ([]kv.FeedEntry, error) {
	start := feedPlace{version: cutoff}
	if from != (feedPlace{}) {
		mark, err := it.mark()
		if err != nil {
			return nil, err
		}
		if from.less(mark) {
			return nil, kv.ErrFeedTrimmed
		}
		if start = from.next(); it.seek(start) {
			if p, err := it.place(); err != nil {
				return nil, err
			} else if p.version < cutoff {
				return nil, kv.ErrFeedTrimmed
			}
		}
	}
	var entries []kv.FeedEntry
	for ok := it.seek(start); ok && len(entries) < limit; ok = it.Next() {
		e, err := it.entry()
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// trimEvery is how many commits with entries to a space there are between two
// trims of one of its shards.
const trimEvery = 128

// trimSometimes removes old entries of a space that was written to. Failures
// wait for the next time: old entries are invisible anyway.
func (e *Engine) trimSometimes(p *plan, now time.Time) {
	var last *space
	for i := range p.writes {
		s := p.writes[i].space
		if s == last || s.FeedShards == 0 {
			continue
		}
		last = s
		if n := s.feedWrites.Add(1); n%trimEvery == 0 {
			if err := e.trim(s, int(n/trimEvery)%s.FeedShards, now); err != nil {
				e.log.Warn("pebble: feed not trimmed", "space", s.Name, "error", err)
			}
		}
	}
}

// trim removes the entries of a shard that are too old, and moves its mark to the
// last of them.
func (e *Engine) trim(s *space, shard int, now time.Time) error {
	if !s.trimming.TryLock() {
		return nil
	}
	defer s.trimming.Unlock()
	end := min(s.cutoff(now), e.flights.floor())
	it, err := e.shardIter(s, shard, end)
	if err != nil {
		return err
	}
	var mark feedPlace
	found := it.Last() && len(it.Key()) > len(it.prefix)
	if found {
		mark, err = it.place()
	}
	if err = errors.Join(err, translate(it.Close())); err != nil || !found {
		return err
	}
	b := e.db.NewBatch()
	_ = b.DeleteRange(feedPlace{}.append(slices.Clone(it.prefix)), feedPlace{version: end}.append(slices.Clone(it.prefix)), nil)
	_ = b.Set(it.prefix, mark.append(nil), nil)
	return e.db.Apply(b, pebbledb.NoSync)
}
