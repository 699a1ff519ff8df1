package metrics

import (
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// maxSeries bounds the series of one metric. Tag values can be chosen by users
// (a collection's name, say), and neither this process nor the monitoring
// behind it should grow with them. Whatever comes later is added to one more
// series, whose tags all have the value otherValue.
const maxSeries = 256

const (
	otherValue    = "other"
	maxValueBytes = 128 // of one tag value; the rest is cut
)

type kind string

const (
	kindCounter   kind = "counter"
	kindGauge     kind = "gauge"
	kindGaugeFunc kind = "gauge function"
	kindTimer     kind = "timer"
)

// desc is a declaration.
type desc struct {
	kind kind
	name string // dotted, with the group's prefix
	tags []string
	prom *prometheus.Desc
}

func newDesc(k kind, name string, tags []string) *desc {
	d := &desc{kind: k, name: name, tags: slices.Clone(tags)}
	d.prom = prometheus.NewDesc(d.prometheusNames()[0], "Holdfast "+string(k)+" "+name+".", d.tags, nil)
	return d
}

// key is the tag values of a series, padded with empty strings: an array can be
// looked up without an allocation.
type key [MaxTags]string

// series is one metric with given tag values. C holds the numbers.
type series[C any] struct {
	values []string // for Prometheus
	tags   []string // for statsd: key:value
	cell   C
}

// vec is the series of one declaration. Readers see a map that never changes;
// adding a series replaces it, which is rare and bounded by maxSeries.
type vec[C any] struct {
	*store
	desc   *desc
	series atomic.Pointer[map[key]*series[C]]
	mu     sync.Mutex // held while adding
}

func (v *vec[C]) init(s *store, d *desc) {
	v.store, v.desc = s, d
	all := map[key]*series[C]{}
	if len(d.tags) == 0 {
		all[key{}] = newSeries[C](d, key{}) // shows its zero from the start
	}
	v.series.Store(&all)
}

func (v *vec[C]) describe() *desc { return v.desc }

// get returns the series with these tag values, or nil after a mistake.
func (v *vec[C]) get(values []string) *series[C] {
	if len(values) != len(v.desc.tags) {
		v.mistake(v.desc.name, "%d values for the tags %q", len(values), v.desc.tags)
		return nil
	}
	var k key
	copy(k[:], values)
	if s := (*v.series.Load())[k]; s != nil {
		return s
	}
	return v.add(cleanKey(k))
}

// add returns the series of k, made new if needed and if there is room.
func (v *vec[C]) add(k key) *series[C] {
	if s := (*v.series.Load())[k]; s != nil {
		return s
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all := *v.series.Load()
	if all[k] == nil && len(all) >= maxSeries {
		k = otherKey(len(v.desc.tags))
	}
	if s := all[k]; s != nil {
		return s
	}
	s := newSeries[C](v.desc, k)
	grown := maps.Clone(all)
	grown[k] = s
	v.series.Store(&grown)
	return s
}

func newSeries[C any](d *desc, k key) *series[C] {
	s := &series[C]{values: slices.Clone(k[:len(d.tags)])}
	for i, t := range d.tags {
		s.tags = append(s.tags, t+":"+k[i])
	}
	return s
}

// cleanKey makes values that both renderings can carry: valid UTF-8 without the
// separators of statsd, and short.
func cleanKey(k key) key {
	for i, v := range k {
		if len(v) > maxValueBytes {
			v = v[:maxValueBytes]
		}
		k[i] = strings.Clone(strings.Map(func(r rune) rune {
			if r < ' ' || r == ',' || r == '|' || r == 0x7f || r == utf8.RuneError {
				return '_'
			}
			return r
		}, v))
	}
	return k
}

// otherKey is the key of the series for everything beyond maxSeries.
func otherKey(tags int) key {
	var k key
	for i := range tags {
		k[i] = otherValue
	}
	return k
}

// Counter is a number that only grows. A nil Counter counts nothing.
type Counter struct{ vec[counterCell] }

type counterCell struct {
	n    atomic.Int64
	sent atomic.Int64 // the part of n that statsd has been told
}

func newCounter(s *store, d *desc) *Counter {
	c := &Counter{}
	c.init(s, d)
	return c
}

// Add adds n to the series with these tag values. Adding 0 makes the series
// visible; a negative n is ignored.
func (c *Counter) Add(n int64, values ...string) {
	if c == nil || n < 0 {
		return
	}
	if s := c.get(values); s != nil {
		s.cell.n.Add(n)
	}
}

// Gauge is a number that is set. A nil Gauge does nothing.
type Gauge struct{ vec[gaugeCell] }

type gaugeCell struct{ bits atomic.Uint64 }

func newGauge(s *store, d *desc) *Gauge {
	g := &Gauge{}
	g.init(s, d)
	return g
}

// Set makes value the current value of the series with these tag values.
func (g *Gauge) Set(value float64, values ...string) {
	if g == nil {
		return
	}
	if s := g.get(values); s != nil {
		s.cell.bits.Store(math.Float64bits(value))
	}
}

// bounds are the upper ends of the buckets of every timer, from a row read in
// memory to the hours that an object may wait to be finalized.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, time.Minute, 10 * time.Minute, time.Hour,
}

// Timer is a distribution of durations. A nil Timer does nothing.
type Timer struct{ vec[timerCell] }

type timerCell struct {
	counts [len(bounds) + 1]atomic.Uint64 // of each bucket alone; the last is unbounded
	sum    atomic.Int64                   // nanoseconds
}

func newTimer(s *store, d *desc) *Timer {
	t := &Timer{}
	t.init(s, d)
	return t
}

// Observe adds d to the series with these tag values. A negative d, from clocks
// that disagree, is ignored.
func (t *Timer) Observe(d time.Duration, values ...string) {
	if t == nil || d < 0 {
		return
	}
	s := t.get(values)
	if s == nil {
		return
	}
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	s.cell.counts[i].Add(1)
	s.cell.sum.Add(int64(d))
	if sink := t.sink.Load(); sink != nil {
		t.send(sink, d, s.tags)
	}
}

// gaugeFunc is a gauge that is computed when it is read.
type gaugeFunc struct {
	*store
	desc *desc
	read func(set func(value float64, values ...string))
}

func (g *gaugeFunc) describe() *desc { return g.desc }

// gauge returns a gauge with what the function says now.
func (g *gaugeFunc) gauge() *Gauge {
	now := &Gauge{}
	now.series.Store(&map[key]*series[gaugeCell]{})
	now.store, now.desc = g.store, g.desc
	g.read(now.Set)
	return now
}
