package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
)

var errInjected = errors.New("injected")

// stream is a change stream in memory: partitions that own keys, split and merge.
type stream struct {
	mu      sync.Mutex
	parts   map[string]*part
	created time.Time
	dropped time.Time // what is older is gone
	fault   func(Query) error
	reads   map[string]int // by token
	tokens  int
	grown   chan struct{} // closed and replaced with every change
	silent  bool          // sends no heartbeats
	forgets bool          // answers ErrRefused for dropped partitions, not ErrOutOfRange
}

type part struct {
	token      string
	parents    []string
	start, end time.Time // end zero: it lives
	keys       []int
	events     []Event // changes
	children   []Event
}

// newStream returns one with n partitions for the keys from 0 to keys.
func newStream(at time.Time, n, keys int) *stream {
	s := &stream{parts: map[string]*part{}, created: at, dropped: at, reads: map[string]int{}, grown: make(chan struct{})}
	for range n {
		s.newPart(at)
	}
	tokens := slices.Sorted(maps.Keys(s.parts))
	for k := range keys {
		p := s.parts[tokens[k%n]]
		p.keys = append(p.keys, k)
	}
	return s
}

func (s *stream) newPart(at time.Time, parents ...string) *part {
	s.tokens++
	p := &part{token: fmt.Sprintf("p%03d", s.tokens), parents: parents, start: at}
	s.parts[p.token] = p
	return p
}

// living returns the partitions that live, in order.
func (s *stream) living() []*part {
	var all []*part
	for _, token := range slices.Sorted(maps.Keys(s.parts)) {
		if p := s.parts[token]; p.end.IsZero() {
			all = append(all, p)
		}
	}
	return all
}

func (s *stream) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.grown)
	s.grown = make(chan struct{})
}

func link(key, n int) string { return fmt.Sprintf(`{"payload_link":"gs://B/%d/%d"}`, key, n) }

// commit adds the change number n of a key.
func (s *stream) commit(at time.Time, key, n int) {
	s.change(func() {
		for _, p := range s.living() {
			if slices.Contains(p.keys, key) {
				p.events = append(p.events, Event{Time: at, Change: &changes.Raw{TableName: "bsos", ModType: changes.Insert, Mods: []changes.RawMod{{NewValues: link(key, n)}}}})
			}
		}
	})
}

// split ends a partition and gives its keys to n others.
func (s *stream) split(at time.Time, p *part, n int) {
	s.change(func() {
		p.end = at
		e := Event{Time: at}
		for i := range n {
			c := s.newPart(at, p.token)
			for j, k := range p.keys {
				if j%n == i {
					c.keys = append(c.keys, k)
				}
			}
			e.Children = append(e.Children, Child{c.token, c.parents})
		}
		p.children = []Event{e}
	})
}

// merge ends partitions and gives their keys to one.
func (s *stream) merge(at time.Time, parts ...*part) {
	s.change(func() {
		var parents []string
		for _, p := range parts {
			parents = append(parents, p.token)
		}
		c := s.newPart(at, parents...)
		for _, p := range parts {
			c.keys = append(c.keys, p.keys...)
			p.end = at
			p.children = []Event{{Time: at, Children: []Child{{c.token, parents}}}}
		}
	})
}

func (s *stream) Oldest(context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped.After(s.created) {
		return s.dropped, nil
	}
	return s.created, nil
}

func (s *stream) Read(ctx context.Context, q Query, handle func(Event) error) error {
	s.mu.Lock()
	s.reads[q.Token]++
	fault := s.fault
	p := s.parts[q.Token]
	s.mu.Unlock()
	if oldest, _ := s.Oldest(ctx); q.Start.Before(oldest) {
		if s.forgets {
			return fmt.Errorf("%w: unknown partition", ErrRefused)
		}
		return ErrOutOfRange
	}
	if fault != nil {
		if err := fault(q); err != nil {
			return err
		}
	}
	if q.Token == "" {
		return s.first(q.Start, handle)
	}
	if p == nil {
		return fmt.Errorf("%w: unknown partition %s", ErrRefused, q.Token)
	}
	return s.follow(ctx, p, q, fault, handle)
}

