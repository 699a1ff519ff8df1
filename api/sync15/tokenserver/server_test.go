package tokenserver

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
)

const (
	testDomain = "accounts.example.com"
	testID     = "0123456789abcdef0123456789abcdef"
	testEmail  = testID + "@" + testDomain
	testNode   = "https://sync.example.org"
)

// bench is a Server with one node on an engine in memory.
type bench struct {
	*storeBench
	server  *Server
	keyring *hawk.Keyring
	nodeID  int64
	// mint makes an access token; a generation of 0 is left out.
	mint func(accountID string, generation int64) string
}

// newBench returns a bench that trusts an account service, a small one, which takes
// tokens that are the JSON text of what it shall answer.
func newBench(t *testing.T, change ...func(*Options, *Policy)) *bench {
	t.Helper()
	accounts := httptest.NewServer(http.HandlerFunc(accountService))
	t.Cleanup(accounts.Close)
	o := oauth.Options{Server: accounts.URL, Timeout: 5 * time.Second, Client: accounts.Client()}
	b := buildBench(t, oauth.NewAccounts(o, oauth.NewKeys(o)), change)
	b.mint = func(accountID string, generation int64) string {
		body := map[string]any{"user": accountID, "scope": []string{oauth.Scope}, "client_id": "test"}
		if generation != 0 {
			body["generation"] = generation
		}
		return serviceAnswer(http.StatusOK, body)
	}
	return b
}

