package lease

import (
	"context"
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
	"github.com/holdfast-dev/holdfast/metrics"
)

const (
	defaultDuration = 10 * time.Second

	// stopTime bounds how long Run goes on after its context has ended, to give
	// leases back.
	stopTime = 10 * time.Second

	// failedPause is how long a name is left alone whose function has ended by
	// itself.
	failedPause = time.Second

	// signalName tells other processes that leases or roles have changed.
	signalName = "lease"
)

// Options configure a Manager.
type Options struct {
	// Rand makes the names of sessions.
	Rand io.Reader
	// Clock measures how long something has lasted. Default clock.Monotonic.
	Clock clock.Clock
	// Duration is how long others wait before they take over from a process that
	// has fallen silent. Processes of one engine may differ. Default 10 s.
	Duration time.Duration
	// Exclusive: no other process can have the engine open.
	Exclusive bool
	// Metrics gets lease.held and lease.takeovers (by role) and lease.lost_sessions.
	// Log gets a line for each session that was lost, or found dead. Both may be nil.
	Metrics *metrics.Registry
	Log     *slog.Logger
}

// Manager competes for leases on behalf of one process. It is safe for concurrent use.
type Manager struct {
	db     *kv.DB
	opts   Options
	base   time.Time // zero of elapsed
	meters meters
	// beat wakes the heartbeat, look wakes Run.
	beat, look chan struct{}
	stopped    chan struct{} // closed when Run is about to end

	mu      sync.Mutex // guards what follows
	begun   bool
	err     error // why Run failed
	session *session
	roles   map[string]*role
	working sync.WaitGroup // the calls of Compete
	// seen is when each session of another process was first seen as it is. Run's
	// goroutine only.
	seen map[string]sighting
}

// sighting is when a version of a session's row was first seen.
type sighting struct {
	version kv.Version
	since   time.Duration
}

// role is a set of names that this process competes for.
type role struct {
	name  string
	names []string
	hold  func(context.Context, *Lease) error
	ctx   context.Context
	held  map[string]*holding
	gone  sync.WaitGroup // the holdings
	errs  []error        // of those that did not end in order when ctx had
}

// holding is a name that this process has or is giving back.
type holding struct {
	lease   *Lease
	cancel  context.CancelFunc
	leaving bool
}

// Spaces returns the spaces that a Manager needs.
func Spaces() []kv.SpaceInfo { return []kv.SpaceInfo{{Name: space}} }

// Open prepares the rows of leases in db, which needs no hooks. The caller starts Run,
// and keeps db open until it has returned.
func Open(ctx context.Context, db *kv.DB, opts Options) (*Manager, error) {
	if opts.Rand == nil || opts.Duration < 0 {
		return nil, fmt.Errorf("lease: open: %w: needs a source of random bytes", kv.ErrInvalid)
	}
	if opts.Clock == nil {
		opts.Clock = clock.Monotonic{}
	}
	if opts.Duration == 0 {
		opts.Duration = defaultDuration
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if err := db.EnsureSpaces(ctx, Spaces()...); err != nil {
		return nil, fmt.Errorf("lease: open: %w", err)
	}
	m := &Manager{
		db: db, opts: opts, base: opts.Clock.Now(),
		beat: make(chan struct{}, 1), look: make(chan struct{}, 1), stopped: make(chan struct{}),
		roles: map[string]*role{}, seen: map[string]sighting{},
	}
	m.meters = newMeters(opts.Metrics, m)
	return m, m.newSession()
}

// Exclusive reports whether no other process can have the engine open.
func (m *Manager) Exclusive() bool { return m.opts.Exclusive }

func (m *Manager) elapsed() time.Duration { return m.opts.Clock.Now().Sub(m.base) }

// Run acquires, renews and gives back leases until ctx ends. Then it ends all calls of
// Compete, and returns nil when their leases are given back. It can be called once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	again := m.begun
	m.begun = true
	m.mu.Unlock()
	if again {
		return fmt.Errorf("lease: run: %w: called twice", kv.ErrInvalid)
	}
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var beating sync.WaitGroup
	if !m.opts.Exclusive {
		beating.Go(func() { m.heartbeat(inner) })
		beating.Go(func() { m.listen(inner) })
	}
	err := m.watch(ctx)
	m.mu.Lock()
	close(m.stopped)
	m.mu.Unlock()
	m.working.Wait()
	stop()
	beating.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	m.endSession(last)
	return err
}

