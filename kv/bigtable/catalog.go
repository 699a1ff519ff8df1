package bigtable

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/kv"
)

// table is a Bigtable table.
type table struct {
	name string
	bt   *bt.Table
}

// stages of a space. They only ever go forward, and a space that is created again
// begins with the next generation, so a row of the catalog never repeats a value.
type stage byte

const (
	creating stage = 1 // its table may not exist yet
	existing stage = 2
	dropping stage = 3 // something of it may be left
	dropped  stage = 4
)

// space is a row of the catalog.
type space struct {
	kv.SpaceInfo
	stage      stage
	generation uint32
	// stream names the feed in the tables that all feeds share. No two spaces
	// have the same, those created again included.
	stream [streamIDSize]byte
	// floor: all versions of the space are above it. Those of the spaces that had
	// the name before are not.
	floor uint64

	table *table
}

const (
	streamIDSize = 16
	catalogSize  = 2 + 4 + streamIDSize + 8 + 1 + 1 + 8
)

func catalogKey(name string) string { return "s" + name }

// floorKey is the row with a version that no process may start below: see
// Engine.raiseFloor.
const floorKey = "f"

// encode: format 1 (1), stage 1, generation 4, stream 16, floor 8, links 1, shards 1,
// retention in nanoseconds 8.
func (s *space) encode() []byte {
	b := append(make([]byte, 0, catalogSize), 1, byte(s.stage))
	b = binary.BigEndian.AppendUint32(b, s.generation)
	b = append(b, s.stream[:]...)
	b = binary.BigEndian.AppendUint64(b, s.floor)
	links := byte(0)
	if s.Links {
		links = 1
	}
	b = append(b, links, byte(s.FeedShards))
	return binary.BigEndian.AppendUint64(b, uint64(s.FeedRetention))
}

func (e *Engine) decodeSpace(name string, b []byte) (*space, error) {
	if len(b) != catalogSize || b[0] != 1 {
		return nil, fmt.Errorf("%w: catalog row of space %s", kv.ErrCorrupt, name)
	}
	s := &space{stage: stage(b[1]), generation: binary.BigEndian.Uint32(b[2:])}
	copy(s.stream[:], b[6:])
	b = b[6+streamIDSize:]
	s.floor = binary.BigEndian.Uint64(b)
	s.SpaceInfo = kv.SpaceInfo{Name: name, SpaceOptions: kv.SpaceOptions{
		Links: b[8] == 1, FeedShards: int(b[9]), FeedRetention: time.Duration(binary.BigEndian.Uint64(b[10:])),
	}}
	id, err := e.tableName(name, s.generation)
	if err != nil {
		return nil, err
	}
	s.table = &table{name: id, bt: e.data.Open(id)}
	return s, nil
}

func spaceNotFound(name string) error { return fmt.Errorf("%w: %s", kv.ErrSpaceNotFound, name) }

// space returns an existing space. What is known of it is remembered: options never
// change, and once it is dropped its table is missing, which whoever uses it
// will notice.
func (e *Engine) space(ctx context.Context, name string) (*space, error) {
	e.spacesMu.RLock()
	s := e.spaces[name]
	e.spacesMu.RUnlock()
	if s != nil {
		return s, nil
	}
	s, _, err := e.readSpace(ctx, name)
	if err != nil {
		return nil, err
	}
	if s == nil || s.stage != existing {
		return nil, spaceNotFound(name)
	}
	e.remember(s)
	return s, nil
}

func (e *Engine) remember(s *space) {
	e.spacesMu.Lock()
	defer e.spacesMu.Unlock()
	e.spaces[s.Name] = s
}

func (e *Engine) forget(name string) {
	e.spacesMu.Lock()
	defer e.spacesMu.Unlock()
	delete(e.spaces, name)
}

// known returns the spaces that this process has met.
func (e *Engine) known() []*space {
	e.spacesMu.RLock()
	defer e.spacesMu.RUnlock()
	all := make([]*space, 0, len(e.spaces))
	for _, s := range e.spaces {
		all = append(all, s)
	}
	return all
}

// readSpace reads a row of the catalog. raw is its value, and both are nil if there
// never was a space of the name.
func (e *Engine) readSpace(ctx context.Context, name string) (s *space, raw []byte, err error) {
	if raw, err = e.readCell(ctx, "read space", e.catalogTable, catalogKey(name), catalogCell); err != nil || raw == nil {
		return nil, nil, err
	}
	s, err = e.decodeSpace(name, raw)
	return s, raw, err
}

// readCatalog reads all rows of the catalog, in the order of their names.
func (e *Engine) readCatalog(ctx context.Context) ([]*space, error) {
	var all []*space
	var bad error
	err := e.read(ctx, "list spaces", e.catalogTable, pageTimeout, bt.PrefixRange(catalogKey("")), func() { all = nil }, func(r bt.Row) bool {
		s, err := e.decodeSpace(r.Key()[1:], newest(r, catalogCell))
		if bad = err; err == nil {
			all = append(all, s)
		}
		return err == nil
	}, bt.RowFilter(catalogCell.filter()))
	if err == nil {
		err = bad
	}
	return all, err
}

// Spaces implements kv.Engine.
func (e *Engine) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) {
	if err := e.enter(ctx); err != nil {
		return nil, fmt.Errorf("bigtable: list spaces: %w", err)
	}
	defer e.leave()
	all, err := e.readCatalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("bigtable: list spaces: %w", err)
	}
	var infos []kv.SpaceInfo
	for _, s := range all {
		if s.stage == existing {
			infos = append(infos, s.SpaceInfo)
		}
	}
	return infos, nil
}

// raiseFloor writes down that versions up to p were used where nothing tells of
// them any more: in dropped spaces, and in tombstones that were swept. A
// process starts above it, whatever its clock says.
func (e *Engine) raiseFloor(ctx context.Context, p uint64) error {
	for {
		raw, err := e.readCell(ctx, "read floor", e.catalogTable, floorKey, catalogCell)
		if err != nil || len(raw) == 8 && binary.BigEndian.Uint64(raw) >= p {
			return err
		}
		res, err := e.cas(ctx, "raise floor", e.catalogTable, floorKey, catalogCell.is(raw), newMutation().set(catalogCell, binary.BigEndian.AppendUint64(nil, p)))
		if err != nil || res.applied {
			return err
		}
	}
}

// loadFloor starts the versions of this process above the floor.
func (e *Engine) loadFloor(ctx context.Context) error {
	raw, err := e.readCell(ctx, "read floor", e.catalogTable, floorKey, catalogCell)
	if err == nil && len(raw) == 8 {
		e.hybrid.raise(binary.BigEndian.Uint64(raw))
	}
	return err
}
