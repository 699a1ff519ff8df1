package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Options of Open. The zero value works.
type Options struct {
	// Clock decides expiry and feeds the versions. Default: the system's.
	Clock clock.Clock
	// CacheBytes is the size of the cache of blocks read from disk. Default:
	// DefaultCacheBytes.
	CacheBytes int64
	// MemTableBytes is how much is gathered in memory before it is written to a
	// table; up to three times as much is in use. Less of it costs commits that
	// check keys which do not exist, because there are more tables to look into.
	// Default: DefaultMemTableBytes.
	MemTableBytes int64
	// Logger gets warnings about the disk and Pebble's own messages. Default:
	// discard.
	Logger *slog.Logger
	// FS is the file system that the folder is on. Default: the operating
	// system's. Tests inject faults and crashes through it.
	FS vfs.FS
}

// DefaultCacheBytes is the default of Options.CacheBytes.
const DefaultCacheBytes = 24 << 20

// DefaultMemTableBytes is the default of Options.MemTableBytes.
const DefaultMemTableBytes = 32 << 20

// ErrInUse says that another process has the folder open.
var ErrInUse = errors.New("it is in use by another holdfast process")

// Open opens the engine in the folder dir, and creates it, readable by its owner
// only, if it does not exist. The caller closes the engine. A folder that
// another process has open (ErrInUse), that something else wrote, that is from a newer
// version or that is damaged (kv.ErrCorrupt) is refused.
func Open(ctx context.Context, dir string, opts Options) (*Engine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.CacheBytes <= 0 {
		opts.CacheBytes = DefaultCacheBytes
	}
	if opts.MemTableBytes <= 0 {
		opts.MemTableBytes = DefaultMemTableBytes
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.FS == nil {
		opts.FS = vfs.Default
		abs, err := filepath.Abs(dir) // the lock goes by the name
		if err != nil {
			return nil, fmt.Errorf("pebble: open folder %s: %w", dir, err)
		}
		dir = abs
	}
	e, err := open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("pebble: open folder %s: %w", dir, translate(err))
	}
	return e, nil
}

func open(dir string, opts Options) (*Engine, error) {
	lock, err := lockFolder(dir, opts.FS)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		dir:   dir,
		disk:  &freezer{FS: opts.FS},
		lock:  lock,
		clock: opts.Clock,
		log:   opts.Logger,
		calls: calls{drained: make(chan struct{})},
		seed:  maphash.MakeSeed(),
		memo:  memo{seed: maphash.MakeSeed()},
	}
	e.room.disk, e.room.dir = opts.FS, dir
	used, err := hasTables(dir, opts.FS)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	e.db, err = pebbledb.Open(dir, e.pebbleOptions(opts))
	if err != nil {
		// A change that the disk refused explains everything after it.
		return nil, errors.Join(firstOf(e.disk.err(), newerPebble(err)), lock.Close())
	}
	if err := e.load(used); err != nil {
		return nil, errors.Join(firstOf(e.disk.err(), err), e.db.Close(), lock.Close())
	}
	return e, nil
}

// newerPebble explains an error for which Pebble has no value.
func newerPebble(err error) error {
	if strings.Contains(err.Error(), "unknown format major version") {
		return fmt.Errorf("it was written by a newer holdfast: %w", err)
	}
	return err
}

