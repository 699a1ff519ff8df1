package kvtest

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// ModelLimits are the limits of Model.
var ModelLimits = kv.Limits{CommitRows: 20_000, CommitBytes: 64 << 20}

// Model is an engine in memory that does what the contract says and nothing
// else. One mutex makes every call but Scan atomic. Rows are never changed in
// place, so that copies of the maps and slices are copies of the data.
//
// Stricter than the contract in one respect: bytes given to a scan's callback
// are overwritten when it returns, so that a caller who keeps them notices.
type Model struct {
	clock clock.Clock
	*modelData

	// Guarded by modelData.mu.
	idle    sync.Cond // signalled when running reaches 0
	running int       // calls in progress, which Close waits for
	closed  bool
}

// modelData is shared by all engines that were opened on it.
type modelData struct {
	mu      sync.Mutex
	spaces  map[string]*modelSpace
	last    kv.Version // the largest version handed out
	entries uint64     // how many feed entries were ever written, in all spaces
}

type modelSpace struct {
	opts  kv.SpaceOptions
	rows  []*modelRow // in the order of their keys
	feeds []modelFeed // one per shard
}

type modelRow struct {
	key, value []byte
	link       string
	expires    time.Time
	version    kv.Version
}

type modelFeed struct {
	entries []modelEntry
	trimmed uint64 // number of the newest entry that was removed
}

type modelEntry struct {
	number  uint64 // rises within the engine; the entry's position
	key     []byte
	version kv.Version
	data    []byte
}

// NewModel returns an empty engine whose versions and expiry follow the clock.
func NewModel(c clock.Clock) *Model {
	return (&modelData{spaces: map[string]*modelSpace{}}).open(c)
}

func (d *modelData) open(c clock.Clock) *Model {
	m := &Model{clock: c, modelData: d}
	m.idle.L = &d.mu
	return m
}

// NewDB returns a DB on an empty Model.
func NewDB(c clock.Clock) *kv.DB { return kv.New(NewModel(c), ModelLimits) }

// Open returns another engine on the same data, with a clock of its own: what a
// second process has, or the next one once m is closed.
func (m *Model) Open(c clock.Clock) *Model { return m.open(c) }

// Clone returns an engine on a copy of the data as it is now, for a test that goes
// back to this moment. It works on a closed engine too.
func (m *Model) Clone(c clock.Clock) *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &modelData{spaces: map[string]*modelSpace{}, last: m.last, entries: m.entries}
	for name, s := range m.spaces {
		feeds := slices.Clone(s.feeds)
		for i := range feeds {
			feeds[i].entries = slices.Clone(feeds[i].entries)
		}
		d.spaces[name] = &modelSpace{opts: s.opts, rows: slices.Clone(s.rows), feeds: feeds}
	}
	return d.open(c)
}

// enter locks the model for a call. Whoever gets no error calls leave.
func (m *Model) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return kv.ErrClosed
	}
	m.running++
	return nil
}

func (m *Model) leave() {
	if m.running--; m.running == 0 {
		m.idle.Broadcast()
	}
	m.mu.Unlock()
}

func (m *Model) space(name string) (*modelSpace, error) {
	if s, ok := m.spaces[name]; ok {
		return s, nil
	}
	return nil, fmt.Errorf("%w: %s", kv.ErrSpaceNotFound, name)
}

// CreateSpace implements kv.Engine.
func (m *Model) CreateSpace(ctx context.Context, name string, opts kv.SpaceOptions) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.leave()
	if s, ok := m.spaces[name]; ok {
		if s.opts != opts {
			return fmt.Errorf("%w: %s", kv.ErrSpaceMismatch, name)
		}
		return nil
	}
	m.spaces[name] = &modelSpace{opts: opts, feeds: make([]modelFeed, opts.FeedShards)}
	return nil
}

// DropSpace implements kv.Engine.
func (m *Model) DropSpace(ctx context.Context, name string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.leave()
	if _, err := m.space(name); err != nil {
		return err
	}
	delete(m.spaces, name)
	return nil
}

