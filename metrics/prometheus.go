package metrics

import (
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// collector is the part of a family that renders it.
type collector interface {
	collect(out chan<- prometheus.Metric)
	flush(out sink)
}

// Handler returns the page that Prometheus scrapes: the metrics of r and all
// its groups, and those of the Go runtime and of the process. For a nil
// Registry it answers 404.
func (r *Registry) Handler() http.Handler {
	if r == nil {
		return http.NotFoundHandler()
	}
	page := prometheus.NewRegistry()
	page.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		scraper{r.store},
	)
	// One metric that cannot be shown must not hide all others.
	return promhttp.HandlerFor(page, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, Registry: page})
}

// scraper shows a store to client_golang. It describes nothing, because metrics
// may be declared at any time; the store itself keeps them consistent.
type scraper struct{ *store }

func (scraper) Describe(chan<- *prometheus.Desc) {}

func (s scraper) Collect(out chan<- prometheus.Metric) {
	for _, f := range s.all() {
		f.collect(out)
	}
}

func (c *Counter) collect(out chan<- prometheus.Metric) {
	for _, s := range *c.series.Load() {
		emit(out, c.desc, prometheus.CounterValue, float64(s.cell.n.Load()), s.values)
	}
}

func (g *Gauge) collect(out chan<- prometheus.Metric) {
	for _, s := range *g.series.Load() {
		emit(out, g.desc, prometheus.GaugeValue, math.Float64frombits(s.cell.bits.Load()), s.values)
	}
}

func (g *gaugeFunc) collect(out chan<- prometheus.Metric) { g.gauge().collect(out) }

func (t *Timer) collect(out chan<- prometheus.Metric) {
	for _, s := range *t.series.Load() {
		buckets := make(map[float64]uint64, len(bounds))
		var total uint64
		for i := range s.cell.counts {
			total += s.cell.counts[i].Load()
			if i < len(bounds) {
				buckets[bounds[i].Seconds()] = total
			}
		}
		sum := float64(s.cell.sum.Load()) / 1e9
		m, err := prometheus.NewConstHistogram(t.desc.prom, total, sum, buckets, s.values...)
		send(out, t.desc, m, err)
	}
}

func emit(out chan<- prometheus.Metric, d *desc, kind prometheus.ValueType, v float64, values []string) {
	m, err := prometheus.NewConstMetric(d.prom, kind, v, values...)
	send(out, d, m, err)
}

func send(out chan<- prometheus.Metric, d *desc, m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(d.prom, err)
	}
	out <- m
}