// first tells which partitions exist, in several records.
func (s *stream) first(at time.Time, handle func(Event) error) error {
	s.mu.Lock()
	var events []Event
	for _, token := range slices.Sorted(maps.Keys(s.parts)) {
		if p := s.parts[token]; !p.start.After(at) && (p.end.IsZero() || p.end.After(at)) {
			events = append(events, Event{Time: at, Children: []Child{{Token: token}}})
		}
	}
	s.mu.Unlock()
	for _, e := range events {
		if err := handle(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) follow(ctx context.Context, p *part, q Query, fault func(Query) error, handle func(Event) error) error {
	beat := time.NewTicker(q.Heartbeat)
	defer beat.Stop()
	for i := 0; ; {
		s.mu.Lock()
		events, end, children, grown := p.events, p.end, p.children, s.grown
		s.mu.Unlock()
		if !end.IsZero() && q.Start.After(end) || q.Start.Before(p.start) {
			return ErrOutOfRange
		}
		for ; i < len(events); i++ {
			if e := events[i]; !e.Time.Before(q.Start) && (q.End.IsZero() || !e.Time.After(q.End)) {
				copied := *e.Change
				copied.Mods = slices.Clone(copied.Mods)
				if err := handle(Event{Time: e.Time, Change: &copied}); err != nil {
					return err
				}
			}
			if fault != nil {
				if err := fault(q); err != nil {
					return err
				}
			}
		}
		if !end.IsZero() && (q.End.IsZero() || !end.After(q.End)) {
			for _, e := range children {
				if err := handle(e); err != nil {
					return err
				}
			}
			return nil
		}
		if !q.End.IsZero() && !time.Now().Before(q.End) {
			return nil
		}
		select {
		case <-grown:
		case <-beat.C:
			if !s.silent {
				if err := handle(Event{Time: time.Now().Add(-time.Microsecond)}); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sink is a Topic that keeps, by key, the numbers of the changes it was sent.
type sink struct {
	mu    sync.Mutex
	got   map[int][]int
	now   int
	most  int
	fault func(messages [][]byte) ([][]byte, error)
	delay time.Duration
}

func (s *sink) Publish(ctx context.Context, messages [][]byte) ([][]byte, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	if ctx.Err() != nil {
		return messages, ctx.Err()
	}
	var failed [][]byte
	var err error
	if s.fault != nil {
		failed, err = s.fault(messages)
	}
	if s.got == nil {
		s.got = map[int][]int{}
	}
	for _, m := range messages {
		if slices.ContainsFunc(failed, func(f []byte) bool { return string(f) == string(m) }) {
			continue
		}
		r, decodeErr := changes.Decode(m)
		if decodeErr != nil || len(r.Mods) != 1 {
			panic(fmt.Sprintf("published %s", m))
		}
		parts := strings.Split(r.Mods[0].New, "/")
		key, _ := strconv.Atoi(parts[3])
		n, _ := strconv.Atoi(parts[4])
		s.got[key] = append(s.got[key], n)
	}
	return failed, err
}

func (s *sink) of(key int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got[key])
}

// memory is Positions in memory that a crash does not take.
type memory struct {
	mu    sync.Mutex
	all   map[string]Position
	owner *user
	until time.Time
}

// stored returns the positions.
func (m *memory) stored() map[string]Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.all)
}

func (m *memory) isOwner(u *user) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owner == u
}

// user is one Publisher's view of a memory.
type user struct {
	*memory
	fault func(op string) error
}

func (m *memory) user() *user { return &user{memory: m} }

func (u *user) failed(op string) error {
	if u.fault != nil {
		return u.fault(op)
	}
	return nil
}

func (u *user) Claim(_ context.Context, lease time.Duration) (bool, error) {
	if err := u.failed("claim"); err != nil {
		return false, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.owner != nil && u.owner != u && time.Now().Before(u.until) {
		return false, nil
	}
	if lease == 0 {
		u.owner = nil
		return true, nil
	}
	u.owner, u.until = u, time.Now().Add(lease)
	return true, nil
}

func (u *user) Load(context.Context) ([]Position, error) {
	if err := u.failed("load"); err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.all)), nil
}

func (u *user) Save(_ context.Context, positions []Position, forget []string) error {
	if err := u.failed("save"); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.owner != u {
		return ErrDeposed
	}
	if u.all == nil {
		u.all = map[string]Position{}
	}
	for _, p := range positions {
		if old, ok := u.all[p.Token]; ok && p.Watermark.Before(old.Watermark) {
			panic("a watermark goes back")
		}
		u.all[p.Token] = p
	}
	for _, f := range forget {
		delete(u.all, f)
	}
	return nil
}

func (u *user) Reset(context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = nil
	return nil
}

// world is a stream, a topic and a memory of positions.
type world struct {
	*testing.T
	stream *stream
	sink   *sink
	memory *memory
	reg    *metrics.Registry
}

func newWorld(t *testing.T, partitions, keys int) *world {
	return &world{T: t, stream: newStream(time.Now(), partitions, keys), sink: &sink{}, memory: &memory{}, reg: metrics.New()}
}

func (w *world) publisher(opts Options) *Publisher {
	opts.Clock = clock.System{}
	if opts.Metrics == nil {
		opts.Metrics = w.reg
	}
	return New(w.stream, w.sink, w.memory.user(), opts)
}

// start runs a publisher until stop is called, which returns its error.
func (w *world) start(opts Options) (stop func() error) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- w.publisher(opts).Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// want checks that all changes of the key have been published, each once.
func (w *world) want(key, changes int) {
	w.Helper()
	got := w.sink.of(key)
	for i := range changes {
		if i >= len(got) || got[i] != i {
			w.Fatalf("key %d: published %v, want 0 to %d", key, got, changes-1)
		}
	}
	if len(got) != changes {
		w.Errorf("key %d: published %v, want 0 to %d", key, got, changes-1)
	}
}

// must wants err to be nil, or one of those allowed.
func must(t testing.TB, err error, allowed ...error) {
	t.Helper()
	if err != nil && !slices.ContainsFunc(allowed, func(a error) bool { return errors.Is(err, a) }) {
		t.Fatal(err)
	}
}
