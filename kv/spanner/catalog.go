package spanner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/spansql"

	"github.com/holdfast-dev/holdfast/kv"
)

// space returns the options of a space, from memory if it was there before.
func (e *Engine) space(ctx context.Context, name string) (kv.SpaceOptions, error) {
	if opts, ok := (*e.spaces.Load())[name]; ok {
		return opts, nil
	}
	all, err := e.loadSpaces(ctx)
	if err != nil {
		return kv.SpaceOptions{}, err
	}
	if opts, ok := all[name]; ok {
		return opts, nil
	}
	return kv.SpaceOptions{}, fmt.Errorf("%w: %s", kv.ErrSpaceNotFound, name)
}

// loadSpaces reads which spaces there are, and remembers it.
func (e *Engine) loadSpaces(ctx context.Context) (map[string]kv.SpaceOptions, error) {
	all, err := readSpaces(ctx, e.client.Single(), "", nil)
	if err != nil {
		return nil, err
	}
	e.spaces.Store(&all)
	return all, nil
}

// readSpaces reads rows of the catalog.
func readSpaces(ctx context.Context, q querier, where string, params map[string]any) (map[string]kv.SpaceOptions, error) {
	all := map[string]kv.SpaceOptions{}
	stmt := spanner.Statement{SQL: "SELECT name, links, feed_shards, feed_retention_us FROM " + spacesTable + where, Params: params}
	err := q.Query(ctx, stmt).Do(func(r *spanner.Row) error {
		var name string
		var links bool
		var shards, retention int64
		if err := r.Columns(&name, &links, &shards, &retention); err != nil {
			return err
		}
		all[name] = kv.SpaceOptions{Links: links, FeedShards: int(shards), FeedRetention: time.Duration(retention) * time.Microsecond}
		return nil
	})
	return all, translate(ctx, err)
}

// Spaces implements kv.Engine.
func (e *Engine) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	all, err := e.loadSpaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("spanner: list spaces: %w", err)
	}
	return infos(all), nil
}

func infos(all map[string]kv.SpaceOptions) []kv.SpaceInfo {
	var list []kv.SpaceInfo
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, kv.SpaceInfo{Name: name, SpaceOptions: all[name]})
	}
	return list
}

// CreateSpace implements kv.Engine. Without AutoSchema the tables must be there.
func (e *Engine) CreateSpace(ctx context.Context, name string, opts kv.SpaceOptions) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if err := e.createSpace(ctx, kv.SpaceInfo{Name: name, SpaceOptions: opts}); err != nil {
		return fmt.Errorf("spanner: create space %s: %w", name, err)
	}
	return nil
}

func (e *Engine) createSpace(ctx context.Context, s kv.SpaceInfo) error {
	if s.FeedRetention%time.Microsecond != 0 {
		return fmt.Errorf("%w: feed kept for %v, which are no whole microseconds", kv.ErrInvalid, s.FeedRetention)
	}
	e.schemaMu.Lock()
	defer e.schemaMu.Unlock()
	all, err := e.loadSpaces(ctx)
	if err != nil {
		return err
	}
	had, exists := all[s.Name]
	if exists && had != s.SpaceOptions {
		return kv.ErrSpaceMismatch
	}
	err = e.probe(ctx, s)
	switch {
	case err != nil && !errors.Is(err, errNoTable) && !errors.Is(err, errNoColumn):
		return err
	case e.admin != nil && (err != nil || !exists):
		if _, err := e.admin.Apply(ctx, withSpace(infos(all), s)); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("its tables are missing or lack columns: run holdfast schema apply: %w", err)
	}
	if exists {
		return nil
	}
	return e.addToCatalog(ctx, s)
}

// probe looks whether the tables of a space are there, with all columns.
func (e *Engine) probe(ctx context.Context, s kv.SpaceInfo) error {
	sql := "SELECT " + rowColumns + " FROM " + tableSQL(s.Name) + " LIMIT 0"
	err := e.client.Single().Query(ctx, spanner.NewStatement(sql)).Do(func(*spanner.Row) error { return nil })
	if err == nil && s.FeedShards > 0 {
		sql = "SELECT " + feedColumns + " FROM " + feedTableSQL(s.Name) + " LIMIT 0"
		err = e.client.Single().Query(ctx, spanner.NewStatement(sql)).Do(func(*spanner.Row) error { return nil })
	}
	return translate(ctx, err)
}

func tableSQL(space string) string     { return spansql.ID(TableName(space)).SQL() }
func feedTableSQL(space string) string { return spansql.ID(feedTableName(space)).SQL() }

func (e *Engine) addToCatalog(ctx context.Context, s kv.SpaceInfo) error {
	_, err := e.client.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		found, err := readSpaces(ctx, tx, " WHERE name = @name", map[string]any{"name": s.Name})
		if err != nil {
			return err
		}
		if had, exists := found[s.Name]; exists {
			if had != s.SpaceOptions {
				return kv.ErrSpaceMismatch
			}
			return nil
		}
		return tx.BufferWrite([]*spanner.Mutation{spanner.Insert(spacesTable,
			[]string{"name", "links", "feed_shards", "feed_retention_us"},
			[]any{s.Name, s.Links, int64(s.FeedShards), s.FeedRetention.Microseconds()})})
	})
	if err == nil {
		_, err = e.loadSpaces(ctx)
	}
	return translate(ctx, err)
}

// DropSpace implements kv.Engine. The row of the catalog goes last: a space whose
// tables are gone can be dropped, or created, again.
func (e *Engine) DropSpace(ctx context.Context, name string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if err := e.dropSpace(ctx, name); err != nil {
		return fmt.Errorf("spanner: drop space %s: %w", name, err)
	}
	return nil
}

func (e *Engine) dropSpace(ctx context.Context, name string) error {
	e.schemaMu.Lock()
	defer e.schemaMu.Unlock()
	all, err := e.loadSpaces(ctx)
	if err != nil {
		return err
	}
	if _, exists := all[name]; !exists {
		return kv.ErrSpaceNotFound
	}
	if e.admin == nil {
		return errors.New("dropping tables is left to the operator: the engine may not change the schema")
	}
	if err := e.admin.drop(ctx, name); err != nil {
		return err
	}
	_, err = e.client.Apply(ctx, []*spanner.Mutation{
		spanner.Delete(spacesTable, spanner.Key{name}),
		spanner.Delete(marksTable, spanner.Key{name}.AsPrefix()),
	})
	if err == nil {
		_, err = e.loadSpaces(ctx)
	}
	return translate(ctx, err)
}
