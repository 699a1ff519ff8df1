package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

const (
	defaultHeartbeat     = time.Second
	defaultConcurrency   = 16
	defaultMaxPartitions = 500
	defaultSaveEvery     = time.Second

	// claimLease is how long a publisher that died keeps the others waiting.
	claimLease = 30 * time.Second

	positionsTimeout = 10 * time.Second

	retryFirst = 500 * time.Millisecond
	retryMost  = 30 * time.Second
)

// Options adjusts a Publisher. The zero value is ready to use, but for the clock.
type Options struct {
	Clock clock.Clock
	// Start is where to begin if there are no positions. Zero: with the oldest
	// change that the stream has.
	Start time.Time
	// End is where to end, inclusively. Zero: never.
	End time.Time
	// Reset forgets all positions first.
	Reset bool
	// Heartbeat is how often a partition without changes says so. Default: 1 s.
	Heartbeat time.Duration
	// Concurrency is how many publish requests are made at a time. Default: 16.
	Concurrency int
	// MaxPartitions is how many partitions are read at a time; more of them take
	// turns. Default: 500.
	MaxPartitions int
	// SaveEvery is how often positions are stored. Default: 1 s.
	SaveEvery time.Duration
	// Metrics gets the metrics payload_link_publisher.*.
	Metrics *metrics.Registry
	// Log default: none.
	Log *slog.Logger

	maxMessage int // MaxMessageSize, but in tests
}

// Publisher publishes what a Source has to a Topic. Run may be called once at a
// time.
type Publisher struct {
	source    Source
	topic     Topic
	positions Positions
	opts      Options
	meters    meters
	slots     chan struct{} // one for each publish request
}

// New returns a Publisher.
func New(source Source, topic Topic, positions Positions, opts Options) *Publisher {
	opts.Heartbeat = cmp.Or(opts.Heartbeat, defaultHeartbeat)
	opts.Concurrency = cmp.Or(opts.Concurrency, defaultConcurrency)
	opts.MaxPartitions = cmp.Or(opts.MaxPartitions, defaultMaxPartitions)
	opts.SaveEvery = cmp.Or(opts.SaveEvery, defaultSaveEvery)
	opts.maxMessage = cmp.Or(opts.maxMessage, MaxMessageSize)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{
		source: source, topic: topic, positions: positions, opts: opts,
		meters: newMeters(opts.Metrics, opts.Clock), slots: make(chan struct{}, opts.Concurrency),
	}
}

// Run publishes until ctx is done or everything up to Options.End is published,
// and then returns nil. It waits first until no other Publisher has a claim on the
// positions. When ctx ends, what is being published is finished and positions are
// stored.
//
// An error means that going on would leave something out or is of no use; it wraps
// ErrLost or ErrRefused, or says what no message can carry.
func (p *Publisher) Run(ctx context.Context) error {
	waiting := false
	for ctx.Err() == nil {
		claimed, err := p.claim(ctx, claimLease)
		switch {
		case err != nil:
			p.meters.positionsErrors.Add(1)
			p.opts.Log.Warn("cannot claim the positions", "error", err)
		case claimed:
			waiting = false
			if err := p.lead(ctx); !errors.Is(err, ErrDeposed) {
				return err
			}
			p.opts.Log.Warn("another publisher has taken over; waiting")
		case !waiting:
			waiting = true
			p.opts.Log.Info("another publisher is at work; waiting")
		}
		pause(ctx, claimLease/6)
	}
	return nil
}

func (p *Publisher) claim(ctx context.Context, lease time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, positionsTimeout)
	defer cancel()
	return p.positions.Claim(ctx, lease)
}

// lead publishes as the one that has the claim.
func (p *Publisher) lead(ctx context.Context) error {
	p.meters.leading.Set(1)
	detached := context.WithoutCancel(ctx)
	defer func() {
		p.meters.leading.Set(0)
		p.meters.oldest.Store(0)
		if _, err := p.claim(detached, 0); err != nil {
			p.opts.Log.Warn("cannot give the claim back", "error", err)
		}
	}()
	t, err := p.load(ctx)
	if err != nil || t == nil {
		return err
	}
	err = p.follow(ctx, t)
	if errors.Is(err, ErrDeposed) {
		return err
	}
	if errors.Is(err, ErrLost) {
		p.meters.lost.Add(1)
	}
	return cmp.Or(err, p.save(detached, t))
}

