package sync15

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/offload"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/reconcile"
)

const (
	masterSecret = "the master secret of the tests"
	host         = "sync.example.org"
)

// start is when the clock of a world begins, on a whole second.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is the door over everything that it needs, wired as the program does it,
// on an engine and a store in memory that can be made to fail, under a clock that
// stands still.
type world struct {
	testing.TB
	clock   *clock.Manual
	engine  *kvtest.Faults
	plain   *kv.DB // without hooks
	db      *kv.DB
	memory  *blobtest.Memory
	objects *blobtest.Faults

	changes, purges *queue.Queue
	reconciler      *reconcile.Reconciler
	sweeper         *expiry.Sweeper
	purger          *storage.Purger

	keyring *hawk.Keyring
	server  *Server
	metrics *metrics.Registry
	log     *logBuffer
	user    user
	opts    Options
}

// setup is what a test wants otherwise than in a usual world.
type setup struct {
	// offload are the collections whose payloads go to the object store.
	offload []string
	// engine replaces the model.
	engine kv.Engine
	limits kv.Limits
	// timeout bounds the transfers of a request.
	timeout     time.Duration
	concurrency int
	quota       int64
	enforce     bool
	door        func(*Options)
	storage     func(*storage.Options)
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t testing.TB, s setup) *world {
	t.Helper()
	w := &world{TB: t, clock: clock.NewManual(start), memory: blobtest.NewMemory(), metrics: metrics.New(), log: &logBuffer{}}
	if s.engine == nil {
		s.engine, s.limits = kvtest.NewModel(w.clock), kvtest.ModelLimits
	}
	w.engine = kvtest.NewFaults(s.engine)
	w.plain = kv.New(w.engine, s.limits)
	w.objects = blobtest.NewFaults(w.memory)
	w.open(s)
	w.user = w.newUser(42, "account", "0000000001234-key")
	t.Cleanup(func() {
		if err := w.metrics.Err(); err != nil {
			t.Errorf("metrics: %v", err)
		}
	})
	return w
}

// open starts what a process starts, on the engine and the store of w.
func (w *world) open(s setup) {
	w.Helper()
	log := slog.New(slog.NewJSONHandler(w.log, nil))
	objects := blob.New(w.objects, blob.Options{Clock: w.clock})
	w.openQueues()
	must(w, expiry.Create(w.Context(), w.plain))
	tables, spaces := storage.ChangeTables(), storage.ExpirySpaces()
	capture := changes.NewCapture(w.changes, func(space string) (changes.Table, bool) {
		t, ok := tables[space]
		return t, ok
	}, rand.Reader)
	index := expiry.NewIndex(func(space string) (expiry.Space, bool) {
		s, ok := spaces[space]
		return s, ok
	})
	w.db = w.plain.WithHooks(capture.Hook, index.Hook)
	w.reconciler = reconcile.New(reconcile.NewQueueSource(w.db, w.changes), objects, reconcile.Options{Clock: w.clock, Metrics: w.metrics})
	w.sweeper = expiry.NewSweeper(w.db, index, expiry.Options{Clock: w.clock, Metrics: w.metrics})

	opts := Options{
		Clock: w.clock, Limits: bso.DefaultLimits(), BodyBudget: 64 << 20, CORS: DefaultCORS(),
		OffloadCollections: s.offload, Version: []byte(`{"version":"1.2.3"}`), Metrics: w.metrics, Log: log,
	}
	var err error
	opts.Keyring, err = hawk.NewKeyring(masterSecret)
	must(w, err)
	w.keyring = opts.Keyring
	opts.Offload = offload.New(objects, objects, offload.Options{
		Concurrency: s.concurrency, Timeout: s.timeout, Clock: w.clock, Random: rand.Reader, Metrics: w.metrics, Log: log,
	})
	if s.quota > 0 {
		opts.Limits.MaxQuota, opts.QuotaEnabled, opts.EnforceQuota = s.quota, true, s.enforce
	}
	if s.door != nil {
		s.door(&opts)
	}
	w.openStorage(&opts, s, log)
	w.opts = opts
	w.server, err = New(opts)
	must(w, err)
}

