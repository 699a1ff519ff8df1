package queue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/kv"
)

// modelMessage is what the specification says about a message.
type modelMessage struct {
	key          string
	deliver, due time.Time
	lost         int
	token        string // of the living lease, "" if none
	end          time.Time
}

// modelToken is a token that was given out.
type modelToken struct {
	key, text string
	end       time.Time
	run       int
}

// model is the specification of a queue as a simple program.
type model struct {
	settings Settings
	messages map[string]*modelMessage
	dead     int
	tokens   []modelToken
	run      int
	opened   time.Time
	holdEnd  time.Time // zero: nothing is held
}

// settle lets leases end that end by now.
func (m *model) settle(now time.Time) {
	for _, msg := range m.messages {
		if msg.token != "" && !msg.end.After(now) {
			m.lose(msg, msg.end, msg.end, -1)
		}
	}
}

func (m *model) lose(msg *modelMessage, now, from time.Time, rest time.Duration) {
	msg.token = ""
	msg.lost++
	if msg.lost == m.settings.MaxAttempts {
		delete(m.messages, msg.key)
		m.dead++
		return
	}
	if rest < 0 {
		rest = min(m.settings.RetryFirst<<(msg.lost-1), m.settings.RetryMost)
		if now.Sub(msg.deliver) >= m.settings.RetryWindow {
			rest = m.settings.RetryLate
		}
	}
	msg.due = from.Add(rest)
}

func (m *model) held(msg *modelMessage, now time.Time) bool {
	return now.Before(m.holdEnd) && !msg.due.After(m.opened)
}

// deliverable lists the keys that a receiver may get, in order.
func (m *model) deliverable(now time.Time) []string {
	var list []*modelMessage
	for _, msg := range m.messages {
		if msg.token == "" && !msg.due.After(now) && !m.held(msg, now) {
			list = append(list, msg)
		}
	}
	slices.SortFunc(list, func(a, b *modelMessage) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.key, b.key))
	})
	var keys []string
	for _, msg := range list {
		keys = append(keys, msg.key)
	}
	return keys
}

// renewable reports whether a token that has not expired can be renewed.
func (m *model) renewable(t modelToken, now time.Time) bool {
	msg := m.messages[t.key]
	switch {
	case msg == nil:
		return false
	case msg.token != "":
		return msg.token == t.text
	case t.run == m.run || m.settings.LocalReceivers:
		return false
	}
	return msg.due.Equal(t.end) || m.held(msg, now)
}

// machine runs the model beside the real thing.
type machine struct {
	*world
	q *Queue
	m *model
}

func (x *machine) key(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "key")
}

func (x *machine) token(t *rapid.T) modelToken {
	if len(x.m.tokens) == 0 {
		t.Skip("no token yet")
	}
	recent := x.m.tokens[max(0, len(x.m.tokens)-8):]
	return rapid.SampledFrom(recent).Draw(t, "token")
}

func (x *machine) outgoing(t *rapid.T, k string) Outgoing {
	delay := rapid.SampledFrom([]time.Duration{-time.Hour, 0, 0, 1500 * time.Millisecond, time.Minute}).Draw(t, "delay")
	return at(k, x.clock.Now().Add(delay))
}

func (x *machine) modelSend(o Outgoing) {
	deliver := o.DeliverTime
	if now := x.clock.Now(); deliver.Before(now) {
		deliver = now
	}
	x.m.messages[string(o.Key)] = &modelMessage{key: string(o.Key), deliver: deliver, due: deliver}
}

func (x *machine) Send(t *rapid.T) {
	k := x.key(t)
	o := x.outgoing(t, k)
	err := x.update(func(tx *kv.Tx) error { return x.q.Send(tx, o) })
	if exists := x.m.messages[k] != nil; exists != errors.Is(err, ErrExists) || !exists && err != nil {
		t.Fatalf("Send %q: %v, exists %v", k, err, exists)
	} else if !exists {
		x.modelSend(o)
	}
}

func (x *machine) Ack(t *rapid.T) {
	k := x.key(t)
	err := x.ack(x.q, k)
	if exists := x.m.messages[k] != nil; exists == errors.Is(err, ErrNotFound) || exists && err != nil {
		t.Fatalf("Ack %q: %v, exists %v", k, err, exists)
	}
	delete(x.m.messages, k)
}

func (x *machine) AckAndSend(t *rapid.T) {
	k := x.key(t)
	o := x.outgoing(t, k)
	err := x.update(func(tx *kv.Tx) error {
		_, err := x.q.AckExisting(tx, o.Key)
		return errors.Join(err, x.q.Send(tx, o))
	})
	if err != nil {
		t.Fatalf("Ack and Send %q: %v", k, err)
	}
	x.modelSend(o)
}

func (x *machine) Receive(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "max")
	batch := x.receive(x.q, n)
	now := x.clock.Now()
	want := x.m.deliverable(now)
	want = want[:min(n, len(want))]
	if got := keysOf(batch); !slices.Equal(got, want) {
		t.Fatalf("received %q, want %q", got, want)
	}
	for _, got := range batch {
		msg := x.m.messages[string(got.Key)]
		if got.Attempts != msg.lost || !got.DeliverTime.Equal(msg.deliver) || !got.Due.Equal(msg.due) {
			t.Fatalf("received %+v, want %+v", got, msg)
		}
		msg.token, msg.end = got.Token(), got.LeaseEnd
		x.m.tokens = append(x.m.tokens, modelToken{msg.key, msg.token, msg.end, x.m.run})
	}
}