// newOfflineBench returns a bench that trusts tokens of its own.
func newOfflineBench(t *testing.T) *bench {
	t.Helper()
	var offline *oauth.Offline
	b := buildBench(t, nil, []func(*Options, *Policy){func(o *Options, _ *Policy) {
		var err error
		if offline, err = oauth.NewOffline("holdfast-test-secret", o.Clock); err != nil {
			t.Fatal(err)
		}
		o.Accounts = offline
	}})
	b.mint = func(accountID string, generation int64) string {
		token, err := offline.Mint(accountID, generation, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	return b
}

func buildBench(t *testing.T, v oauth.Verifier, change []func(*Options, *Policy)) *bench {
	t.Helper()
	keyring, err := hawk.NewKeyring("holdfast-test-secret")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{keyring: keyring}
	var p Policy
	b.storeBench = newStoreBench(t, p)
	o := Options{
		Store: b.Store, Clock: b.clock, Accounts: v, Keyring: keyring, Random: rand.Reader,
		EmailDomain: testDomain, MetricsHashSecret: "metrics-secret",
		TokenDuration: time.Hour, NodeType: "spanner", StoreTimeout: 10 * time.Second, Metrics: b.registry,
	}
	for _, f := range change {
		f(&o, &p)
	}
	p.ReleaseRate = DefaultReleaseRate
	b.policy = p
	if b.server, err = New(o); err != nil {
		t.Fatal(err)
	}
	b.nodeID = b.addNode(t, Node{URL: testNode, Capacity: 100, Available: 100})
	return b
}

// serviceAnswer makes a token that tells accountService what to answer.
func serviceAnswer(status int, body any) string {
	b, err := json.Marshal(map[string]any{"status": status, "body": body})
	if err != nil {
		panic(err)
	}
	return strings.Replace(string(b), ":", ": ", 1) // a token may contain spaces
}

func accountService(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/jwks" {
		fmt.Fprint(w, `{"keys": [{"nonsense": "RSA key"}]}`)
		return
	}
	var question struct {
		Token string `json:"token"`
	}
	var answer struct {
		Status int             `json:"status"`
		Body   json.RawMessage `json:"body"`
	}
	if r.URL.Path != "/v1/verify" || r.Method != http.MethodPost ||
		json.NewDecoder(r.Body).Decode(&question) != nil || json.Unmarshal([]byte(question.Token), &answer) != nil {
		http.Error(w, `{"error":"bad request"}`, http.StatusBadRequest)
		return
	}
	w.WriteHeader(answer.Status)
	w.Write(answer.Body)
}

// inBothModes runs a test with each kind of access token.
func inBothModes(t *testing.T, test func(*testing.T, *bench)) {
	t.Helper()
	t.Run("accounts", func(t *testing.T) { test(t, newBench(t)) })
	t.Run("offline", func(t *testing.T) { test(t, newOfflineBench(t)) })
}

// request is what a client asks with. A generation of 0 is not told.
type request struct {
	generation, keys int64
	state            string      // hex
	account          string      // testID if empty
	path             string      // the usual one if empty
	header           http.Header // in place of what follows from the above; nil values delete
}

func keyIDText(keys int64, state string) string {
	raw, err := hex.DecodeString(state)
	if err != nil {
		panic(err)
	}
	return strconv.FormatInt(keys, 10) + "-" + base64.RawURLEncoding.EncodeToString(raw)
}

func (b *bench) do(q request) *httptest.ResponseRecorder {
	if q.account == "" {
		q.account = testID
	}
	if q.path == "" {
		q.path = "/1.0/sync/1.5"
	}
	r := httptest.NewRequest(http.MethodGet, "https://token.example.org"+q.path, nil)
	r.Header.Set("Authorization", "Bearer "+b.mint(q.account, q.generation))
	r.Header.Set("X-KeyID", keyIDText(q.keys, q.state))
	for name, values := range q.header {
		r.Header.Del(name)
		if values != nil {
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, r)
	return w
}

// get expects success and returns the grant.
func (b *bench) get(t *testing.T, q request) grant {
	t.Helper()
	w := b.do(q)
	if w.Code != http.StatusOK {
		t.Fatalf("%+v: %d %s", q, w.Code, w.Body)
	}
	checkHeaders(t, b, w)
	var g grant
	if err := json.Unmarshal(w.Body.Bytes(), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// fails expects a failure.
func (b *bench) fails(t *testing.T, q request, want *failure) {
	t.Helper()
	wantFailure(t, b, b.do(q), want)
}

func wantFailure(t *testing.T, b *bench, w *httptest.ResponseRecorder, want *failure) {
	t.Helper()
	checkHeaders(t, b, w)
	wantBody := fmt.Sprintf(`{"status":%q,"errors":[{"location":%q,"name":%q,"description":%q}]}`,
		want.status, want.location, want.name, want.description)
	if w.Code != want.code || w.Body.String() != wantBody {
		t.Errorf("got  %d %s\nwant %d %s", w.Code, w.Body, want.code, wantBody)
	}
	if got := w.Header().Get("Retry-After"); (got != "") != (w.Code == http.StatusServiceUnavailable) {
		t.Errorf("Retry-After %q with status %d", got, w.Code)
	}
}

// checkHeaders verifies what every response has.
func checkHeaders(t *testing.T, b *bench, w *httptest.ResponseRecorder) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
		"X-Timestamp": strconv.FormatInt(b.clock.Now().Unix(), 10), "X-Backoff": "", "X-Weave-Timestamp": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// seed writes a user of the test's account on the bench's node, unless it has one.
func (b *bench) seed(t *testing.T, u User) uint64 {
	t.Helper()
	if u.NodeID == 0 {
		u.NodeID = b.nodeID
	}
	if u.CreatedAt == 0 {
		u.CreatedAt = start.UnixMilli()
	}
	return b.addUser(t, testEmail, u)
}

// counted returns a line of the registry's Prometheus text.
func (b *bench) counted(line string) bool {
	w := httptest.NewRecorder()
	b.registry.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return bytes.Contains(w.Body.Bytes(), []byte(line+"\n"))
}

func TestGrantIsGoodAtTheNode(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		g := b.get(t, request{generation: 1234, keys: 1234, state: "aaaa"})
		token, err := b.keyring.Verify(g.ID, start)
		if err != nil {
			t.Fatal(err)
		}
		salt := token.Salt
		if raw, err := hex.DecodeString(salt); err != nil || len(raw) != 3 {
			t.Errorf("salt %q, want six hex digits", salt)
		}
		want := &hawk.Token{Key: g.Key, Claims: hawk.Claims{
			Node: testNode, FxAKID: "0000000001234-qqo", FxAUID: testID, Salt: salt,
			HashedFxAUID: "e25abf4858e35851a75ff5ef984dcfd2", HashedDeviceID: "118066ed764b09c067de131d9abefeb7",
			Expires: start.Unix() + 3600, UID: g.UID, TokenserverOrigin: "rust",
		}}
		if diff := cmp.Diff(want, token); diff != "" {
			t.Errorf("token (-want +got):\n%s", diff)
		}
		wantGrant := grant{
			ID: g.ID, Key: g.Key, UID: 1, APIEndpoint: testNode + "/1.5/1", Duration: 3600,
			HashedFxAUID: "e25abf4858e35851a75ff5ef984dcfd2", HashAlg: "sha256", NodeType: "spanner",
		}
		if diff := cmp.Diff(wantGrant, g); diff != "" {
			t.Errorf("grant (-want +got):\n%s", diff)
		}
	})
}

func TestEveryGrantHasItsOwnSalt(t *testing.T) {
	b := newBench(t, func(o *Options, _ *Policy) { o.Random = bytes.NewReader([]byte{1, 2, 3, 4, 5, 6, 7}) })
	q := request{generation: 1234, keys: 1234, state: "aaaa"}
	for _, want := range []string{"010203", "040506"} {
		token, err := b.keyring.Verify(b.get(t, q).ID, start)
		if err != nil || token.Salt != want {
			t.Errorf("salt %q (%v), want %q", token.Salt, err, want)
		}
	}
	b.fails(t, q, internalError(http.StatusInternalServerError)) // one byte is left
}

func TestDurationCanBeShortened(t *testing.T) {
	b := newBench(t)
	for query, want := range map[string]int64{
		"": 3600, "?duration=12": 12, "?duration=0": 0, "?duration=3600": 3600, "?duration=3601": 3600, "?duration=4000": 3600,
		"?duration=-1": 3600, "?duration=lolwut": 3600, "?duration=": 3600, "?duration=1.5": 3600, "?other=1": 3600,
		"?duration=99999999999999999999": 3600, "?duration=18446744073709551615": 3600, "?duration=12&duration=13": 12, "?a=b&duration=%31": 1,
	} {
		g := b.get(t, request{generation: 1234, keys: 1234, state: "aaaa", path: "/1.0/sync/1.5" + query})
		token, err := b.keyring.VerifyIgnoringExpiry(g.ID)
		if err != nil {
			t.Fatal(err)
		}
		if g.Duration != want || token.Expires != start.Unix()+want {
			t.Errorf("%q: duration %d until %d, want %d", query, g.Duration, token.Expires-start.Unix(), want)
		}
	}
	b.fails(t, request{generation: 1234, keys: 1234, state: "aaaa", path: "/1.0/sync/1.5?duration=%zz"},
		&failure{400, "error", "url", "", "invalid query params"})
}

func TestServerRefusesImpossibleOptions(t *testing.T) {
	b := newBench(t)
	for name, spoil := range map[string]func(*Options){
		"no store":          func(o *Options) { o.Store = nil },
		"no accounts":       func(o *Options) { o.Accounts = nil },
		"no keyring":        func(o *Options) { o.Keyring = nil },
		"no clock":          func(o *Options) { o.Clock = nil },
		"no random source":  func(o *Options) { o.Random = nil },
		"no domain":         func(o *Options) { o.EmailDomain = "" },
		"no node type":      func(o *Options) { o.NodeType = "" },
		"no token duration": func(o *Options) { o.TokenDuration = 0 },
		"no store timeout":  func(o *Options) { o.StoreTimeout = 0 },
	} {
		o := b.server.opts
		spoil(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