func (w *world) openStorage(opts *Options, s setup, log *slog.Logger) {
	w.Helper()
	so := storage.Options{
		Clock: w.clock, Random: rand.Reader, SendPurge: storage.SendPurge(w.purges), QuotaBytes: s.quota,
		MaxBatchRecords: opts.Limits.MaxTotalRecords, MaxBatchBytes: opts.Limits.MaxTotalBytes,
	}
	atLimit := w.metrics.Group("syncstorage").Counter("storage.quota.at_limit", "collection")
	so.OverQuota = func(collection string) bool {
		atLimit.Add(1, collection)
		return s.enforce
	}
	if s.storage != nil {
		s.storage(&so)
	}
	store, err := storage.Open(w.Context(), w.db, so)
	must(w, err)
	opts.Store = store
	w.purger = &storage.Purger{Store: store, Queue: w.purges, Log: log}
}

// openQueues starts the queues. Their time is the real one, because tests move the
// other one at will.
func (w *world) openQueues() {
	w.Helper()
	service, err := queue.Open(w.Context(), w.plain, queue.Options{TokenKey: make([]byte, 16), Rand: rand.Reader})
	must(w, err)
	open := func(name string, settings queue.Settings) *queue.Queue {
		q, err := service.Create(w.Context(), name, settings)
		if errors.Is(err, queue.ErrQueueExists) {
			q, err = service.Queue(w.Context(), name)
		}
		must(w, err)
		return q
	}
	w.changes = open(changes.QueueName, queue.Settings{Lease: time.Minute, MaxAttempts: 5, LocalReceivers: true})
	w.purges = open(storage.PurgeQueue, storage.PurgeSettings())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	w.Cleanup(func() {
		w.engine.Reset()
		cancel()
		if err := <-done; err != nil {
			w.Errorf("queues: %v", err)
		}
	})
	w.awaitDelivery(w.changes)
	w.awaitDelivery(w.purges)
}

// awaitDelivery returns when a queue delivers messages, so that faults of a test
// do not meet its beginning.
func (w *world) awaitDelivery(q *queue.Queue) {
	w.Helper()
	_, err := w.plain.Update(w.Context(), func(tx *kv.Tx) error {
		return q.Send(tx, queue.Outgoing{Key: []byte("first")})
	})
	must(w, err)
	first, err := q.Receive(w.Context(), 1)
	must(w, err)
	_, err = w.plain.Update(w.Context(), func(tx *kv.Tx) error { return q.Ack(tx, first[0].Key) })
	must(w, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// purge removes what deleted collections have left.
func (w *world) purge() {
	w.Helper()
	for {
		waiting, err := w.purges.Peek(w.Context(), 1)
		must(w, err)
		if len(waiting) == 0 {
			return
		}
		must(w, w.purger.Step(w.Context()))
	}
}

// reconcile acts on all change records that were sent.
func (w *world) reconcile() {
	w.Helper()
	for {
		waiting, err := w.changes.Peek(w.Context(), 1)
		must(w, err)
		if len(waiting) == 0 {
			return
		}
		_, err = w.reconciler.Step(w.Context())
		must(w, err)
	}
}

// sweep removes what has expired.
func (w *world) sweep() {
	w.Helper()
	for more := true; more; {
		var err error
		more, err = w.sweeper.Step(w.Context())
		must(w, err)
	}
}

// settle lets everything happen that is still to happen.
func (w *world) settle() {
	w.Helper()
	w.sweep()
	w.purge()
	w.reconcile()
}

// payloads returns the contents of the objects, in order, those that are finalized
// with a star.
func (w *world) payloads() []string {
	w.Helper()
	var all []string
	for _, name := range w.memory.Names() {
		r, attrs, err := w.memory.Get(w.Context(), name, 0, -1)
		must(w, err)
		content, err := io.ReadAll(r)
		must(w, err)
		if attrs.Committed {
			content = append(content, '*')
		}
		all = append(all, string(content))
	}
	slices.Sort(all)
	return all
}

func (w *world) wantPayloads(want ...string) {
	w.Helper()
	if got := w.payloads(); !slices.Equal(got, want) {
		w.Errorf("objects are %q, want %q", got, want)
	}
}

// countAll returns the sum of all counters of the door.
func (w *world) countAll() int { return w.counter("") }

// counter returns the sum of a counter's series in the Prometheus text.
func (w *world) counter(series string) int {
	w.Helper()
	sum := 0
	for name, n := range w.counters() {
		if name == series || series == "" {
			sum += n
		}
	}
	return sum
}

// counters returns the door's counters, each the sum of its series.
func (w *world) counters() map[string]int {
	w.Helper()
	rec := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	all := map[string]int{}
	for line := range strings.Lines(rec.Body.String()) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "{")
		if strings.HasPrefix(name, "syncstorage_") && strings.HasSuffix(name, "_total") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			must(w, err)
			all[name] += int(n)
		}
	}
	return all
}

