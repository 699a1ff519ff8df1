package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/queue"
)

// PurgeQueue is the name of the queue between a delete and its purge.
const PurgeQueue = "sync_purge"

// PurgeSettings are the settings of the queue: a purge is repeated until it
// succeeds, and all receivers are in the process that owns the engine.
func PurgeSettings() queue.Settings {
	return queue.Settings{Lease: time.Minute, LocalReceivers: true, RetryMost: time.Minute, RetryLate: time.Minute}
}

// SendPurge returns an Options.SendPurge that sends to q.
func SendPurge(q *queue.Queue) func(tx *kv.Tx, message []byte) error {
	return func(tx *kv.Tx, message []byte) error {
		k, err := q.NewKey()
		if err != nil {
			return err
		}
		return q.Send(tx, queue.Outgoing{Key: k, Payload: message})
	}
}

// Purger is the receiver of the purge queue. All fields are required.
type Purger struct {
	Store *Store
	Queue *queue.Queue
	Log   *slog.Logger
}

// purgePause is the wait after a failed Step.
const purgePause = time.Second

// Step waits for one message and removes everything that it names.
func (p *Purger) Step(ctx context.Context) error {
	messages, err := p.Queue.Receive(ctx, 1)
	if err != nil {
		return err
	}
	m := messages[0]
	token, renew := m.Token(), m.LeaseEnd
	half := p.Queue.Settings().Lease / 2
	for {
		more, err := p.Store.Purge(ctx, m.Payload)
		if err != nil {
			return errors.Join(fmt.Errorf("purge: %w", err), p.giveBack(ctx, token, err))
		}
		if !more {
			break
		}
		if p.Store.opts.Clock.Now().Before(renew.Add(-half)) {
			continue
		}
		renewals, err := p.Queue.RenewLease(ctx, token)
		if err != nil {
			return fmt.Errorf("purge: %w", err)
		}
		if len(renewals) == 0 || renewals[0].NewToken == "" {
			return nil // somebody else has it now, and goes on where this one stopped
		}
		token, renew = renewals[0].NewToken, renewals[0].LeaseEnd
	}
	_, err = p.Store.db.Update(ctx, func(tx *kv.Tx) error {
		_, err := p.Queue.AckExisting(tx, m.Key)
		return err
	})
	return err
}

// giveBack returns a message whose purge failed, to be tried again: later, or at
// the next start if the process is about to stop.
func (p *Purger) giveBack(ctx context.Context, token string, cause error) error {
	const asSettingsSay = -1
	rest := time.Duration(asSettingsSay)
	if ctx.Err() != nil {
		rest = 0
	}
	err := p.Queue.Retry(context.WithoutCancel(ctx), token, rest, cause.Error())
	if errors.Is(err, queue.ErrLeaseLost) {
		return nil // it will be delivered again anyhow
	}
	return err
}

// Run repeats Step until ctx ends.
func (p *Purger) Run(ctx context.Context) error {
	for {
		err := p.Step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrStopped), errors.Is(err, queue.ErrQueueNotFound), errors.Is(err, kv.ErrClosed):
			return err
		case err != nil:
			p.Log.Error("purge of deleted collections failed, will be tried again", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(purgePause):
			}
		}
	}
}
