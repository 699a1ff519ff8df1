package bigtable

import (
	"bytes"
	"context"
	"fmt"
	"io"

	bt "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

// CreateSpace implements kv.Engine. It creates a table, of which an instance may
// have Options.MaxTables.
func (e *Engine) CreateSpace(ctx context.Context, name string, o kv.SpaceOptions) error {
	err := e.enter(ctx)
	if err == nil {
		defer e.leave()
		err = e.createSpace(ctx, name, o)
	}
	if err != nil {
		return fmt.Errorf("bigtable: create space %s: %w", name, err)
	}
	return nil
}

func (e *Engine) createSpace(ctx context.Context, name string, o kv.SpaceOptions) error {
	if _, err := e.tableName(name, 1); err != nil {
		return err
	}
	for {
		s, raw, err := e.readSpace(ctx, name)
		switch {
		case err != nil:
			return err
		case s != nil && s.stage == existing || s != nil && s.stage == creating:
			if s.SpaceOptions != o {
				return kv.ErrSpaceMismatch
			}
			if s.stage == creating {
				s, err = e.finishCreation(ctx, s, raw)
			}
			if s != nil || err != nil {
				if err == nil {
					e.remember(s)
				}
				return err
			}
			continue // somebody was faster
		}
		if err := e.checkTableCount(ctx); err != nil {
			return err
		}
		fresh := &space{SpaceInfo: kv.SpaceInfo{Name: name, SpaceOptions: o}, stage: creating, generation: 1}
		if s != nil {
			fresh.generation, fresh.floor = s.generation+1, s.floor
		}
		if _, err := io.ReadFull(e.opts.Rand, fresh.stream[:]); err != nil {
			return fmt.Errorf("random bytes: %w", err)
		}
		// Lost or not, the next turn of the loop sees what came of it.
		if _, err := e.cas(ctx, "create space", e.catalogTable, catalogKey(name), catalogCell.is(raw), newMutation().set(catalogCell, fresh.encode())); err != nil {
			return err
		}
	}
}

// finishCreation makes the table of a space and shows the space to all. It returns
// nil if somebody else changed the catalog meanwhile.
func (e *Engine) finishCreation(ctx context.Context, s *space, raw []byte) (*space, error) {
	families := map[string]bt.Family{"d": {GCPolicy: bt.MaxVersionsPolicy(1)}, "m": {GCPolicy: bt.MaxVersionsPolicy(1)}}
	if s.FeedShards > 0 {
		families["o"] = bt.Family{GCPolicy: bt.NoGcPolicy()}
	}
	if err := e.createTable(ctx, e.dataAdmin, &bt.TableConf{TableID: s.table.name, SplitKeys: splits(s.Name), ColumnFamilies: families}); err != nil {
		return nil, err
	}
	done := *s
	done.stage = existing
	res, err := e.cas(ctx, "publish space", e.catalogTable, catalogKey(s.Name), catalogCell.is(raw), newMutation().set(catalogCell, done.encode()))
	if err != nil || !res.applied {
		return nil, err
	}
	return &done, nil
}

func (e *Engine) createTable(ctx context.Context, admin *bt.AdminClient, conf *bt.TableConf) error {
	if err := checkTableID(conf.TableID); err != nil {
		return err
	}
	_, err := e.again(ctx, "create table", conf.TableID, pageTimeout, func(ctx context.Context) error {
		return admin.CreateTableFromConf(ctx, conf)
	})
	if isCode(err, codes.AlreadyExists) {
		return nil
	}
	return err
}

func (e *Engine) checkTableCount(ctx context.Context) error {
	n, err := e.Tables(ctx)
	if err == nil && n >= e.opts.MaxTables {
		err = fmt.Errorf("%w: the instance has %d", ErrTooManyTables, n)
	}
	return err
}

// Tables counts the tables in the instance that holds the data, those of others
// too: an instance may have 1,000.
func (e *Engine) Tables(ctx context.Context) (int, error) {
	names, err := e.listTables(ctx, e.dataAdmin)
	return len(names), err
}

func (e *Engine) listTables(ctx context.Context, admin *bt.AdminClient) (names []string, err error) {
	_, err = e.again(ctx, "list tables", "*", pageTimeout, func(ctx context.Context) (err error) {
		names, err = admin.Tables(ctx)
		return err
	})
	return names, err
}

// DropSpace implements kv.Engine. A process that knew the space may write to it
// until its table is gone, that is, until DropSpace returns; what it writes
// goes with the table.
func (e *Engine) DropSpace(ctx context.Context, name string) error {
	err := e.enter(ctx)
	if err == nil {
		defer e.leave()
		err = e.dropSpace(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("bigtable: drop space %s: %w", name, err)
	}
	return nil
}

func (e *Engine) dropSpace(ctx context.Context, name string) error {
	for {
		s, raw, err := e.readSpace(ctx, name)
		if err != nil {
			return err
		}
		if s == nil || s.stage != existing {
			return kv.ErrSpaceNotFound
		}
		gone := *s
		gone.stage, gone.floor = dropping, e.hybrid.next(s.floor)
		if err := e.raiseFloor(ctx, gone.floor); err != nil {
			return err
		}
		res, err := e.cas(ctx, "drop space", e.catalogTable, catalogKey(name), catalogCell.is(raw), newMutation().set(catalogCell, gone.encode()))
		if err != nil {
			return err
		}
		if !res.applied && res.unsure {
			now, err := e.readCell(ctx, "read space", e.catalogTable, catalogKey(name), catalogCell)
			if err != nil {
				return err
			}
			res.applied = bytes.Equal(now, gone.encode())
		}
		if res.applied {
			e.forget(name)
			return e.clearSpace(ctx, &gone)
		}
	}
}

// clearSpace removes what is left of a space that was dropped, and says so in the
// catalog. The sweeper does it too.
func (e *Engine) clearSpace(ctx context.Context, s *space) error {
	_, err := e.again(ctx, "delete table", s.table.name, pageTimeout, func(ctx context.Context) error {
		return e.dataAdmin.DeleteTable(ctx, s.table.name)
	})
	if err != nil && !isCode(err, codes.NotFound) {
		return err
	}
	if s.FeedShards > 0 {
		for _, t := range []*table{e.streamTable, e.outboxTable} {
			if err := e.deletePrefix(ctx, t, string(s.stream[:])); err != nil {
				return err
			}
		}
	}
	done := *s
	done.stage = dropped
	_, err = e.cas(ctx, "forget space", e.catalogTable, catalogKey(s.Name), catalogCell.is(s.encode()), newMutation().set(catalogCell, done.encode()))
	return err
}

// deletePrefix deletes rows that nobody writes any more, page by page.
func (e *Engine) deletePrefix(ctx context.Context, t *table, prefix string) error {
	const page = 1000
	for {
		var keys []string
		err := e.read(ctx, "list leftovers", t, pageTimeout, bt.PrefixRange(prefix), func() { keys = nil }, func(r bt.Row) bool {
			keys = append(keys, r.Key())
			return true
		}, bt.LimitRows(page), bt.RowFilter(bt.StripValueFilter()))
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := e.deleteRows(ctx, "delete leftovers", t, keys); err != nil {
			return err
		}
	}
}

// deleteRows deletes rows whose keys are never used again.
func (e *Engine) deleteRows(ctx context.Context, step string, t *table, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	ms := make([]*mutation, len(keys))
	for i := range ms {
		ms[i] = newMutation().deleteRow()
	}
	return e.plain(ctx, step, t, keys, ms)
}
