package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/metrics"
)

// bubble is the time of a synctest bubble and a jump.
type bubble struct {
	mu   sync.Mutex
	jump time.Duration
}

func (c *bubble) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.jump)
}

func (c *bubble) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jump += d
}

// cluster is several processes on one engine.
type cluster struct {
	t     *testing.T
	model *kvtest.Model
}

func newCluster(t *testing.T) *cluster {
	if time.Now().Year() < 2026 {
		time.Sleep(26 * 365 * 24 * time.Hour) // versions begin in 2024, bubbles in 2000
	}
	c := &cluster{t: t, model: kvtest.NewModel(&bubble{})}
	db := kv.New(c.model, kvtest.ModelLimits)
	if err := db.CreateSpace(t.Context(), "work", kv.SpaceOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// process is one of them.
type process struct {
	c       *cluster
	clock   *bubble
	faults  *kvtest.Faults
	db      *kv.DB
	m       *Manager
	metrics *metrics.Registry
	cancel  context.CancelFunc
	ran     chan error
	pause   chan struct{} // closed to go on

	mu    sync.Mutex
	held  map[string]*Lease
	ended int // calls of hold that have
}

func (c *cluster) start(opts Options) *process {
	c.t.Helper()
	p := &process{c: c, clock: &bubble{}, metrics: metrics.New(), held: map[string]*Lease{}}
	p.faults = kvtest.NewFaults(c.model)
	p.db = kv.New(p.faults, kvtest.ModelLimits)
	opts.Rand, opts.Clock, opts.Metrics = rand.Reader, p.clock, p.metrics
	m, err := Open(c.t.Context(), p.db, opts)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.m, p.cancel, p.ran = m, cancel, make(chan error, 1)
	go func() { p.ran <- m.Run(ctx) }()
	return p
}

// compete takes part in a role. The result ends that.
func (p *process) compete(role string, names []string) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.m.Compete(ctx, role, names, p.hold) }()
	return func() error {
		cancel()
		return <-done
	}
}

func (p *process) hold(ctx context.Context, l *Lease) error {
	p.mu.Lock()
	p.held[l.Name()] = l
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, l.Name())
	p.ended++
	return nil
}

func (p *process) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name := range p.held {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (p *process) lease(name string) *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[name]
}

// stop ends the process in order.
func (p *process) stop() {
	p.c.t.Helper()
	p.cancel()
	if err := <-p.ran; err != nil {
		p.c.t.Errorf("Run: %v", err)
	}
}

// kill ends the process: nothing more reaches the store.
func (p *process) kill() {
	p.faults.Crash()
	p.cancel()
	<-p.ran
}

// freeze stops all calls of the engine until the process goes on.
func (p *process) freeze() {
	pause := make(chan struct{})
	p.pause = pause
	p.faults.Before(func(ctx context.Context, _ kvtest.Call) error {
		<-pause // a stopped process does not look at its context either
		return nil
	})
}

func (p *process) thaw() {
	close(p.pause)
	p.faults.Before(nil)
}

func names(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("n%02d", i))
	}
	return list
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func in(t *testing.T, f func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newCluster(t)) })
}

func TestOneProcessGetsAllAtOnce(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		in(t, func(c *cluster) {
			p := c.start(Options{Exclusive: exclusive})
			end := p.compete("r", names(20))
			synctest.Wait()
			if got := p.names(); len(got) != 20 {
				t.Errorf("exclusive %v: holds %q at once", exclusive, got)
			}
			for _, name := range p.names() {
				if l := p.lease(name); !l.Valid() || !l.Clean() || l.Epoch() != 1 {
					t.Errorf("%q: valid %v, clean %v, epoch %d", name, l.Valid(), l.Clean(), l.Epoch())
				}
			}
			pass(time.Hour)
			if got := p.names(); len(got) != 20 || p.ended != 0 {
				t.Errorf("after an hour %q, %d ended", got, p.ended)
			}
			if err := end(); err != nil {
				t.Error(err)
			}
			p.stop()
		})
	}
}

