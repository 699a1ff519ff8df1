package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/lease"
	"github.com/holdfast-dev/holdfast/metrics"
)

// shared is an engine that several processes have open.
type shared struct {
	t     *testing.T
	model *kvtest.Model
	bus   *bus // nil: no signals
}

// bus carries signals between processes.
type bus struct {
	mu        sync.Mutex
	listeners map[int]func(string)
	next      int
}

func (b *bus) Signal(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fn := range b.listeners {
		go fn(name)
	}
}

func (b *bus) Listen(ctx context.Context, fn func(string)) error {
	b.mu.Lock()
	id := b.next
	b.next++
	b.listeners[id] = fn
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.listeners, id)
	return nil
}

// signaling is an engine with signals.
type signaling struct {
	kv.Engine
	*bus
}

func inShared(t *testing.T, signals bool, f func(sh *shared)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if time.Now().Year() < 2026 {
			time.Sleep(26 * 365 * 24 * time.Hour)
		}
		s := &shared{t: t, model: kvtest.NewModel(&bubbleClock{})}
		if signals {
			s.bus = &bus{listeners: map[int]func(string){}}
		}
		db := kv.New(s.model, kvtest.ModelLimits)
		if err := db.CreateSpace(t.Context(), effectSpace, kv.SpaceOptions{}); err != nil {
			t.Fatal(err)
		}
		f(s)
	})
}

// start is a process with a clock that is ahead by skew.
func (s *shared) start(skew time.Duration) *process {
	s.t.Helper()
	w := &world{t: s.t, clock: &bubbleClock{jump: skew}, metrics: metrics.New(), model: s.model}
	w.faults = kvtest.NewFaults(s.model)
	var engine kv.Engine = w.faults
	if s.bus != nil {
		engine = signaling{w.faults, s.bus}
	}
	w.db = kv.New(engine, kvtest.ModelLimits)
	leases, err := lease.Open(s.t.Context(), w.db, lease.Options{Rand: rand.Reader, Clock: w.clock, Metrics: w.metrics})
	if err != nil {
		s.t.Fatal(err)
	}
	w.s, err = Open(s.t.Context(), w.db, Options{
		TokenKey: []byte("0123456789abcdef"), Rand: rand.Reader, Clock: w.clock, Database: "db", Metrics: w.metrics, Leases: leases, Shards: 8,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{world: w, endLeases: cancel, leasesEnded: make(chan error, 1)}
	go func() { p.leasesEnded <- leases.Run(ctx) }()
	w.run()
	return p
}

// process is one of several.
type process struct {
	*world
	endLeases   func()
	leasesEnded chan error
	frozen      chan struct{}
	endDemand   func()
}

func (p *process) stop() {
	p.t.Helper()
	p.world.stop()
	p.endLeases()
	if err := <-p.leasesEnded; err != nil {
		p.t.Errorf("leases: %v", err)
	}
}

// kill ends the process: nothing more reaches the store, and nobody waits for it.
func (p *process) kill() {
	p.faults.Crash()
	p.cancel()
	p.endLeases()
	<-p.ran
	<-p.leasesEnded
}

// freeze stops all calls of the engine.
func (p *process) freeze() {
	frozen := make(chan struct{})
	p.frozen = frozen
	p.faults.Before(func(context.Context, kvtest.Call) error { <-frozen; return nil })
}

func (p *process) thaw() {
	if p.endDemand != nil {
		p.endDemand()
	}
	close(p.frozen)
	p.faults.Before(nil)
}

// owned returns how many shards the process delivers.
func (q *Queue) ownedCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.owned
}

// receiveAll receives until ctx ends, and acknowledges with an effect.
func (p *process) receiveAll(ctx context.Context, q *Queue, got func(Message)) {
	for {
		batch, err := q.Receive(ctx, 3)
		if err != nil {
			return
		}
		for _, m := range batch {
			got(m)
		}
	}
}

// tally counts deliveries.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (y *tally) note(m Message) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.counts == nil {
		y.counts = map[string]int{}
	}
	y.counts[string(m.Key)]++
}

func (y *tally) total() (keys, deliveries int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, n := range y.counts {
		deliveries += n
	}
	return len(y.counts), deliveries
}