// user is a client with a token.
type user struct {
	uid        uint64
	token, key string
}

func (w *world) newUser(uid uint64, account, kid string) user {
	w.Helper()
	return w.mint(hawk.Claims{UID: uid, FxAUID: account, FxAKID: kid, Expires: start.Add(24 * time.Hour).Unix()})
}

func (w *world) mint(c hawk.Claims) user {
	w.Helper()
	c.Node, c.Salt, c.TokenserverOrigin = "http://"+host, "a1b2c3", "rust"
	token, key, err := w.keyring.Mint(c)
	must(w, err)
	return user{c.UID, token, key}
}

// reply is what a client got.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

var nonces atomic.Int64

// sign makes the Authorization header of a request.
func (u user) sign(now time.Time, method, target string) string {
	h := hawk.Header{ID: u.token, TS: strconv.FormatInt(now.Unix(), 10), Nonce: strconv.FormatInt(nonces.Add(1), 36)}
	h.MAC = h.Sign(hawk.Request{Method: method, Target: target, Host: host, Port: 80}, u.key)
	return h.String()
}

// request makes a signed request. A target that does not begin with a slash is
// taken as behind the user's root. Headers come as "Name: value"; one without a
// value is removed. Bodies are text/plain, as desktop sends them.
func (w *world) request(u user, method, target string, body io.Reader, headers ...string) *http.Request {
	w.Helper()
	if !strings.HasPrefix(target, "/") {
		root := fmt.Sprintf("/1.5/%d", u.uid)
		if target != "" {
			root += "/"
		}
		target = root + target
	}
	r := httptest.NewRequestWithContext(w.Context(), method, "/", body)
	path, query, _ := strings.Cut(target, "?")
	decoded, err := url.PathUnescape(path)
	if err != nil {
		decoded = path
	}
	r.RequestURI, r.URL = target, &url.URL{Path: decoded, RawPath: path, RawQuery: query}
	r.Host = host
	r.Header.Set("Authorization", u.sign(w.clock.Now(), method, target))
	if method == "PUT" || method == "POST" {
		r.Header.Set("Content-Type", "text/plain")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if value = strings.TrimSpace(value); value == "" {
			r.Header.Del(name)
		} else {
			r.Header.Add(name, value)
			if name == "Content-Type" || name == "Authorization" {
				r.Header.Set(name, value)
			}
		}
	}
	return r
}

func (w *world) serve(r *http.Request) reply {
	rec := httptest.NewRecorder()
	w.server.ServeHTTP(rec, r)
	return reply{w, rec.Code, rec.Header(), rec.Body.String()}
}

