package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/kv"
)

const (
	// signalPause is how long signals gather before they are sent together.
	// Notifications are ordered by a lock of the whole server.
	signalPause = 5 * time.Millisecond
	// mostSignals is how many names are sent; more become one for any of them.
	mostSignals = 100
	// signalTimeout bounds the sending, and how long a listener waits for its
	// own signal when it begins.
	signalTimeout = 5 * time.Second
	// listenBackoff bounds the pauses between attempts to listen again.
	listenBackoff = 10 * time.Second
)

// anySignal is the signal that may mean any.
const anySignal = ""

// errNotDirect says that Listen has no use of its connection.
var errNotDirect = errors.New("no signal comes through: a pooler in between does not keep sessions apart; ListenURL has to be a direct connection")

// signals are those that wait to be sent.
type signals struct {
	mu      sync.Mutex
	waiting map[string]struct{}
	// sending: one goroutine is at it.
	sending bool
}

func (s *signals) add(name string) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[string]struct{}{}
	}
	if s.waiting[name] = struct{}{}; len(s.waiting) > mostSignals {
		s.waiting = map[string]struct{}{anySignal: {}}
	}
	first = !s.sending
	s.sending = true
	return first
}

// take returns the waiting names, or nil when there are none and nobody sends any
// more.
func (s *signals) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.waiting {
		names = append(names, name)
	}
	s.waiting = nil
	s.sending = len(names) > 0
	return names
}

// Signal implements kv.Signaler. Signals of a few milliseconds are sent together,
// each name once.
func (e *Engine) Signal(name string) {
	if e.signals.add(name) {
		e.inBackground(e.sendSignals)
	}
}

func (e *Engine) sendSignals(ctx context.Context) {
	for {
		names := e.signals.take()
		if names == nil {
			return
		}
		if err := e.notify(ctx, names...); err != nil && ctx.Err() == nil {
			e.log.Debug("postgres: signals were lost", "error", err)
		}
		select {
		case <-time.After(signalPause):
		case <-ctx.Done():
		}
	}
}

func (e *Engine) notify(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	all := textArray()
	for _, name := range names {
		all.append([]byte(name))
	}
	return e.roundTrip(ctx, "select pg_notify($1, name) from unnest($2) name", new(args).text(e.schema).array(&all), ignore)
}

// Listen implements kv.Signaler, on a connection of its own. It fails if it cannot
// begin, because of the options or because the server is out of reach; later it
// goes on trying. Whenever it begins, fn gets "".
func (e *Engine) Listen(ctx context.Context, fn func(name string)) error {
	if err := e.enter(ctx); err != nil {
		if errors.Is(err, kv.ErrClosed) {
			return fmt.Errorf("postgres: listen: %w", err)
		}
		return nil
	}
	e.leave() // Close does not wait for listeners, it ends them
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.work, cancel)()
	begun := false
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, listenBackoff) {
		err := e.listenOnce(ctx, func(name string) {
			begun = true
			pause = 100 * time.Millisecond
			fn(name)
		})
		if ctx.Err() != nil {
			return nil
		}
		if !begun {
			return fmt.Errorf("postgres: listen: ListenURL or URL: %w", err)
		}
		e.log.Warn("postgres: signals are interrupted", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// listenOnce listens until the connection fails. It first sends a signal for any to
// itself, by another connection: if that comes, all others will, and fn has heard
// that some may have been lost.
func (e *Engine) listenOnce(ctx context.Context, fn func(name string)) error {
	conn, err := pgx.ConnectConfig(ctx, e.listen)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{e.schema}.Sanitize()); err != nil {
		return err
	}
	if err := e.notify(ctx, anySignal); err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	n, err := conn.WaitForNotification(first)
	if err != nil && first.Err() != nil {
		return errNotDirect
	}
	for ; err == nil; n, err = conn.WaitForNotification(ctx) {
		fn(n.Payload)
	}
	return err
}
