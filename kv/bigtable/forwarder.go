package bigtable

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
)

// Times between the forwarder's looks at the hints of other processes. The owner of a
// shard must notice them soon, and looks more often once it did; who owns none
// only needs to notice that an owner is gone.
const (
	busyPoll  = 500 * time.Millisecond
	firstPoll = 25 * time.Millisecond
	idleLook  = 10 // of busyPoll
	gathering = 25 * time.Millisecond
)

// trimLooks is how many looks there are between two removals of old entries.
const trimLooks = 120

// runForwarder forwards until Close: soon what this process commits, and every now
// and then what others did.
func (e *Engine) runForwarder(ctx context.Context) {
	timer := time.NewTimer(busyPoll)
	defer timer.Stop()
	wait, waited, look := busyPoll, time.Duration(0), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.feeds.wake:
			// Readers do not wait for this. Many commits are forwarded at once.
			if pause(ctx, gathering) == nil {
				e.forwardWoken(ctx)
			}
		case <-timer.C:
			whole := waited+wait >= busyPoll
			if waited += wait; whole {
				waited = 0
				look++
			}
			if wait = min(2*wait, busyPoll); e.look(ctx, look, whole) {
				wait = firstPoll
			}
			timer.Reset(wait)
		}
	}
}

func (e *Engine) forwardWoken(ctx context.Context) {
	f := &e.feeds
	f.mu.Lock()
	woken := f.woken
	f.woken = map[shardID]*space{}
	f.mu.Unlock()
	for id, s := range woken {
		e.forwardQuietly(ctx, s, id.number, false)
	}
}

// forwardQuietly forwards, and leaves what fails for the next time. It reports
// whether another process owns the shard.
func (e *Engine) forwardQuietly(ctx context.Context, s *space, number int, force bool) (owned bool) {
	err := e.forward(ctx, s, number, force)
	if isCode(err, codes.NotFound) {
		e.forget(s.Name)
	} else if err != nil && !errors.Is(err, errOwned) && ctx.Err() == nil {
		e.log.Debug("bigtable: feed not forwarded", "space", s.Name, "shard", number, "error", err)
	}
	return errors.Is(err, errOwned)
}

// patience is for how many looks an owner may leave entries lying before others take
// the shard over: 10 s.
const patience = int(10 * time.Second / busyPoll)

// gone reports whether the owner of a shard seems to be, after look n found something
// to forward.
func (sh *shard) gone(n int) bool {
	sh.semaphore <- struct{}{}
	defer func() { <-sh.semaphore }()
	if sh.since == 0 {
		sh.since = n
	}
	return sh.others != nil && n-sh.since >= patience
}

// look searches the feeds that this process knows for hints of others. It is the
// n-th one of those that are busyPoll apart if whole, and one in between otherwise.
// It reports whether it found something to forward in a feed that is partly ours.
func (e *Engine) look(ctx context.Context, n int, whole bool) (found bool) {
	for _, s := range e.known() {
		ours := s.FeedShards > 0 && e.ownsOf(s)
		if s.FeedShards == 0 || !ours && (!whole || n%idleLook != 0) {
			continue
		}
		prefix := string(s.stream[:])
		for number := 0; number < s.FeedShards; number++ {
			hints, err := e.readHints(ctx, prefix, s.shardKey(number))
			if err != nil || len(hints) == 0 {
				break
			}
			found = found || ours
			number = int(hints[0].key[streamIDSize])<<8 | int(hints[0].key[streamIDSize+1])
			if e.forwardQuietly(ctx, s, number, false) && e.feeds.shard(shardID{s.stream, number}).gone(n) {
				e.forwardQuietly(ctx, s, number, true)
			}
		}
		if whole && n%trimLooks == 0 {
			e.trim(ctx, s)
		}
	}
	return found
}

// ownsOf reports whether this process owns a shard of the space.
func (e *Engine) ownsOf(s *space) bool {
	f := &e.feeds
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, sh := range f.shards {
		if id.stream != s.stream {
			continue
		}
		select {
		case sh.semaphore <- struct{}{}:
			owned := sh.owned
			<-sh.semaphore
			if owned {
				return true
			}
		default:
			return true // busy with it
		}
	}
	return false
}
