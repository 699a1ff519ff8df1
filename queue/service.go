package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
	"github.com/holdfast-dev/holdfast/lease"
	"github.com/holdfast-dev/holdfast/metrics"
)

// Options configure a Service.
type Options struct {
	// TokenKey signs lease tokens, at least 16 bytes. With the same key tokens
	// survive a restart.
	TokenKey []byte
	// Rand is where Queue.NewKey gets random bytes from.
	Rand io.Reader
	// Clock decides what is due and which lease lives. Default clock.System.
	Clock clock.Clock
	// Leases decide which process delivers what. Their Run must go on for longer than
	// that of the Service. Nil stands for leases of its own: then no other process
	// can have the engine open.
	Leases *lease.Manager
	// Shards is Settings.Shards of queues that do not say. Default 1.
	Shards int
	// Database is the value of the label "database" of all metrics.
	Database string
	// Metrics and Log may be nil.
	Metrics *metrics.Registry
	Log     *slog.Logger
}

// Service is this process's part in the queues of an engine. It is safe for concurrent
// use.
type Service struct {
	db     *kv.DB
	clock  clock.Clock
	rand   io.Reader
	log    *slog.Logger
	tokens tokenCodec
	meters *meters
	opened time.Time
	// leases were made by this service if ownLeases.
	leases    *lease.Manager
	ownLeases bool
	shards    int
	// lookAround is not zero if other processes send too.
	lookAround time.Duration
	// changed tells Run that queues holds one that it has not started, stale that
	// the catalog may have changed.
	changed, stale chan struct{}

	// ddl is held while the catalog and queues change together.
	ddl sync.Mutex

	mu      sync.Mutex // guards what follows
	queues  map[string]*Queue
	begun   bool // Run was called
	stopped bool // Run has ended, or is about to
}

// Spaces returns the spaces that a Service needs, beside those of its leases.
func Spaces() []kv.SpaceInfo {
	return []kv.SpaceInfo{{Name: catalogSpace}, {Name: messageSpace}, {Name: readySpace}, {Name: movedSpace}, {Name: deadSpace}}
}

// Open prepares the spaces of the queues in db. The caller starts Run, and keeps
// db open until it has returned.
func Open(ctx context.Context, db *kv.DB, opts Options) (*Service, error) {
	if len(opts.TokenKey) < 16 || opts.Rand == nil {
		return nil, fmt.Errorf("queue: open: %w: needs a token key of 16 bytes and a source of random bytes", kv.ErrInvalid)
	}
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if err := db.EnsureSpaces(ctx, Spaces()...); err != nil {
		return nil, fmt.Errorf("queue: open: %w", err)
	}
	s := &Service{
		db:      db,
		clock:   opts.Clock,
		rand:    opts.Rand,
		log:     opts.Log,
		tokens:  newTokenCodec(opts.TokenKey),
		opened:  opts.Clock.Now(),
		leases:  opts.Leases,
		shards:  max(1, opts.Shards),
		changed: make(chan struct{}, 1),
		stale:   make(chan struct{}, 1),
		queues:  map[string]*Queue{},
	}
	if s.leases == nil {
		leases, err := lease.Open(ctx, db, lease.Options{Rand: opts.Rand, Exclusive: true, Log: opts.Log})
		if err != nil {
			return nil, fmt.Errorf("queue: open: %w", err)
		}
		s.leases, s.ownLeases = leases, true
	}
	if !s.leases.Exclusive() {
		s.lookAround = lookAround
	}
	s.meters = newMeters(opts.Metrics, opts.Database, s)
	return s, nil
}

// catalogEntry is the row of a queue.
type catalogEntry struct {
	Number   uint64
	Settings Settings
}

func queueKey(name string) []byte       { return append([]byte{'q'}, name...) }
func droppedKey(number uint64) []byte   { return key.AppendUint([]byte{'d'}, number) }
func deadCountKey(number uint64) []byte { return key.AppendUint([]byte{'c'}, number) }
func lastNumberKey() []byte             { return []byte{'n'} }

// catalogPut writes v as a row.
func catalogPut(tx *kv.Tx, k []byte, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		tx.Put(kv.Write{Space: catalogSpace, Key: k, Value: b})
	}
	return err
}

// catalogGet decodes a row into v, which stays as it is if the row is absent.
func catalogGet(tx *kv.Tx, k []byte, v any) (bool, error) {
	row, err := tx.Get(catalogSpace, k)
	if err != nil || !row.Exists() {
		return false, err
	}
	return true, catalogDecode(row, v)
}