// load returns the partitions to go on with, or nil if ctx ends first.
func (p *Publisher) load(ctx context.Context) (*tree, error) {
	var t *tree
	err := p.retry(ctx, "load positions", func() error {
		if p.opts.Reset {
			if err := p.positions.Reset(ctx); err != nil {
				return err
			}
			p.opts.Reset = false
		}
		positions, err := p.positions.Load(ctx)
		if err != nil {
			return err
		}
		fresh := newTree(positions)
		if len(positions) == 0 {
			start := p.opts.Start
			if start.IsZero() {
				if start, err = p.source.Oldest(ctx); err != nil {
					return fmt.Errorf("find the beginning of the stream: %w", err)
				}
			}
			fresh.search(start)
			p.opts.Log.Info("no positions are stored; beginning anew", "start", start)
		}
		t = fresh
		return nil
	})
	return t, err
}

// retry repeats do until it succeeds, there is no sense in it, or ctx ends.
func (p *Publisher) retry(ctx context.Context, what string, do func() error) error {
	for wait := retryFirst; ctx.Err() == nil; wait = min(2*wait, retryMost) {
		err := do()
		if err == nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrDeposed) {
			return err
		}
		p.meters.positionsErrors.Add(1)
		p.opts.Log.Warn("trying again: "+what, "error", err, "wait", wait)
		pause(ctx, wait/2+rand.N(wait))
	}
	return nil
}

// ended is how the reading of a partition ended.
type ended struct {
	node     *node
	children []Event
	err      error
}

// follow reads the partitions of t and those that come of them until ctx is done,
// nothing is left to read, or one ends with an error.
func (p *Publisher) follow(ctx context.Context, t *tree) error {
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ends := make(chan ended)
	active := 0
	save := time.NewTicker(p.opts.SaveEvery)
	defer save.Stop()
	claim := time.NewTicker(claimLease / 3)
	defer claim.Stop()
	var turn turns
	for {
		if work.Err() == nil {
			ready := t.ready(p.opts.End)
			begin := min(len(ready), p.opts.MaxPartitions-active)
			for _, n := range ready[:begin] {
				n.State, n.active = Running, true
				active++
				go func() {
					children, err := p.readPartition(work, n, &turn)
					ends <- ended{n, children, err}
				}()
			}
			turn.others.Store(len(ready) > begin)
		}
		p.measure(t, active)
		if active == 0 {
			if cause := context.Cause(work); cause != nil && ctx.Err() == nil {
				return cause
			}
			return nil
		}
		select {
		case e := <-ends:
			active--
			e.node.active = false
			if err := p.end(work, t, e); err != nil {
				stop(err)
			}
		case <-save.C:
			if err := p.save(ctx, t); errors.Is(err, ErrDeposed) {
				stop(err) // other failures are noted, and the next one has it all
			}
		case <-claim.C:
			if mine, err := p.claim(ctx, claimLease); err == nil && !mine {
				stop(ErrDeposed)
			}
		}
	}
}

// end draws the consequences of the end of a partition.
func (p *Publisher) end(ctx context.Context, t *tree, e ended) error {
	n := e.node
	switch {
	case errors.Is(e.err, errTurnOver):
	case errors.Is(e.err, ErrOutOfRange):
		// It ended before where we are, so that all its changes are published, but
		// who took over was not heard. What exists at the watermark is found by a
		// new search; what is known already is not read again.
		if isSearch(n.Token) {
			return fmt.Errorf("%w: it does not have %v", ErrLost, n.watermark())
		}
		p.opts.Log.Info("a partition is over; looking for those after it", "watermark", n.watermark())
		t.search(n.watermark())
		n.State = Finished
	case e.err != nil:
		if ctx.Err() == nil {
			return e.err
		}
	case len(e.children) == 0:
		n.done = true // readPartition ends without children only at Options.End
		n.advance(p.opts.End)
	default:
		t.finish(n, e.children)
		t.forget()
	}
	return nil
}

// measure sets the gauges.
func (p *Publisher) measure(t *tree, active int) {
	p.meters.partitions.Set(float64(active))
	oldest, ok := t.oldest()
	if !ok {
		p.meters.oldest.Store(0)
		return
	}
	p.meters.oldest.Store(oldest.UnixNano())
}

// save stores what has changed.
func (p *Publisher) save(ctx context.Context, t *tree) error {
	dirty := t.dirty()
	if len(dirty) == 0 && len(t.forgotten) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), positionsTimeout)
	defer cancel()
	if err := p.positions.Save(ctx, dirty, slices.Collect(maps.Keys(t.forgotten))); err != nil {
		p.meters.positionsErrors.Add(1)
		p.opts.Log.Warn("positions are not stored", "error", err)
		return fmt.Errorf("publish: store positions: %w", err)
	}
	t.saved(dirty)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
