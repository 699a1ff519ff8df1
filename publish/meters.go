package publish

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

// meters are the metrics of the public pipeline and a few more.
type meters struct {
	published, filtered                        *metrics.Counter // records
	publishErrors, pollErrors, positionsErrors *metrics.Counter
	lost                                       *metrics.Counter
	partitions, leading                        *metrics.Gauge
	publishTime                                *metrics.Timer

	// oldest watermark in Unix nanoseconds; 0 if there is nothing to do.
	oldest *atomic.Int64
}

func newMeters(r *metrics.Registry, c clock.Clock) meters {
	r = r.Group("payload_link_publisher")
	m := meters{
		published:       r.Counter("published"),
		filtered:        r.Counter("filtered"),
		publishErrors:   r.Counter("errors.publish"),
		pollErrors:      r.Counter("errors.poll"),
		positionsErrors: r.Counter("errors.positions"),
		lost:            r.Counter("errors.lost"),
		partitions:      r.Gauge("partitions"),
		leading:         r.Gauge("leading"),
		publishTime:     r.Timer("publish"),
		oldest:          &atomic.Int64{},
	}
	r.GaugeFunc("lag_seconds", func(set func(float64, ...string)) {
		if at := m.oldest.Load(); at != 0 {
			set(max(0, c.Now().Sub(time.Unix(0, at)).Seconds()))
		}
	})
	return m
}