func TestExclusiveTakesOverAtOnceAndWritesNothingAfterwards(t *testing.T) {
	in(t, func(c *cluster) {
		p := c.start(Options{Exclusive: true})
		p.compete("r", names(3))
		synctest.Wait()
		l := p.lease("n00")
		calls := p.faults.Calls()
		pass(10 * time.Minute)
		if n := p.faults.Calls() - calls; n != 0 {
			t.Errorf("%d calls while nothing changes", n)
		}
		p.kill()
		q := c.start(Options{Exclusive: true})
		q.compete("r", names(3))
		synctest.Wait()
		if next := q.lease("n00"); next == nil || next.Clean() || next.Epoch() != 2 {
			t.Fatalf("next lease %+v", next)
		}
		if err := c.write(kv.New(c.model, kvtest.ModelLimits), l); !errors.Is(err, ErrLost) {
			t.Errorf("fence of the first: %v", err)
		}
		q.stop()
	})
}

// write writes under the fence of l, and fails the test if a later epoch has written
// before.
func (c *cluster) write(db *kv.DB, l *Lease) error {
	var before uint64
	v, err := db.Update(context.Background(), func(tx *kv.Tx) error {
		if err := l.Fence(tx); err != nil {
			return err
		}
		row, err := tx.Get("work", []byte(l.Name()))
		if err != nil {
			return err
		}
		before = 0
		if row.Exists() {
			if _, err := fmt.Sscan(string(row.Value), &before); err != nil {
				return err
			}
		}
		tx.Put(kv.Write{Space: "work", Key: []byte(l.Name()), Value: fmt.Append(nil, l.Epoch())})
		return nil
	})
	if err == nil && (before > l.Epoch() || v == 0) {
		c.t.Errorf("%q: epoch %d has written after epoch %d", l.Name(), l.Epoch(), before)
	}
	return err
}

func TestTakeoverAfterKillIsBounded(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 10 * time.Second} {
		in(t, func(c *cluster) {
			p := c.start(Options{Duration: d})
			p.compete("r", names(4))
			q := c.start(Options{Duration: d})
			q.compete("r", names(4))
			pass(2 * d)
			if a, b := p.names(), q.names(); len(a) != 2 || len(b) != 2 {
				t.Fatalf("%q and %q", a, b)
			}
			p.kill()
			begin := time.Now()
			for len(q.names()) < 4 && time.Since(begin) < 10*d {
				pass(d / 100)
			}
			if took := time.Since(begin); took > d+d/2 || took < d/2 {
				t.Errorf("took over after %v of %v", took, d)
			}
			dirty := 0
			for _, name := range q.names() {
				if l := q.lease(name); !l.Clean() {
					dirty++
				}
			}
			if dirty != 2 {
				t.Errorf("%d leases are not clean, want 2", dirty)
			}
			q.stop()
		})
	}
}

func TestReleaseIsTakenOverAtOnce(t *testing.T) {
	in(t, func(c *cluster) {
		p := c.start(Options{})
		p.compete("r", names(1))
		pass(time.Second)
		q := c.start(Options{})
		q.compete("r", names(1))
		pass(5 * time.Second)
		if len(q.names()) != 0 || len(p.names()) != 1 {
			t.Fatalf("%q and %q", p.names(), q.names())
		}
		p.stop()
		pass(time.Second)
		if l := q.lease("n00"); l == nil || !l.Clean() || l.Epoch() != 2 {
			t.Errorf("one second after the stop: %+v", l)
		}
		q.stop()
		rows := 0
		_ = c.model.Scan(c.t.Context(), space, kv.Prefix([]byte("s")), func(kv.Row) bool { rows++; return true })
		if rows != 0 {
			t.Errorf("%d sessions are left", rows)
		}
	})
}

