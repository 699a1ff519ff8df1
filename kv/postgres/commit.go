package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// touched is a row that a commit checks, writes, or both.
type touched struct {
	space *space
	key   []byte
	id    int64
	// check is the index of the row's check, negative if there is none.
	check int
	write *kv.Write
}

// Commit implements kv.Engine.
func (e *Engine) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	v, err := e.commit(ctx, t)
	if err != nil {
		return 0, fmt.Errorf("postgres: commit: %w", err)
	}
	return v, nil
}

func (e *Engine) commit(ctx context.Context, t *kv.Txn) (v kv.Version, err error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	names := distinct(len(t.Checks)+len(t.Writes), func(i int) string {
		if i < len(t.Checks) {
			return t.Checks[i].Space
		}
		return t.Writes[i-len(t.Checks)].Space
	})
	for attempt := 1; ; attempt++ {
		err = e.withSpaces(ctx, names, func(spaces map[string]*space) error {
			v, err = e.try(ctx, t, rowsOf(t, spaces))
			return err
		})
		if !aborted(err) {
			return v, err
		}
		if attempt == mostAttempts {
			if len(t.Checks) == 0 {
				return 0, err
			}
			return 0, conflictOn(t, nil)
		}
	}
}

// rowsOf returns the rows of a transaction, sorted by space and key.
func rowsOf(t *kv.Txn, spaces map[string]*space) []touched {
	rows := make([]touched, 0, len(t.Checks)+len(t.Writes))
	for i := range t.Checks {
		c := &t.Checks[i]
		rows = append(rows, touched{space: spaces[c.Space], key: c.Key, check: i})
	}
	for i := range t.Writes {
		w := &t.Writes[i]
		rows = append(rows, touched{space: spaces[w.Space], key: w.Key, check: -1, write: w})
	}
	slices.SortFunc(rows, func(a, b touched) int {
		return cmp.Or(cmp.Compare(a.space.id, b.space.id), bytes.Compare(a.key, b.key), cmp.Compare(b.check, a.check))
	})
	n := 0
	for _, r := range rows {
		if n > 0 && rows[n-1].space == r.space && bytes.Equal(rows[n-1].key, r.key) {
			rows[n-1].write = r.write // the check comes first
			continue
		}
		r.id = rowID(r.space.id, r.key)
		rows[n] = r
		n++
	}
	return rows[:n]
}

// try runs the transaction once.
func (e *Engine) try(ctx context.Context, t *kv.Txn, rows []touched) (kv.Version, error) {
	now := e.clock.Now()
	call := newCommitCall(e, t, rows, now)
	var version int64
	var failed []int
	err := e.roundTrip(ctx, call.sql, &call.args, func(v [][]byte) (err error) {
		if v[1] != nil {
			failed, err = decodeInts(v[1])
			return err
		}
		version, err = decodeInt(v[0])
		return err
	})
	if err != nil {
		return 0, outcome(ctx, err)
	}
	if len(failed) > 0 {
		var checks []int
		for _, i := range failed {
			if i < 1 || i > len(rows) || rows[i-1].check < 0 {
				return 0, fmt.Errorf("%w: conflict on row %d of %d", errWire, i, len(rows))
			}
			checks = append(checks, rows[i-1].check)
		}
		slices.Sort(checks)
		return 0, conflictOn(t, checks)
	}
	e.afterCommit(rows, now)
	return kv.Version(version), nil
}

// conflictOn returns a conflict over some checks, or over all if none are given.
func conflictOn(t *kv.Txn, checks []int) *kv.ConflictError {
	conflict := &kv.ConflictError{}
	for i := range t.Checks {
		if c := &t.Checks[i]; checks == nil || len(conflict.Refs) < len(checks) && checks[len(conflict.Refs)] == i {
			conflict.Refs = append(conflict.Refs, kv.Ref{
				Space: c.Space, Key: slices.Clone(c.Key), IncludeExpired: c.IncludeExpired,
			})
		}
	}
	return conflict
}

// groups are the parts of a list that belong to one space each: their spaces, and
// where they end, counted from 1.
type groups struct {
	spaces, ends array
	last         *space
	n            int
}

func newGroups() groups { return groups{spaces: int8Array(), ends: int4Array()} }