func (w *world) as(u user, method, target, body string, headers ...string) reply {
	w.Helper()
	return w.serve(w.request(u, method, target, strings.NewReader(body), headers...))
}

// do sends a request of the usual user.
func (w *world) do(method, target, body string, headers ...string) reply {
	w.Helper()
	return w.as(w.user, method, target, body, headers...)
}

// put stores a record with a payload and returns its timestamp.
func (w *world) put(collection, id, payload string) string {
	w.Helper()
	quoted, err := json.Marshal(payload)
	must(w, err)
	return w.do("PUT", "storage/"+collection+"/"+url.PathEscape(id), `{"payload":`+string(quoted)+`}`).want(200).body
}

// get returns the payload of a record.
func (w *world) get(collection, id string) string {
	w.Helper()
	return w.do("GET", "storage/"+collection+"/"+url.PathEscape(id), "").want(200).record().Payload
}

// batch starts a batch and returns its id.
func (w *world) batch(collection, body string) string {
	w.Helper()
	return w.do("POST", "storage/"+collection+"?batch=true", body).want(202).outcome().Batch
}

// want ends the test unless the status is as wanted.
func (r reply) want(status int) reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("status %d, want %d; body %.200q, headers %v", r.status, status, r.body, r.header)
	}
	return r
}

// says checks status and body.
func (r reply) says(status int, body string) reply {
	r.t.Helper()
	if r.want(status); r.body != body {
		r.t.Errorf("body %.200q, want %q", r.body, body)
	}
	return r
}

// has checks a header; an empty value means that it is absent.
func (r reply) has(name, value string) reply {
	r.t.Helper()
	if got := r.header.Values(name); value == "" && got != nil || value != "" && !slices.Equal(got, []string{value}) {
		r.t.Errorf("%s is %q, want %q (status %d)", name, got, value, r.status)
	}
	return r
}

func (r reply) decode(v any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.body), v); err != nil {
		r.t.Fatalf("body %.200q: %v", r.body, err)
	}
}

// record is a record as a client sees it.
type record struct {
	ID        string      `json:"id"`
	Modified  json.Number `json:"modified"`
	Payload   string      `json:"payload"`
	SortIndex *int        `json:"sortindex"`
}

func (r reply) record() record {
	r.t.Helper()
	var rec record
	r.decode(&rec)
	return rec
}

func (r reply) ids() []string {
	r.t.Helper()
	var ids []string
	r.decode(&ids)
	return ids
}

// outcome is the answer to a POST.
type outcome struct {
	Batch    string            `json:"batch"`
	Modified json.Number       `json:"modified"`
	Success  []string          `json:"success"`
	Failed   map[string]string `json:"failed"`
}

func (r reply) outcome() outcome {
	r.t.Helper()
	var o outcome
	r.decode(&o)
	return o
}

var decimals = regexp.MustCompile(`^[0-9]+\.[0-9][0-9]$`)

// stamp returns a time that has passed since start as the protocol shows it.
func stamp(after time.Duration) string { return bso.Floor(start.Add(after)).String() }

func TestAWorldStoresRecordsAndFollowsThemToTheObjectStore(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"bookmarks"}})
	w.put("bookmarks", "a", "first")
	w.wantPayloads("first")
	w.reconcile()
	w.wantPayloads("first*")
	w.put("bookmarks", "a", "second")
	w.reconcile()
	w.wantPayloads("second*")
	if got := w.get("bookmarks", "a"); got != "second" {
		t.Errorf("payload is %q", got)
	}
	w.do("DELETE", "storage", "").says(200, "{}")
	w.settle()
	w.wantPayloads()
}

// rows returns the keys of all rows of a space, expired or not.
func (w *world) rows(space string) []string {
	w.Helper()
	var keys []string
	must(w, w.plain.Scan(w.Context(), space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
		keys = append(keys, string(row.Key))
		return true
	}))
	return keys
}
