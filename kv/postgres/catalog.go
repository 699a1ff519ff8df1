package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// space is a space as the catalog has it. Its id belongs to it alone for ever: if
// it is dropped, statements with its table fail.
type space struct {
	kv.SpaceInfo
	id int64
}

// catalog remembers the spaces. It may be late: what is not in it may exist, and
// what is may have been dropped, which statements then find out.
type catalog struct {
	mu     sync.Mutex
	spaces map[string]*space
}

func (c *catalog) get(name string) *space {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spaces[name]
}

func (c *catalog) set(spaces map[string]*space) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spaces = spaces
}

// CreateSpace implements kv.Engine.
func (e *Engine) CreateSpace(ctx context.Context, name string, opts kv.SpaceOptions) error {
	same, err := e.changeCatalog(ctx, "create_space($1, $2, $3, $4)", new(args).
		text(name).bool(opts.Links).int4(opts.FeedShards).int8(int64(opts.FeedRetention)))
	if err == nil && !same {
		err = kv.ErrSpaceMismatch
	}
	if err != nil {
		return fmt.Errorf("postgres: create space %s: %w", name, err)
	}
	return nil
}

// DropSpace implements kv.Engine. It reads all rows of the space, because a later
// space of the name goes on above their versions.
func (e *Engine) DropSpace(ctx context.Context, name string) error {
	found, err := e.changeCatalog(ctx, "drop_space($1)", new(args).text(name))
	if err == nil && !found {
		err = kv.ErrSpaceNotFound
	}
	if err != nil {
		return fmt.Errorf("postgres: drop space %s: %w", name, err)
	}
	return nil
}

func (e *Engine) changeCatalog(ctx context.Context, call string, a *args) (result bool, err error) {
	if err := e.enter(ctx); err != nil {
		return false, err
	}
	defer e.leave()
	for attempt := 0; ; attempt++ {
		err := e.roundTrip(ctx, "select "+e.prefix+call, a, func(v [][]byte) error {
			result = isTrue(v[0])
			return nil
		})
		if err == nil || !aborted(err) || attempt == mostAttempts {
			return result, interrupted(ctx, err)
		}
	}
}

// Spaces implements kv.Engine.
func (e *Engine) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) {
	spaces, err := e.listSpaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: list spaces: %w", err)
	}
	var infos []kv.SpaceInfo
	for _, name := range slices.Sorted(maps.Keys(spaces)) {
		infos = append(infos, spaces[name].SpaceInfo)
	}
	return infos, nil
}

func (e *Engine) listSpaces(ctx context.Context) (map[string]*space, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	spaces := map[string]*space{}
	err := e.roundTrip(ctx, "select name, id, links, feed_shards, feed_retention from "+e.prefix+"spaces", new(args), func(v [][]byte) error {
		s := &space{}
		s.Name = string(v[0])
		s.Links = isTrue(v[2])
		var err error
		if s.id, err = decodeInt(v[1]); err != nil {
			return err
		}
		shards, err := decodeInt(v[3])
		if err != nil {
			return err
		}
		retention, err := decodeInt(v[4])
		if err != nil {
			return err
		}
		s.FeedShards, s.FeedRetention = int(shards), time.Duration(retention)
		spaces[s.Name] = s
		return nil
	})
	if err != nil {
		return nil, interrupted(ctx, err)
	}
	e.catalog.set(spaces)
	return spaces, nil
}

// mostAttempts bounds how often a call is repeated that other transactions spoil.
const mostAttempts = 10

// withSpaces calls fn with the spaces of some names, and again if it turns out that
// one of them has been dropped since the catalog was read.
func (e *Engine) withSpaces(ctx context.Context, names []string, fn func(spaces map[string]*space) error) error {
	var last error
	for attempt := range mostAttempts {
		spaces, err := e.resolve(ctx, names, attempt > 0)
		if err != nil {
			return err
		}
		if last = fn(spaces); !spaceGone(last) {
			return last
		}
	}
	return last
}

// resolve returns the spaces of some names. It trusts what the catalog remembers
// unless it has been proved wrong, and never in that a space does not exist.
func (e *Engine) resolve(ctx context.Context, names []string, wrong bool) (map[string]*space, error) {
	spaces := make(map[string]*space, len(names))
	var fresh map[string]*space
	for _, name := range names {
		s := e.catalog.get(name)
		if s == nil || wrong {
			if fresh == nil {
				var err error
				if fresh, err = e.listSpaces(ctx); err != nil {
					return nil, err
				}
			}
			s = fresh[name]
		}
		if s == nil {
			return nil, fmt.Errorf("%w: %s", kv.ErrSpaceNotFound, name)
		}
		spaces[name] = s
	}
	return spaces, nil
}

// distinct returns the names of the spaces of n items, each once.
func distinct(n int, name func(i int) string) []string {
	var names []string
	for i := range n {
		if s := name(i); !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}
