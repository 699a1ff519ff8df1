package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/fs"
	"github.com/holdfast-dev/holdfast/blob/gcs"
	"github.com/holdfast-dev/holdfast/blob/s3"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/bigtable"
	"github.com/holdfast-dev/holdfast/kv/pebble"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/spanner"
)

// openEngine opens the engine that the configuration names.
func openEngine(ctx context.Context, cfg *config.Loaded, c clock.Clock, log *slog.Logger) (kv.Engine, kv.Limits, error) {
	engine, limits, err := openEngineKind(ctx, cfg, c, log)
	if err != nil && cfg.Engine.Shared() {
		err = fmt.Errorf("look at engine.%s in the configuration: %w", cfg.Engine.Kind, err)
	}
	return engine, limits, err
}

func openEngineKind(ctx context.Context, cfg *config.Loaded, c clock.Clock, log *slog.Logger) (kv.Engine, kv.Limits, error) {
	switch cfg.Engine.Kind {
	case config.EngineBigtable:
		engine, err := openBigtable(ctx, cfg, c, log)
		return engine, bigtable.Limits(), err
	case config.EnginePostgres:
		p := &cfg.Engine.Postgres
		engine, err := postgres.Open(ctx, postgres.Options{
			URL: string(p.URL), ListenURL: string(p.ListenURL), ReadURL: string(p.ReadURL), Schema: p.Schema, PoolSize: p.PoolSize, Clock: c, Logger: log,
		})
		return engine, postgres.Limits(), err
	case config.EngineSpanner:
		engine, err := spanner.Open(ctx, spannerOptions(cfg, c, log))
		return engine, spanner.Limits(), err
	default:
		engine, err := pebble.Open(ctx, cfg.EnginePath(), pebble.Options{
			Clock: c, CacheBytes: int64(cfg.Engine.CacheBytes), MemTableBytes: int64(cfg.Engine.MemTable), Logger: log,
		})
		return engine, pebble.Limits(), err
	}
}

func openBigtable(ctx context.Context, cfg *config.Loaded, c clock.Clock, log *slog.Logger) (kv.Engine, error) {
	b := &cfg.Engine.Bigtable
	return bigtable.Open(ctx, bigtable.Options{
		ProjectID: b.ProjectID, InstanceID: b.InstanceID, DataInstanceID: b.DataInstanceID,
		CredentialsPath: b.CredentialsPath, EmulatorHost: b.EmulatorHost,
		PoolSize: b.PoolSize, AppProfile: b.AppProfile, SystemPrefix: b.SystemPrefix,
		TxnDeadline: b.TxnDeadline, TxnRecordRetention: b.TxnRecordRetention, TombstoneRetention: b.TombstoneRetention,
		SweeperCadence: b.SweeperCadence, MaxTables: b.MaxTables, Clock: c, Rand: rand.Reader, Logger: log,
	})
}

func spannerOptions(cfg *config.Loaded, c clock.Clock, log *slog.Logger) spanner.Options {
	s := &cfg.Engine.Spanner
	return spanner.Options{
		ProjectID: s.ProjectID, InstanceID: s.InstanceID, DatabaseID: s.DatabaseID, Role: s.DatabaseRole,
		EmulatorHost: s.EmulatorHost, AutoSchema: s.AutoSchema, Clock: c, Logger: log,
	}
}

// storeDriver is a driver whose store's settings can be checked.
type storeDriver interface {
	blob.Driver
	blob.Checker
}

// openStore opens the object store that the configuration names; the caller closes it
// by the function that is returned. If it must exist already, an empty folder is not
// taken for one.
func openStore(ctx context.Context, cfg *config.Loaded, exists bool, log *slog.Logger) (storeDriver, func() error, error) {
	driver, closeStore, err := openStoreKind(ctx, cfg, exists, log)
	if err != nil && cfg.Store.Kind != config.StoreFS {
		err = fmt.Errorf("look at store.%s in the configuration: %w", cfg.Store.Kind, err)
	}
	return driver, closeStore, err
}

func openStoreKind(ctx context.Context, cfg *config.Loaded, exists bool, log *slog.Logger) (storeDriver, func() error, error) {
	switch cfg.Store.Kind {
	case config.StoreGCS:
		g := &cfg.Store.GCS
		driver, err := gcs.Open(ctx, gcs.Options{Bucket: g.Bucket, Endpoint: g.Endpoint, CredentialsPath: g.CredentialsPath, Logger: log})
		if err != nil {
			return nil, nil, err
		}
		return driver, driver.Close, nil
	case config.StoreS3:
		c := &cfg.Store.S3
		driver, err := s3.Open(ctx, s3.Options{
			Bucket: c.Bucket, Region: c.Region, Endpoint: c.Endpoint, PathStyle: c.PathStyle,
			AccessKeyID: c.AccessKeyID, SecretAccessKey: string(c.SecretAccessKey), Logger: log,
		})
		return driver, func() error { return nil }, err
	default:
		driver, err := fs.Open(ctx, cfg.StorePath(), fs.Options{Logger: log, Existing: exists})
		if errors.Is(err, fs.ErrNoStore) {
			err = fmt.Errorf("%w, but rows point into one: mount the disk, set store.path to where it is, or restore it", err)
		}
		if err != nil {
			return nil, nil, err
		}
		return driver, driver.Close, nil
	}
}
