package spanner

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/holdfast-dev/holdfast/kv"
)

const feedColumns = "committed_at, key, data"

// feedPlace is where an entry is in its shard. Transactions that have no row in
// common may have the same timestamp, so only time and key together are unique.
type feedPlace struct {
	at  time.Time
	key []byte
}

func (p feedPlace) less(o feedPlace) bool {
	return p.at.Before(o.at) || p.at.Equal(o.at) && bytes.Compare(p.key, o.key) < 0
}

func (p feedPlace) position() kv.Position {
	return kv.Position(fmt.Sprintf("%x.%x", p.at.UnixMicro(), p.key))
}

func parsePosition(p kv.Position) (feedPlace, error) {
	at, key, _ := strings.Cut(string(p), ".")
	us, err := strconv.ParseInt(at, 16, 64)
	b, bad := hex.DecodeString(key)
	if err != nil || bad != nil || us < 0 || len(b) == 0 {
		return feedPlace{}, fmt.Errorf("%w: position", kv.ErrInvalid)
	}
	return feedPlace{at: time.UnixMicro(us).UTC(), key: b}, nil
}

// ReadFeed implements kv.Engine. A strong read sees all commits up to its time, and
// all later ones have later timestamps: nothing appears behind a position that was
// given out.
func (e *Engine) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	entries, err := e.readFeed(ctx, space, shard, after, limit)
	if err != nil {
		return nil, fmt.Errorf("spanner: read shard %d of the feed of space %s: %w", shard, space, e.forget(err))
	}
	return entries, nil
}

func (e *Engine) readFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	opts, err := e.space(ctx, space)
	if err != nil {
		return nil, err
	}
	if shard < 0 || shard >= opts.FeedShards {
		return nil, fmt.Errorf("%w: the space has %d shards", kv.ErrInvalid, opts.FeedShards)
	}
	oldest := e.clock.Now().Add(-opts.FeedRetention)
	from := feedPlace{at: oldest, key: []byte{}} // before all keys
	if after != "" {
		if from, err = parsePosition(after); err != nil {
			return nil, err
		}
	}
	entries, at, err := e.feedPage(ctx, space, shard, from, oldest, limit)
	if err != nil {
		return nil, err
	}
	// Entries are removed by Spanner's time, so that no clock can remove what is
	// behind a younger position.
	removable := at.Add(-opts.FeedRetention)
	if after != "" && from.at.Before(removable) {
		// Read after the entries: what was removed before is known here.
		mark, err := e.readMark(ctx, space, shard)
		if err != nil {
			return nil, err
		}
		if from.less(mark) {
			return nil, kv.ErrFeedTrimmed
		}
	}
	if err := e.trimSometimes(ctx, space, shard, removable, opts.FeedRetention); err != nil {
		e.log.Warn("spanner: feed not trimmed", "space", space, "shard", shard, "error", err)
	}
	return entries, nil
}

// feedPage reads entries behind from, and returns the time of the read. An entry
// that is older than oldest is lost to the reader whether it was removed or not.
func (e *Engine) feedPage(ctx context.Context, space string, shard int, from feedPlace, oldest time.Time, limit int) ([]kv.FeedEntry, time.Time, error) {
	stmt := spanner.Statement{
		SQL: "SELECT " + feedColumns + " FROM " + feedTableSQL(space) +
			" WHERE shard = @shard AND committed_at >= @at AND (committed_at > @at OR key > @key)" +
			" ORDER BY committed_at, key LIMIT @limit",
		Params: map[string]any{"shard": int64(shard), "at": from.at, "key": from.key, "limit": int64(limit)},
	}
	var entries []kv.FeedEntry
	tx := e.client.Single()
	err := tx.Query(ctx, stmt).Do(func(r *spanner.Row) error {
		var p feedPlace
		var entry kv.FeedEntry
		err := r.Columns(&p.at, &entry.Key, &entry.Data)
		if err != nil {
			return fmt.Errorf("%w: %w", kv.ErrCorrupt, err)
		}
		if p.at, err = committedAt(p.at); err != nil {
			return err
		}
		if p.at.Before(oldest) {
			return kv.ErrFeedTrimmed
		}
		p.key = entry.Key
		entry.Position, entry.Version = p.position(), versionOf(p.at)
		entries = append(entries, entry)
		return nil
	})
	if err != nil {
		return nil, time.Time{}, translate(ctx, err)
	}
	at, err := tx.Timestamp()
	return entries, at, err
}

// readMark returns the place of the last entry that was removed from a shard.
func (e *Engine) readMark(ctx context.Context, space string, shard int) (mark feedPlace, err error) {
	stmt := spanner.Statement{
		SQL:    "SELECT committed_at, key FROM " + marksTable + " WHERE space = @space AND shard = @shard",
		Params: map[string]any{"space": space, "shard": int64(shard)},
	}
	err = e.client.Single().Query(ctx, stmt).Do(func(r *spanner.Row) error { return r.Columns(&mark.at, &mark.key) })
	return mark, translate(ctx, err)
}

type trimKey struct {
	space string
	shard int
}

// trimSometimes removes the entries of a shard that are older than removable, at
// the first read by this engine and then a few times within each retention.
// Spanner could do it by itself, but would not tell which positions are lost.
func (e *Engine) trimSometimes(ctx context.Context, space string, shard int, removable time.Time, retention time.Duration) error {
	const timesPerRetention = 16
	id := trimKey{space, shard}
	e.trimMu.Lock()
	due := !removable.Before(e.trims[id])
	if due {
		e.trims[id] = removable.Add(retention / timesPerRetention)
	}
	e.trimMu.Unlock()
	if !due {
		return nil
	}
	for {
		more, err := e.trimPage(ctx, space, shard, removable)
		if err != nil || !more {
			return err
		}
	}
}

// trimPageSize is how many entries one transaction removes.
const trimPageSize = 1000

// trimPage removes the first entries of a shard that are older than oldest, and
// moves its mark to the last of them. It reports whether there may be more.
func (e *Engine) trimPage(ctx context.Context, space string, shard int, oldest time.Time) (more bool, err error) {
	stmt := spanner.Statement{
		SQL: "SELECT committed_at, key FROM " + feedTableSQL(space) +
			" WHERE shard = @shard AND committed_at < @oldest ORDER BY committed_at, key LIMIT @size",
		Params: map[string]any{"shard": int64(shard), "oldest": oldest, "size": int64(trimPageSize)},
	}
	_, err = e.client.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		found := 0
		var last feedPlace
		err := tx.Query(ctx, stmt).Do(func(r *spanner.Row) error {
			found++
			return r.Columns(&last.at, &last.key)
		})
		more = found == trimPageSize
		if err != nil || found == 0 {
			return err
		}
		return tx.BufferWrite([]*spanner.Mutation{
			spanner.Delete(feedTableName(space), spanner.KeyRange{
				Start: spanner.Key{int64(shard)}, End: spanner.Key{int64(shard), last.at, last.key}, Kind: spanner.ClosedClosed,
			}),
			spanner.InsertOrUpdate(marksTable, []string{"space", "shard", "committed_at", "key"}, []any{space, int64(shard), last.at, last.key}),
		})
	})
	return more, translate(ctx, err)
}
