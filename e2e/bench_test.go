package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/e2e/program"
)

// The load of BenchmarkSync. A user's requests never overlap, as in life.
const (
	benchSecret  = "the master secret of a benchmark"
	benchUsers   = 50
	benchRecords = 1000 // of 200 bytes, for each user, before the first request
	benchPosted  = 100  // records of one POST
)

// benchUser is a user of the load.
type benchUser struct {
	mu         sync.Mutex
	uid        uint64
	token, key string
	// middle is a timestamp that benchNewer of the user's records are newer than.
	middle string
}

const benchNewer = 100

// syncLoad is a server with its users and the client's side of them.
type syncLoad struct {
	base  string
	http  *http.Client
	users []*benchUser
	ids   atomic.Int64
}

func newSyncLoad(b *testing.B) *syncLoad {
	home := program.NewHome(b, "HOLDFAST_SYNC_MASTER_SECRET="+benchSecret)
	server := home.Serve(b)
	b.Cleanup(func() { server.Stop(b) })
	l := &syncLoad{base: home.SyncURL(), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	keys, err := hawk.NewKeyring(benchSecret)
	if err != nil {
		b.Fatal(err)
	}
	for i := range benchUsers {
		u := &benchUser{uid: uint64(1000 + i)}
		u.token, u.key, err = keys.Mint(hawk.Claims{
			Node: l.base, UID: u.uid, FxAUID: fmt.Sprintf("%032x", i), FxAKID: fmt.Sprintf("%013d-AAECAwQFBgcICQoLDA0ODw", i),
			Expires: time.Now().Add(24 * time.Hour).Unix(), Salt: "a1b2c3",
		})
		if err != nil {
			b.Fatal(err)
		}
		l.fill(b, u)
		l.users = append(l.users, u)
	}
	return l
}

// fill writes a user's records, the last benchNewer of them in a POST of their own.
func (l *syncLoad) fill(b *testing.B, u *benchUser) {
	for from := 0; from < benchRecords; from += benchPosted {
		answer, err := l.do(b.Context(), u, http.MethodPost, "/storage/bookmarks", l.records("r", from, 200))
		if err != nil {
			b.Fatal(err)
		}
		if from+benchPosted == benchRecords-benchNewer {
			_, rest, _ := strings.Cut(string(answer), `"modified":`)
			u.middle, _, _ = strings.Cut(rest, ",")
		}
	}
}

// records renders the body of a POST.
func (l *syncLoad) records(prefix string, from, size int) []byte {
	var body bytes.Buffer
	payload := strings.Repeat("x", size)
	for i := range benchPosted {
		sep := byte(',')
		if i == 0 {
			sep = '['
		}
		fmt.Fprintf(&body, `%c{"id":"%s%08d","sortindex":%d,"payload":"%s"}`, sep, prefix, from+i, i, payload)
	}
	body.WriteByte(']')
	return body.Bytes()
}

// do sends a request and reads its answer, which must be a success.
func (l *syncLoad) do(ctx context.Context, u *benchUser, method, target string, body []byte) ([]byte, error) {
	path := "/1.5/" + strconv.FormatUint(u.uid, 10) + target
	req, err := http.NewRequestWithContext(ctx, method, l.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(req.URL.Host, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	h := hawk.Header{ID: u.token, TS: strconv.FormatInt(time.Now().Unix(), 10), Nonce: strconv.FormatInt(l.ids.Add(1), 36)}
	h.MAC = h.Sign(hawk.Request{Method: method, Target: path, Host: host, Port: uint16(n)}, u.key)
	req.Header.Set("Authorization", h.String())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := l.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, target, res.Status, answer)
	}
	return answer, err
}

// run makes b.N requests with so many clients and reports their rate and times.
func (l *syncLoad) run(b *testing.B, clients int, request func(ctx context.Context, u *benchUser) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	times := make([][]time.Duration, clients)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 && failed.Load() == nil {
				u := l.users[rand.IntN(len(l.users))]
				u.mu.Lock()
				began := time.Now()
				err := request(b.Context(), u)
				took := time.Since(began)
				u.mu.Unlock()
				if err != nil {
					failed.Store(&err)
					return
				}
				times[c] = append(times[c], took)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	all := slices.Concat(times...)
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(all[len(all)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100])/1e6, "p99-ms")
}

// BenchmarkSync loads the built server over HTTP, by default settings: every write
// is synced.
func BenchmarkSync(b *testing.B) {
	l := newSyncLoad(b)
	get := func(target func(u *benchUser) string, want int) func(context.Context, *benchUser) error {
		return func(ctx context.Context, u *benchUser) error {
			answer, err := l.do(ctx, u, http.MethodGet, target(u), nil)
			if n := bytes.Count(answer, []byte(`"id":`)); err == nil && n != want {
				err = fmt.Errorf("%d records, want %d", n, want)
			}
			return err
		}
	}
	info := get(func(*benchUser) string { return "/info/collections" }, 0)
	newer := get(func(u *benchUser) string { return "/storage/bookmarks?full=1&newer=" + u.middle }, benchNewer)
	full := get(func(*benchUser) string { return "/storage/bookmarks?full=1" }, benchRecords)
	put := func(ctx context.Context, u *benchUser) error {
		_, err := l.do(ctx, u, http.MethodPut, fmt.Sprintf("/storage/prefs/p%d", rand.IntN(1000)),
			[]byte(`{"payload":"`+strings.Repeat("y", 200)+`"}`))
		return err
	}
	post := func(size int) func(context.Context, *benchUser) error {
		return func(ctx context.Context, u *benchUser) error {
			_, err := l.do(ctx, u, http.MethodPost, "/storage/history", l.records("h", benchPosted*rand.IntN(20), size))
			return err
		}
	}
	small := post(200)
	// mixed is a visit's requests in about the proportions of real ones.
	mixed := func(ctx context.Context, u *benchUser) error {
		switch p := rand.IntN(100); {
		case p < 40:
			return info(ctx, u)
		case p < 65:
			return put(ctx, u)
		case p < 85:
			return newer(ctx, u)
		default:
			return small(ctx, u)
		}
	}
	for _, w := range []struct {
		name    string
		request func(context.Context, *benchUser) error
	}{
		{"info", info}, {"put", put}, {"get-newer-100", newer}, {"get-full-1000", full},
		{"post-100x200B", small}, {"post-100x20KB", post(20_000)}, {"mixed", mixed},
	} {
		b.Run(w.name, func(b *testing.B) { l.run(b, 8, w.request) })
	}
	b.Run("mixed-64-clients", func(b *testing.B) { l.run(b, 64, mixed) })
}