func (m *Manager) listen(ctx context.Context) {
	err := m.db.Listen(ctx, func(name string) {
		if name == signalName || name == "" {
			wake(m.look)
		}
	})
	if err != nil && ctx.Err() == nil {
		m.opts.Log.Warn("lease: no signals from other processes any more", "error", err)
	}
}

// watch looks at the rows over and over until ctx ends.
func (m *Manager) watch(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, err := m.step(ctx)
		m.mu.Lock()
		failed := m.err
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case failed != nil:
			return failed
		case errors.Is(err, kv.ErrClosed):
			m.fail(err)
			return err
		case err != nil:
			m.opts.Log.Warn("lease: looking at leases failed", "error", err)
			wait = m.opts.Duration / 20
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.look:
		}
	}
}

// fail ends Run with err.
func (m *Manager) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
	wake(m.look)
}

// Compete takes part in a role until ctx ends. hold runs on a goroutine of its own for
// each of the names that this process owns. Its context ends when ctx does, when the
// lease is lost, and when it is to be given back because another process has less than
// its share; then hold returns soon. If it returns nil the lease is given back in order;
// otherwise the next owner finds that it was not. If hold ends before its context, it is
// run again after a while, here or elsewhere.
//
// The processes that compete in a role must give it the same names, and none of these
// may belong to two roles. Compete returns when all its leases are given back: with nil,
// with the errors of those calls of hold that could not end in order, or with ErrStopped
// because Run has ended.
func (m *Manager) Compete(ctx context.Context, roleName string, names []string, hold func(context.Context, *Lease) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &role{name: roleName, names: names, hold: hold, ctx: ctx, held: map[string]*holding{}}
	if err := m.join(r); err != nil {
		return fmt.Errorf("lease: compete as %q: %w", roleName, err)
	}
	defer m.working.Done()
	var err error
	select {
	case <-ctx.Done():
	case <-m.stopped:
		err = ErrStopped
	}
	m.mu.Lock()
	if m.err != nil {
		err = m.err
	}
	delete(m.roles, roleName)
	m.mu.Unlock()
	cancel()
	wake(m.beat)
	r.gone.Wait()
	if err = errors.Join(append(r.errs, err)...); err != nil {
		return fmt.Errorf("lease: compete as %q: %w", roleName, err)
	}
	return nil
}

// Forget removes what is stored of names that nobody will compete for any more. Whoever
// has one of them has lost it.
func (m *Manager) Forget(ctx context.Context, names ...string) error {
	t := &kv.Txn{}
	for _, name := range names {
		t.Writes = append(t.Writes, kv.Write{Space: space, Key: leaseKey(name), Delete: true})
	}
	if _, err := m.db.Commit(ctx, t); err != nil {
		return fmt.Errorf("lease: forget: %w", err)
	}
	return nil
}

func (m *Manager) join(r *role) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.stopped:
		return ErrStopped
	default:
	}
	if m.roles[r.name] != nil {
		return fmt.Errorf("%w: this process does already", kv.ErrInvalid)
	}
	m.roles[r.name] = r
	m.working.Add(1)
	wake(m.beat)
	wake(m.look)
	return nil
}

// roleNames returns the roles of this process. m.mu is held.
func (m *Manager) roleNames() []string { return slices.Sorted(maps.Keys(m.roles)) }

// wake wakes the reader of c, a channel of capacity one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
