package metrics

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/DataDog/datadog-go/v5/statsd"
)

// MaxTags is the largest number of tags that a metric can have.
const MaxTags = 4

var (
	namePattern = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]*(\.[a-zA-Z0-9_]+)*$`)
	tagPattern  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]*$`)
)

// Registry declares metrics and holds their values. Make one with New; a nil
// *Registry measures nothing. All methods may be called from many goroutines.
type Registry struct {
	prefix string // dotted, with a final dot; empty for the root
	*store
}

// store is what a registry and its groups share.
type store struct {
	sink atomic.Pointer[statsd.Client] // where timings go while RunStatsd runs

	mu       sync.Mutex // guards what follows
	families map[string]family
	taken    map[string]string // Prometheus name -> dotted name that it came from
	mistakes map[string]error
}

// family is one declared metric with all its series.
type family interface {
	describe() *desc
	collector
}

// New returns an empty registry.
func New() *Registry {
	return &Registry{store: &store{
		families: map[string]family{},
		taken:    map[string]string{},
		mistakes: map[string]error{},
	}}
}

// Group returns a view of r that puts prefix and a dot in front of every name
// declared through it. Values are shared with r.
func (r *Registry) Group(prefix string) *Registry {
	if r == nil {
		return nil
	}
	return &Registry{prefix: r.prefix + prefix + ".", store: r.store}
}

// Counter declares a metric that only grows. Declaring it again with the same
// tags returns the same handle.
func (r *Registry) Counter(name string, tags ...string) *Counter {
	if r == nil {
		return nil
	}
	return declare(r, newDesc(kindCounter, r.prefix+name, tags), newCounter)
}

// Gauge declares a metric that is set to what it is now. Declaring it again
// with the same tags returns the same handle.
func (r *Registry) Gauge(name string, tags ...string) *Gauge {
	if r == nil {
		return nil
	}
	return declare(r, newDesc(kindGauge, r.prefix+name, tags), newGauge)
}

// Timer declares a distribution of durations. Declaring it again with the same
// tags returns the same handle.
func (r *Registry) Timer(name string, tags ...string) *Timer {
	if r == nil {
		return nil
	}
	return declare(r, newDesc(kindTimer, r.prefix+name, tags), newTimer)
}

// GaugeFunc declares a gauge whose series are computed when they are asked for:
// read calls set once for each. Series that it does not set are not shown.
//
// read is called at every scrape and every statsd flush, by one goroutine at a
// time or by several, and must return quickly and not keep set.
func (r *Registry) GaugeFunc(name string, read func(set func(value float64, values ...string)), tags ...string) {
	if r == nil {
		return
	}
	declare(r, newDesc(kindGaugeFunc, r.prefix+name, tags), func(s *store, d *desc) *gaugeFunc {
		return &gaugeFunc{store: s, desc: d, read: read}
	})
}

// Err returns every mistake made so far with this registry and its groups, nil
// if there is none: declarations that contradict each other or have an
// impossible name, and observations with a wrong number of tag values. None of
// them depends on what users send, so a test that uses each metric once finds
// them.
func (r *Registry) Err() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]string, 0, len(r.mistakes))
	for k := range r.mistakes {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	errs := make([]error, len(keys))
	for i, k := range keys {
		errs[i] = r.mistakes[k]
	}
	return errors.Join(errs...)
}

// mistake notes err, once for each name and text.
func (s *store) mistake(name, format string, args ...any) {
	err := fmt.Errorf("metrics: %s: "+format, append([]any{name}, args...)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mistakes[err.Error()] = err
}

// declare returns the family of d, which it makes if it is new, or nil after a
// mistake.
func declare[F family](r *Registry, d *desc, make func(*store, *desc) F) F {
	var none F
	if err := d.check(); err != nil {
		r.mistake(d.name, "%w", err)
		return none
	}
	found, err := r.store.adopt(d, func() family { return make(r.store, d) })
	if err != nil {
		r.mistake(d.name, "%w", err)
		return none
	}
	return found.(F)
}

// adopt returns the family declared as d before, or registers a new one.
func (s *store) adopt(d *desc, make func() family) (family, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.families[d.name]; ok {
		od := old.describe()
		switch {
		case od.kind != d.kind:
			return nil, fmt.Errorf("declared as %s and as %s", od.kind, d.kind)
		case !slices.Equal(od.tags, d.tags):
			return nil, fmt.Errorf("declared with tags %q and with tags %q", od.tags, d.tags)
		case d.kind == kindGaugeFunc:
			return nil, errors.New("two functions for one gauge")
		}
		return old, nil
	}
	names := d.prometheusNames()
	for _, n := range names {
		if other, ok := s.taken[n]; ok {
			return nil, fmt.Errorf("has the same Prometheus name %s as %s", n, other)
		}
	}
	for _, n := range names {
		s.taken[n] = d.name
	}
	f := make()
	s.families[d.name] = f
	return f, nil
}

// all returns the families in no particular order.
func (s *store) all() []family {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]family, 0, len(s.families))
	for _, f := range s.families {
		out = append(out, f)
	}
	return out
}

func (d *desc) check() error {
	if !namePattern.MatchString(d.name) {
		return errors.New("not a dotted name of letters, digits and underscores")
	}
	if len(d.tags) > MaxTags {
		return fmt.Errorf("%d tags, at most %d are possible", len(d.tags), MaxTags)
	}
	for i, t := range d.tags {
		// le is the label of histogram buckets.
		if !tagPattern.MatchString(t) || t == "le" {
			return fmt.Errorf("impossible tag key %q", t)
		}
		if slices.Contains(d.tags[:i], t) {
			return fmt.Errorf("tag key %q twice", t)
		}
	}
	return nil
}

// prometheusNames returns the names of all series that d renders to; the first
// is the name of the family.
func (d *desc) prometheusNames() []string {
	base := strings.ReplaceAll(d.name, ".", "_")
	switch d.kind {
	case kindCounter:
		return []string{base + "_total"}
	case kindTimer:
		n := base + "_seconds"
		return []string{n, n + "_bucket", n + "_sum", n + "_count"}
	}
	return []string{base}
}
