package bigtable

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	bt "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
)

// The forwarder moves entries from the rows they were committed in to the places
// where readers find them. Whoever owns a shard does it: in the background, and
// when somebody reads the shard. The order of steps is
//
//  1. write the entries to places of the own epoch that nobody looks at yet
//  2. compare-and-set the head: now they are published
//  3. delete them from their rows
//
// If the second fails somebody else owns the shard. Who takes a shard over first
// repeats the third for all that was published before.

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

// wakeFeed tells the forwarder that a row has a new entry, if it has.
func (e *Engine) wakeFeed(s *space, key string, feed []byte) {
	if feed == nil {
		return
	}
	f := &e.feeds
	f.mu.Lock()
	f.woken[shardID{s.stream, s.shardOf(key)}] = s
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Bounds of what is forwarded in one go.
const (
	forwardRows    = 64
	forwardBytes   = 4 << 20
	forwardEntries = 1000
)

// outgoing is an entry on its way from its row.
type outgoing struct {
	entry
	at bt.Timestamp
}

// forward publishes all entries whose hints are there when it is called. If the shard
// has another owner it returns errOwned, unless force is set or there is nothing
// to forward.
func (e *Engine) forward(ctx context.Context, s *space, number int, force bool) error {
	sh := e.feeds.shard(shardID{s.stream, number})
	select {
	case sh.semaphore <- struct{}{}:
		defer func() { <-sh.semaphore }()
	case <-ctx.Done():
		return ctx.Err()
	}
	prefix := s.shardKey(number)
	from := prefix
	for {
		hints, err := e.readHints(ctx, prefix, from)
		if err != nil || len(hints) == 0 {
			return err
		}
		from = hints[len(hints)-1].key + "\x00"
		// New hints come behind the old ones: nobody may chase them for ever.
		last := len(hints) < hintPage
		for len(hints) > 0 {
			n := min(len(hints), forwardRows)
			if err := e.forwardHints(ctx, s, number, sh, hints[:n], force); err != nil {
				return err
			}
			hints = hints[n:]
		}
		if last {
			return nil
		}
	}
}

// forwardHints publishes the entries of hinted rows, and removes the hints that have
// done their work.
func (e *Engine) forwardHints(ctx context.Context, s *space, number int, sh *shard, hints []hint, force bool) error {
	// First the decisions, then the rows: a transaction that is decided has all its
	// locks or has had them.
	var ids []txID
	var keys []string
	for _, h := range hints {
		if h.tx != (txID{}) {
			ids = append(ids, h.tx)
		}
		keys = append(keys, h.row)
	}
	decisions, err := e.decide(ctx, unique(ids, txID.less))
	if err != nil {
		return err
	}
	for {
		rows, err := e.outboxes(ctx, s, unique(keys, less))
		if err != nil {
			return err
		}
		out, whole, err := gather(rows)
		if err != nil {
			return err
		}
		if len(out) > 0 && !sh.owned {
			// What was published before may still be in the rows: they are read
			// again once it is not.
			if err := e.takeOver(ctx, s, number, sh, force); err != nil {
				return err
			}
			continue
		}
		if len(out) > 0 {
			if err := e.publish(ctx, s, number, sh, out); err != nil {
				return err
			}
		}
		if whole {
			return e.removeHints(ctx, hints, rows, decisions)
		}
	}
}

// unique sorts a and leaves out what is there twice.
func unique[T comparable](a []T, compare func(T, T) int) []T {
	a = slices.Clone(a)
	slices.SortFunc(a, compare)
	return slices.Compact(a)
}

func (id txID) less(other txID) int { return bytes.Compare(id[:], other[:]) }

func less(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) }

