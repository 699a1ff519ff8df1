package bigtable

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
)

// Errors of the forwarder.
var (
	errOwned = errors.New("another process owns the shard of the feed")
	errLost  = errors.New("the shard of the feed was taken over")
)

type shardID struct {
	stream [streamIDSize]byte
	number int
}

// shard is what this process knows of a feed's shard. The semaphore guards the rest.
type shard struct {
	semaphore chan struct{}
	// owned: head, stored as raw, is ours.
	owned bool
	head  head
	raw   []byte
	// others is the head of another owner, as it was found when there was something
	// to forward; since is the look that found it so first.
	others []byte
	since  int
}

type feeds struct {
	wake chan struct{}

	mu     sync.Mutex
	shards map[shardID]*shard
	woken  map[shardID]*space
	// heads are those that readers saw last: at least that much is published.
	heads map[shardID]head
}

func (f *feeds) init() {
	f.wake = make(chan struct{}, 1)
	f.shards, f.woken, f.heads = map[shardID]*shard{}, map[shardID]*space{}, map[shardID]head{}
}

func (f *feeds) published(id shardID) head {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heads[id]
}

func (f *feeds) sawPublished(id shardID, h head) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heads[id] = h
}

func (f *feeds) shard(id shardID) *shard {
	f.mu.Lock()
	defer f.mu.Unlock()
	sh := f.shards[id]
	if sh == nil {
		sh = &shard{semaphore: make(chan struct{}, 1)}
		f.shards[id] = sh
	}
	return sh
}

// takeOver makes this process the owner of the shard.
func (e *Engine) takeOver(ctx context.Context, s *space, number int, sh *shard, force bool) error {
	prefix := s.shardKey(number)
	raw, err := e.readCell(ctx, "read head", e.streamTable, prefix+headKey, headCell)
	if err != nil {
		return err
	}
	h, err := parseHead(raw)
	if err != nil {
		return err
	}
	if h.owner != e.writer && h.owner != ([writerSize]byte{}) && !force {
		if !bytes.Equal(raw, sh.others) {
			sh.others, sh.since = raw, 0
		}
		return errOwned
	}
	sh.raw, sh.others = raw, nil
	if err := e.setHead(ctx, "take over", prefix, sh, h.takenBy(e.writer)); err != nil {
		return err
	}
	// Nothing is published before what was published earlier has left its rows.
	next := sh.head
	next.epochs = slices.Clone(next.epochs)
	changed := false
	for i := range next.epochs {
		ep := &next.epochs[i]
		if ep.acknowledged == ep.published {
			continue
		}
		if err := e.clearEpoch(ctx, s, prefix, *ep); err != nil {
			return err
		}
		ep.acknowledged, changed = ep.published, true
	}
	if changed {
		if err := e.setHead(ctx, "acknowledge", prefix, sh, next); err != nil {
			return err
		}
	}
	sh.owned = true
	return nil
}

// clearEpoch deletes the entries of an older epoch from their rows, as far as that
// is not known to be done.
func (e *Engine) clearEpoch(ctx context.Context, s *space, prefix string, ep epoch) error {
	for from := ep.acknowledged; from < ep.published; {
		entries, err := e.readEntries(ctx, prefix, []place{{ep.number, from}, {ep.number, ep.published - 1}}, forwardRows)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return nil // trimmed
		}
		var out []outgoing
		for _, en := range entries {
			out = append(out, outgoing{entry: en, at: entryTime(en.version)})
		}
		if err := e.clearOutboxes(ctx, s, out); err != nil && !isCode(err, codes.NotFound) {
			return err
		}
		from = entries[len(entries)-1].place.index + 1
	}
	return nil
}

// setHead changes the head of a shard.
func (e *Engine) setHead(ctx context.Context, step, prefix string, sh *shard, next head) error {
	raw := next.encode()
	res, err := e.cas(ctx, step, e.streamTable, prefix+headKey, headCell.is(sh.raw), newMutation().set(headCell, raw))
	if !res.applied && res.unsure {
		now, readErr := e.readCell(ctx, "read head", e.streamTable, prefix+headKey, headCell)
		if readErr != nil {
			return readErr
		}
		if res.applied = bytes.Equal(now, raw); res.applied {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	if !res.applied {
		return errLost
	}
	sh.head, sh.raw = next, raw
	return nil
}

// releaseFeeds gives up the shards, so that others need not wait.
func (e *Engine) releaseFeeds(ctx context.Context) {
	e.feeds.mu.Lock()
	defer e.feeds.mu.Unlock()
	for id, sh := range e.feeds.shards {
		if sh.head.owner != e.writer {
			continue
		}
		s := space{stream: id.stream}
		if err := e.release(ctx, s.shardKey(id.number), sh); err != nil {
			e.log.Debug("bigtable: feed not released", "error", err)
		}
	}
}

func (e *Engine) release(ctx context.Context, prefix string, sh *shard) error {
	raw, err := e.readCell(ctx, "read head", e.streamTable, prefix+headKey, headCell)
	if err != nil {
		return err
	}
	next, err := parseHead(raw)
	if err != nil || next.owner != e.writer {
		return err
	}
	sh.raw, next.owner = raw, [writerSize]byte{}
	return e.setHead(ctx, "release", prefix, sh, next)
}