func TestShardsFollowReceivers(t *testing.T) {
	inShared(t, false, func(s *shared) {
		a, b := s.start(0), s.start(0)
		qa := a.create("q", Settings{})
		pass(catalogEvery)
		qb := b.queue("q")
		if qa.Settings().Shards != 8 || qa.ownedCount()+qb.ownedCount() != 0 {
			t.Fatalf("before anybody receives: %+v, owned %d and %d", qa.Settings(), qa.ownedCount(), qb.ownedCount())
		}
		both, stopBoth := context.WithCancel(s.t.Context())
		onlyB, stopB := context.WithCancel(s.t.Context())
		go a.receiveAll(both, qa, func(m Message) {})
		pass(time.Second)
		if qa.ownedCount() != 8 {
			t.Errorf("the only receiver's process owns %d", qa.ownedCount())
		}
		go b.receiveAll(onlyB, qb, func(m Message) {})
		pass(10 * time.Second)
		if qa.ownedCount() != 4 || qb.ownedCount() != 4 {
			t.Errorf("two receivers' processes own %d and %d", qa.ownedCount(), qb.ownedCount())
		}
		stopB()
		pass(2*idleTime + 5*time.Second)
		if qa.ownedCount() != 8 || qb.ownedCount() != 0 {
			t.Errorf("after one has gone: %d and %d", qa.ownedCount(), qb.ownedCount())
		}
		stopBoth()
		pass(2*idleTime + time.Second)
		if qa.ownedCount() != 0 {
			t.Errorf("without receivers: %d", qa.ownedCount())
		}
		begin := time.Now()
		a.send(qb, out("x")...)
		if m, err := qb.Receive(s.t.Context(), 1); err != nil || string(m[0].Key) != "x" || time.Since(begin) > time.Second {
			t.Errorf("a receiver that comes back: %v, %v after %v", m, err, time.Since(begin))
		}
		a.stop()
		b.stop()
	})
}

func TestMessageOfAnotherProcessComesSoonWhateverTheClocksSay(t *testing.T) {
	for _, skew := range []time.Duration{0, 5 * time.Second, -5 * time.Second} {
		for signals, bound := range map[bool]time.Duration{false: tick + 100*time.Millisecond, true: 100 * time.Millisecond} {
			t.Run(fmt.Sprintf("skew=%v,signals=%v", skew, signals), func(t *testing.T) {
				inShared(t, signals, func(s *shared) {
					owner, sender := s.start(0), s.start(skew)
					q := owner.create("q", Settings{})
					pass(catalogEvery)
					other := sender.queue("q")
					go q.Receive(s.t.Context(), 1)
					pass(5 * time.Second)
					sender.send(other, out("first")...)
					pass(5 * time.Second)
					sender.mustAck(other, "first")
					for i := range 30 {
						k := number(i)
						sender.send(other, out(k)...)
						ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
						m, err := q.Receive(ctx, 1)
						cancel()
						if err != nil || string(m[0].Key) != k {
							t.Fatalf("%v, %v", m, err)
						}
						owner.mustAck(q, k)
						if took := owner.clock.Now().Add(skew).Sub(m[0].DeliverTime); took > bound {
							t.Errorf("delivered after %v", took)
						}
						pass(350 * time.Millisecond)
					}
					owner.stop()
					sender.stop()
				})
			})
		}
	}
}

