package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/fs"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/pebble"
)

// openEngine opens the engine that the configuration names.
func openEngine(ctx context.Context, cfg *config.Loaded, c clock.Clock, log *slog.Logger) (kv.Engine, kv.Limits, error) {
	e := &cfg.Engine
	engine, err := pebble.Open(ctx, cfg.EnginePath(), pebble.Options{
		Clock: c, CacheBytes: int64(e.CacheBytes), MemTableBytes: int64(e.MemTable), Logger: log,
	})
	if err != nil {
		return nil, kv.Limits{}, err
	}
	return engine, pebble.Limits(), nil
}

// storeDriver is a driver that its opener closes.
type storeDriver interface {
	blob.Driver
	Close() error
}

// openStore opens the object store that the configuration names. If it must exist
// already, an empty folder is not taken for one.
func openStore(ctx context.Context, cfg *config.Loaded, exists bool, log *slog.Logger) (storeDriver, error) {
	driver, err := fs.Open(ctx, cfg.StorePath(), fs.Options{Logger: log, Existing: exists})
	if errors.Is(err, fs.ErrNoStore) {
		return nil, fmt.Errorf("%w, but rows point into one: mount the disk, set store.path to where it is, or restore it", err)
	}
	if err != nil {
		return nil, err
	}
	return driver, nil
}
