package pebble

import (
	"slices"
	"sync"
)

// lockShardBits: a transaction enters a shard once for all its keys there.
const lockShardBits = 6

// locks is a table of the keys that commits in progress check and write. A commit
// holds its locks during a sync, so only what really conflicts may wait: there is a
// lock for each hash of a key, not one for many keys. Writers exclude everybody;
// whoever waits is served in the order of arrival.
type locks struct {
	shards [1 << lockShardBits]lockShard
}

type lockShard struct {
	mu   sync.Mutex
	held map[uint64]keyLock // by lockRef.id
}

// keyLock is the state of a lock that is held.
type keyLock struct {
	readers int // 0 while a writer holds it
	waiting []lockWaiter
}

type lockWaiter struct {
	writes bool
	// granted is closed by whoever hands the lock over.
	granted chan struct{}
}

// lockRef names a lock that a transaction needs: a hash of the key without its
// lowest bit, and in place of that bit whether the transaction writes the key.
type lockRef uint64

func lockOf(hash uint64, writes bool) lockRef {
	if writes {
		return lockRef(hash | 1)
	}
	return lockRef(hash &^ 1)
}

func (r lockRef) id() uint64   { return uint64(r >> 1) }
func (r lockRef) writes() bool { return r&1 != 0 }
func (r lockRef) shard() int   { return int(r >> (64 - lockShardBits)) }

// sortLocks returns refs in ascending order with each lock once: for writing, if
// any of them writes.
func sortLocks(refs []lockRef) []lockRef {
	slices.Sort(refs)
	n := 0
	for i, r := range refs {
		if last := i+1 == len(refs); last || refs[i+1].id() != r.id() {
			refs[n] = r
			n++
		}
	}
	return refs[:n]
}

// lock takes the locks in the order of sortLocks, so that commits cannot wait for
// each other in a circle.
func (l *locks) lock(refs []lockRef) {
	for len(refs) > 0 {
		s := &l.shards[refs[0].shard()]
		taken, wait := s.lock(refs)
		if wait != nil {
			<-wait
		}
		refs = refs[taken:]
	}
}

// lock takes the locks of one shard. If it must wait for the last of those it
// counts as taken, it returns for what.
func (s *lockShard) lock(refs []lockRef) (taken int, wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(map[uint64]keyLock)
	}
	for i, shard := 0, refs[0].shard(); i < len(refs) && refs[i].shard() == shard; i++ {
		r := refs[i]
		k, held := s.held[r.id()]
		switch {
		case held && (r.writes() || k.readers == 0 || len(k.waiting) > 0):
			granted := make(chan struct{})
			k.waiting = append(k.waiting, lockWaiter{r.writes(), granted})
			wait = granted
		case !r.writes():
			k.readers++
		}
		s.held[r.id()] = k
		taken++
		if wait != nil {
			break
		}
	}
	return taken, wait
}

// unlock gives back what lock took.
func (l *locks) unlock(refs []lockRef) {
	for len(refs) > 0 {
		s := &l.shards[refs[0].shard()]
		refs = refs[s.unlock(refs):]
	}
}

func (s *lockShard) unlock(refs []lockRef) (given int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for shard := refs[0].shard(); given < len(refs) && refs[given].shard() == shard; given++ {
		s.release(refs[given])
	}
	return given
}

func (s *lockShard) release(r lockRef) {
	k := s.held[r.id()]
	if k.readers > 1 {
		k.readers--
		s.held[r.id()] = k
		return
	}
	if len(k.waiting) == 0 {
		delete(s.held, r.id())
		return
	}
	// To the first who waits, and if that is a reader, to all readers behind it.
	k.readers = 0
	for i, w := range k.waiting {
		if w.writes && i > 0 {
			k.waiting = k.waiting[i:]
			s.held[r.id()] = k
			return
		}
		close(w.granted)
		if w.writes {
			k.waiting = k.waiting[1:]
			s.held[r.id()] = k
			return
		}
		k.readers++
	}
	k.waiting = nil
	s.held[r.id()] = k
}