// outboxes reads rows with their entries. Locks of decided transactions are taken
// away first, which is what puts their entries there.
func (e *Engine) outboxes(ctx context.Context, s *space, keys []string) ([]*row, error) {
	all := make([]*row, 0, len(keys))
	for len(keys) > 0 {
		rows, err := e.readRows(ctx, "read outboxes", s, keys, feedFilter)
		if err != nil {
			return nil, err
		}
		var ids []txID
		for _, k := range keys {
			if rows[k].state.locked {
				ids = append(ids, rows[k].state.tx)
			}
		}
		decisions, err := e.decide(ctx, unique(ids, txID.less))
		if err != nil {
			return nil, err
		}
		var again []string
		for _, k := range keys {
			r := rows[k]
			rec := decisions[r.state.tx]
			if !r.state.locked || !rec.decided() {
				all = append(all, r)
				continue
			}
			if _, err := e.finish(ctx, r, rec); err != nil {
				return nil, err
			}
			again = append(again, k)
		}
		keys = again
	}
	return all, nil
}

// gather lists the entries of rows, each row's in the order of its commits. It is
// not whole if there are more than fit.
func gather(rows []*row) (out []outgoing, whole bool, err error) {
	size := 0
	for _, r := range rows {
		for _, o := range r.outbox {
			if size > forwardBytes || len(out) == forwardEntries {
				return out, false, nil
			}
			data, err := decodeOutbox(o.data)
			if err != nil {
				return nil, false, err
			}
			size += len(data) + len(r.key)
			out = append(out, outgoing{entry: entry{version: o.p(), key: r.key, data: data}, at: o.at})
		}
	}
	return out, true, nil
}

// publish appends entries to a shard that this process owns, and takes them out of
// their rows.
func (e *Engine) publish(ctx context.Context, s *space, number int, sh *shard, out []outgoing) error {
	// A request whose fate is unknown may be carried out at any time, in places where
	// other entries must not come then: whatever goes wrong ends the epoch.
	owned := false
	defer func() { sh.owned = owned }()
	prefix := s.shardKey(number)
	next := sh.head
	next.epochs = slices.Clone(next.epochs)
	current := next.current()
	var keys []string
	var ms []*mutation
	for i := range out {
		en := &out[i].entry
		en.place = place{current.number, current.published}
		current.published++
		next.time = max(next.time, en.version)
		en.time = next.time
		keys = append(keys, prefix+entryKey(en.place))
		ms = append(ms, newMutation().set(entryCell, en.encode()))
	}
	if err := e.plain(ctx, "write entries", e.streamTable, keys, ms); err != nil {
		return err
	}
	if err := e.setHead(ctx, "publish", prefix, sh, next); err != nil {
		return err
	}
	if err := e.clearOutboxes(ctx, s, out); err != nil {
		return err
	}
	// That goes into the row with the next change.
	sh.head.current().acknowledged = current.published
	owned = true
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

// clearOutboxes deletes entries from the rows they came in.
func (e *Engine) clearOutboxes(ctx context.Context, s *space, out []outgoing) error {
	byRow := map[string]*mutation{}
	var keys []string
	var ms []*mutation
	for _, o := range out {
		m := byRow[o.key]
		if m == nil {
			m = newMutation()
			byRow[o.key] = m
			keys = append(keys, o.key)
			ms = append(ms, m)
		}
		m.deleteAt(outboxCell, o.at)
	}
	if len(keys) == 0 {
		return nil
	}
	return e.plain(ctx, "clear outboxes", s.table, keys, ms)
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

// removeHints removes the hints that have done their work.
func (e *Engine) removeHints(ctx context.Context, hints []hint, rows []*row, decisions map[txID]record) error {
	byKey := make(map[string]*row, len(rows))
	for _, r := range rows {
		byKey[r.key] = r
	}
	var keys []string
	for _, h := range hints {
		r := byKey[h.row]
		if h.settled(r, decisions) {
			keys = append(keys, h.key)
		} else if h.tx == (txID{}) {
			if err := e.touch(ctx, h, r); err != nil {
				return err
			}
		}
	}
	return e.deleteRows(ctx, "remove hints", e.outboxTable, keys)
}

// Times between the forwarder's looks at the hints of other processes. The owner of a
// shard must notice them soon, and looks more often once it did; who owns none
// only needs to notice that an owner is gone.
const (
	busyPoll  = 500 * time.Millisecond
	firstPoll = 25 * time.Millisecond
	idleLook  = 10 // of busyPoll
	gathering = 100 * time.Millisecond
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
