package queue_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/pebble"
	"github.com/holdfast-dev/holdfast/queue"
)

// The benchmarks run on the embedded engine with every commit synced:
//
//	go test -run - -bench . -benchtime 3s ./queue
//
// Machines differ most in how fast they sync. So OneByOne measures the engine's
// bare commits too and reports messages as a share of these; 0.5 is the limit,
// because a message is two commits. Messages at 0.4 of the commits that
// BenchmarkCommit of kv/pebble measures are wanted.

// workers is how many goroutines send, receive and acknowledge.
const workers = 64

var payload = make([]byte, 200)

type bench struct {
	db   *kv.DB
	s    *queue.Service
	stop func()
}

func openBench(b *testing.B, dir string) *bench {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	engine, err := pebble.Open(ctx, dir, pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	db := kv.New(engine, pebble.Limits())
	s, err := queue.Open(ctx, db, queue.Options{TokenKey: make([]byte, 32), Rand: rand.Reader})
	if err != nil {
		b.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			b.Error(err)
		}
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(stop)
	return &bench{db, s, stop}
}

func (h *bench) create(b *testing.B) *queue.Queue {
	b.Helper()
	q, err := h.s.Create(context.Background(), "q", queue.Settings{Lease: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	return q
}

func (h *bench) send(q *queue.Queue, n int) error {
	messages := make([]queue.Outgoing, n)
	for i := range messages {
		k, err := q.NewKey()
		if err != nil {
			return err
		}
		messages[i] = queue.Outgoing{Key: k, Payload: payload}
	}
	_, err := h.db.Update(context.Background(), func(tx *kv.Tx) error { return q.Send(tx, messages...) })
	return err
}

// work receives and acknowledges one batch and returns its length.
func (h *bench) work(ctx context.Context, q *queue.Queue, max int) (int, error) {
	batch, err := q.Receive(ctx, max)
	if err != nil {
		return 0, err
	}
	keys := make([][]byte, len(batch))
	for i := range batch {
		keys[i] = batch[i].Key
	}
	_, err = h.db.Update(context.Background(), func(tx *kv.Tx) error { return q.Ack(tx, keys...) })
	return len(batch), err
}

// parallel runs f in n goroutines until each has returned false or failed.
func parallel(b *testing.B, n int, f func() (bool, error)) {
	b.Helper()
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			for {
				if goOn, err := f(); err != nil {
					b.Error(err)
					return
				} else if !goOn {
					return
				}
			}
		})
	}
	group.Wait()
}

// BenchmarkOneByOne has 64 goroutines of which each sends a message, receives one
// and acknowledges it, over and over, in turns with 64 goroutines that commit one
// row.
func BenchmarkOneByOne(b *testing.B) {
	h := openBench(b, b.TempDir())
	q := h.create(b)
	if err := h.db.CreateSpace(context.Background(), "bare", kv.SpaceOptions{}); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	commit := func() error {
		k, err := q.NewKey()
		if err == nil {
			_, err = h.db.Commit(ctx, &kv.Txn{Writes: []kv.Write{{Space: "bare", Key: k, Value: payload}}})
		}
		return err
	}
	message := func() error {
		if err := h.send(q, 1); err != nil {
			return err
		}
		_, err := h.work(ctx, q, 1)
		return err
	}
	// In turns, because a machine is not equally fast all the time.
	const rounds = 10
	run := func(f func() error) time.Duration {
		var n atomic.Int64
		begin := time.Now()
		parallel(b, workers, func() (bool, error) {
			if n.Add(1) > int64(b.N)/rounds {
				return false, nil
			}
			return true, f()
		})
		return time.Since(begin)
	}
	var bare, messages time.Duration
	b.ResetTimer()
	for range rounds {
		bare += run(commit)
		messages += run(message)
	}
	b.ReportMetric(float64(b.N)/bare.Seconds(), "commits/s")
	b.ReportMetric(float64(b.N)/messages.Seconds(), "messages/s")
	b.ReportMetric(bare.Seconds()/messages.Seconds(), "share")
}

