package lease

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// newSession begins another life. Only an exclusive one is valid at once.
func (m *Manager) newSession() error {
	id := make([]byte, 16)
	if _, err := io.ReadFull(m.opts.Rand, id); err != nil {
		return fmt.Errorf("lease: new session: %w", err)
	}
	s := &session{id: hex.EncodeToString(id), gone: make(chan struct{})}
	if m.opts.Exclusive {
		s.until.Store(forever)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = s
	return nil
}

// heartbeat renews the session until ctx ends.
func (m *Manager) heartbeat(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := m.opts.Duration / 3
		if done, err := m.renew(ctx); err != nil || !done {
			wait = m.opts.Duration / 50
			if err != nil && ctx.Err() == nil {
				m.opts.Log.Warn("lease: renewing the session failed", "error", err)
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.beat:
		}
	}
}

// renew writes the session's row once. It reports whether that is known to have
// happened; if not, it has found out what the row is now.
func (m *Manager) renew(ctx context.Context) (bool, error) {
	m.mu.Lock()
	s, roles := m.session, m.roleNames()
	m.mu.Unlock()
	row := sessionRow{Duration: m.opts.Duration, Beat: s.row.Beat + 1, Roles: roles}
	w, err := write(sessionKey(s.id), row)
	if err != nil {
		return false, err
	}
	s.row.Beat = row.Beat // also if it fails: the number names the attempt
	sent := m.elapsed()
	ctx, cancel := context.WithTimeout(ctx, m.opts.Duration/3)
	defer cancel()
	v, err := m.db.Commit(ctx, &kv.Txn{
		Checks: []kv.Check{{Space: space, Key: w.Key, Version: s.row.version}}, Writes: []kv.Write{w},
	})
	switch {
	case err == nil:
		row.version = v
		m.renewed(s, row, sent)
		return true, nil
	case !kv.IsConflict(err) && !errors.Is(err, kv.ErrUnknownOutcome):
		return false, err
	}
	stored, err := m.db.GetOne(ctx, space, w.Key)
	if err != nil {
		return false, err
	}
	if !stored.Exists() {
		if s.row.version != 0 {
			m.sessionLost(s)
		}
		return false, nil
	}
	found := sessionRow{version: stored.Version}
	if err := decode(stored, &found); err != nil {
		return false, err
	}
	s.row.version = found.version
	if found.Beat != row.Beat {
		return false, nil // an earlier one
	}
	m.renewed(s, found, sent)
	return true, nil
}

// renewed notes that the session lives from when its renewal was sent. A tenth of
// the duration is for clocks that run at different speeds.
func (m *Manager) renewed(s *session, row sessionRow, sent time.Duration) {
	first, changed := !s.begun(), !slices.Equal(s.row.Roles, row.Roles)
	s.row = row
	s.until.Store(int64(sent + m.opts.Duration - m.opts.Duration/10))
	if first || changed {
		wake(m.look)
		m.db.Signal(signalName)
	}
}

// sessionLost ends everything that the session owned, and begins another one.
func (m *Manager) sessionLost(s *session) {
	m.opts.Log.Warn("lease: the session was lost: this process did not renew it in time")
	m.meters.lost.Add(1)
	close(s.gone)
	m.mu.Lock()
	for _, r := range m.roles {
		for _, h := range r.held {
			if h.lease.session == s {
				h.cancel()
			}
		}
	}
	m.mu.Unlock()
	if err := m.newSession(); err != nil {
		m.fail(err)
	}
	wake(m.beat)
}

// endSession deletes the session's row, so that nobody needs to wait.
func (m *Manager) endSession(ctx context.Context) {
	m.mu.Lock()
	s := m.session
	m.mu.Unlock()
	if m.opts.Exclusive || s.row.version == 0 {
		return
	}
	_, err := m.db.Commit(ctx, &kv.Txn{
		Checks: []kv.Check{{Space: space, Key: sessionKey(s.id), Version: s.row.version}},
		Writes: []kv.Write{{Space: space, Key: sessionKey(s.id), Delete: true}},
	})
	if err != nil {
		m.opts.Log.Warn("lease: the session was not ended, others will wait for that", "error", err)
	}
	m.db.Signal(signalName)
}