func (x *machine) Release(t *rapid.T) {
	batch := x.receive(x.q, 3)
	x.q.Release(batch...)
}

func (x *machine) Renew(t *rapid.T) {
	tok := x.token(t)
	now := x.clock.Now()
	rows := x.renew(x.q, tok.text)
	if expired := !tok.end.After(now); expired || len(rows) == 0 {
		if !expired || len(rows) != 0 {
			t.Fatalf("renewal of %+v at %v: %+v", tok, now, rows)
		}
		return
	}
	renewed := rows[0].NewToken != ""
	if want := x.m.renewable(tok, now); renewed != want {
		t.Fatalf("renewal of %+v at %v: %+v, want it to succeed: %v", tok, now, rows, want)
	}
	if !renewed {
		return
	}
	msg := x.m.messages[tok.key]
	msg.token, msg.end = rows[0].NewToken, rows[0].LeaseEnd
	x.m.tokens = append(x.m.tokens, modelToken{msg.key, msg.token, msg.end, x.m.run})
}

func (x *machine) Retry(t *rapid.T) {
	tok := x.token(t)
	rest := rapid.SampledFrom([]time.Duration{-1, 0, 3 * time.Second}).Draw(t, "rest")
	err := x.q.Retry(x.t.Context(), tok.text, rest, "")
	msg := x.m.messages[tok.key]
	if alive := msg != nil && msg.token == tok.text; !alive {
		if !errors.Is(err, ErrLeaseLost) {
			t.Fatalf("Retry without a lease: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatalf("Retry: %v", err)
	}
	now := x.clock.Now()
	x.m.lose(msg, now, now, rest)
}

func (x *machine) Pass(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Millisecond, time.Second, 4 * time.Second, 10 * time.Second, 11 * time.Second, 5 * time.Minute,
	}).Draw(t, "time")
	pass(d)
}

func (x *machine) Redrive(t *rapid.T) {
	letters := x.deadLetters(x.q)
	n, err := x.q.RedriveAll(x.t.Context())
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, l := range letters {
		if x.m.messages[string(l.Message.Key)] == nil {
			x.modelSend(Outgoing{Key: l.Message.Key})
			moved++
		}
	}
	if n != moved {
		t.Fatalf("%d redriven, want %d", n, moved)
	}
	x.m.dead -= moved
}

func (x *machine) Restart(t *rapid.T) {
	clean := rapid.Bool().Draw(t, "clean")
	if clean {
		x.stop()
	} else {
		x.crash()
	}
	x.m.run++
	if clean {
		x.m.holdEnd = time.Time{}
	}
	for _, msg := range x.m.messages {
		if clean && msg.token != "" && !x.m.settings.LocalReceivers {
			msg.due = msg.end
		}
		msg.token = ""
	}
	pass(rapid.SampledFrom([]time.Duration{0, time.Second, 7 * time.Second}).Draw(t, "down"))
	x.m.opened = x.clock.Now()
	if !clean && !x.m.settings.LocalReceivers {
		x.m.holdEnd = x.m.opened.Add(x.m.settings.Lease)
	} else {
		x.m.holdEnd = time.Time{}
	}
	x.restart()
	x.q = x.queue("q")
	pass(time.Millisecond) // so that what is sent now differs from what was sent before
}

// Check compares what is stored with the model.
func (x *machine) Check(t *rapid.T) {
	synctest.Wait()
	x.m.settle(x.clock.Now())
	stored := x.stored(x.q)
	if len(stored) != len(x.m.messages) {
		t.Fatalf("stored %v, want %v", stored, x.m.messages)
	}
	for k, msg := range x.m.messages {
		if r, ok := stored[k]; !ok || !r.due.Equal(msg.due) || !r.deliver.Equal(msg.deliver) || r.lost != msg.lost {
			t.Fatalf("stored %q: %+v, want %+v", k, r, msg)
		}
	}
	if n := len(x.deadLetters(x.q)); n != x.m.dead {
		t.Fatalf("%d dead letters, want %d", n, x.m.dead)
	}
}

func TestInvariant4_RandomHistoriesAgreeWithTheModel(t *testing.T) {
	for i, local := range []bool{false, true, false} {
		shards := 1 + 6*(i/2)
		t.Run(fmt.Sprintf("local=%v,shards=%d", local, shards), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				// A failure is a panic that rapid must see on its own goroutine.
				var failure any
				synctest.Test(t, func(t *testing.T) {
					defer func() { failure = recover() }()
					history(newWorld(t), rt, Settings{MaxAttempts: 4, LocalReceivers: local, Shards: shards})
				})
				if failure != nil {
					panic(failure)
				}
			})
		})
	}
}

func history(w *world, rt *rapid.T, settings Settings) {
	defer func() { w.stop() }()
	q := w.create("q", settings)
	x := &machine{world: w, q: q, m: &model{
		settings: q.Settings(), messages: map[string]*modelMessage{}, opened: w.clock.Now(),
	}}
	rt.Repeat(map[string]func(*rapid.T){
		"": x.Check, "send": x.Send, "ack": x.Ack, "ack+send": x.AckAndSend, "receive": x.Receive,
		"receive2": x.Receive, "release": x.Release, "renew": x.Renew, "retry": x.Retry, "pass": x.Pass,
		"redrive": x.Redrive, "restart": x.Restart,
	})
}
