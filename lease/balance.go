package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// acquireCount bounds the leases that one commit takes.
const acquireCount = 16

// step looks at all rows, removes dead sessions, and brings this process's holdings
// nearer to its share. It returns after which time to come again.
func (m *Manager) step(ctx context.Context) (time.Duration, error) {
	m.mu.Lock()
	mine := m.session
	m.mu.Unlock()
	if !mine.begun() {
		return m.opts.Duration / 5, nil // the heartbeat will wake us
	}
	before := m.elapsed()
	t, err := m.read(ctx)
	if err != nil {
		return 0, err
	}
	wait := m.opts.Duration / 5
	if m.opts.Exclusive {
		wait = time.Hour
		clear(t.sessions)
	} else if rest := m.bury(ctx, t, mine, before, m.elapsed()); rest > 0 {
		wait = min(wait, rest)
	}
	m.mu.Lock()
	var wanting []*role
	missing := map[*role][]string{}
	for _, name := range m.roleNames() {
		r := m.roles[name]
		if r.ctx.Err() != nil {
			continue // it is about to leave
		}
		if free := m.balance(r, t, mine); len(free) > 0 {
			wanting = append(wanting, r)
			missing[r] = free
		}
		if len(r.held) == 0 && !m.opts.Exclusive {
			wait = min(wait, m.opts.Duration/10)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, r := range wanting {
		for part := range slices.Chunk(missing[r], acquireCount) {
			if err := m.acquire(ctx, r, part, mine); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return wait, errors.Join(errs...)
}

func (m *Manager) read(ctx context.Context) (table, error) {
	t := table{leases: map[string]leaseRow{}, sessions: map[string]sessionRow{}}
	var bad error
	err := m.db.Scan(ctx, space, kv.Range{}, func(row kv.Row) bool {
		switch name := string(row.Key[1:]); row.Key[0] {
		case 'l':
			t.leases[name], bad = decodeLease(row)
		case 's':
			s := sessionRow{version: row.Version}
			bad = decode(row, &s)
			t.sessions[name] = s
		}
		return bad == nil
	})
	return t, errors.Join(err, bad)
}

// bury deletes sessions that have not changed for their duration, from the rows and
// from t. before and now are when the rows began and ended to be read. It returns after
// which time the next may be dead, 0 if there is none.
func (m *Manager) bury(ctx context.Context, t table, mine *session, before, now time.Duration) (next time.Duration) {
	for id := range m.seen {
		if _, ok := t.sessions[id]; !ok {
			delete(m.seen, id)
		}
	}
	for id, s := range t.sessions {
		if id == mine.id {
			continue
		}
		seen, ok := m.seen[id]
		if !ok || seen.version != s.version {
			seen = sighting{version: s.version, since: now}
			m.seen[id] = seen
		}
		rest := s.Duration - (before - seen.since)
		if rest > 0 {
			if next == 0 || rest < next {
				next = rest
			}
			continue
		}
		_, err := m.db.Commit(ctx, &kv.Txn{
			Checks: []kv.Check{{Space: space, Key: sessionKey(id), Version: s.version}},
			Writes: []kv.Write{{Space: space, Key: sessionKey(id), Delete: true}},
		})
		switch {
		case err == nil:
			m.opts.Log.Warn("lease: another process has fallen silent, what it owned is free", "session", id)
			delete(t.sessions, id)
		case kv.IsConflict(err):
			delete(m.seen, id) // it lives
		case ctx.Err() == nil:
			m.opts.Log.Warn("lease: ending a dead session failed", "error", err)
		}
	}
	return next
}

// balance gives back what is more than this process's share of a role, and returns
// names that are free and missing in it. m.mu is held.
func (m *Manager) balance(r *role, t table, mine *session) []string {
	owned := map[string]int{mine.id: 0}
	for id, s := range t.sessions {
		if slices.Contains(s.Roles, r.name) {
			owned[id] = 0
		}
	}
	var free []string
	for _, name := range r.names {
		owner := t.leases[name].Owner
		_, alive := t.sessions[owner]
		h := r.held[name]
		switch {
		case h != nil && !h.leaving && h.lease.session == mine:
			owned[mine.id]++
		case h != nil: // being given back
		case owner == mine.id || !alive:
			free = append(free, name)
		default:
			if _, competes := owned[owner]; competes {
				owned[owner]++
			}
		}
	}
	share := share(owned, mine.id, len(r.names))
	// Names at the end of this process's own order go first and come last, so that
	// processes that begin together want different ones.
	order := func(a, b string) int { return cmp.Compare(mine.rank(a), mine.rank(b)) }
	if surplus := owned[mine.id] - share; surplus > 0 {
		names := slices.SortedFunc(maps.Keys(r.held), order)
		slices.Reverse(names)
		for _, name := range names {
			if h := r.held[name]; surplus > 0 && !h.leaving && h.lease.session == mine {
				h.leaving = true
				h.cancel()
				surplus--
			}
		}
		return nil
	}
	slices.SortFunc(free, order)
	return free[:min(len(free), share-owned[mine.id])]
}

// share returns how many of n names the process me is to have. All processes come to
// the same result from the same rows: shares differ by at most one, and those who have
// more keep more.
func share(owned map[string]int, me string, n int) int {
	ahead := 0
	for id, count := range owned {
		if count > owned[me] || count == owned[me] && id < me {
			ahead++
		}
	}
	s := n / len(owned)
	if ahead < n%len(owned) {
		s++
	}
	return s
}

// rank orders names in a way of this session's own.
func (s *session) rank(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s.id + name)) // never fails
	return h.Sum64()
}

// acquire takes those of the names that are free, and starts what holds them.
func (m *Manager) acquire(ctx context.Context, r *role, names []string, mine *session) error {
	var taken []*Lease
	var takeovers int64
	v, err := m.db.Update(ctx, func(tx *kv.Tx) error {
		taken, takeovers = nil, 0
		refs := make([]kv.Ref, len(names))
		for i, name := range names {
			refs[i] = kv.Ref{Space: space, Key: leaseKey(name)}
		}
		rows, err := tx.GetAll(refs...)
		if err != nil {
			return err
		}
		for i, name := range names {
			l, err := decodeLease(rows[i])
			if err != nil {
				return err
			}
			if l.Owner == mine.id {
				// A commit of unknown outcome has taken it.
				taken = append(taken, m.lease(name, l, mine, rows[i].Version))
				continue
			}
			if l.Owner != "" {
				if alive, err := m.alive(tx, l.Owner); err != nil {
					return err
				} else if alive {
					continue
				}
				takeovers++
			}
			l = leaseRow{Owner: mine.id, Epoch: l.Epoch + 1, Clean: l.Owner == "" && l.Clean}
			w, err := write(refs[i].Key, l)
			if err != nil {
				return err
			}
			tx.Put(w)
			taken = append(taken, m.lease(name, l, mine, 0))
		}
		return nil
	})
	if errors.Is(err, kv.ErrUnknownOutcome) {
		wake(m.look) // which finds out
		return nil
	}
	if err != nil {
		return fmt.Errorf("acquire leases of %q: %w", r.name, err)
	}
	for _, l := range taken {
		if l.version == 0 {
			l.version = v
		}
	}
	if m.startAll(r, taken) {
		m.meters.takeovers.Add(takeovers, r.name)
		return nil
	}
	var errs []error
	for _, l := range taken { // Compete has ended meanwhile, and nothing was done
		errs = append(errs, m.release(r.ctx, l, l.clean))
	}
	return errors.Join(errs...)
}

// startAll runs what holds leases, unless their role has ended.
func (m *Manager) startAll(r *role, leases []*Lease) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.roles[r.name] != r || r.ctx.Err() != nil {
		return false
	}
	for _, l := range leases {
		m.start(r, l)
	}
	return true
}

func (m *Manager) alive(tx *kv.Tx, session string) (bool, error) {
	if m.opts.Exclusive {
		return false, nil
	}
	row, err := tx.Get(space, sessionKey(session))
	return row.Exists(), err
}

func (m *Manager) lease(name string, l leaseRow, s *session, v kv.Version) *Lease {
	return &Lease{m: m, name: name, epoch: l.Epoch, clean: l.Clean, version: v, session: s}
}

// start runs what holds a lease. m.mu is held.
func (m *Manager) start(r *role, l *Lease) {
	ctx, cancel := context.WithCancel(r.ctx)
	if l.session.lost() {
		cancel()
	}
	r.held[l.name] = &holding{lease: l, cancel: cancel}
	r.gone.Go(func() {
		defer cancel()
		err := r.hold(ctx, l)
		if err != nil && !errors.Is(err, ErrLost) {
			m.opts.Log.Warn("lease: work did not end in order", "lease", l.name, "error", err)
		}
		if ctx.Err() == nil {
			pause(r.ctx, failedPause)
		}
		if failed := m.release(r.ctx, l, err == nil); err == nil {
			err = failed
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(r.held, l.name)
		if err != nil && r.ctx.Err() != nil && !errors.Is(err, ErrLost) {
			r.errs = append(r.errs, err)
		}
		wake(m.look)
	})
}

// release gives a lease back. While its role goes on, it does not give up.
func (m *Manager) release(ctx context.Context, l *Lease, clean bool) error {
	l.over.Store(true)
	for {
		err := m.tryRelease(context.WithoutCancel(ctx), l, clean)
		switch {
		case err == nil:
			m.db.Signal(signalName)
			return nil
		case ctx.Err() != nil, errors.Is(err, kv.ErrClosed):
			return fmt.Errorf("give lease %q back: %w", l.name, err)
		}
		m.opts.Log.Warn("lease: giving a lease back failed", "lease", l.name, "error", err)
		pause(ctx, m.opts.Duration/20)
	}
}

// tryRelease frees the row, unless it is no longer l's.
func (m *Manager) tryRelease(ctx context.Context, l *Lease, clean bool) error {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	free := func(tx *kv.Tx) error {
		row, err := tx.Get(space, leaseKey(l.name))
		if err != nil || row.Version != l.version {
			return err
		}
		w, err := write(row.Key, leaseRow{Epoch: l.epoch, Clean: clean})
		tx.Put(w)
		return err
	}
	_, err := m.db.Update(ctx, free)
	if errors.Is(err, kv.ErrUnknownOutcome) {
		_, err = m.db.Update(ctx, free)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
