package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/kv"
)

// space is an existing space.
type space struct {
	kv.SpaceInfo
	id uint64
	// rows and feed are the prefixes of its entries.
	rows, feed []byte
	// dropped is set before the first reader can see that the space is empty.
	dropped atomic.Bool

	feedWrites atomic.Uint64
	trimming   sync.Mutex
}

func newSpace(name string, id uint64, o kv.SpaceOptions) *space {
	return &space{
		SpaceInfo: kv.SpaceInfo{Name: name, SpaceOptions: o},
		id:        id,
		rows:      idPrefix(kindRow, id),
		feed:      idPrefix(kindFeed, id),
	}
}

func (e *Engine) space(name string) (*space, error) {
	if s := (*e.catalog.Load())[name]; s != nil {
		return s, nil
	}
	return nil, spaceNotFound(name)
}

func spaceNotFound(name string) error { return fmt.Errorf("%w: %s", kv.ErrSpaceNotFound, name) }

// CreateSpace implements kv.Engine. It waits for commits in flight.
func (e *Engine) CreateSpace(ctx context.Context, name string, o kv.SpaceOptions) error {
	err := e.changeCatalog(ctx, func(spaces map[string]*space) error {
		if s := spaces[name]; s != nil {
			if s.SpaceOptions != o {
				return kv.ErrSpaceMismatch
			}
			return nil
		}
		id, err := e.nextID()
		if err != nil {
			return err
		}
		b := e.db.NewBatch()
		_ = b.Set(spaceKey(name), encodeSpace(id, o), nil) // a batch in memory: cannot fail
		_ = b.Set(nextIDKey, binary.BigEndian.AppendUint64(nil, id+1), nil)
		spaces[name] = newSpace(name, id, o)
		return e.apply(b)
	})
	if err != nil {
		return fmt.Errorf("pebble: create space %s: %w", name, e.explain(err))
	}
	return nil
}

// DropSpace implements kv.Engine. It waits for commits in flight. The disk space
// becomes free in the background.
func (e *Engine) DropSpace(ctx context.Context, name string) error {
	err := e.changeCatalog(ctx, func(spaces map[string]*space) error {
		s := spaces[name]
		if s == nil {
			return kv.ErrSpaceNotFound
		}
		b := e.db.NewBatch()
		_ = b.Delete(spaceKey(name), nil)
		_ = b.DeleteRange(s.rows, kv.PrefixEnd(s.rows), nil)
		_ = b.DeleteRange(s.feed, kv.PrefixEnd(s.feed), nil)
		delete(spaces, name)
		s.dropped.Store(true)
		return e.apply(b)
	})
	if err != nil {
		return fmt.Errorf("pebble: drop space %s: %w", name, e.explain(err))
	}
	return nil
}

// changeCatalog runs f on a copy of the catalog, with no commit in flight, and
// publishes the copy.
func (e *Engine) changeCatalog(ctx context.Context, f func(map[string]*space) error) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	e.catalogMu.Lock()
	defer e.catalogMu.Unlock()
	spaces := maps.Clone(*e.catalog.Load())
	if err := f(spaces); err != nil {
		return err
	}
	e.catalog.Store(&spaces)
	return nil
}

// apply writes b durably. An error means that its outcome is unknown, and that
// the engine has failed.
func (e *Engine) apply(b *pebbledb.Batch) error {
	if err := e.db.Apply(b, pebbledb.Sync); err != nil {
		e.disk.fail(err)
	}
	if err := e.failed(); err != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, err)
	}
	return b.Close()
}

// settleSpace is called after a read of s, whose result is worthless if the
// space is being dropped.
func (e *Engine) settleSpace(s *space) error {
	if !s.dropped.Load() {
		return nil
	}
	e.catalogMu.RLock() // the drop is durable when it has let go
	defer e.catalogMu.RUnlock()
	if err := e.failed(); err != nil {
		return err
	}
	return spaceNotFound(s.Name)
}

// Spaces implements kv.Engine.
func (e *Engine) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) {
	if err := e.enter(ctx); err != nil {
		return nil, fmt.Errorf("pebble: list spaces: %w", err)
	}
	defer e.leave()
	spaces := *e.catalog.Load()
	infos := make([]kv.SpaceInfo, 0, len(spaces))
	for _, name := range slices.Sorted(maps.Keys(spaces)) {
		infos = append(infos, spaces[name].SpaceInfo)
	}
	return infos, nil
}

func (e *Engine) nextID() (uint64, error) {
	b, closer, err := e.db.Get(nextIDKey)
	if err == pebbledb.ErrNotFound {
		return 1, nil
	}
	if err != nil {
		return 0, translate(err)
	}
	defer closer.Close()
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: next id of a space", kv.ErrCorrupt)
	}
	return binary.BigEndian.Uint64(b), nil
}

// loadCatalog reads the spaces when the folder is opened.
func loadCatalog(db *pebbledb.DB) (map[string]*space, error) {
	spaces := map[string]*space{}
	it, err := db.NewIter(&pebbledb.IterOptions{LowerBound: []byte{kindSpace}, UpperBound: []byte{kindSpace + 1}})
	if err != nil {
		return nil, translate(err)
	}
	for it.First(); it.Valid(); it.Next() {
		name := string(it.Key()[1:])
		v, err := it.ValueAndErr()
		if err != nil {
			break // Close returns it too
		}
		id, o, err := decodeSpace(v)
		if err != nil {
			_ = it.Close()
			return nil, fmt.Errorf("%w: entry of space %q", kv.ErrCorrupt, name)
		}
		spaces[name] = newSpace(name, id, o)
	}
	return spaces, translate(it.Close())
}
