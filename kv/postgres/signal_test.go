package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

// listener gathers the signals that an engine gets.
type listener struct {
	mu    sync.Mutex
	names []string
	ended chan error
}

func listen(tb testing.TB, e *postgres.Engine) *listener {
	tb.Helper()
	l := &listener{ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(tb.Context())
	tb.Cleanup(cancel)
	go func() {
		l.ended <- e.Listen(ctx, func(name string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.names = append(l.names, name)
		})
	}()
	eventually(tb, "the listener listens", func() bool { return l.count("") > 0 })
	return l
}

func (l *listener) count(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, got := range l.names {
		if got == name {
			n++
		}
	}
	return n
}

func TestSignalsReachTheOthers(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, o := openShared(t, postgres.Options{URL: proxy.URL()})
	o.URL = pgtest.Shared(t).URL()
	other := open(t, o)
	elsewhere, _ := openShared(t, postgres.Options{})
	stranger := listen(t, elsewhere)
	l := listen(t, other)
	name := strings.Repeat("~", kv.MaxSignalSize)
	e.Signal(name)
	e.Signal("queue it's \"full\"")
	eventually(t, "both signals", func() bool { return l.count(name) == 1 && l.count("queue it's \"full\"") == 1 })
	// Many at once are merged, and sent every few milliseconds.
	sent, began := proxy.Sent(pgtest.Sync), time.Now()
	for time.Since(began) < 200*time.Millisecond {
		e.Signal("often")
	}
	eventually(t, "a merged signal", func() bool { return l.count("often") > 0 })
	took := time.Since(began)
	if n := proxy.Sent(pgtest.Sync) - sent; n > int(took/(4*time.Millisecond))+2 {
		t.Errorf("%d statements in %v", n, took)
	}
	before := l.count("")
	for i := range 5000 {
		e.Signal(fmt.Sprint("name", i))
	}
	eventually(t, "the signal for any", func() bool { return l.count("") > before || l.count("name4999") > 0 })
	if n := stranger.count(name) + stranger.count("often"); n > 0 {
		t.Errorf("%d signals came to another schema", n)
	}
}

func TestListenerComesBack(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, o := openShared(t, postgres.Options{})
	o.ListenURL = proxy.URL()
	l := listen(t, open(t, o))
	for range 3 {
		before := l.count("")
		proxy.CutAll()
		eventually(t, "a signal for those that were lost", func() bool { return l.count("") > before })
	}
	e.Signal("again")
	eventually(t, "the signal", func() bool { return l.count("again") == 1 })
}

func TestListenEnds(t *testing.T) {
	e, _ := openShared(t, postgres.Options{})
	l := listen(t, e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-l.ended; err != nil {
		t.Errorf("Listen: %v", err)
	}
	e.Signal("nobody") // does nothing
	wantErr(t, e.Listen(t.Context(), func(string) {}), kv.ErrClosed)

	e, _ = openShared(t, postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	if err := e.Listen(ctx, func(string) { cancel() }); err != nil {
		t.Errorf("Listen: %v", err)
	}
}

func TestSignalDoesNotWaitForTheNetwork(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, _ := openShared(t, postgres.Options{URL: proxy.URL()})
	defer proxy.Freeze()()
	began := time.Now()
	for i := range 1000 {
		e.Signal(fmt.Sprint(i % 7))
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("1000 signals took %v", took)
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Close waits for signals")
	}
}

// TestPooler gives each transaction another connection.
func TestPooler(t *testing.T) {
	server := pgtest.Shared(t)
	pooler := pgtest.NewPooler(t, server)
	e, o := openShared(t, postgres.Options{URL: pooler.URL()})
	create(t, e, "a", feedOptions())
	create(t, e, "b", kv.SpaceOptions{Links: true})
	other := open(t, o)
	const workers, each = 4, 25
	var wg sync.WaitGroup
	for w := range workers {
		db := kv.New([]*postgres.Engine{e, other}[w%2], postgres.Limits())
		wg.Go(func() {
			for range each {
				_, err := db.Update(context.Background(), func(tx *kv.Tx) error {
					row, err := tx.Get("b", []byte("counter"))
					if err != nil {
						return err
					}
					value := string(row.Value) + "x"
					tx.Put(put("b", "counter", value))
					tx.Put(fed(put("a", fmt.Sprint("k", len(value)), ""), value))
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := len(get(t, e, "b", "counter").Value); n != workers*each {
		t.Errorf("counter = %d", n)
	}
	got := entries(t, other, "a")
	slices.SortFunc(got, func(a, b string) int { return len(a) - len(b) })
	if len(got) != workers*each || len(got[len(got)-1]) != workers*each {
		t.Errorf("%d entries", len(got))
	}
	rows := 0
	if err := e.Scan(t.Context(), "a", kv.Range{}, func(kv.Row) bool { rows++; return true }); err != nil || rows != workers*each {
		t.Errorf("%d rows, %v", rows, err)
	}

	err := other.Listen(t.Context(), func(string) {})
	if err == nil || !strings.Contains(err.Error(), "ListenURL") {
		t.Errorf("Listen through a pooler: %v", err)
	}
	o.ListenURL = server.URL()
	l := listen(t, open(t, o))
	e.Signal("hello")
	eventually(t, "the signal", func() bool { return l.count("hello") == 1 })
}

func TestListenOutOfReach(t *testing.T) {
	_, o := openShared(t, postgres.Options{})
	o.ListenURL = "postgres://u:" + secret + "@127.0.0.1:1/d"
	err := open(t, o).Listen(t.Context(), func(string) {})
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "ListenURL") || errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}
