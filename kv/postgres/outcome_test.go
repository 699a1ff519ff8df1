package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

func TestEachCallIsOneRoundTrip(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, o := openShared(t, postgres.Options{URL: proxy.URL()})
	create(t, e, "a", feedOptions())
	create(t, e, "b", kv.SpaceOptions{Links: true})
	_ = e.Close()
	e = open(t, o) // which knows nothing
	if _, err := e.Spaces(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := kv.Version(0)
	for name, call := range map[string]func() error{
		"commit": func() (err error) {
			v, err = e.Commit(t.Context(), &kv.Txn{
				Checks: []kv.Check{{Space: "a", Key: []byte("k"), Version: v}, {Space: "b", Key: []byte("no")}},
				Writes: []kv.Write{fed(put("a", "k", "x"), "e"), put("b", "l", "y"), {Space: "b", Key: []byte("m"), Delete: true}},
			})
			return err
		},
		"get": func() error {
			_, err := e.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("k")}, {Space: "b", Key: []byte("l")}})
			return err
		},
		"scan": func() error { return e.Scan(t.Context(), "b", kv.Range{}, func(kv.Row) bool { return true }) },
		"feed": func() error { _, err := e.ReadFeed(t.Context(), "a", 0, "", 10); return err },
	} {
		for range 3 {
			before := proxy.Sent(pgtest.Sync) + proxy.Sent(pgtest.Query)
			if err := call(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			// The connection's check after a second of rest does not count here: there is none.
			if n := proxy.Sent(pgtest.Sync) + proxy.Sent(pgtest.Query) - before; n != 1 {
				t.Errorf("%s took %d round trips", name, n)
			}
		}
	}
}

// TestCutConnection cuts the connection at each message of a commit. The server may
// have committed or not; the client must not say that it knows.
func TestCutConnection(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, _ := openShared(t, postgres.Options{URL: proxy.URL()})
	create(t, e, "a", feedOptions())
	create(t, e, "b", kv.SpaceOptions{})
	never := func(byte) bool { return false }
	for _, c := range []struct {
		name     string
		toServer bool
		kind     byte
		done     bool
	}{
		{"before the statement", true, pgtest.Parse, false},
		{"before the end of the request", true, pgtest.Sync, false},
		{"before the first row", false, pgtest.DataRow, true},
		{"before the end of the statement", false, pgtest.Complete, true},
		{"before the end of the transaction", false, pgtest.ReadyForQuery, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := strings.ReplaceAll(c.name, " ", "-")
			get(t, e, "a", key) // there is a connection
			cut := func(kind byte) bool { return kind == c.kind }
			if c.toServer {
				proxy.CutToServer(cut)
			} else {
				proxy.CutToClient(cut)
			}
			_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{fed(put("a", key, "x"), key), put("b", key, "x")}})
			proxy.CutToServer(never)
			proxy.CutToClient(never)
			wantErr(t, err, kv.ErrUnknownOutcome)
			if c.done {
				eventually(t, "the commit", func() bool { return get(t, e, "a", key).Exists() })
			}
			if got := get(t, e, "b", key).Exists(); got != c.done {
				t.Errorf("row exists: %v, want %v", got, c.done)
			}
			if got := strings.Contains(strings.Join(entries(t, e, "a"), " "), key); got != c.done {
				t.Errorf("feed entry exists: %v, want %v", got, c.done)
			}
		})
	}
}

func TestWithoutConnectionNothingIsDone(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, _ := openShared(t, postgres.Options{URL: proxy.URL()})
	create(t, e, "a", kv.SpaceOptions{})
	commit(t, e, put("a", "k", "old"))
	proxy.CutAll()
	proxy.CutToServer(func(kind byte) bool { return kind == 0 })
	// One that finds its connection dead may be unsure; then there is none.
	failures := 0
	eventually(t, "plain failures", func() bool {
		_, err := e.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "k", "new")}})
		if err == nil {
			t.Fatal("commit succeeded without a server")
		}
		if !errors.Is(err, kv.ErrUnknownOutcome) {
			failures++
		}
		return failures == 3
	})
	proxy.CutToServer(func(byte) bool { return false })
	if got := string(get(t, e, "a", "k").Value); got != "old" {
		t.Errorf("value = %q", got)
	}
}

