package spanner

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Engine is the engine on one database. It is safe for concurrent use.
type Engine struct {
	database string
	client   *spanner.Client
	admin    *Admin // nil without AutoSchema
	clock    clock.Clock
	log      *slog.Logger

	mu         sync.RWMutex
	closed     bool
	calls      sync.WaitGroup
	background sync.WaitGroup // rollbacks

	// spaces are those that were there at some time.
	spaces   atomic.Pointer[map[string]kv.SpaceOptions]
	schemaMu sync.Mutex // held while the set of spaces changes

	trimMu sync.Mutex
	trims  map[trimKey]time.Time // up to which age of entries a shard is trimmed next
}

var _ kv.Engine = (*Engine)(nil)

// Limits returns what one commit may hold. Spanner allows 80,000 mutations, which
// are columns written, and 100 MiB. A row with an entry in a feed has nine columns,
// and what change streams keep may be counted again; values travel in base64,
// which is a third longer.
func Limits() kv.Limits { return kv.Limits{CommitRows: 5_000, CommitBytes: 32 << 20} }

// Close waits for running calls and closes the connections.
func (e *Engine) Close() error {
	e.mu.Lock()
	already := e.closed
	e.closed = true
	e.mu.Unlock()
	if already {
		return nil
	}
	e.calls.Wait()
	e.background.Wait()
	e.client.Close()
	if e.admin != nil {
		return e.admin.Close()
	}
	return nil
}

// enter begins a call, and leave must follow if it succeeds.
func (e *Engine) enter(ctx context.Context) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return kv.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.calls.Add(1)
	return nil
}

func (e *Engine) leave() { e.calls.Done() }