// Spaces implements kv.Engine.
func (m *Model) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.leave()
	var infos []kv.SpaceInfo
	for _, name := range slices.Sorted(maps.Keys(m.spaces)) {
		infos = append(infos, kv.SpaceInfo{Name: name, SpaceOptions: m.spaces[name].opts})
	}
	return infos, nil
}

// find returns where key is, or where it would be inserted.
func (s *modelSpace) find(key []byte) (int, bool) {
	return slices.BinarySearchFunc(s.rows, key, func(r *modelRow, key []byte) int {
		return bytes.Compare(r.key, key)
	})
}

// get returns the row of key as a reader sees it at the time now, or nil.
func (s *modelSpace) get(key []byte, now time.Time, includeExpired bool) *modelRow {
	i, ok := s.find(key)
	if !ok || s.rows[i].expired(now) && !includeExpired {
		return nil
	}
	return s.rows[i]
}

func (r *modelRow) expired(now time.Time) bool {
	return !r.expires.IsZero() && !now.Before(r.expires)
}

func (r *modelRow) row(now time.Time) kv.Row {
	return kv.Row{
		Key: bytes.Clone(r.key), Value: bytes.Clone(r.value), Link: r.link,
		ExpiresAt: r.expires, Version: r.version, Expired: r.expired(now),
	}
}

// Get implements kv.Engine.
func (m *Model) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.leave()
	now := m.clock.Now()
	rows := make([]kv.Row, len(refs))
	for i, ref := range refs {
		s, err := m.space(ref.Space)
		if err != nil {
			return nil, err
		}
		rows[i] = kv.Row{Key: bytes.Clone(ref.Key)}
		if r := s.get(ref.Key, now, ref.IncludeExpired); r != nil {
			rows[i] = r.row(now)
		}
	}
	return rows, nil
}

// scanPage is how many rows Scan takes under one hold of the mutex.
const scanPage = 128

// Scan implements kv.Engine. It holds no lock while fn runs.
func (m *Model) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.leave()
	s, err := m.space(space)
	if err != nil {
		return err
	}
	left := r.Limit
	for {
		page := s.page(r, m.clock.Now())
		if r.Limit > 0 && len(page) >= left {
			page = page[:left]
		}
		more, err := m.visit(ctx, page, fn)
		if left -= len(page); err != nil || !more || len(page) < scanPage || left == 0 {
			return err
		}
		if m.spaces[space] != s {
			return fmt.Errorf("%w: %s", kv.ErrSpaceNotFound, space)
		}
		if last := page[len(page)-1].Key; r.Reverse {
			r.End = last
		} else {
			r.Start = append(last, 0)
		}
	}
}

// page returns copies of the first rows of a range, at most scanPage.
func (s *modelSpace) page(r kv.Range, now time.Time) []kv.Row {
	first, _ := s.find(r.Start)
	end := len(s.rows)
	if r.End != nil {
		end, _ = s.find(r.End)
	}
	var page []kv.Row
	for ; first < end && len(page) < scanPage; first, end = step(first, end, r.Reverse) {
		row := s.rows[first]
		if r.Reverse {
			row = s.rows[end-1]
		}
		if !row.expired(now) || r.IncludeExpired {
			page = append(page, row.row(now))
		}
	}
	return page
}

func step(first, end int, reverse bool) (int, int) {
	if reverse {
		return first, end - 1
	}
	return first + 1, end
}

// visit calls fn for the rows, unlocked, and spoils the bytes that fn got. It
// reports whether fn wants more.
func (m *Model) visit(ctx context.Context, page []kv.Row, fn func(kv.Row) bool) (bool, error) {
	m.mu.Unlock()
	defer m.mu.Lock() // also when fn ends the goroutine, as a failing test does
	for _, row := range page {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		row.Key = bytes.Clone(row.Key)
		more := fn(row)
		spoil(row.Key)
		spoil(row.Value)
		if !more {
			return false, nil
		}
	}
	return true, nil
}