// withSettings adds settings of the session to a URL.
func withSettings(tb testing.TB, base string, settings ...string) string {
	tb.Helper()
	u, err := url.Parse(base)
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		q.Set(name, value)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func TestTimeoutsOfTheServerWriteNothing(t *testing.T) {
	base := pgtest.Shared(t).URL()
	for _, setting := range []string{"lock_timeout=20", "statement_timeout=50"} {
		t.Run(setting, func(t *testing.T) {
			patient, o := openShared(t, postgres.Options{})
			create(t, patient, "a", kv.SpaceOptions{})
			e := open(t, postgres.Options{URL: withSettings(t, base, setting), Schema: o.Schema})
			other := connect(t, base)
			other.exec("begin")
			other.exec(fmt.Sprintf(`lock table "%s".a_1 in share row exclusive mode`, o.Schema))
			_, err := e.Commit(t.Context(), &kv.Txn{
				Checks: []kv.Check{{Space: "a", Key: []byte("k")}},
				Writes: []kv.Write{put("a", "k", "x")},
			})
			if err == nil || errors.Is(err, kv.ErrUnknownOutcome) || kv.IsConflict(err) != strings.HasPrefix(setting, "lock") {
				t.Errorf("error = %v", err)
			}
			other.exec("rollback")
			if get(t, patient, "a", "k").Exists() {
				t.Error("the row is there")
			}
		})
	}
}

// ledger is what clients know of their counters, each a row that only one client
// writes.
type ledger struct {
	mu    sync.Mutex
	acked map[string][]int
	tried map[string]int
}

// count lets clients count until stop is closed or ctx ends. Errors are part of it.
func (l *ledger) count(ctx context.Context, e *postgres.Engine, clients int, stop <-chan struct{}) {
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			key := fmt.Sprint("counter", c)
			for n := l.next(key); ; n = l.next(key) {
				select {
				case <-stop:
					return
				case <-ctx.Done():
					return
				default:
				}
				_, err := e.Commit(ctx, &kv.Txn{Writes: []kv.Write{fed(put("a", key, fmt.Sprint(n)), fmt.Sprint(key, " ", n)), put("b", key, fmt.Sprint(n))}})
				if err == nil {
					l.mu.Lock()
					l.acked[key] = append(l.acked[key], n)
					l.mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
}

// next returns the next number to be written to a counter.
func (l *ledger) next(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried[key]++
	return l.tried[key]
}

func (l *ledger) sum() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, numbers := range l.acked {
		n += len(numbers)
	}
	return n
}

func (l *ledger) check(t *testing.T, e *postgres.Engine) {
	t.Helper()
	inFeed := map[string]bool{}
	for after := kv.Position(""); ; {
		page, err := e.ReadFeed(t.Context(), "a", 0, after, 500)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, entry := range page {
			inFeed[string(entry.Data)] = true
			after = entry.Position
		}
	}
	for key, acked := range l.acked {
		var n int
		_, _ = fmt.Sscan(string(get(t, e, "a", key).Value), &n)
		if last := acked[len(acked)-1]; n < last || n > l.tried[key] {
			t.Errorf("%s = %d, acknowledged %d, tried %d", key, n, last, l.tried[key])
		}
		if other := string(get(t, e, "b", key).Value); other != fmt.Sprint(n) {
			t.Errorf("%s = %d and %s", key, n, other)
		}
		// The values were overwritten since, but an entry stays.
		for _, number := range append(acked, n) {
			if !inFeed[fmt.Sprint(key, " ", number)] {
				t.Errorf("entry %d of %s is missing", number, key)
			}
		}
	}
}

// TestServerEndsUnderLoad kills the server, and stops it in good order, while
// clients write. The session asks for commits that do not wait for the disk.
func TestServerEndsUnderLoad(t *testing.T) {
	server := pgtest.New(t)
	o := postgres.Options{URL: withSettings(t, server.URL(), "synchronous_commit=off"), Schema: pgtest.NewSchema()}
	e := open(t, o)
	create(t, e, "a", feedOptions())
	create(t, e, "b", kv.SpaceOptions{})
	l := &ledger{acked: map[string][]int{}, tried: map[string]int{}}
	for _, end := range []func(testing.TB){server.Crash, server.Restart, server.Crash} {
		stop, stopped := make(chan struct{}), make(chan struct{})
		before := l.sum()
		go func() {
			defer close(stopped)
			l.count(t.Context(), e, 4, stop)
		}()
		eventually(t, "some commits", func() bool { return l.sum() > before+50 })
		end(t)
		close(stop)
		<-stopped
		eventually(t, "the engine finds the server again", func() bool {
			_, err := e.Spaces(t.Context())
			return err == nil
		})
		l.check(t, e)
	}
}

func TestFrozenServerHoldsNobodyBeyondTheDeadline(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Shared(t))
	e, _ := openShared(t, postgres.Options{URL: proxy.URL(), PoolSize: 2})
	create(t, e, "a", feedOptions())
	thaw := proxy.Freeze()
	defer thaw()
	var sure atomic.Int32
	var wg sync.WaitGroup
	for range 5 { // more than there are connections
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := e.Commit(ctx, &kv.Txn{Writes: []kv.Write{put("a", "k", "x")}})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %v", err)
			}
			if !errors.Is(err, kv.ErrUnknownOutcome) {
				sure.Add(1)
			}
		})
	}
	wg.Wait()
	if sure.Load() < 3 {
		t.Errorf("%d of 5 commits are known to be undone, but only 2 can have been sent", sure.Load())
	}
}