func catalogDecode(row kv.Row, v any) error {
	if err := json.Unmarshal(row.Value, v); err != nil {
		return fmt.Errorf("%w: row %q of the catalog: %v", kv.ErrCorrupt, row.Key, err)
	}
	return nil
}

// readEntry reads the entry of a queue that must exist.
func readEntry(tx *kv.Tx, name string, e *catalogEntry) error {
	exists, err := catalogGet(tx, queueKey(name), e)
	if err == nil && !exists {
		err = ErrQueueNotFound
	}
	return err
}

// maxNameSize bounds the name of a queue, in bytes.
const maxNameSize = 1024

// Create makes a queue. The error is ErrQueueExists if there is one of this name.
// Names are case-sensitive, and have 1 to 1024 bytes.
func (s *Service) Create(ctx context.Context, name string, settings Settings) (*Queue, error) {
	s.ddl.Lock()
	defer s.ddl.Unlock()
	e := catalogEntry{Settings: settings}
	if e.Settings.Shards == 0 {
		e.Settings.Shards = s.shards
	}
	err := e.Settings.complete()
	if err == nil && (name == "" || len(name) > maxNameSize) {
		err = fmt.Errorf("%w: name of %d bytes", kv.ErrInvalid, len(name))
	}
	if err == nil {
		_, err = s.db.Update(ctx, func(tx *kv.Tx) error { return create(tx, name, &e) })
	}
	if err != nil {
		return nil, fmt.Errorf("queue: create %q: %w", name, err)
	}
	s.announce()
	return s.adopt(name, e), nil
}

func create(tx *kv.Tx, name string, e *catalogEntry) error {
	if exists, err := catalogGet(tx, queueKey(name), &catalogEntry{}); err != nil {
		return err
	} else if exists {
		return ErrQueueExists
	}
	var last uint64
	if _, err := catalogGet(tx, lastNumberKey(), &last); err != nil {
		return err
	}
	e.Number = last + 1
	if err := catalogPut(tx, lastNumberKey(), e.Number); err != nil {
		return err
	}
	return catalogPut(tx, queueKey(name), e)
}

// Queue returns a queue that exists. The error is ErrQueueNotFound if there is
// none of this name.
func (s *Service) Queue(ctx context.Context, name string) (*Queue, error) {
	if q := s.loaded(name); q != nil {
		return q, nil
	}
	s.ddl.Lock()
	defer s.ddl.Unlock()
	if q := s.loaded(name); q != nil {
		return q, nil
	}
	row, err := s.db.GetOne(ctx, catalogSpace, queueKey(name))
	if err == nil && !row.Exists() {
		err = ErrQueueNotFound
	}
	var e catalogEntry
	if err == nil {
		err = catalogDecode(row, &e)
	}
	if err != nil {
		return nil, fmt.Errorf("queue: open %q: %w", name, err)
	}
	return s.adopt(name, e), nil
}

func (s *Service) loaded(name string) *Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[name]
}

func (s *Service) adopt(name string, e catalogEntry) *Queue {
	q := newQueue(s, name, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[name] = q
	if s.stopped {
		q.close(ErrStopped)
	}
	signal(s.changed)
	return q
}

// Names lists all queues in the order of their names.
func (s *Service) Names(ctx context.Context) ([]string, error) {
	var names []string
	err := s.db.Scan(ctx, catalogSpace, kv.Prefix([]byte{'q'}), func(row kv.Row) bool {
		names = append(names, string(row.Key[1:]))
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("queue: list: %w", err)
	}
	return names, nil
}

// Configure changes the settings of a queue. change gets the present ones and may
// be called several times; it cannot change Shards, for which 0 stands too. It takes
// effect at once in this process, and a few seconds later in others.
func (s *Service) Configure(ctx context.Context, name string, change func(*Settings)) error {
	q, err := s.Queue(ctx, name)
	if err != nil {
		return err
	}
	s.ddl.Lock()
	defer s.ddl.Unlock()
	var e catalogEntry
	_, err = s.db.Update(ctx, func(tx *kv.Tx) error {
		if err := readEntry(tx, name, &e); err != nil {
			return err
		}
		shards := e.Settings.Shards
		if change(&e.Settings); e.Settings.Shards == 0 {
			e.Settings.Shards = shards
		}
		if e.Settings.Shards != shards {
			return fmt.Errorf("%w: a queue keeps its number of shards", kv.ErrInvalid)
		}
		if err := e.Settings.complete(); err != nil {
			return err
		}
		return catalogPut(tx, queueKey(name), e)
	})
	if err != nil {
		return fmt.Errorf("queue: configure %q: %w", name, err)
	}
	q.configure(e.Settings)
	s.announce()
	return nil
}

// Drop removes a queue with all its messages and dead letters. Its receivers end
// with ErrQueueNotFound, in other processes a few seconds later; its tokens mean
// nothing any more. If an error or a crash interrupts it after the queue is gone, the
// next Run removes what is left.
func (s *Service) Drop(ctx context.Context, name string) error {
	s.ddl.Lock()
	defer s.ddl.Unlock()
	var e catalogEntry
	_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
		if err := readEntry(tx, name, &e); err != nil {
			return err
		}
		tx.Delete(catalogSpace, queueKey(name))
		return catalogPut(tx, droppedKey(e.Number), droppedQueue{Name: name, Shards: e.Settings.Shards, Dropped: s.clock.Now()})
	})
	if err == nil || errors.Is(err, kv.ErrUnknownOutcome) {
		s.unload(name)
		s.announce()
	}
	if err == nil {
		err = s.sweep(ctx, e.Number, e.Settings.Shards)
	}
	if err != nil {
		return fmt.Errorf("queue: drop %q: %w", name, err)
	}
	return nil
}