// BenchmarkBatches sends 100 messages in a transaction, and receives and
// acknowledges 10. At least 60,000 messages/s are wanted.
func BenchmarkBatches(b *testing.B) {
	h := openBench(b, b.TempDir())
	q := h.create(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var sent, acked atomic.Int64
	sends := int64(b.N+99) / 100
	b.ResetTimer()
	begin := time.Now()
	var group sync.WaitGroup
	group.Go(func() {
		parallel(b, 8, func() (bool, error) {
			if sent.Add(1) > sends {
				return false, nil
			}
			return true, h.send(q, 100)
		})
	})
	group.Go(func() {
		parallel(b, workers-8, func() (bool, error) {
			n, err := h.work(ctx, q, 10)
			if acked.Add(int64(n)) >= sends*100 {
				cancel()
			}
			if ctx.Err() != nil {
				return false, nil
			}
			return true, err
		})
	})
	group.Wait()
	b.ReportMetric(float64(sends*100)/time.Since(begin).Seconds(), "messages/s")
}

// BenchmarkLatency sends to a waiting receiver. Less than 5 ms are wanted from
// commit to receipt.
func BenchmarkLatency(b *testing.B) {
	h := openBench(b, b.TempDir())
	q := h.create(b)
	var total, worst time.Duration
	received := make(chan time.Time, 1)
	for b.Loop() {
		go func() {
			if _, err := h.work(context.Background(), q, 1); err != nil {
				b.Error(err)
			}
			received <- time.Now()
		}()
		var committed time.Time
		k, _ := q.NewKey()
		_, err := h.db.Update(context.Background(), func(tx *kv.Tx) error {
			tx.AfterCommit(func(kv.Version, error) { committed = time.Now() })
			return q.Send(tx, queue.Outgoing{Key: k, Payload: payload})
		})
		if err != nil {
			b.Fatal(err)
		}
		d := (<-received).Sub(committed)
		total, worst = total+d, max(worst, d)
	}
	b.ReportMetric(float64(total.Microseconds())/float64(b.N), "µs/receive+ack")
	b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
}

// BenchmarkBacklog opens an engine with a million messages and waits for the first.
// Less than 1 s and 300 MB are wanted.
func BenchmarkBacklog(b *testing.B) {
	const backlog = 1_000_000
	dir := b.TempDir()
	h := openBench(b, dir)
	if _, err := h.s.Create(context.Background(), "q", queue.Settings{DisableDelivery: true, LocalReceivers: true}); err != nil {
		b.Fatal(err)
	}
	q, err := h.s.Queue(context.Background(), "q")
	if err != nil {
		b.Fatal(err)
	}
	var sends atomic.Int64
	parallel(b, 4, func() (bool, error) {
		if sends.Add(1) > backlog/1000 {
			return false, nil
		}
		return true, h.send(q, 1000)
	})
	if err := h.s.Configure(context.Background(), "q", func(s *queue.Settings) { s.DisableDelivery = false }); err != nil {
		b.Fatal(err)
	}
	h.stop()
	var first time.Duration
	var heap uint64
	b.ResetTimer()
	for range b.N {
		runtime.GC()
		begin := time.Now()
		h := openBench(b, dir)
		q, err := h.s.Queue(context.Background(), "q")
		if err != nil {
			b.Fatal(err)
		}
		batch, err := q.Receive(context.Background(), 100)
		if err != nil || len(batch) == 0 {
			b.Fatal(fmt.Errorf("%d messages: %w", len(batch), err))
		}
		first = max(first, time.Since(begin))
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap = max(heap, m.Sys)
		h.stop()
	}
	b.ReportMetric(float64(first.Milliseconds()), "ms-to-first")
	b.ReportMetric(float64(heap>>20), "MB")
}