// hasTables reports whether a folder has ever held more than a log.
func hasTables(dir string, disk vfs.FS) (bool, error) {
	names, err := disk.List(dir)
	return slices.ContainsFunc(names, isTable), err
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// lockFolder makes the folder if need be and takes hold of it.
func lockFolder(dir string, disk vfs.FS) (*pebbledb.Lock, error) {
	if info, err := disk.Stat(dir); err == nil && !info.IsDir() {
		return nil, errors.New("it is a file, not a folder")
	}
	if err := disk.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := pebbledb.LockDirectory(dir, disk)
	var onFile *fs.PathError
	if err != nil && !errors.As(err, &onFile) {
		return nil, fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return lock, err
}

// load checks whose folder it is and reads what is kept in memory. Used says that
// the folder cannot be a fresh one.
func (e *Engine) load(used bool) error {
	if err := e.checkFormat(used); err != nil {
		return err
	}
	last, err := e.loadCeiling()
	if err != nil {
		return err
	}
	e.flights = newFlights(last)
	e.ceiling.version.Store(uint64(last))
	spaces, err := loadCatalog(e.db)
	if err != nil {
		return err
	}
	e.catalog.Store(&spaces)
	return e.disk.err()
}

// checkFormat marks an empty folder as ours and refuses one that we cannot read.
func (e *Engine) checkFormat(used bool) error {
	b, closer, err := e.db.Get(formatKey)
	switch {
	case errors.Is(err, pebbledb.ErrNotFound):
		return e.initFormat(used)
	case err != nil:
		return err
	}
	defer closer.Close()
	switch {
	case len(b) != 1 || b[0] == 0:
		return fmt.Errorf("%w: format version", kv.ErrCorrupt)
	case b[0] > formatVersion:
		return fmt.Errorf("it has format version %d and was written by a newer holdfast, this one reads up to version %d", b[0], formatVersion)
	}
	return nil
}

func (e *Engine) initFormat(used bool) error {
	it, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	used = it.First() || used
	if err := it.Close(); err != nil {
		return err
	}
	if used {
		return fmt.Errorf("%w: it has no format version, because it is damaged or something else wrote it", kv.ErrCorrupt)
	}
	return e.db.Set(formatKey, []byte{formatVersion}, pebbledb.Sync)
}

func (e *Engine) loadCeiling() (kv.Version, error) {
	b, closer, err := e.db.Get(ceilingKey)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	if len(b) != versionSize {
		return 0, fmt.Errorf("%w: ceiling of versions", kv.ErrCorrupt)
	}
	return kv.Version(binary.BigEndian.Uint64(b)), nil
}

// memTables is how many there are at most: one being filled and one being flushed.
const memTables = 2

// pebbleOptions tunes Pebble for one small machine.
func (e *Engine) pebbleOptions(opts Options) *pebbledb.Options {
	log := logger{log: e.log, disk: e.disk}
	o := &pebbledb.Options{
		FS:                 e.disk,
		Lock:               e.lock,
		Logger:             log,
		FormatMajorVersion: pebbledb.FormatValueSeparation,
		// Pebble takes the memtables out of the cache's size, those in use and one
		// that is about to be freed or used again.
		CacheSize:                   opts.CacheBytes + (memTables+1)*opts.MemTableBytes,
		MaxOpenFiles:                1000,
		MemTableSize:                uint64(opts.MemTableBytes),
		MemTableStopWritesThreshold: memTables,
		// When half as many tables lie over each other, they are merged into the next
		// level. At 2 each flush rewrites all that it overlaps: records of a few hundred
		// bytes are written six times behind the log, at 8 four times. More of it leaves
		// reads more tables to look into.
		L0CompactionThreshold:      8,
		L0StopWritesThreshold:      24,
		LBaseMaxBytes:              64 << 20,
		CompactionConcurrencyRange: func() (int, int) { return 1, 2 },
		// Spread the writing of large files over time, so that a sync of the log
		// does not wait for it.
		BytesPerSync: 512 << 10,
		EventListener: &pebbledb.EventListener{
			BackgroundError: func(err error) { e.log.Warn("pebble: background work failed", "error", err) },
			DataCorruption:  func(i pebbledb.DataCorruptionInfo) { e.log.Error("pebble: stored data is corrupt", "info", i.String()) },
			WriteStallBegin: func(i pebbledb.WriteStallBeginInfo) {
				e.log.Warn("pebble: writes wait for flushes or compactions", "reason", i.Reason)
			},
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].BlockSize = 16 << 10
		o.Levels[i].IndexBlockSize = 256 << 10
	}
	o.Experimental.ValueSeparationPolicy = separateLargeValues
	return o
}

// separateLargeValues keeps large values out of the tables, so that compactions
// need not copy them: 20 KB rows are written 1.7 times behind the log instead of
// 4.4 times. Values below a quarter of a block stay in the tables, where a scan
// finds them next to each other. The larger depth costs scans of large values,
// which visit more files, and saves copies: 10 would be 2.5 times.
func separateLargeValues() pebbledb.ValueSeparationPolicy {
	return pebbledb.ValueSeparationPolicy{
		Enabled:               true,
		MinimumSize:           4 << 10,
		MaxBlobReferenceDepth: 64,
		RewriteMinimumAge:     5 * time.Minute,
		TargetGarbageRatio:    0.3,
	}
}

// logger passes Pebble's messages on. Fatalf must not end the process: it
// freezes the folder instead.
type logger struct {
	log  *slog.Logger
	disk *freezer
}

func (l logger) Infof(format string, args ...any) {
	l.log.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (l logger) Errorf(format string, args ...any) {
	l.log.Error("pebble: " + fmt.Sprintf(format, args...))
}

func (l logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.disk.fail(err)
	l.log.Error("pebble: fatal", "error", err)
}