func (s *Service) unload(name string) {
	s.mu.Lock()
	q := s.queues[name]
	delete(s.queues, name)
	s.mu.Unlock()
	if q != nil {
		q.close(ErrQueueNotFound)
	}
}

// sweepRows is how many rows one commit of a sweep removes.
const sweepRows = 500

// droppedQueue is the note that a queue was dropped.
type droppedQueue struct {
	Name    string
	Shards  int
	Dropped time.Time
}

// droppedKeep is how long such a note stays where other processes may send to the
// queue for a moment after it was dropped.
const droppedKeep = time.Hour

// sweep removes all rows of a dropped queue but the note that it was dropped. A
// transaction that was sending meanwhile may leave rows behind; they harm nobody,
// and go when the next Run sweeps once more.
func (s *Service) sweep(ctx context.Context, number uint64, shards int) error {
	prefix := key.AppendUint(nil, number)
	for _, space := range []string{messageSpace, readySpace, movedSpace, deadSpace} {
		for {
			t := &kv.Txn{}
			r := kv.Prefix(prefix)
			r.Limit = sweepRows
			err := s.db.Scan(ctx, space, r, func(row kv.Row) bool {
				t.Writes = append(t.Writes, kv.Write{Space: space, Key: slices.Clone(row.Key), Delete: true})
				return true
			})
			if err != nil {
				return err
			}
			if len(t.Writes) == 0 {
				break
			}
			if _, err := s.db.Commit(ctx, t); err != nil {
				return err
			}
		}
	}
	_, err := s.db.Commit(ctx, &kv.Txn{Writes: []kv.Write{
		{Space: catalogSpace, Key: deadCountKey(number), Delete: true},
	}})
	if err != nil {
		return err
	}
	return s.leases.Forget(ctx, leaseNames(number, shards)...)
}

// sweepDropped finishes what Drop left behind. Where no other process can have the
// engine open, nobody can add to it any more.
func (s *Service) sweepDropped(ctx context.Context) error {
	dropped := map[uint64]droppedQueue{}
	var bad error
	err := s.db.Scan(ctx, catalogSpace, kv.Prefix([]byte{'d'}), func(row kv.Row) bool {
		var d droppedQueue
		bad = catalogDecode(row, &d)
		dropped[key.NewReader(row.Key[1:]).Uint()] = d
		return bad == nil
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	for number, d := range dropped {
		if err := s.sweep(ctx, number, d.Shards); err != nil {
			return err
		}
		if !s.leases.Exclusive() && s.clock.Now().Sub(d.Dropped) < droppedKeep {
			continue
		}
		_, err := s.db.Commit(ctx, &kv.Txn{Writes: []kv.Write{
			{Space: catalogSpace, Key: droppedKey(number), Delete: true},
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// loadedQueues returns the queues in memory in the order of their names.
func (s *Service) loadedQueues() []*Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := make([]*Queue, 0, len(s.queues))
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		queues = append(queues, s.queues[name])
	}
	return queues
}

// signal wakes the reader of c, a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// get reads rows, in several calls if they are more than one call may read.
func (s *Service) get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	rows := make([]kv.Row, 0, len(refs))
	for part := range slices.Chunk(refs, s.db.Limits().CommitRows) {
		got, err := s.db.Get(ctx, part...)
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
	}
	return rows, nil
}
