package sync15

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
)

// turns lets requests work in the order in which they came, a few at a time. Working
// all at once they would finish all at once, late, each with its memory until then.
// The zero value lets all work.
type turns struct {
	free *semaphore.Weighted
	// commits bounds the payloads of large commits, in bytes.
	commits *semaphore.Weighted
	budget  int64
}

func newTurns(atOnce int, commitBudget int64) turns {
	t := turns{budget: commitBudget}
	if atOnce > 0 {
		t.free = semaphore.NewWeighted(int64(atOnce))
	}
	if commitBudget > 0 {
		t.commits = semaphore.NewWeighted(commitBudget)
	}
	return t
}

// turn is one request's. It is not held while the request waits for its client or for
// the object store. A turn is for one goroutine.
type turn struct {
	of    *turns
	bytes int64 // of the commit budget
	held  bool
}

// smallCommit is up to how many bytes a commit does not wait for others.
const smallCommit = 256 << 10

// begin waits for a turn, and before it for memory for a commit of that many bytes.
func (t *turn) begin(ctx context.Context, of *turns, commit int64) error {
	t.of = of
	if of.commits != nil && commit > smallCommit {
		commit = min(commit, of.budget)
		if err := of.commits.Acquire(ctx, commit); err != nil {
			return fmt.Errorf("%w: no memory for the commit: %w", errRetry, err)
		}
		t.bytes = commit
	}
	return t.resume(ctx)
}

// end gives back what the turn holds. It may be called more than once.
func (t *turn) end() {
	if t.bytes > 0 {
		t.of.commits.Release(t.bytes)
		t.bytes = 0
	}
	t.pause()
}

func (t *turn) pause() {
	if t.held {
		t.of.free.Release(1)
		t.held = false
	}
}

func (t *turn) resume(ctx context.Context) error {
	if t.of == nil || t.of.free == nil {
		return nil
	}
	if err := t.of.free.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("%w: no turn: %w", errRetry, err)
	}
	t.held = true
	return nil
}

// waiting runs wait without the turn.
func (t *turn) waiting(ctx context.Context, wait func() error) error {
	t.pause()
	if err := wait(); err != nil {
		return err
	}
	return t.resume(ctx)
}
