package spanner

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/holdfast-dev/holdfast/kv"
)

// Commit implements kv.Engine.
func (e *Engine) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	version, err := e.commit(ctx, t)
	if err != nil {
		return 0, fmt.Errorf("spanner: commit: %w", e.forget(err))
	}
	return version, nil
}

func (e *Engine) commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	mutations, err := e.mutations(ctx, t.Writes)
	if err != nil {
		return 0, err
	}
	places := make([]place, len(t.Checks))
	for i, c := range t.Checks {
		if _, err := e.space(ctx, c.Space); err != nil {
			return 0, err
		}
		places[i] = place{c.Space, string(c.Key)}
	}
	if len(mutations) == 0 {
		return e.checkOnly(ctx, t.Checks, places)
	}
	out := &outcome{}
	stmts, spaces := statements(places, checkColumns)
	resp, err := e.client.ReadWriteTransactionWithOptions(withOutcome(ctx, out), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		if out.unsettled() {
			return kv.ErrUnknownOutcome // never judge checks after our own writes
		}
		stored, err := fetch(ctx, tx, stmts, spaces)
		if err != nil {
			return err
		}
		if err := checkAll(t.Checks, places, stored, e.clock.Now()); err != nil {
			return err
		}
		return tx.BufferWrite(mutations)
	}, spanner.TransactionOptions{TransactionTag: t.Tag})
	switch {
	case err == nil:
		committed, err := committedAt(resp.CommitTs)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, err)
		}
		return versionOf(committed), nil
	case kv.IsConflict(err):
		return 0, err
	case out.unsettled():
		if errors.Is(err, kv.ErrUnknownOutcome) {
			return 0, err
		}
		return 0, fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, err)
	}
	return 0, translate(ctx, err)
}

// checkOnly serves commits without writes from a snapshot, whose time is the
// instant of the commit.
func (e *Engine) checkOnly(ctx context.Context, checks []kv.Check, places []place) (kv.Version, error) {
	if len(checks) == 0 {
		return max(1, kv.VersionAt(e.clock.Now())), nil
	}
	stored, at, err := e.snapshot(ctx, places, checkColumns)
	if err != nil {
		return 0, err
	}
	if err := checkAll(checks, places, stored, e.clock.Now()); err != nil {
		return 0, err
	}
	version := max(1, versionOf(at))
	for _, c := range checks {
		version = max(version, c.Version+1)
	}
	return version, nil
}

// checkAll compares the checks with what is stored.
func checkAll(checks []kv.Check, places []place, stored map[place]kv.Row, now time.Time) error {
	var failed []kv.Ref
	for i, c := range checks {
		if hide(stored[places[i]], now, c.IncludeExpired).Version != c.Version {
			failed = append(failed, kv.Ref{Space: c.Space, Key: []byte(places[i].key), IncludeExpired: c.IncludeExpired})
		}
	}
	if failed != nil {
		return &kv.ConflictError{Refs: failed}
	}
	return nil
}

// mutations are what the writes come to. They replace whole rows, all columns at
// once; a change stream reports of it what has changed.
func (e *Engine) mutations(ctx context.Context, writes []kv.Write) ([]*spanner.Mutation, error) {
	var all []*spanner.Mutation
	for _, w := range writes {
		opts, err := e.space(ctx, w.Space)
		if err != nil {
			return nil, err
		}
		if w.Link != "" && !opts.Links || w.Feed != nil && opts.FeedShards == 0 {
			return nil, fmt.Errorf("%w: space %s holds no such thing", kv.ErrInvalid, w.Space)
		}
		if w.Delete {
			all = append(all, spanner.Delete(TableName(w.Space), spanner.Key{w.Key}))
		} else {
			all = append(all, spanner.InsertOrUpdate(TableName(w.Space),
				[]string{"key", "value", linkColumn, "expires_at", "committed_at"},
				[]any{w.Key, notNull(w.Value), nullLink(w.Link), nullTime(w.ExpiresAt), spanner.CommitTimestamp}))
		}
		if w.Feed != nil {
			all = append(all, spanner.Insert(feedTableName(w.Space),
				[]string{"shard", "committed_at", "key", "data"},
				[]any{int64(shardOf(w.Key, opts.FeedShards)), spanner.CommitTimestamp, w.Key, notNull(w.Feed)}))
		}
	}
	return all, nil
}

func shardOf(key []byte, shards int) int { return int(crc32.ChecksumIEEE(key) % uint32(shards)) }

// notNull keeps empty bytes from becoming NULL.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func nullLink(link string) spanner.NullString {
	return spanner.NullString{StringVal: link, Valid: link != ""}
}

func nullTime(t time.Time) spanner.NullTime {
	return spanner.NullTime{Time: t.Truncate(time.Microsecond).UTC(), Valid: !t.IsZero()}
}