func TestHoldThatFailsLeavesTheLeaseUnclean(t *testing.T) {
	in(t, func(c *cluster) {
		p := c.start(Options{})
		failed := errors.New("failed")
		ctx, cancel := context.WithCancel(c.t.Context())
		done := make(chan error)
		go func() {
			done <- p.m.Compete(ctx, "r", names(1), func(ctx context.Context, _ *Lease) error { <-ctx.Done(); return failed })
		}()
		pass(time.Second)
		cancel()
		if err := <-done; !errors.Is(err, failed) {
			t.Errorf("Compete: %v", err)
		}
		p.compete("r", names(1))
		pass(time.Second)
		if l := p.lease("n00"); l == nil || l.Clean() || l.Epoch() != 2 {
			t.Errorf("%+v", l)
		}
		p.stop()
	})
}

func TestHoldThatEndsByItselfRunsAgain(t *testing.T) {
	in(t, func(c *cluster) {
		p := c.start(Options{})
		runs := 0
		go p.m.Compete(c.t.Context(), "r", names(1), func(context.Context, *Lease) error { runs++; return errors.New("no") })
		pass(10 * time.Second)
		if runs < 5 || runs > 12 {
			t.Errorf("%d runs in 10s", runs)
		}
		p.stop()
	})
}

func TestPausedOwnerIsFencedAndKnowsItIsNotValid(t *testing.T) {
	in(t, func(c *cluster) {
		p := c.start(Options{})
		p.compete("r", names(1))
		pass(time.Second)
		old := p.lease("n00")
		q := c.start(Options{})
		q.compete("r", names(1))
		pass(20 * time.Second)
		if err := c.write(p.db, old); err != nil {
			t.Fatal(err)
		}
		p.freeze()
		for range 400 {
			pass(50 * time.Millisecond)
			if l := q.lease("n00"); l != nil && l.Valid() && old.Valid() {
				t.Fatal("two are valid at a time")
			}
		}
		next := q.lease("n00")
		if next == nil || next.Epoch() != old.Epoch()+1 || next.Clean() {
			t.Fatalf("after 20s of silence: %+v", next)
		}
		if err := c.write(kv.New(c.model, kvtest.ModelLimits), old); !errors.Is(err, ErrLost) {
			t.Errorf("write of the paused owner: %v", err)
		}
		if err := c.write(q.db, next); err != nil {
			t.Error(err)
		}
		p.thaw()
		pass(5 * time.Second)
		if old.Valid() || p.lease("n00") != nil || p.ended != 1 {
			t.Errorf("the paused owner goes on: valid %v, %d ended", old.Valid(), p.ended)
		}
		q.stop()
		pass(5 * time.Second)
		if l := p.lease("n00"); l == nil || l.Epoch() != 3 || !l.Clean() {
			t.Errorf("the paused process does not compete again: %+v", l)
		}
		p.stop()
	})
}

