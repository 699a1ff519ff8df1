package kv

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// DB is how everybody uses an engine. It checks every argument before the engine
// sees it, and adds Update. It is safe for concurrent use. Whoever opened the
// engine closes it.
type DB struct {
	engine Engine
	limits Limits
	hooks  []Hook
	spaces *spaceCache
}

// Hook runs at the end of each attempt of Update, after the caller's function,
// and may read and write in the same transaction. It is how link changes and
// expiry deadlines are recorded in the commit that causes them. An error ends
// Update.
type Hook func(*Tx) error

// New puts a DB in front of an engine. Limits are the engine's own; its package
// exports them.
func New(engine Engine, limits Limits) *DB {
	return &DB{engine: engine, limits: limits, spaces: &spaceCache{}}
}

// WithHooks returns a DB on the same engine whose Update also runs the given
// hooks, behind those that db already has, in order. Its Commit refuses links and
// expiry times, because no hook would see them.
func (db *DB) WithHooks(hooks ...Hook) *DB {
	d := *db
	d.hooks = append(append([]Hook(nil), db.hooks...), hooks...)
	return &d
}

// Limits returns what one commit may hold.
func (db *DB) Limits() Limits { return db.limits }

// CreateSpace creates a space as Engine.CreateSpace does. Names consist of ASCII
// letters, digits and underscores, do not begin with a digit and have at most
// MaxSpaceNameSize bytes.
func (db *DB) CreateSpace(ctx context.Context, name string, opts SpaceOptions) error {
	if err := checkSpaceName(name); err != nil {
		return fmt.Errorf("create space %q: %w", name, err)
	}
	if opts.FeedShards < 0 || opts.FeedShards > MaxFeedShards || opts.FeedRetention < 0 || (opts.FeedShards > 0) != (opts.FeedRetention > 0) {
		return fmt.Errorf("create space %q: %w: feed of %d shards kept for %v", name, ErrInvalid, opts.FeedShards, opts.FeedRetention)
	}
	db.spaces.forget(name)
	return db.engine.CreateSpace(ctx, name, opts)
}

// EnsureSpaces creates those of the spaces that do not exist, as CreateSpace does.
func (db *DB) EnsureSpaces(ctx context.Context, spaces ...SpaceInfo) error {
	present, err := db.Spaces(ctx)
	if err != nil {
		return err
	}
	known := make(map[string]SpaceOptions, len(present))
	for _, s := range present {
		known[s.Name] = s.SpaceOptions
	}
	for _, s := range spaces {
		if opts, ok := known[s.Name]; ok && opts == s.SpaceOptions {
			continue
		}
		if err := db.CreateSpace(ctx, s.Name, s.SpaceOptions); err != nil {
			return fmt.Errorf("space %s: %w", s.Name, err)
		}
	}
	return nil
}

// DropSpace removes a space as Engine.DropSpace does.
func (db *DB) DropSpace(ctx context.Context, name string) error {
	if err := checkSpaceName(name); err != nil {
		return fmt.Errorf("drop space %q: %w", name, err)
	}
	db.spaces.forget(name)
	return db.engine.DropSpace(ctx, name)
}

// Spaces lists the existing spaces in the order of their names.
func (db *DB) Spaces(ctx context.Context) ([]SpaceInfo, error) { return db.engine.Spaces(ctx) }