// A message that is scheduled for a time in the near future does not come with those
// that are due at once by a clock that is ahead.
func TestScheduledMessageOfAnotherProcessIsNotEarly(t *testing.T) {
	inShared(t, false, func(s *shared) {
		owner, sender := s.start(0), s.start(0)
		q := owner.create("q", Settings{})
		pass(catalogEvery)
		other := sender.queue("q")
		begin := owner.clock.Now()
		sender.send(other, at("late", begin.Add(8*time.Second)), at("later", begin.Add(14*time.Second)))
		for _, want := range []time.Duration{8 * time.Second, 14 * time.Second} {
			m, err := q.Receive(s.t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if at := owner.clock.Now().Sub(begin); at < want || at > want+tick {
				t.Errorf("%q after %v", m[0].Key, at)
			}
		}
		owner.stop()
		sender.stop()
	})
}

func TestInvariant4_KilledProcessLosesNothing(t *testing.T) {
	inShared(t, false, func(s *shared) {
		ps := []*process{s.start(0), s.start(3 * time.Second), s.start(-3 * time.Second)}
		ps[0].create("q", Settings{Lease: 10 * time.Second})
		pass(catalogEvery)
		var got tally
		ctx, cancel := context.WithCancel(s.t.Context())
		for i, p := range ps {
			q := p.queue("q")
			go p.receiveAll(ctx, q, func(m Message) {
				got.note(m)
				if i != 1 { // the one to be killed does not finish
					p.mustAck(q, string(m.Key))
				}
			})
		}
		pass(10 * time.Second)
		for i := range 300 {
			p := ps[i%3]
			p.send(p.queue("q"), out(number(i))...)
			pass(10 * time.Millisecond)
		}
		if n := ps[1].queue("q").ownedCount(); n < 2 {
			t.Errorf("the process owns %d shards", n)
		}
		killed := time.Now()
		ps[1].kill()
		for {
			keys := len(ps[0].stored(ps[0].queue("q")))
			if keys == 0 {
				break
			}
			if time.Since(killed) > time.Minute {
				t.Fatalf("%d messages are left after a minute", keys)
			}
			pass(time.Second)
		}
		cancel()
		if keys, _ := got.total(); keys != 300 {
			t.Errorf("%d of 300 messages delivered", keys)
		}
		ps[0].stop()
		ps[2].stop()
	})
}

// The leases of a process that gives its shards back are stored: nobody gets its
// messages, it can renew them and give them back, and no attempt is counted.
func TestStoppedProcessStoresItsLeases(t *testing.T) {
	for _, local := range []bool{false, true} {
		inShared(t, false, func(s *shared) {
			a, b := s.start(0), s.start(0)
			qa := a.create("q", Settings{LocalReceivers: local, MaxAttempts: 2})
			pass(catalogEvery)
			qb := b.queue("q")
			a.send(qa, out("acked", "renewed", "retried", "lost")...)
			byKey := map[string]Message{}
			for len(byKey) < 4 {
				batch, err := qa.Receive(s.t.Context(), 4)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range batch {
					byKey[string(m.Key)] = m
				}
			}
			a.mustAck(qa, "acked")
			tok := func(k string) string { m := byKey[k]; return m.Token() }
			text := map[string]string{"renewed": tok("renewed"), "retried": tok("retried"), "lost": tok("lost")}
			for range 2 { // keep them until nobody receives any more
				pass(8 * time.Second)
				for k := range text {
					r := a.renew(qa, text[k])
					if len(r) != 1 || r[0].NewToken == "" {
						t.Fatalf("local %v: renewal of %q: %+v", local, k, r)
					}
					text[k] = r[0].NewToken
				}
			}
			if n := qa.ownedCount(); n != 0 {
				t.Fatalf("owns %d shards", n)
			}
			go b.receiveAll(s.t.Context(), qb, func(m Message) { t.Errorf("%q delivered elsewhere", m.Key) })
			pass(2 * time.Second)
			if qb.ownedCount() != 8 {
				t.Fatalf("the other owns %d shards", qb.ownedCount())
			}
			for range 3 {
				pass(6 * time.Second)
				for k := range text {
					r := a.renew(qa, text[k])
					if len(r) != 1 || r[0].NewToken == "" {
						t.Fatalf("renewal of the stored lease of %q: %+v", k, r)
					}
					if again := a.renew(qa, text[k]); len(again) != 1 || again[0].NewToken != "" {
						t.Errorf("the old token is good: %+v", again)
					}
					text[k] = r[0].NewToken
				}
			}
			a.mustAck(qa, "renewed", "lost")
			if err := qa.Retry(s.t.Context(), text["retried"], time.Hour, "no"); err != nil {
				t.Error(err)
			}
			if r := a.stored(qa)["retried"]; r.lost != 1 || r.reason != "no" || len(a.stored(qa)) != 1 {
				t.Errorf("stored %+v", a.stored(qa))
			}
			if err := qa.Retry(s.t.Context(), text["retried"], 0, ""); !errors.Is(err, ErrLeaseLost) {
				t.Errorf("Retry twice: %v", err)
			}
			a.stop()
			b.stop()
		})
	}
}

// pausedOwner runs f when b has taken the shards of a over, which is still frozen and
// had message "m" handed out.
func pausedOwner(t *testing.T, settings Settings, f func(a, b *process, qa, qb *Queue, m Message)) {
	inShared(t, false, func(s *shared) {
		a, b := s.start(0), s.start(0)
		qa := a.create("q", settings)
		pass(catalogEvery)
		qb := b.queue("q")
		go qa.Receive(s.t.Context(), 1)
		pass(time.Second)
		a.send(qa, out("warm")...)
		pass(time.Second)
		a.mustAck(qa, "warm")
		a.send(qa, out("m")...)
		m := a.expect(qa, 1, "m")[0]
		a.freeze()
		ctx, cancel := context.WithCancel(s.t.Context())
		demand, endDemand := context.WithCancel(s.t.Context())
		a.endDemand = endDemand
		go qa.Receive(demand, 1)
		go qb.Receive(ctx, 1)
		for qb.ownedCount() < len(qb.shards) {
			pass(100 * time.Millisecond)
		}
		cancel()
		f(a, b, qa, qb, m)
	})
}

func TestPausedOwnerCountsNoAttemptAndBuriesNothing(t *testing.T) {
	for _, local := range []bool{false, true} {
		pausedOwner(t, Settings{Lease: 20 * time.Second, MaxAttempts: 2, LocalReceivers: local}, func(a, b *process, qa, qb *Queue, m Message) {
			// Its receivers may be at work, so the message is held back for a lease.
			again, took := b.wait(qb)
			if took < 19*time.Second || took > 22*time.Second || again.Attempts != 0 {
				t.Errorf("local %v: delivered again after %v: %+v", local, took, again)
			}
			pass(10 * time.Second) // the lease of the paused owner has ended long ago
			a.thaw()
			pass(5 * time.Second)
			if r := b.stored(qb)["m"]; r.lost != 0 {
				t.Errorf("local %v: the paused owner has counted an attempt: %+v", local, r)
			}
			if err := qa.Retry(a.t.Context(), m.Token(), 0, ""); err == nil {
				t.Error("the paused owner's lease can be given back")
			}
			if r := b.renew(qb, again.Token()); len(r) != 1 || r[0].NewToken == "" {
				t.Errorf("renewal by the new owner: %+v", r)
			}
			a.mustAck(qa, "m") // whoever holds the lease
			if len(b.stored(qb)) != 0 {
				t.Error("not acknowledged")
			}
			pass(time.Minute)
			b.expect(qb, 1)
			a.stop()
			b.stop()
		})
	}
}

func TestPausedOwnerHandsNothingOut(t *testing.T) {
	pausedOwner(t, Settings{Lease: 30 * time.Second}, func(a, b *process, qa, qb *Queue, m Message) {
		tok, _ := qa.s.tokens.decode(m.Token())
		row, err := a.model.Get(a.t.Context(), qa.refs([][]byte{m.Key}))
		renewals := []Renewal{{}}
		if err == nil {
			_, err = qa.renew([]token{tok}, row, renewals, a.clock.Now())
		}
		if err != nil || renewals[0].NewToken != "" {
			t.Errorf("renewal by the paused owner: %+v, %v", renewals, err)
		}
		// Ready in the memory of the paused owner.
		qa.mu.Lock()
		sh := qa.shardOf("m")
		e := sh.leases[0]
		sh.leases = nil
		sh.makeReady(e)
		valid := sh.lease.Valid()
		batch := qa.take(9)
		qa.mu.Unlock()
		if valid || len(batch) != 0 {
			t.Errorf("valid %v, handed out %q", valid, keysOf(batch))
		}
		a.thaw()
		pass(5 * time.Second)
		if !strings.Contains(a.scrape(), "lost_sessions_total 1") {
			t.Error("the lost session is not counted")
		}
		b.wait(qb)
		b.mustAck(qb, "m")
		a.stop()
		b.stop()
	})
}

func TestCatalogIsFollowed(t *testing.T) {
	for _, signals := range []bool{false, true} {
		inShared(t, signals, func(s *shared) {
			a, b := s.start(0), s.start(0)
			qa := a.create("q", Settings{})
			qb := b.queue("q")
			wait := catalogEvery
			if signals {
				wait = 10 * time.Millisecond
			}
			if err := a.s.Configure(s.t.Context(), "q", func(s *Settings) { s.DisableSend = true }); err != nil {
				t.Fatal(err)
			}
			pass(wait)
			if err := b.update(func(tx *kv.Tx) error { return qb.Send(tx, out("x")...) }); !errors.Is(err, ErrSendDisabled) {
				t.Errorf("Send after it was disabled elsewhere: %v", err)
			}
			if err := a.s.Configure(s.t.Context(), "q", func(s *Settings) { s.Shards = 3 }); !errors.Is(err, kv.ErrInvalid) {
				t.Errorf("change of shards: %v", err)
			}
			if err := a.s.Configure(s.t.Context(), "q", func(s *Settings) { s.DisableSend = false }); err != nil {
				t.Fatal(err)
			}
			pass(wait)
			ended := make(chan error, 1)
			go func() { _, err := qb.Receive(s.t.Context(), 1); ended <- err }()
			pass(time.Second)
			if err := a.s.Drop(s.t.Context(), "q"); err != nil {
				t.Fatal(err)
			}
			early := s.start(0) // cleans up too early
			early.stop()
			// What b sends before it learns of it goes with the queue.
			if err := b.update(func(tx *kv.Tx) error { return qb.Send(tx, at("y", b.clock.Now().Add(time.Hour))) }); err != nil && !errors.Is(err, ErrQueueNotFound) {
				t.Errorf("Send to a queue that was just dropped elsewhere: %v", err)
			}
			next := a.create("q", Settings{})
			pass(wait)
			if err := <-ended; !errors.Is(err, ErrQueueNotFound) {
				t.Errorf("Receive from a dropped queue: %v", err)
			}
			if err := b.update(func(tx *kv.Tx) error { return qb.Send(tx, out("z")...) }); !errors.Is(err, ErrQueueNotFound) {
				t.Errorf("Send to a queue dropped elsewhere: %v", err)
			}
			again := b.queue("q")
			if again.number != next.number || again.number == qa.number {
				t.Errorf("numbers %d, %d, %d", qa.number, next.number, again.number)
			}
			a.send(next, out("new")...)
			if m, err := again.Receive(s.t.Context(), 1); err != nil || string(m[0].Key) != "new" {
				t.Errorf("%v, %v", m, err)
			}
			a.stop()
			b.stop()
			// Much later, a start removes what is left of the first.
			pass(2 * droppedKeep)
			c := s.start(0)
			_ = s.model.Scan(s.t.Context(), messageSpace, kv.Prefix(qa.prefix), func(r kv.Row) bool {
				t.Errorf("left: %q", r.Key)
				return true
			})
			_ = s.model.Scan(s.t.Context(), catalogSpace, kv.Prefix([]byte("d")), func(r kv.Row) bool {
				t.Errorf("left: %q", r.Key)
				return true
			})
			c.stop()
		})
	}
}

func TestReadyMessageThatAnotherProcessReplacesIsTheNewOne(t *testing.T) {
	inShared(t, false, func(s *shared) {
		owner, other := s.start(0), s.start(0)
		q := owner.create("q", Settings{})
		pass(catalogEvery)
		elsewhere := other.queue("q")
		ctx, cancel := context.WithCancel(s.t.Context())
		go q.Receive(ctx, 1)
		pass(time.Second)
		cancel()
		owner.send(q, out("a")...)
		pass(time.Second)
		if err := other.replace(elsewhere, Outgoing{Key: []byte("a"), Payload: []byte("new")}); err != nil {
			t.Fatal(err)
		}
		pass(2 * tick)
		if m := owner.expect(q, 9, "a")[0]; string(m.Payload) != "new" {
			t.Errorf("payload %q", m.Payload)
		}
		owner.mustAck(q, "a")
		owner.stop()
		other.stop()
	})
}
