package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/metrics"
)

// world is a service in a synctest bubble, over a store that outlives it. Time
// passes only when everybody waits.
type world struct {
	t       testing.TB
	clock   *bubbleClock
	model   *kvtest.Model
	faults  *kvtest.Faults
	db      *kv.DB
	s       *Service
	metrics *metrics.Registry
	cancel  context.CancelFunc
	ran     chan error
}

// bubbleClock is the bubble's time and a jump.
type bubbleClock struct {
	mu   sync.Mutex
	jump time.Duration
}

func (c *bubbleClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().UTC().Round(0).Add(c.jump)
}

func (c *bubbleClock) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jump += d
}

// effectSpace holds what the tests' transactions do beside the queue.
const effectSpace = "effects"

// inWorld runs f with a running service, and ends it in order.
func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() { w.stop() }()
		f(w)
	})
}

func newWorld(t testing.TB) *world {
	if time.Now().Year() < 2026 {
		time.Sleep(26 * 365 * 24 * time.Hour) // versions begin in 2024, bubbles in 2000
	}
	w := &world{t: t, clock: &bubbleClock{}, metrics: metrics.New()}
	w.model = kvtest.NewModel(w.clock)
	w.faults = kvtest.NewFaults(w.model)
	w.db = kv.New(w.faults, kvtest.ModelLimits)
	if err := w.db.CreateSpace(t.Context(), effectSpace, kv.SpaceOptions{}); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.run()
	return w
}

func (w *world) open() {
	w.t.Helper()
	s, err := Open(w.t.Context(), w.db, Options{
		TokenKey: []byte("0123456789abcdef"), Rand: rand.Reader, Clock: w.clock, Database: "db", Metrics: w.metrics,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.s = s
}

func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ran = cancel, make(chan error, 1)
	s, ran := w.s, w.ran
	go func() { ran <- s.Run(ctx) }()
	synctest.Wait()
}

// stop ends the service in order.
func (w *world) stop() {
	w.t.Helper()
	w.cancel()
	if err := <-w.ran; err != nil {
		w.t.Errorf("Run: %v", err)
	}
}

// crash ends the service at once: nothing more reaches the store.
func (w *world) crash() {
	w.t.Helper()
	w.faults.Crash()
	w.cancel()
	<-w.ran
	w.faults.Reset()
}

// restart begins a new process after stop or crash.
func (w *world) restart() {
	w.t.Helper()
	w.metrics = metrics.New()
	w.open()
	w.run()
}

func (w *world) create(name string, settings Settings) *Queue {
	w.t.Helper()
	q, err := w.s.Create(w.t.Context(), name, settings)
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	return q
}

func (w *world) queue(name string) *Queue {
	w.t.Helper()
	q, err := w.s.Queue(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return q
}

func (w *world) update(f func(tx *kv.Tx) error) error {
	_, err := w.db.Update(w.t.Context(), f)
	return err
}

func (w *world) send(q *Queue, messages ...Outgoing) {
	w.t.Helper()
	if err := w.update(func(tx *kv.Tx) error { return q.Send(tx, messages...) }); err != nil {
		w.t.Fatal(err)
	}
}

// out makes immediate messages whose payload is the key.
func out(keys ...string) []Outgoing {
	var messages []Outgoing
	for _, k := range keys {
		messages = append(messages, Outgoing{Key: []byte(k), Payload: []byte(k)})
	}
	return messages
}

func at(k string, t time.Time) Outgoing {
	return Outgoing{Key: []byte(k), Payload: []byte(k), DeliverTime: t}
}

func (w *world) ack(q *Queue, keys ...string) error {
	return w.update(func(tx *kv.Tx) error { return q.Ack(tx, bytesOf(keys)...) })
}

func (w *world) mustAck(q *Queue, keys ...string) {
	w.t.Helper()
	if err := w.ack(q, keys...); err != nil {
		w.t.Fatal(err)
	}
}

func bytesOf(keys []string) [][]byte {
	var list [][]byte
	for _, k := range keys {
		list = append(list, []byte(k))
	}
	return list
}

// receive returns what is ready now, without waiting.
func (w *world) receive(q *Queue, max int) []Message {
	w.t.Helper()
	synctest.Wait()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	result := make(chan []Message, 1)
	go func() {
		batch, err := q.Receive(ctx, max)
		if err != nil && !errors.Is(err, context.Canceled) {
			w.t.Errorf("Receive: %v", err)
		}
		result <- batch
	}()
	synctest.Wait()
	cancel()
	return <-result
}

// wait receives one message and reports how long that took.
func (w *world) wait(q *Queue) (Message, time.Duration) {
	w.t.Helper()
	begin := time.Now()
	batch, err := q.Receive(w.t.Context(), 1)
	if err != nil {
		w.t.Fatal(err)
	}
	return batch[0], time.Since(begin)
}

func (w *world) expect(q *Queue, max int, want ...string) []Message {
	w.t.Helper()
	batch := w.receive(q, max)
	if got := keysOf(batch); !slices.Equal(got, want) {
		w.t.Fatalf("received %q, want %q", got, want)
	}
	return batch
}

func keysOf(batch []Message) []string {
	var keys []string
	for _, m := range batch {
		keys = append(keys, string(m.Key))
	}
	return keys
}

// pass lets time pass and everybody react.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// stored lists what the three spaces of messages hold of a queue, and fails if
// they disagree.
func (w *world) stored(q *Queue) map[string]record {
	w.t.Helper()
	records := map[string]record{}
	ready, moved := map[string]bool{}, map[string]bool{}
	scan := func(space string, row func(kv.Row)) {
		if err := w.model.Scan(w.t.Context(), space, kv.Prefix(q.prefix), func(r kv.Row) bool { row(r); return true }); err != nil {
			w.t.Fatal(err)
		}
	}
	scan(messageSpace, func(r kv.Row) {
		rec, err := decodeRecord(slices.Clone(r.Value))
		if err != nil {
			w.t.Fatal(err)
		}
		records[string(r.Key[len(q.prefix):])] = rec
	})
	scan(readySpace, func(r kv.Row) { ready[string(r.Key)] = true })
	scan(movedSpace, func(r kv.Row) { moved[string(r.Key)] = true })
	for k, rec := range records {
		if !ready[string(q.timeKey(rec.due, []byte(k)))] {
			w.t.Errorf("message %q is not in the ready index", k)
		}
		if at := string(q.timeKey(rec.deliver, []byte(k))); moved[at] != rec.moved() {
			w.t.Errorf("message %q, moved %v, is wrong in the index of moved ones", k, rec.moved())
		} else {
			delete(moved, at)
		}
	}
	if len(ready) != len(records) || len(moved) != 0 {
		w.t.Errorf("%d messages, but %d rows in the ready index and %d too many in that of moved ones", len(records), len(ready), len(moved))
	}
	return records
}

func number(i int) string { return fmt.Sprintf("k%04d", i) }

func (w *world) scrape() string {
	rec := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	return rec.Body.String()
}