// next counts an item of a space, whose items come one after the other.
func (g *groups) next(s *space) {
	if s != g.last {
		g.finish()
		g.spaces.appendInt8(s.id)
		g.last = s
	}
	g.n++
}

func (g *groups) finish() {
	if g.last != nil {
		g.ends.appendInt4(g.n)
		g.last = nil
	}
}

type commitCall struct {
	args
	sql string
}

// commitParameters is how many parameters the function commit has.
const commitParameters = 23

func (e *Engine) commitStatement() string {
	all := make([]string, commitParameters)
	for i := range all {
		all[i] = "$" + strconv.Itoa(i+1)
	}
	return "select version, failed from " + e.prefix + "commit(" + strings.Join(all, ", ") + ")"
}

// newCommitCall makes the call of the function commit, in the order of its
// parameters.
func newCommitCall(e *Engine, t *kv.Txn, rows []touched, now time.Time) *commitCall {
	c := &commitCall{sql: e.commitSQL}
	c.int8(now.UnixMicro()).int8(int64(max(kv.VersionAt(now), 1)))
	c.addLocks(locksFor(e.lockBase, rows))
	c.addRows(t, rows)
	c.addWrites(rows)
	c.addFeed(rows)
	return c
}

func (c *commitCall) addLocks(locks []lock) {
	ids, exclusive := int8Array(), boolArray()
	for _, l := range locks {
		ids.appendInt8(l.id)
		exclusive.appendBool(l.exclusive)
	}
	c.array(&ids).array(&exclusive)
}

func (c *commitCall) addRows(t *kv.Txn, rows []touched) {
	by := newGroups()
	keys, expected, stored := byteaArray(), int8Array(), boolArray()
	for i := range rows {
		r := &rows[i]
		by.next(r.space)
		keys.append(r.key)
		if r.check < 0 {
			expected.appendNull()
			stored.appendNull()
			continue
		}
		check := &t.Checks[r.check]
		expected.appendInt8(int64(check.Version))
		stored.appendBool(check.IncludeExpired)
	}
	by.finish()
	c.array(&by.spaces).array(&by.ends).array(&keys).array(&expected).array(&stored)
}

func (c *commitCall) addWrites(rows []touched) {
	by := newGroups()
	keys, values, links := byteaArray(), byteaArray(), textArray()
	expires, deleted, dead, written := int8Array(), boolArray(), int8Array(), int8Array()
	for i := range rows {
		r := &rows[i]
		w := r.write
		if w == nil {
			continue
		}
		by.next(r.space)
		written.appendInt8(r.id)
		keys.append(w.Key)
		values.append(w.Value)
		if w.Link == "" {
			links.appendNull()
		} else {
			links.append([]byte(w.Link))
		}
		if w.ExpiresAt.IsZero() {
			expires.appendNull()
		} else {
			expires.appendInt8(w.ExpiresAt.UnixMicro())
		}
		deleted.appendBool(w.Delete)
		if w.Delete {
			dead.appendInt8(r.id)
		}
	}
	by.finish()
	c.array(&by.spaces).array(&by.ends).array(&keys).array(&values).array(&links)
	c.array(&expires).array(&deleted).array(&dead).array(&written)
}

func (c *commitCall) addFeed(rows []touched) {
	by := newGroups()
	shards, keys, data := int4Array(), byteaArray(), byteaArray()
	for i := range rows {
		r := &rows[i]
		if !hasEntry(r) {
			continue
		}
		by.next(r.space)
		shards.appendInt4(shardOf(r.key, r.space.FeedShards))
		keys.append(r.key)
		data.append(r.write.Feed)
	}
	by.finish()
	c.array(&by.spaces).array(&by.ends).array(&shards).array(&keys).array(&data)
}

// hasEntry: the options of a space may have changed since the caller looked.
func hasEntry(r *touched) bool {
	return r.write != nil && r.write.Feed != nil && r.space.FeedShards > 0
}

// shardOf tells which shard of a feed a key belongs to. It never changes.
func shardOf(key []byte, shards int) int {
	h := fnv.New64a()
	_, _ = h.Write(key)
	return int(h.Sum64() % uint64(shards))
}
