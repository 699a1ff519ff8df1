package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15"
	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/offload"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// house is everything that the program wires, in one process, on an engine and an
// object store that fail as told.
type house struct {
	t      *testing.T
	clock  *shiftedClock
	engine *kvtest.Faults
	store  *blobtest.Faults

	// Below the faults: what is really there.
	rows    *kv.DB
	objects *blob.Store

	queues     *queue.Service
	changes    *queue.Queue
	purges     *queue.Queue
	sweeper    *expiry.Sweeper
	reconciler *reconcile.Reconciler
	purger     *storage.Purger

	keyring *hawk.Keyring
	server  *httptest.Server
}

// shiftedClock is the system's clock and some more.
type shiftedClock struct{ shift atomic.Int64 }

func (c *shiftedClock) Now() time.Time { return time.Now().Add(time.Duration(c.shift.Load())) }

func (c *shiftedClock) advance(d time.Duration) { c.shift.Add(int64(d)) }

// Waits of the house, short enough for a test to see what comes after them.
const (
	houseLease   = 400 * time.Millisecond
	houseTimeout = 200 * time.Millisecond
)

// newHouse wires the layers and the door as the program does. Nothing fails yet.
func newHouse(t *testing.T) *house {
	h := &house{t: t, clock: &shiftedClock{}}
	model, memory := kvtest.NewModel(h.clock), blobtest.NewMemory()
	h.engine, h.store = kvtest.NewFaults(model), blobtest.NewFaults(memory)
	h.rows = kv.New(model, kvtest.ModelLimits)
	h.objects = blob.New(memory, blob.Options{Clock: h.clock})
	db := kv.New(h.engine, kvtest.ModelLimits)
	objects := blob.New(h.store, blob.Options{Clock: h.clock})

	ctx := t.Context()
	var err error
	must := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h.queues, err = queue.Open(ctx, db, queue.Options{TokenKey: bytes.Repeat([]byte{1}, 32), Rand: rand.Reader, Clock: h.clock})
	must()
	h.changes, err = h.queues.Create(ctx, changes.QueueName, queue.Settings{
		Lease: houseLease, LocalReceivers: true, RetryFirst: 10 * time.Millisecond, RetryMost: 100 * time.Millisecond,
		RetryLate: 100 * time.Millisecond, RetryWindow: time.Hour,
	})
	must()
	purge := storage.PurgeSettings()
	purge.Lease, purge.RetryFirst, purge.RetryMost, purge.RetryLate = houseLease, 10*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	h.purges, err = h.queues.Create(ctx, storage.PurgeQueue, purge)
	must()
	err = expiry.Create(ctx, db)
	must()
	tables, spaces := storage.ChangeTables(), storage.ExpirySpaces()
	capture := changes.NewCapture(h.changes, func(space string) (changes.Table, bool) {
		table, ok := tables[space]
		return table, ok
	}, rand.Reader)
	index := expiry.NewIndex(func(space string) (expiry.Space, bool) {
		s, ok := spaces[space]
		return s, ok
	})
	db = db.WithHooks(capture.Hook, index.Hook)
	h.reconciler = reconcile.New(reconcile.NewQueueSource(db, h.changes), objects,
		reconcile.Options{Clock: h.clock, Concurrency: 8, Wait: 100 * time.Millisecond})
	h.sweeper = expiry.NewSweeper(db, index, expiry.Options{Clock: h.clock, Interval: 20 * time.Millisecond, Rescan: 200 * time.Millisecond})
	store, err := storage.Open(ctx, db, storage.Options{
		Clock: h.clock, Random: rand.Reader, SendPurge: storage.SendPurge(h.purges), MaxBatchRecords: 10_000, MaxBatchBytes: 100 << 20,
	})
	must()
	h.purger = &storage.Purger{Store: store, Queue: h.purges, Log: slog.New(slog.DiscardHandler)}
	h.keyring, err = hawk.NewKeyring("secret of the house")
	must()
	door, err := sync15.New(sync15.Options{
		Store: store, Keyring: h.keyring, Clock: h.clock, Limits: bso.DefaultLimits(), RememberReplays: 10_000, BodyBudget: 64 << 20,
		Offload:            offload.New(objects, objects, offload.Options{Clock: h.clock, Random: rand.Reader, Timeout: houseTimeout}),
		OffloadCollections: []string{"bookmarks", "history", "forms"},
	})
	must()
	h.server = httptest.NewServer(door)
	t.Cleanup(h.server.Close)
	return h
}

// login returns a client of a user, as the token server would let it in.
func (h *house) login(user string) *syncclient.Client {
	h.t.Helper()
	claims := hawk.Claims{
		Node: h.server.URL, UID: 1 + uint64(len(user)), FxAUID: user, FxAKID: "0000000000001-" + user,
		Expires: h.clock.Now().Add(time.Hour).Unix(), Salt: "a1b2c3", TokenserverOrigin: "rust",
	}
	token, key, err := h.keyring.Mint(claims)
	if err != nil {
		h.t.Fatal(err)
	}
	endpoint := h.server.URL + "/1.5/" + strconv.FormatUint(claims.UID, 10)
	return syncclient.New(newHTTP(h.t), syncclient.Grant{ID: token, Key: key, UID: claims.UID, APIEndpoint: endpoint})
}

// work runs everything that the program runs in the background, until the function
// that it returns is called. It can be called once.
func (h *house) work() (stop func()) {
	queueCtx, stopQueues := context.WithCancel(h.t.Context())
	workerCtx, stopWorkers := context.WithCancel(h.t.Context())
	var queues, workers sync.WaitGroup
	run := func(wg *sync.WaitGroup, ctx context.Context, name string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				h.t.Errorf("%s: %v", name, err)
			}
		})
	}
	run(&queues, queueCtx, "queues", h.queues.Run)
	run(&workers, workerCtx, "sweeper", h.sweep)
	run(&workers, workerCtx, "reconciler", h.reconcile)
	run(&workers, workerCtx, "purger", h.purger.Run)
	return func() {
		stopWorkers()
		workers.Wait()
		stopQueues()
		queues.Wait()
	}
}

// reconcile is the reconciler's Run without its waits, which after many failures
// in a row are longer than a test wants to be.
func (h *house) reconcile(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := h.reconciler.Step(ctx); errors.Is(err, reconcile.ErrClosed) {
			return err
		}
	}
	return nil
}

// sweep is to the sweeper what reconcile is to the reconciler.
func (h *house) sweep(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if more, err := h.sweeper.Step(ctx); more && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// drain waits until the house has nothing to do any more.
func (h *house) drain() {
	h.t.Helper()
	eventually(h.t, func() string {
		waiting := 0
		err := h.rows.Scan(h.t.Context(), "queue_message", kv.Range{}, func(kv.Row) bool {
			waiting++
			return true
		})
		if err != nil || waiting > 0 {
			return fmt.Sprintf("%d messages are not acknowledged (%v)", waiting, err)
		}
		now, expired := h.clock.Now(), 0
		for space := range storage.ExpirySpaces() {
			err := h.rows.Scan(h.t.Context(), space, kv.Range{IncludeExpired: true}, func(r kv.Row) bool {
				if !r.ExpiresAt.IsZero() && r.ExpiresAt.Before(now) {
					expired++
				}
				return true
			})
			if err != nil {
				return err.Error()
			}
		}
		if expired > 0 {
			return fmt.Sprintf("%d expired rows are still there", expired)
		}
		return ""
	})
}