// Get reads rows at one instant, as Engine.Get does. At most CommitRows refs.
func (db *DB) Get(ctx context.Context, refs ...Ref) ([]Row, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	if len(refs) > db.limits.CommitRows {
		return nil, fmt.Errorf("get %d rows: %w: at most %d", len(refs), ErrTooLarge, db.limits.CommitRows)
	}
	for i := range refs {
		if err := checkKey(refs[i].Space, refs[i].Key); err != nil {
			return nil, fmt.Errorf("get: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return db.engine.Get(ctx, refs)
}

// GetOne reads one row.
func (db *DB) GetOne(ctx context.Context, space string, key []byte) (Row, error) {
	rows, err := db.Get(ctx, Ref{Space: space, Key: key})
	if err != nil {
		return Row{}, err
	}
	return rows[0], nil
}

// Scan visits the rows of a range as Engine.Scan does: in order, each row
// atomic, slices valid only until fn returns.
func (db *DB) Scan(ctx context.Context, space string, r Range, fn func(Row) bool) error {
	if err := checkRange(space, r); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return db.engine.Scan(ctx, space, r, fn)
}

// Commit applies a minitransaction as Engine.Commit does. On a DB with hooks,
// writes with a link or an expiry time are refused: use Update.
func (db *DB) Commit(ctx context.Context, t *Txn) (Version, error) {
	if len(db.hooks) > 0 {
		for i := range t.Writes {
			if w := &t.Writes[i]; w.Link != "" || !w.ExpiresAt.IsZero() {
				return 0, fmt.Errorf("commit: %w: links and expiry times are written through Update here", ErrInvalid)
			}
		}
	}
	return db.commit(ctx, t, unknownRows)
}

// unknownRows is the number of different keys in a transaction that is still to be
// counted, and searched for keys named twice.
const unknownRows = -1

// commit checks a transaction and gives it to the engine. rows is the number of
// different keys in it; who knows it has made sure that none is named twice.
func (db *DB) commit(ctx context.Context, t *Txn, rows int) (Version, error) {
	if err := db.checkTxn(ctx, t, rows); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return db.engine.Commit(ctx, t)
}

// ReadFeed reads one shard of a space's feed as Engine.ReadFeed does.
func (db *DB) ReadFeed(ctx context.Context, space string, shard int, after Position, limit int) ([]FeedEntry, error) {
	opts, err := db.spaces.get(ctx, db.engine, space)
	if err != nil {
		return nil, fmt.Errorf("read feed of %q: %w", space, err)
	}
	if shard < 0 || shard >= opts.FeedShards || limit <= 0 {
		return nil, fmt.Errorf("read feed of %q: %w: shard %d of %d, limit %d", space, ErrInvalid, shard, opts.FeedShards, limit)
	}
	return db.engine.ReadFeed(ctx, space, shard, after, limit)
}

func checkSpaceName(name string) error {
	if len(name) == 0 || len(name) > MaxSpaceNameSize || (name[0] >= '0' && name[0] <= '9') {
		return fmt.Errorf("%w: space name of %d bytes", ErrInvalid, len(name))
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if !(c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z') {
			return fmt.Errorf("%w: space name with byte %q", ErrInvalid, c)
		}
	}
	return nil
}

func checkKey(space string, key []byte) error {
	if err := checkSpaceName(space); err != nil {
		return err
	}
	if len(key) == 0 {
		return fmt.Errorf("%w: empty key in space %s", ErrInvalid, space)
	}
	if len(key) > MaxKeySize {
		return fmt.Errorf("%w: key of %d bytes in space %s, at most %d", ErrTooLarge, len(key), space, MaxKeySize)
	}
	return nil
}

func checkRange(space string, r Range) error {
	if err := checkSpaceName(space); err != nil {
		return err
	}
	if r.Limit < 0 {
		return fmt.Errorf("%w: limit %d", ErrInvalid, r.Limit)
	}
	// One byte more than a key: the successor of the largest key is a legal bound.
	if len(r.Start) > MaxKeySize+1 || len(r.End) > MaxKeySize+1 {
		return fmt.Errorf("%w: bound of a range", ErrTooLarge)
	}
	return nil
}

// expiry range: what all engines can store, in microseconds.
var (
	minExpiry = time.Unix(0, 0)
	maxExpiry = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

func (db *DB) checkTxn(ctx context.Context, t *Txn, rows int) error {
	if len(t.Tag) > MaxTagSize {
		return fmt.Errorf("%w: tag of %d bytes", ErrTooLarge, len(t.Tag))
	}
	for i := 0; i < len(t.Tag); i++ {
		if t.Tag[i] < ' ' || t.Tag[i] > '~' {
			return fmt.Errorf("%w: tag with byte %q", ErrInvalid, t.Tag[i])
		}
	}
	if rows == unknownRows {
		var err error
		if rows, err = db.checkKeys(t); err != nil {
			return err
		}
	}
	if rows > db.limits.CommitRows {
		return fmt.Errorf("%w: %d rows, at most %d", ErrTooLarge, rows, db.limits.CommitRows)
	}
	total := 0
	for i := range t.Writes {
		w := &t.Writes[i]
		if err := checkKey(w.Space, w.Key); err != nil {
			return err
		}
		if err := db.checkWrite(ctx, w); err != nil {
			return err
		}
		total += len(w.Key) + len(w.Value) + len(w.Link) + len(w.Feed)
	}
	if total > db.limits.CommitBytes {
		return fmt.Errorf("%w: writes of %d bytes, at most %d", ErrTooLarge, total, db.limits.CommitBytes)
	}
	return nil
}

// checkKeys refuses keys named twice and bad keys of checks, and counts the rows.
func (db *DB) checkKeys(t *Txn) (int, error) {
	if len(t.Checks)+len(t.Writes) <= smallTxn {
		return checkFewKeys(t)
	}
	type place struct{ space, key string }
	checked := make(map[place]struct{}, len(t.Checks))
	for i := range t.Checks {
		c := &t.Checks[i]
		if err := checkKey(c.Space, c.Key); err != nil {
			return 0, err
		}
		checked[place{c.Space, string(c.Key)}] = struct{}{}
	}
	if len(checked) < len(t.Checks) {
		return 0, fmt.Errorf("%w: a key is checked twice", ErrInvalid)
	}
	written := make(map[place]struct{}, len(t.Writes))
	rows := len(checked)
	for i := range t.Writes {
		w := &t.Writes[i]
		p := place{w.Space, string(w.Key)}
		written[p] = struct{}{}
		if _, ok := checked[p]; !ok {
			rows++
		}
	}
	if len(written) < len(t.Writes) {
		return 0, fmt.Errorf("%w: a key is written twice", ErrInvalid)
	}
	return rows, nil
}

// smallTxn is up to how many checks and writes comparing all pairs is cheaper
// than building maps.
const smallTxn = 16

func checkFewKeys(t *Txn) (int, error) {
	rows := len(t.Checks)
	for i := range t.Checks {
		c := &t.Checks[i]
		if err := checkKey(c.Space, c.Key); err != nil {
			return 0, err
		}
		for j := range t.Checks[:i] {
			if c.Space == t.Checks[j].Space && string(c.Key) == string(t.Checks[j].Key) {
				return 0, fmt.Errorf("%w: a key is checked twice", ErrInvalid)
			}
		}
	}
	for i := range t.Writes {
		w := &t.Writes[i]
		for j := range t.Writes[:i] {
			if w.Space == t.Writes[j].Space && string(w.Key) == string(t.Writes[j].Key) {
				return 0, fmt.Errorf("%w: a key is written twice", ErrInvalid)
			}
		}
		rows++
		for j := range t.Checks {
			if w.Space == t.Checks[j].Space && string(w.Key) == string(t.Checks[j].Key) {
				rows--
				break
			}
		}
	}
	return rows, nil
}

func (db *DB) checkWrite(ctx context.Context, w *Write) error {
	switch {
	case w.Delete && (len(w.Value) > 0 || w.Link != "" || !w.ExpiresAt.IsZero()):
		return fmt.Errorf("%w: a delete in space %s carries a row", ErrInvalid, w.Space)
	case len(w.Value) > MaxValueSize:
		return fmt.Errorf("%w: value of %d bytes in space %s, at most %d", ErrTooLarge, len(w.Value), w.Space, MaxValueSize)
	case len(w.Link) > MaxLinkSize:
		return fmt.Errorf("%w: link of %d bytes in space %s, at most %d", ErrTooLarge, len(w.Link), w.Space, MaxLinkSize)
	case len(w.Feed) > MaxFeedEntrySize:
		return fmt.Errorf("%w: feed entry of %d bytes in space %s, at most %d", ErrTooLarge, len(w.Feed), w.Space, MaxFeedEntrySize)
	case !w.ExpiresAt.IsZero() && (w.ExpiresAt.Before(minExpiry) || w.ExpiresAt.After(maxExpiry)):
		return fmt.Errorf("%w: expiry %v in space %s", ErrInvalid, w.ExpiresAt, w.Space)
	}
	if w.Link == "" && w.Feed == nil {
		return nil
	}
	opts, err := db.spaces.get(ctx, db.engine, w.Space)
	if err != nil {
		return err
	}
	if w.Link != "" && !opts.Links {
		return fmt.Errorf("%w: space %s holds no links", ErrInvalid, w.Space)
	}
	if w.Feed != nil && opts.FeedShards == 0 {
		return fmt.Errorf("%w: space %s has no feed", ErrInvalid, w.Space)
	}
	return nil
}

// spaceCache remembers the options of spaces, which never change while a space
// exists. A space dropped and created again by another process with other
// options keeps its old ones here until the engine refuses a write.
type spaceCache struct {
	mu   sync.RWMutex
	opts map[string]SpaceOptions
}

func (c *spaceCache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.opts, name)
}

func (c *spaceCache) get(ctx context.Context, e Engine, name string) (SpaceOptions, error) {
	c.mu.RLock()
	opts, ok := c.opts[name]
	c.mu.RUnlock()
	if ok {
		return opts, nil
	}
	all, err := e.Spaces(ctx)
	if err != nil {
		return SpaceOptions{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opts = make(map[string]SpaceOptions, len(all))
	for _, s := range all {
		c.opts[s.Name] = s.SpaceOptions
	}
	if opts, ok = c.opts[name]; !ok {
		return SpaceOptions{}, fmt.Errorf("%w: %s", ErrSpaceNotFound, name)
	}
	return opts, nil
}
