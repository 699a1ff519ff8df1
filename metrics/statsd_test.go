package metrics

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
	"github.com/google/go-cmp/cmp"
)

// wire is the sending end of a statsd client, kept in memory.
type wire struct {
	mu    sync.Mutex
	lines []string
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range strings.Lines(string(p)) {
		w.lines = append(w.lines, strings.TrimSuffix(l, "\n"))
	}
	return len(p), nil
}

func (w *wire) Close() error { return nil }

// take returns the lines since the last call, sorted.
func (w *wire) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.lines
	w.lines = nil
	slices.Sort(out)
	return out
}

func TestStatsdGetsEachCountOnceWithNamesAndTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		client, err := statsd.NewWithWriter(w, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection())
		if err != nil {
			t.Fatal(err)
		}
		r := New()
		g := r.Group("payload_reconciler")
		c := g.Counter("gcs_404", "op")
		c.Add(2, "finalize")
		g.Gauge("depth").Set(4)
		g.GaugeFunc("age", func(set func(float64, ...string)) { set(1.5, "main") }, "queue")

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.runStatsd(ctx, client, func() {}) }()
		synctest.Wait()
		g.Timer("drain_duration").Observe(1500 * time.Millisecond)

		time.Sleep(flushInterval + 5*time.Second) // the client aggregates for 2 s
		want := []string{
			"payload_reconciler.age:1.5|g|#queue:main",
			"payload_reconciler.depth:4|g",
			"payload_reconciler.drain_duration:1500.000000|ms",
			"payload_reconciler.gcs_404:2|c|#op:finalize",
		}
		if d := cmp.Diff(want, w.take()); d != "" {
			t.Errorf("first flush (-want +got):\n%s", d)
		}

		c.Add(1, "finalize")
		c.Add(1, "delete")
		stop()
		if err := <-done; err != nil {
			t.Errorf("runStatsd: %v", err)
		}
		want = []string{
			"payload_reconciler.age:1.5|g|#queue:main",
			"payload_reconciler.depth:4|g",
			"payload_reconciler.gcs_404:1|c|#op:delete",
			"payload_reconciler.gcs_404:1|c|#op:finalize",
		}
		if d := cmp.Diff(want, w.take()); d != "" {
			t.Errorf("last flush (-want +got):\n%s", d)
		}
		g.Timer("drain_duration").Observe(time.Second) // no client any more
		noMistakes(t, r)
	})
}

func TestRunStatsdReachesARealSocket(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := New()
	r.Counter("runs").Add(3)
	ctx, stop := context.WithCancel(t.Context())
	stop() // the last flush happens all the same
	if err := r.RunStatsd(ctx, conn.LocalAddr().String(), nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	n, _, err := conn.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(buf[:n])); got != "runs:3|c" {
		t.Errorf("datagram %q, want runs:3|c", got)
	}
}

func TestOnlyOneStatsdAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newClient := func() *statsd.Client {
			c, err := statsd.NewWithWriter(&wire{}, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		r := New()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.runStatsd(ctx, newClient(), func() {}) }()
		synctest.Wait()
		if err := r.runStatsd(ctx, newClient(), func() {}); err == nil {
			t.Error("a second client was accepted")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := r.runStatsd(ctx, newClient(), func() {}); err != nil {
			t.Errorf("after the first has ended: %v", err)
		}
	})
}

func TestUnusableStatsdAddressIsLoggedAndEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ctx, stop := context.WithTimeout(t.Context(), 5*flushInterval)
		defer stop()
		if err := New().RunStatsd(ctx, "127.0.0.1:notaport", slog.New(slog.NewTextHandler(&logged, nil))); err != nil {
			t.Errorf("RunStatsd: %v", err)
		}
		if n := strings.Count(logged.String(), "statsd loses metrics"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, &logged)
		}
	})
}

func TestNilRegistryRunStatsdWaits(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var r *Registry
	if err := r.RunStatsd(ctx, "127.0.0.1:1", nil); err != nil {
		t.Error(err)
	}
}

func BenchmarkTimerWithStatsd(b *testing.B) {
	client, err := statsd.NewWithWriter(&wire{}, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	r := New()
	r.sink.Store(client)
	timer := r.Timer("t", "result")
	b.ReportAllocs()
	for b.Loop() {
		timer.Observe(3*time.Millisecond, "success")
	}
}
