package pebble

import (
	"context"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// flight is a commit from before it can be seen until it is durable.
type flight struct {
	version kv.Version
	// spaces are the ids of the spaces written to, deletes the sorted hashes of
	// the keys removed, feed whether there are feed entries.
	spaces  []uint64
	deletes []uint64
	feed    bool

	done  chan struct{}
	ended bool // guarded by flights.mu
}

func (f *flight) removes(hash uint64) bool {
	_, ok := slices.BinarySearch(f.deletes, hash)
	return ok
}

// flights assigns versions and knows the commits in flight.
type flights struct {
	// oldest is the smallest version in flight, or noFlight.
	oldest atomic.Uint64
	// deleting counts the flights that remove rows.
	deleting atomic.Int64

	mu   sync.Mutex
	last kv.Version
	// queue is ordered by version. Its first flight has not ended.
	queue []*flight
}

const noFlight = math.MaxUint64

func newFlights(last kv.Version) *flights {
	fs := &flights{last: last}
	fs.oldest.Store(noFlight)
	return fs
}

// next returns a version larger than all before, and not below now's.
func (fs *flights) next(now time.Time) kv.Version {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.nextLocked(now)
}

func (fs *flights) nextLocked(now time.Time) kv.Version {
	fs.last = max(kv.VersionAt(now), fs.last+1)
	return fs.last
}

// begin gives f its version and registers it. It must be called before anything
// of f can be seen, and followed by end.
func (fs *flights) begin(f *flight, now time.Time) {
	f.done = make(chan struct{})
	if len(f.deletes) > 0 {
		fs.deleting.Add(1)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.version = fs.nextLocked(now)
	fs.queue = append(fs.queue, f)
	if len(fs.queue) == 1 {
		fs.oldest.Store(uint64(f.version))
	}
}

// end reports that f is durable or has failed. If it may have been seen and is
// not durable, the engine must have been marked as failed before.
func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	f.ended = true
	n := 0
	for n < len(fs.queue) && fs.queue[n].ended {
		n++
	}
	if n > 0 {
		fs.queue = slices.Delete(fs.queue, 0, n)
		oldest := uint64(noFlight)
		if len(fs.queue) > 0 {
			oldest = uint64(fs.queue[0].version)
		}
		fs.oldest.Store(oldest)
	}
	fs.mu.Unlock()
	close(f.done)
	if len(f.deletes) > 0 {
		fs.deleting.Add(-1)
	}
}

// floor is the smallest version that something still to appear can have.
func (fs *flights) floor() kv.Version {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return kv.Version(min(fs.oldest.Load(), uint64(fs.last)+1))
}

// awaitVersion returns once no flight has version v.
func (fs *flights) awaitVersion(ctx context.Context, v kv.Version) error {
	if uint64(v) < fs.oldest.Load() {
		return nil
	}
	fs.mu.Lock()
	i := sort.Search(len(fs.queue), func(i int) bool { return fs.queue[i].version >= v })
	if i == len(fs.queue) || fs.queue[i].version != v {
		fs.mu.Unlock()
		return nil
	}
	f := fs.queue[i]
	fs.mu.Unlock()
	return f.await(ctx)
}

// awaitRemoval returns once no flight of those that have begun removes the key
// with the given hash.
func (fs *flights) awaitRemoval(ctx context.Context, hash uint64) error {
	if fs.deleting.Load() == 0 {
		return nil
	}
	return fs.await(ctx, func(f *flight) bool { return f.removes(hash) })
}

// awaitRemovals is awaitRemoval for all keys of a space.
func (fs *flights) awaitRemovals(ctx context.Context, space uint64) error {
	if fs.deleting.Load() == 0 {
		return nil
	}
	return fs.await(ctx, func(f *flight) bool { return len(f.deletes) > 0 && slices.Contains(f.spaces, space) })
}

// awaitFeed returns once all flights that have begun and carry feed entries of
// the space have ended, with a bound for what may be read from the feed now:
// all entries with versions below it are in place.
func (fs *flights) awaitFeed(ctx context.Context, space uint64) (kv.Version, error) {
	fs.mu.Lock()
	bound := fs.last + 1
	fs.mu.Unlock()
	return bound, fs.await(ctx, func(f *flight) bool {
		return f.feed && f.version < bound && slices.Contains(f.spaces, space)
	})
}

func (fs *flights) await(ctx context.Context, match func(*flight) bool) error {
	var found []*flight
	fs.mu.Lock()
	for _, f := range fs.queue {
		if !f.ended && match(f) {
			found = append(found, f)
		}
	}
	fs.mu.Unlock()
	for _, f := range found {
		if err := f.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *flight) await(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
