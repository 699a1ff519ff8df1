package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// place is where an entry is in its shard.
type place struct {
	era int64  // see the function era
	xid uint64 // the transaction
	n   int64  // the entry among those of its transaction
}

func (p place) position() kv.Position {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 20), uint64(p.era))
	b = binary.BigEndian.AppendUint64(b, p.xid)
	return kv.Position(hex.EncodeToString(binary.BigEndian.AppendUint32(b, uint32(p.n))))
}

func parsePosition(p kv.Position) (place, error) {
	if p == "" {
		return place{}, nil
	}
	b, err := hex.DecodeString(string(p))
	if err != nil || len(b) != 20 {
		return place{}, fmt.Errorf("%w: position of a feed", kv.ErrInvalid)
	}
	return place{
		era: int64(binary.BigEndian.Uint64(b)),
		xid: binary.BigEndian.Uint64(b[8:]),
		n:   int64(binary.BigEndian.Uint32(b[16:])),
	}, nil
}

// ReadFeed implements kv.Engine. It waits for commits in flight, so it returns every
// entry whose commit has returned.
func (e *Engine) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	entries, err := e.readFeed(ctx, space, shard, after, limit)
	if err != nil {
		return nil, fmt.Errorf("postgres: read shard %d of the feed of space %s: %w", shard, space, interrupted(ctx, err))
	}
	return entries, nil
}

const (
	// feedBytes ends an answer early, behind the entry that reaches it.
	feedBytes = 8 << 20
	// feedPatience is how long a reader waits for commits in flight before it
	// returns what is before them. They take that long only if the server hangs.
	feedPatience = 5 * time.Second
)

func (e *Engine) readFeed(ctx context.Context, name string, shard int, after kv.Position, limit int) (entries []kv.FeedEntry, err error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	from, err := parsePosition(after)
	if err != nil {
		return nil, err
	}
	err = e.withSpaces(ctx, []string{name}, func(spaces map[string]*space) error {
		s := spaces[name]
		if shard < 0 || shard >= s.FeedShards || limit <= 0 {
			return fmt.Errorf("%w: the space has %d shards", kv.ErrInvalid, s.FeedShards)
		}
		r := feedReader{engine: e, space: s, shard: shard, from: from, limit: limit}
		entries, err = r.readSettled(ctx)
		return err
	})
	return entries, err
}

// feedReader reads once from a shard.
type feedReader struct {
	engine *Engine
	space  *space
	shard  int
	from   place
	limit  int
}

// readSettled reads again until all entries that the first look could see, or a
// full answer, are below the transactions still running.
func (r *feedReader) readSettled(ctx context.Context) ([]kv.FeedEntry, error) {
	patience := time.NewTimer(feedPatience)
	defer patience.Stop()
	var goal uint64
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		a, err := r.read(ctx)
		if err != nil || !a.ahead || a.full {
			return a.entries, err
		}
		if goal == 0 {
			goal = a.next
		}
		if a.settled >= goal {
			return a.entries, nil
		}
		select {
		case <-time.After(wait):
		case <-patience.C:
			return a.entries, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// feedAnswer is what one look at a shard has found.
type feedAnswer struct {
	entries []kv.FeedEntry
	// full: the answer has as much as it may have.
	full bool
	// settled is the first transaction that may still add entries, next the first
	// one that had not begun.
	settled, next uint64
	// ahead: there are entries at or behind settled.
	ahead bool
}

// read takes one look. The function that it calls says in the migration what it
// returns.
func (r *feedReader) read(ctx context.Context) (feedAnswer, error) {
	cutoff := r.engine.clock.Now().Add(-r.space.FeedRetention).UnixMicro()
	goesOn := r.goesOn()
	var answer feedAnswer
	size := 0
	sql := fmt.Sprintf("select * from %sfetch_%d($1, $2, $3, $4, $5, $6, $7)", r.engine.prefix, r.space.id)
	a := new(args).int4(r.shard).int8(r.from.era).xid8(r.from.xid).int4(int(r.from.n))
	a.int8(cutoff).int4(min(r.limit, math.MaxInt32)).int8(feedBytes)
	err := r.engine.roundTrip(ctx, sql, a, func(v [][]byte) error {
		if v[0] == nil {
			return answer.takeState(v, goesOn)
		}
		p, entry, at, err := decodeEntry(v)
		if err != nil {
			return err
		}
		// An entry that has become too old is lost to the reader whether it was
		// removed yet or not.
		if goesOn && len(answer.entries) == 0 && at < cutoff {
			return kv.ErrFeedTrimmed
		}
		entry.Position = p.position()
		size += len(entry.Data)
		answer.entries = append(answer.entries, entry)
		return nil
	})
	answer.full = len(answer.entries) >= r.limit || size >= feedBytes
	return answer, err
}

// goesOn reports whether the reader does not begin with the oldest entry.
func (r *feedReader) goesOn() bool { return r.from != place{} }

func (a *feedAnswer) takeState(v [][]byte, goesOn bool) error {
	settled, err := decodeInt(v[1])
	if err != nil {
		return err
	}
	next, err := decodeInt(v[7])
	if err != nil {
		return err
	}
	a.settled, a.next, a.ahead = uint64(settled), uint64(next), isTrue(v[8])
	if goesOn && isTrue(v[9]) {
		return kv.ErrFeedTrimmed
	}
	return nil
}

// decodeEntry also returns the time of the entry.
func decodeEntry(v [][]byte) (p place, entry kv.FeedEntry, at int64, err error) {
	numbers := [5]int64{}
	for i, column := range []int{0, 1, 2, 4, 5} {
		if numbers[i], err = decodeInt(v[column]); err != nil {
			return p, entry, 0, err
		}
	}
	p = place{era: numbers[0], xid: uint64(numbers[1]), n: numbers[2]}
	entry = kv.FeedEntry{Key: bytes.Clone(v[3]), Version: kv.Version(numbers[3]), Data: bytes.Clone(v[6])}
	return p, entry, numbers[4], nil
}

func isTrue(b []byte) bool { return len(b) == 1 && b[0] == 1 }
