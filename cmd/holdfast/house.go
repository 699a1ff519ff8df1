package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/api/sync15/tokenserver"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/lease"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/offload"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/transfer"
)

// house is everything below the doors: engine, object store and layers, opened
// and wired, with nothing running yet.
type house struct {
	cfg     *config.Loaded
	secrets config.Secrets
	log     *slog.Logger
	clock   clock.Clock
	metrics *metrics.Registry

	// shared: other processes may have the engine open too. openEngine sets it.
	shared  bool
	db      *kv.DB // with all hooks
	leases  *lease.Manager
	objects *blob.Store

	queues  *queue.Service
	changes *queue.Queue
	purges  *queue.Queue

	index      *expiry.Index
	sweeper    *expiry.Sweeper
	lifecycle  *blob.Lifecycle
	reconciler *reconcile.Reconciler
	offloader  *offload.Offloader
	storage    *storage.Store
	purger     *storage.Purger
	accounts   *tokenserver.Store

	closers []func() error
}

// openHouse opens everything that the configuration names. The caller closes it.
func openHouse(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (h *house, err error) {
	h = &house{cfg: cfg, log: log, clock: clock.System{}, metrics: metrics.New()}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	var warnings []string
	if h.secrets, warnings, err = cfg.EnsureSecrets(rand.Reader); err != nil {
		return h, err
	}
	for _, w := range append(cfg.Warnings, warnings...) {
		log.Warn(w)
	}
	steps := []func(context.Context) error{h.openEngine, h.openLeases, h.openObjects, h.openQueues, h.openLayers, h.openSync}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return h, err
		}
	}
	return h, nil
}

// Close closes what openHouse opened, in the opposite order.
func (h *house) Close() error {
	var errs []error
	for i := len(h.closers) - 1; i >= 0; i-- {
		errs = append(errs, h.closers[i]())
	}
	h.closers = nil
	return errors.Join(errs...)
}

func (h *house) openEngine(ctx context.Context) error {
	limitMemory(memoryFor(&h.cfg.Engine))
	engine, limits, err := openEngine(ctx, h.cfg, h.clock, h.log)
	if err != nil {
		return err
	}
	h.closers = append(h.closers, engine.Close)
	h.db = kv.New(engine, limits)
	h.shared = h.cfg.Engine.Shared()
	if err := transfer.Check(ctx, h.db); err != nil {
		return fmt.Errorf("%w: run holdfast copy again", err)
	}
	return nil
}

// openLeases decides which process does what only one may do at a time.
func (h *house) openLeases(ctx context.Context) error {
	var err error
	h.leases, err = lease.Open(ctx, h.db, lease.Options{
		Rand: rand.Reader, Exclusive: !h.shared, Metrics: h.metrics, Log: h.log,
	})
	return err
}

// sharedShards is in how many parts queues are divided that several processes deliver.
const sharedShards = 8

// houseSpace remembers, in the row "object_store", that there is an object store.
// Without it, a disk that is not mounted would be taken for a store that is still to
// be made, and all objects for deleted. Its row "id" tells this data from other.
const houseSpace = "holdfast_house"

func houseSpaces() []kv.SpaceInfo { return []kv.SpaceInfo{{Name: houseSpace}} }

func (h *house) openObjects(ctx context.Context) error {
	if err := h.db.EnsureSpaces(ctx, houseSpaces()...); err != nil {
		return err
	}
	known := []byte("object_store")
	row, err := h.db.GetOne(ctx, houseSpace, known)
	if err != nil {
		return err
	}
	driver, closeStore, err := openStore(ctx, h.cfg, row.Exists(), h.log)
	if err != nil {
		return err
	}
	h.closers = append(h.closers, closeStore)
	if !row.Exists() {
		// After the store was made: a first start that ends in between makes it again.
		t := &kv.Txn{Writes: []kv.Write{{Space: houseSpace, Key: known, Value: []byte(h.cfg.Store.Kind)}}}
		if _, err := h.db.Commit(ctx, t); err != nil {
			return err
		}
	}
	if err := h.checkStore(ctx, driver); err != nil {
		return err
	}
	h.objects = blob.New(driver, blob.Options{Clock: h.clock})
	h.lifecycle = blob.NewLifecycle(h.objects, blob.LifecycleOptions{Period: h.cfg.Store.LifecyclePeriod, Logger: h.log})
	return nil
}

// checkStore warns of settings of the store that endanger objects.
func (h *house) checkStore(ctx context.Context, store blob.Checker) error {
	findings, err := store.Check(ctx)
	for _, f := range findings {
		if f.Level == blob.Problem {
			h.log.Warn("object store: "+f.Text, "setting", f.Setting)
		}
	}
	return err
}

// openQueues opens the queues that Holdfast itself uses. They work on the engine
// without hooks, because their rows have neither links nor expiry.
func (h *house) openQueues(ctx context.Context) error {
	shards := 1
	if h.shared {
		shards = sharedShards
	}
	var err error
	h.queues, err = queue.Open(ctx, h.db, queue.Options{
		TokenKey: []byte(h.secrets.LeaseKey), Rand: rand.Reader, Clock: h.clock, Leases: h.leases, Shards: shards,
		Database: "holdfast", Metrics: h.metrics, Log: h.log,
	})
	if err != nil {
		return err
	}
	q, r := h.cfg.Queue, h.cfg.Reconcile
	h.changes, err = h.ensureQueue(ctx, changes.QueueName, queue.Settings{
		Lease: r.Lease, MaxAttempts: r.MaxAttempts, LocalReceivers: true,
		RetryFirst: q.BackoffFirst, RetryMost: q.BackoffMax, RetryLate: q.BackoffLate, RetryWindow: q.BackoffLate,
	})
	if err != nil {
		return err
	}
	h.purges, err = h.ensureQueue(ctx, storage.PurgeQueue, storage.PurgeSettings())
	return err
}