func spoil(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

// Commit implements kv.Engine.
func (m *Model) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	if err := m.enter(ctx); err != nil {
		return 0, err
	}
	defer m.leave()
	now := m.clock.Now()
	if err := m.check(t, now); err != nil {
		return 0, err
	}
	m.last = max(m.last+1, kv.VersionAt(now))
	for _, w := range t.Writes {
		s := m.spaces[w.Space]
		s.write(w, m.last)
		if w.Feed != nil {
			m.entries++
			s.feed(w.Key).append(modelEntry{
				number: m.entries, key: bytes.Clone(w.Key), version: m.last, data: bytes.Clone(w.Feed),
			})
		}
	}
	return m.last, nil
}

// check refuses transactions that cannot be applied.
func (m *Model) check(t *kv.Txn, now time.Time) error {
	for _, w := range t.Writes {
		s, err := m.space(w.Space)
		if err != nil {
			return err
		}
		if w.Link != "" && !s.opts.Links || w.Feed != nil && s.opts.FeedShards == 0 {
			return fmt.Errorf("%w: space %s holds no such thing", kv.ErrInvalid, w.Space)
		}
	}
	var failed []kv.Ref
	for _, c := range t.Checks {
		s, err := m.space(c.Space)
		if err != nil {
			return err
		}
		var version kv.Version
		if r := s.get(c.Key, now, c.IncludeExpired); r != nil {
			version = r.version
		}
		if version != c.Version {
			failed = append(failed, kv.Ref{Space: c.Space, Key: bytes.Clone(c.Key), IncludeExpired: c.IncludeExpired})
		}
	}
	if failed != nil {
		return &kv.ConflictError{Refs: failed}
	}
	return nil
}

func (s *modelSpace) write(w kv.Write, version kv.Version) {
	i, exists := s.find(w.Key)
	if w.Delete {
		if exists {
			s.rows = slices.Delete(s.rows, i, i+1)
		}
		return
	}
	row := &modelRow{
		key: bytes.Clone(w.Key), value: bytes.Clone(w.Value), link: w.Link,
		expires: w.ExpiresAt.Truncate(time.Microsecond).UTC(), version: version,
	}
	if exists {
		s.rows[i] = row
	} else {
		s.rows = slices.Insert(s.rows, i, row)
	}
}

func (s *modelSpace) feed(key []byte) *modelFeed {
	return &s.feeds[crc32.ChecksumIEEE(key)%uint32(len(s.feeds))]
}

func (f *modelFeed) append(e modelEntry) { f.entries = append(f.entries, e) }

// trim removes the entries that are older than the retention. Their age is that
// of their version, because that never jumps back.
func (f *modelFeed) trim(oldest time.Time) {
	for len(f.entries) > 0 && f.entries[0].version.Time().Before(oldest) {
		f.trimmed = f.entries[0].number
		f.entries = f.entries[1:]
	}
}

// ReadFeed implements kv.Engine.
func (m *Model) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.leave()
	s, err := m.space(space)
	if err != nil {
		return nil, err
	}
	if shard < 0 || shard >= len(s.feeds) {
		return nil, fmt.Errorf("%w: shard %d of %d", kv.ErrInvalid, shard, len(s.feeds))
	}
	f := &s.feeds[shard]
	f.trim(m.clock.Now().Add(-s.opts.FeedRetention))
	var number uint64
	if after != "" {
		if number, err = strconv.ParseUint(string(after), 16, 64); err != nil {
			return nil, fmt.Errorf("%w: position", kv.ErrInvalid)
		}
		if number < f.trimmed {
			return nil, kv.ErrFeedTrimmed
		}
	}
	first := sort.Search(len(f.entries), func(i int) bool { return f.entries[i].number > number })
	var entries []kv.FeedEntry
	for _, e := range f.entries[first : first+min(len(f.entries)-first, limit)] {
		entries = append(entries, kv.FeedEntry{
			Position: kv.Position(fmt.Sprintf("%016x", e.number)),
			Key:      bytes.Clone(e.key), Version: e.version, Data: bytes.Clone(e.data),
		})
	}
	return entries, nil
}

// Close implements kv.Engine.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for m.running > 0 {
		m.idle.Wait()
	}
	return nil
}
