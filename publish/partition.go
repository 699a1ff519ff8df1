package publish

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// maxBatch and maxBatchBytes bound what is published in one go: what one
	// request of Pub/Sub can carry.
	maxBatch      = 1000
	maxBatchBytes = 8 << 20

	// ahead is how many events are read while others are published.
	ahead = 1024

	// publishTimeout bounds one attempt, finishTimeout what is left of it when the
	// process is to end.
	publishTimeout = time.Minute
	finishTimeout  = 10 * time.Second

	// turnLength is how long a partition is read at least when others wait.
	turnLength = 30 * time.Second
)

// errTurnOver ends the reading of a partition for the sake of one that waits.
var errTurnOver = errors.New("another partition's turn")

// errSilent ends a read that gives not even heartbeats.
var errSilent = errors.New("the stream has fallen silent")

// turns says whether partitions wait for their turn.
type turns struct{ others atomic.Bool }

// readPartition reads a partition to its end, publishes it and returns its
// children. Failures of the source that may pass are repeated, from the watermark.
func (p *Publisher) readPartition(ctx context.Context, n *node, turn *turns) (children []Event, err error) {
	wait := retryFirst
	for {
		before := n.watermark()
		children, err = p.readOnce(ctx, n, turn)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, errTurnOver), errors.Is(err, errFatal):
			return nil, err
		case err == nil && (len(children) > 0 || !p.opts.End.IsZero() && !isSearch(n.Token)):
			return children, nil
		case err == nil:
			err = errors.New("it ended without saying which partitions take over")
		case errors.Is(err, ErrOutOfRange), errors.Is(err, ErrRefused):
			// Which of them a source gives for what it has dropped is not certain.
			oldest, oldestErr := p.source.Oldest(ctx)
			if oldestErr == nil && n.watermark().Before(oldest) {
				return nil, fmt.Errorf("%w: wanted %v, the stream begins at %v", ErrLost, n.watermark(), oldest)
			}
			if oldestErr == nil {
				return nil, err
			}
			err = oldestErr
		}
		if n.watermark().After(before) {
			wait = retryFirst
		}
		p.meters.pollErrors.Add(1)
		p.opts.Log.Warn("reading a partition again", "error", err, "watermark", n.watermark(), "wait", wait)
		pause(ctx, wait/2+rand.N(wait))
		wait = min(2*wait, retryMost)
	}
}

// errFatal marks errors that reading again does not mend.
var errFatal = errors.New("cannot go on")

// readOnce makes one query and publishes what it delivers. It returns when
// everything that was delivered has been dealt with.
func (p *Publisher) readOnce(ctx context.Context, n *node, turn *turns) ([]Event, error) {
	read, stop := context.WithCancelCause(ctx)
	began := n.watermark()
	events := make(chan Event, ahead)
	defer func() {
		stop(nil)
		for range events { // until the reader has ended
		}
	}()
	result := make(chan error, 1)
	go func() {
		defer close(events)
		q := Query{Token: n.Token, Start: began, End: p.opts.End, Heartbeat: p.opts.Heartbeat}
		if isSearch(n.Token) {
			q.Token = ""
		}
		result <- p.source.Read(read, q, func(e Event) error {
			select {
			case events <- e:
				return nil
			case <-read.Done():
				return context.Cause(read)
			}
		})
	}()
	// Silence for this long means that the connection is gone without a word.
	silence := 10*p.opts.Heartbeat + time.Minute
	silent := time.AfterFunc(silence, func() { stop(errSilent) })
	defer silent.Stop()
	var turnOver atomic.Bool
	defer time.AfterFunc(turnLength, func() { turnOver.Store(true) }).Stop()

	b := batch{limit: p.opts.maxMessage}
	for e := range events {
		silent.Reset(silence)
		if err := b.gather(e, events); err != nil {
			return nil, fmt.Errorf("%w: %w", errFatal, err)
		}
		silent.Stop() // a topic may take its time
		if err := p.publish(ctx, b.messages); err != nil {
			return nil, err
		}
		p.meters.published.Add(int64(b.kept))
		p.meters.filtered.Add(int64(b.filtered))
		n.advance(b.upTo)
		b.reset()
		silent.Reset(silence)
		if turnOver.Load() && turn.others.Load() && n.watermark().After(began) {
			return nil, errTurnOver
		}
	}
	err := <-result
	if err != nil {
		if cause := context.Cause(read); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return nil, err // children are announced again
	}
	return b.children, nil
}

// batch is what is published in one go.
type batch struct {
	limit          int
	messages       [][]byte
	size           int
	kept, filtered int
	upTo           time.Time
	children       []Event // of all batches
}

func (b *batch) reset() {
	*b = batch{limit: b.limit, messages: b.messages[:0], children: b.children}
}

// gather takes e and what is there already of the events after it.
func (b *batch) gather(e Event, events <-chan Event) error {
	for ok := true; ok; {
		if err := b.add(e); err != nil {
			return err
		}
		if len(b.messages) >= maxBatch || b.size >= maxBatchBytes {
			return nil
		}
		select {
		case e, ok = <-events:
		default:
			return nil
		}
	}
	return nil
}

func (b *batch) add(e Event) error {
	if len(e.Children) > 0 {
		b.children = append(b.children, e)
		return nil // the watermark stays, so that they are announced until they are known
	}
	b.upTo = e.Time // times do not decrease
	if e.Change == nil {
		return nil
	}
	if !Keep(e.Change) {
		b.filtered++
		return nil
	}
	e.Change.CommitTimestamp = e.Time.UTC().Format("2006-01-02T15:04:05.000000000Z")
	have := len(b.messages)
	var err error
	if b.messages, err = appendMessages(b.messages, e.Change, b.limit); err != nil {
		return err
	}
	b.kept++
	for _, m := range b.messages[have:] {
		b.size += len(m)
	}
	return nil
}

// publish sends messages until all are confirmed. An error is the end of ctx.
func (p *Publisher) publish(ctx context.Context, messages [][]byte) error {
	for wait := retryFirst; len(messages) > 0; wait = min(2*wait, retryMost) {
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		failed, err := p.publishOnce(ctx, messages)
		<-p.slots
		messages = failed
		if len(failed) == 0 {
			return nil
		}
		p.meters.publishErrors.Add(int64(len(failed)))
		p.opts.Log.Warn("publishing again", "messages", len(failed), "error", err, "wait", wait)
		pause(ctx, wait/2+rand.N(wait))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// publishOnce makes one attempt, which outlives ctx a little.
func (p *Publisher) publishOnce(ctx context.Context, messages [][]byte) ([][]byte, error) {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		pause(attempt, finishTimeout)
		cancel()
	})()
	began := p.opts.Clock.Now()
	failed, err := p.topic.Publish(attempt, messages)
	p.meters.publishTime.Observe(p.opts.Clock.Now().Sub(began))
	return failed, err
}