// ensureQueue returns a queue with these settings, made if it does not exist.
func (h *house) ensureQueue(ctx context.Context, name string, settings queue.Settings) (*queue.Queue, error) {
	q, err := h.queues.Create(ctx, name, settings)
	if !errors.Is(err, queue.ErrQueueExists) {
		return q, err
	}
	if err := h.queues.Configure(ctx, name, func(s *queue.Settings) {
		settings.Shards = s.Shards // those that it has
		*s = settings
	}); err != nil {
		return nil, err
	}
	return h.queues.Queue(ctx, name)
}

// runQueues delivers messages until ctx ends, and then gives back all leases.
func (h *house) runQueues(ctx context.Context) error {
	leasing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, delivering := errgroup.WithContext(ctx)
	group.Go(func() error { return h.leases.Run(leasing) })
	group.Go(func() error {
		defer stop()
		return h.queues.Run(delivering)
	})
	return group.Wait()
}

// openLayers hooks the capture of link changes and the index of deadlines into
// every transaction, and makes the workers that act on them.
func (h *house) openLayers(ctx context.Context) error {
	if err := expiry.Create(ctx, h.db); err != nil {
		return err
	}
	tables, spaces := storage.ChangeTables(), storage.ExpirySpaces()
	newCapture := changes.NewCapture
	if h.cfg.Engine.Kind == config.EngineSpanner && h.cfg.Engine.Spanner.ChangeStream {
		newCapture = changes.NewReleases // the stream tells the rest
	}
	capture := newCapture(h.changes, func(space string) (changes.Table, bool) {
		t, ok := tables[space]
		return t, ok
	}, rand.Reader)
	h.index = expiry.NewIndex(func(space string) (expiry.Space, bool) {
		s, ok := spaces[space]
		return s, ok
	})
	h.db = h.db.WithHooks(capture.Hook, h.index.Hook)
	h.reconciler = h.newReconciler(0)
	h.offloader = offload.New(h.objects, h.objects, offload.Options{
		Concurrency: h.cfg.Sync.Offload.MaxConcurrency, Clock: h.clock, Random: rand.Reader, Metrics: h.metrics, Log: h.log,
	})
	h.sweeper = expiry.NewSweeper(h.db, h.index, expiry.Options{Clock: h.clock, Leases: h.leases, Metrics: h.metrics, Logger: h.log})
	return nil
}

// newReconciler returns a reconciler that waits so long for messages before it takes
// the queue for empty; 0 is the usual time.
func (h *house) newReconciler(wait time.Duration) *reconcile.Reconciler {
	return reconcile.New(reconcile.NewQueueSource(h.db, h.changes), h.objects, reconcile.Options{
		Clock: h.clock, Concurrency: h.cfg.Reconcile.Concurrency, DeleteDelay: h.cfg.Reconcile.DeleteDelay, Wait: wait,
		RequireTransactionTag: h.cfg.Reconcile.RequireTransactionTag, Metrics: h.metrics, Log: h.log,
	})
}

func (h *house) openSync(ctx context.Context) error {
	h.boundBatches()
	limits := h.cfg.Sync.Limits
	opts := storage.Options{
		Clock: h.clock, Random: rand.Reader, SendPurge: storage.SendPurge(h.purges),
		MaxBatchRecords: int64(limits.MaxTotalRecords), MaxBatchBytes: int64(limits.MaxTotalBytes),
	}
	if h.cfg.Sync.Quota.Enabled {
		opts.QuotaBytes = int64(limits.MaxQuotaLimit)
		atLimit := h.metrics.Group("syncstorage").Counter("storage.quota.at_limit", "collection")
		opts.OverQuota = func(collection string) bool {
			if !h.cfg.Sync.Quota.Enforced {
				h.log.Warn("a user has reached the quota", "collection", collection)
			}
			atLimit.Add(1, collection)
			return h.cfg.Sync.Quota.Enforced
		}
	}
	var err error
	if h.storage, err = storage.Open(ctx, h.db, opts); err != nil {
		return err
	}
	h.purger = &storage.Purger{Store: h.storage, Queue: h.purges, Log: h.log}
	h.accounts, err = tokenserver.NewStore(h.db, tokenserver.StoreOptions{
		Clock: h.clock, Metrics: h.metrics.Group("syncstorage.tokenserver"),
		Policy: tokenserver.Policy{RefuseNewUsers: !h.cfg.TokenServer.AllowNewUsers, ReleaseRate: h.cfg.TokenServer.NodeCapacityReleaseRate},
	})
	if err != nil {
		return err
	}
	if err := h.accounts.CreateSpaces(ctx); err != nil {
		return fmt.Errorf("open token server: %w", err)
	}
	return nil
}

// boundBatches lowers the limits of a batch, before anybody is told of them, to what the
// engine can publish in one commit.
func (h *house) boundBatches() {
	l := &h.cfg.Sync.Limits
	records, bytes := storage.BatchLimits(h.db.Limits(), int64(l.MaxTotalRecords))
	if int64(l.MaxTotalRecords) > records {
		h.log.Info("a batch holds fewer records than sync.limits.max_total_records, as the engine demands", "records", records)
		l.MaxTotalRecords = int(records)
		l.MaxPostRecords = min(l.MaxPostRecords, l.MaxTotalRecords)
	}
	if int64(l.MaxTotalBytes) > bytes {
		h.log.Info("a batch holds fewer bytes than sync.limits.max_total_bytes, as the engine demands", "bytes", bytes)
		l.MaxTotalBytes = config.Bytes(bytes)
	}
}