func TestSharesAreFairAndFollowTheProcesses(t *testing.T) {
	in(t, func(c *cluster) {
		counts := func(ps ...*process) []int {
			var n []int
			for _, p := range ps {
				n = append(n, len(p.names()))
			}
			slices.Sort(n)
			return n
		}
		expect := func(what string, want []int, ps ...*process) {
			t.Helper()
			if got := counts(ps...); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		var ps []*process
		var ends []func() error
		join := func() {
			p := c.start(Options{})
			ps, ends = append(ps, p), append(ends, p.compete("r", names(8)))
			pass(10 * time.Second)
		}
		join()
		expect("one", []int{8}, ps...)
		join()
		expect("two", []int{4, 4}, ps...)
		join()
		expect("three", []int{2, 3, 3}, ps...)
		join()
		join()
		expect("five", []int{1, 1, 2, 2, 2}, ps...)
		ended := 0
		for _, p := range ps {
			ended += p.ended
		}
		pass(10 * time.Minute)
		for _, p := range ps {
			ended -= p.ended
		}
		if ended != 0 {
			t.Errorf("%d leases changed hands for nothing", -ended)
		}
		for range 6 {
			join()
		}
		expect("eleven", []int{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, ps...)
		for i := range 9 {
			if err := ends[i](); err != nil { // it lives on, without the role
				t.Error(err)
			}
		}
		pass(10 * time.Second)
		expect("the last two", []int{4, 4}, ps[9:]...)
		for _, p := range ps {
			p.stop()
		}
	})
}

func TestRolesAreIndependent(t *testing.T) {
	in(t, func(c *cluster) {
		p, q := c.start(Options{}), c.start(Options{})
		p.compete("a", []string{"a1", "a2"})
		p.compete("b", []string{"b1"})
		q.compete("c", []string{"c1"})
		pass(5 * time.Second)
		if len(p.names()) != 3 || len(q.names()) != 1 {
			t.Errorf("%q and %q", p.names(), q.names())
		}
		if err := p.m.Compete(c.t.Context(), "a", names(1), p.hold); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("the same role twice: %v", err)
		}
		p.stop()
		if err := p.m.Compete(c.t.Context(), "a", names(1), p.hold); !errors.Is(err, ErrStopped) {
			t.Errorf("after the stop: %v", err)
		}
		q.stop()
	})
}

// Whatever commit of the start, of a renewal or of a release has an unknown outcome.
func TestUnknownOutcomesAreFoundOut(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := range 12 {
			in(t, func(c *cluster) {
				p := c.start(Options{})
				commits := 0
				fault := func(call kvtest.Call, err error) error {
					if call.Op == kvtest.OpCommit && err == nil {
						if commits++; commits == n+1 {
							return kv.ErrUnknownOutcome
						}
					}
					return err
				}
				if after {
					p.faults.After(func(_ context.Context, call kvtest.Call, err error) error { return fault(call, err) })
				} else {
					p.faults.Before(func(_ context.Context, call kvtest.Call) error { return fault(call, nil) })
				}
				end := p.compete("r", names(2))
				pass(20 * time.Second)
				first := p.names()
				if len(first) != 2 || p.ended != 0 || p.lease("n00").Epoch() != 1 {
					t.Errorf("commit %d, after %v: holds %q, %d ended", n, after, first, p.ended)
				}
				if err := end(); err != nil {
					t.Errorf("commit %d, after %v: %v", n, after, err)
				}
				p.faults.Reset()
				p.compete("r", names(2))
				pass(5 * time.Second)
				for _, name := range names(2) {
					if l := p.lease(name); l == nil || l.Epoch() != 2 || !l.Clean() || c.write(p.db, l) != nil {
						t.Errorf("commit %d, after %v: %+v", n, after, l)
					}
				}
				p.stop()
			})
		}
	}
}

// The others wait from when the store has the renewal, however late the process learns
// of it.
func TestValidityCountsFromBeforeTheRenewalWasSent(t *testing.T) {
	in(t, func(c *cluster) {
		p := c.start(Options{})
		p.compete("r", names(1))
		pass(time.Second)
		l := p.lease("n00")
		var stored time.Time
		p.faults.After(func(_ context.Context, call kvtest.Call, err error) error {
			if call.Op == kvtest.OpCommit {
				stored = time.Now()
				time.Sleep(3 * time.Second)
			}
			return err
		})
		for range 5 {
			pass(4 * time.Second)
		}
		p.faults.Before(func(_ context.Context, call kvtest.Call) error { return kvtest.ErrInjected })
		pass(3 * time.Second) // the answer to the last one
		pass(time.Until(stored.Add(9 * time.Second)))
		if l.Valid() {
			t.Error("valid 9s after the last renewal was stored")
		}
		p.faults.Reset()
		pass(time.Second)
		if !l.Valid() || p.lease("n00") != l {
			t.Error("not valid after a renewal, though nobody has taken the lease")
		}
		p.stop()
	})
}
