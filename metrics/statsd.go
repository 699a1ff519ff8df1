package metrics

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
)

// flushInterval is how often counters and gauges go to statsd: the interval at
// which its servers aggregate by default.
const flushInterval = 10 * time.Second

// sink is what a flush needs of a statsd client.
type sink interface {
	Count(name string, value int64, tags []string, rate float64) error
	Gauge(name string, value float64, tags []string, rate float64) error
}

// RunStatsd sends the metrics of r and all its groups to the statsd server at
// address (host:port, UDP) until ctx is done, and once more then. Only one call
// may run at a time.
//
// Counters and gauges are sent every 10 seconds, each timing as it is observed.
// Nothing waits for the server: what its socket does not take is lost. A server
// that cannot be reached is logged, once per change of the reason; log may be
// nil.
func (r *Registry) RunStatsd(ctx context.Context, address string, log *slog.Logger) error {
	if r == nil {
		<-ctx.Done()
		return nil
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var trouble troubleLog
	for {
		client, err := statsd.New(address, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(),
			statsd.WithErrorHandler(trouble.note))
		if err == nil {
			return r.runStatsd(ctx, client, func() { trouble.report(log, address) })
		}
		// The name may not resolve yet. Metrics are no reason to stop serving.
		trouble.note(err)
		trouble.report(log, address)
		select {
		case <-time.After(flushInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// runStatsd feeds client until ctx is done, and closes it. It calls flushed
// after every flush.
func (r *Registry) runStatsd(ctx context.Context, client *statsd.Client, flushed func()) (err error) {
	defer func() { err = errors.Join(err, client.Close()) }()
	if !r.sink.CompareAndSwap(nil, client) {
		return errors.New("metrics: statsd is being fed already")
	}
	defer r.sink.Store(nil)
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.flush(client)
			flushed()
		case <-ctx.Done():
			r.flush(client)
			flushed()
			return nil
		}
	}
}

func (s *store) flush(out sink) {
	for _, f := range s.all() {
		f.flush(out)
	}
}

// The client's methods fail only when it is closed or its queue is full, and
// tell the error handler. There is nothing that a caller could do about it.

func (c *Counter) flush(out sink) {
	for _, s := range *c.series.Load() {
		n := s.cell.n.Load()
		if grown := n - s.cell.sent.Swap(n); grown > 0 {
			_ = out.Count(c.desc.name, grown, s.tags, 1)
		}
	}
}

func (g *Gauge) flush(out sink) {
	for _, s := range *g.series.Load() {
		_ = out.Gauge(g.desc.name, math.Float64frombits(s.cell.bits.Load()), s.tags, 1)
	}
}

func (g *gaugeFunc) flush(out sink) { g.gauge().flush(out) }

// flush has nothing to do: timings are sent when they are observed.
func (t *Timer) flush(sink) {}

func (t *Timer) send(client *statsd.Client, d time.Duration, tags []string) {
	_ = client.Timing(t.desc.name, d, tags, 1)
}

// troubleLog turns the many errors of an unreachable server into few lines.
type troubleLog struct {
	last   atomic.Pointer[string] // since the last report
	logged string
}

func (t *troubleLog) note(err error) {
	text := err.Error()
	t.last.Store(&text)
}

func (t *troubleLog) report(log *slog.Logger, address string) {
	text := ""
	if last := t.last.Swap(nil); last != nil {
		text = *last
	}
	if text != t.logged && text != "" {
		log.Warn("statsd loses metrics", "address", address, "error", text)
	}
	t.logged = text
}
