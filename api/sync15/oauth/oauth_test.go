package oauth

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/clock"
)

const accountID = "0123456789abcdef0123456789abcdef"

var start = time.Unix(1700000000, 0)

// newKey makes a key pair; its public half as the service publishes it.
func newKey(t testing.TB, kid string) (*rsa.PrivateKey, jose.JSONWebKey) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return private, jose.JSONWebKey{Key: private.Public(), KeyID: kid, Algorithm: "RS256", Use: "sig"}
}

type claims map[string]any

func goodClaims() claims {
	return claims{"sub": accountID, "scope": "profile " + Scope, "exp": start.Unix() + 60, "fxa-generation": 7}
}

func (c claims) with(name string, value any) claims {
	c[name] = value
	return c
}

func (c claims) without(name string) claims {
	delete(c, name)
	return c
}

func sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, kid, typ string, c claims) string {
	t.Helper()
	options := &jose.SignerOptions{}
	if typ != "" {
		options = options.WithType(jose.ContentType(typ))
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any(c)).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// mockService is an account service on the loopback interface. Its answer to
// /v1/verify is what the token asks for: {"status":…,"body":…}.
type mockService struct {
	*httptest.Server
	mu       sync.Mutex
	jwks     string
	jwksCode int
	asked    atomic.Int64 // /v1/jwks
	verified atomic.Int64 // /v1/verify
}

func newMock(t testing.TB, keys ...jose.JSONWebKey) *mockService {
	t.Helper()
	m := &mockService{}
	m.publish(t, keys...)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jwks", func(w http.ResponseWriter, _ *http.Request) {
		m.asked.Add(1)
		m.mu.Lock()
		defer m.mu.Unlock()
		w.WriteHeader(m.jwksCode)
		fmt.Fprint(w, m.jwks)
	})
	mux.HandleFunc("POST /v1/verify", func(w http.ResponseWriter, r *http.Request) {
		m.verified.Add(1)
		var question struct{ Token string }
		var answer struct {
			Status int
			Body   json.RawMessage
		}
		if r.Header.Get("Content-Type") != "application/json" || json.NewDecoder(r.Body).Decode(&question) != nil || json.Unmarshal([]byte(question.Token), &answer) != nil {
			http.Error(w, "bad token", http.StatusBadRequest)
			return
		}
		w.WriteHeader(answer.Status)
		w.Write(answer.Body)
	})
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

func (m *mockService) publish(t testing.TB, keys ...jose.JSONWebKey) {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	m.answerKeys(http.StatusOK, string(text))
}

func (m *mockService) answerKeys(code int, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jwksCode, m.jwks = code, text
}

func (m *mockService) options(c clock.Clock) Options {
	return Options{Server: m.URL + "/", Client: m.Client(), Clock: c}
}

func (m *mockService) verifier(c clock.Clock, fixed ...jose.JSONWebKey) *Accounts {
	return NewAccounts(m.options(c), NewKeys(m.options(c), fixed...))
}

func wantIdentity(t *testing.T, name string, got Identity, err error, generation *int64) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if diff := cmp.Diff(Identity{AccountID: accountID, Generation: generation}, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func wantRefused(t *testing.T, name string, err error, want Reason) {
	t.Helper()
	var r *RefusedError
	if !errors.As(err, &r) || r.Reason != want || errors.Is(err, ErrUnavailable) {
		t.Errorf("%s: got %v, want a refusal for %s", name, err, want)
	}
}

func ptr(n int64) *int64 { return &n }

func TestAccountsAcceptsJWTsWithoutAskingAboutThem(t *testing.T) {
	private, public := newKey(t, "k1")
	_, other := newKey(t, "k2")
	m := newMock(t, other, public)
	for name, tt := range map[string]struct {
		token      string
		generation *int64
	}{
		"plain":             {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims()), ptr(7)},
		"long type":         {sign(t, jose.RS256, private, "k1", "Application/AT+JWT", goodClaims()), ptr(7)},
		"no kid":            {sign(t, jose.RS256, private, "", "at+jwt", goodClaims()), ptr(7)},
		"no generation":     {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().without("fxa-generation")), nil},
		"generation 0":      {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("fxa-generation", 0)), nil},
		"scopes by commas":  {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("scope", "a,"+Scope+",b")), ptr(7)},
		"other audience":    {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("aud", "x")), ptr(7)},
		"expires this time": {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("exp", start.Unix()-60)), ptr(7)},
	} {
		got, err := m.verifier(clock.NewManual(start)).Verify(t.Context(), tt.token)
		wantIdentity(t, name, got, err, tt.generation)
		got, err = m.verifier(clock.NewManual(start), public).Verify(t.Context(), tt.token)
		wantIdentity(t, name+", fixed keys", got, err, tt.generation)
	}
	if n := m.verified.Load(); n != 0 {
		t.Errorf("the service was asked %d times", n)
	}
}

func TestAccountsRefusesReadableJWTsWithoutAskingAboutThem(t *testing.T) {
	private, public := newKey(t, "k1")
	stranger, _ := newKey(t, "k1")
	m := newMock(t, public)
	for name, tt := range map[string]struct {
		token string
		want  Reason
	}{
		"expired":             {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("exp", start.Unix()-61)), Expired},
		"no expiry":           {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().without("exp")), Expired},
		"another type":        {sign(t, jose.RS256, private, "k1", "JWT", goodClaims()), Untrusted},
		"no type":             {sign(t, jose.RS256, private, "k1", "", goodClaims()), Untrusted},
		"unknown key":         {sign(t, jose.RS256, stranger, "k1", "at+jwt", goodClaims()), InvalidSignature},
		"unknown key and kid": {sign(t, jose.RS256, stranger, "k9", "at+jwt", goodClaims()), InvalidSignature},
		"no scope":            {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().without("scope")), MissingScope},
		"another scope":       {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("scope", Scope+"/x profile")), MissingScope},
		"no account":          {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("sub", "")), Malformed},
	} {
		_, err := m.verifier(clock.NewManual(start)).Verify(t.Context(), tt.token)
		wantRefused(t, name, err, tt.want)
		_, err = m.verifier(clock.NewManual(start), public).Verify(t.Context(), tt.token)
		wantRefused(t, name+", fixed keys", err, tt.want)
	}
	if n := m.verified.Load(); n != 0 {
		t.Errorf("the service was asked %d times", n)
	}
}

func opaque(status int, body string) string {
	return fmt.Sprintf(`{"status": %d, "body": %s}`, status, body)
}

func TestAccountsAsksTheServiceAboutWhatItCannotRead(t *testing.T) {
	private, public := newKey(t, "k1")
	m := newMock(t)
	m.answerKeys(http.StatusOK, `{"keys":[{"fake":"RSA key"}]}`)
	good := fmt.Sprintf(`{"user":%q,"scope":[%q],"generation":5}`, accountID, Scope)
	for name, tt := range map[string]struct {
		answer     string
		generation *int64
	}{
		"full":          {good, ptr(5)},
		"no generation": {strings.Replace(good, `,"generation":5`, "", 1), nil},
		"null":          {strings.Replace(good, `5`+"}", "null}", 1), nil},
		"generation 0":  {strings.Replace(good, `5`+"}", "0}", 1), nil},
	} {
		got, err := m.verifier(clock.NewManual(start)).Verify(t.Context(), opaque(200, tt.answer))
		wantIdentity(t, name, got, err, tt.generation)
		got, err = m.verifier(clock.NewManual(start), public).Verify(t.Context(), opaque(201, tt.answer))
		wantIdentity(t, name+", fixed keys", got, err, tt.generation)
	}
	for name, tt := range map[string]struct {
		token string
		want  Reason
	}{
		"401":           {opaque(401, good), RefusedRemotely},
		"400":           {"not even JSON", RefusedRemotely},
		"304":           {opaque(304, `""`), RefusedRemotely},
		"not an object": {opaque(200, `[]`), RefusedRemotely},
		"no account":    {opaque(200, fmt.Sprintf(`{"scope":[%q]}`, Scope)), Malformed},
		"no scope":      {opaque(200, fmt.Sprintf(`{"user":%q,"scope":["profile"]}`, accountID)), MissingScope},
		"scope inside":  {opaque(200, fmt.Sprintf(`{"user":%q,"scope":["x %s"]}`, accountID, Scope)), MissingScope},
		// A JWT, but no usable key or not of the expected form: the service decides.
		"no usable key": {sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims()), RefusedRemotely},
	} {
		_, err := m.verifier(clock.NewManual(start)).Verify(t.Context(), tt.token)
		wantRefused(t, name, err, tt.want)
	}
	for name, token := range map[string]string{
		"another algorithm":          sign(t, jose.RS512, private, "k1", "at+jwt", goodClaims()),
		"symmetric":                  sign(t, jose.HS256, []byte(strings.Repeat("k", 32)), "k1", "at+jwt", goodClaims()),
		"generation of a wrong type": sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims().with("fxa-generation", "7")),
		"two parts":                  "a.b",
	} {
		before := m.verified.Load()
		_, err := m.verifier(clock.NewManual(start), public).Verify(t.Context(), token)
		wantRefused(t, name, err, RefusedRemotely)
		if m.verified.Load() != before+1 {
			t.Errorf("%s: the service was not asked", name)
		}
	}
}

func TestTroubleOfTheServiceIsNoRefusal(t *testing.T) {
	m := newMock(t)
	for _, status := range []int{500, 502, 503, 429} {
		if _, err := m.verifier(clock.NewManual(start)).Verify(t.Context(), opaque(status, "{}")); !errors.Is(err, ErrUnavailable) {
			t.Errorf("status %d: got %v", status, err)
		}
	}
	closed := newMock(t)
	closed.Close()
	if _, err := closed.verifier(clock.NewManual(start)).Verify(t.Context(), "opaque"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("no server: got %v", err)
	}
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })
	o := Options{Server: silent.URL, Timeout: 20 * time.Millisecond, Client: silent.Client(), Clock: clock.NewManual(start)}
	_, err := NewAccounts(o, NewKeys(o)).Verify(t.Context(), "opaque secret-token")
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timeout: got %v", err)
	}
	if err != nil && strings.Contains(err.Error(), "secret-token") {
		t.Errorf("the token is in the error: %v", err)
	}
}

func TestKeysAreFetchedOnceForManyAndAgainForAnUnknownKid(t *testing.T) {
	oldPrivate, oldPublic := newKey(t, "old")
	newPrivate, newPublic := newKey(t, "new")
	m := newMock(t, oldPublic)
	c := clock.NewManual(start)
	v := m.verifier(c)
	oldToken := sign(t, jose.RS256, oldPrivate, "old", "at+jwt", goodClaims().with("exp", start.Unix()+1e6))
	newToken := sign(t, jose.RS256, newPrivate, "new", "at+jwt", goodClaims().with("exp", start.Unix()+1e6))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := v.Verify(t.Context(), oldToken); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantAsked := func(when string, want int64) {
		t.Helper()
		if got := m.asked.Load(); got != want {
			t.Errorf("%s: the keys were asked for %d times, want %d", when, got, want)
		}
	}
	wantAsked("many at once", 1)

	m.publish(t, oldPublic, newPublic)
	for range 5 {
		_, err := v.Verify(t.Context(), newToken)
		wantRefused(t, "unknown kid within a minute", err, InvalidSignature)
	}
	wantAsked("unknown kid within a minute", 1)
	c.Advance(keysPause)
	got, err := v.Verify(t.Context(), newToken)
	wantIdentity(t, "unknown kid after a minute", got, err, ptr(7))
	wantAsked("unknown kid after a minute", 2)

	c.Advance(keysLifetime - 1)
	if _, err := v.Verify(t.Context(), oldToken); err != nil {
		t.Error(err)
	}
	wantAsked("before the keys are old", 2)
	c.Advance(1)
	m.answerKeys(http.StatusInternalServerError, "")
	if _, err := v.Verify(t.Context(), oldToken); err != nil {
		t.Errorf("the service fails, the keys are still there: %v", err)
	}
	wantAsked("when the keys are old", 3)

	c.Advance(keysPause)
	m.publish(t, newPublic)
	if _, err := v.Verify(t.Context(), newToken); err != nil {
		t.Error(err)
	}
	_, err = v.Verify(t.Context(), oldToken)
	wantRefused(t, "a key that is withdrawn", err, InvalidSignature)
	wantAsked("a minute after a failure", 4)

	c.Advance(-time.Hour)
	if _, err := v.Verify(t.Context(), newToken); err != nil {
		t.Error(err)
	}
	wantAsked("after the clock jumped back", 5)
}

func TestALeavingCallerDoesNotFailTheOthers(t *testing.T) {
	private, public := newKey(t, "k1")
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}})
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/jwks" {
			close(entered) // a second question would panic
			<-release
			w.Write(text)
		}
	}))
	t.Cleanup(server.Close)
	o := Options{Server: server.URL, Client: server.Client(), Clock: clock.NewManual(start)}
	v := NewAccounts(o, NewKeys(o))
	token := sign(t, jose.RS256, private, "k1", "at+jwt", goodClaims())
	ctx, leave := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := v.Verify(ctx, token); first <- err }()
	<-entered
	go func() { _, err := v.Verify(t.Context(), token); second <- err }()
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who left got %v", err)
	}
	close(release)
	if err := <-second; err != nil {
		t.Errorf("the caller who stayed got %v", err)
	}
}

func TestParseKey(t *testing.T) {
	_, public := newKey(t, "k1")
	text, err := public.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	k, err := ParseKey(strings.Replace(string(text), "{", `{"fxa-createdAt":1700000000,`, 1))
	if err != nil || k.KeyID != "k1" {
		t.Errorf("got %v, %v", k.KeyID, err)
	}
	private, _ := newKey(t, "k1")
	secret, err := jose.JSONWebKey{Key: private}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"", "{}", `{"kty":"RSA"}`, `{"kty":"oct","k":"AAAA"}`, string(secret),
		strings.Replace(string(text), `"sig"`, `"enc"`, 1), strings.Replace(string(text), "RS256", "RS512", 1),
	} {
		if _, err := ParseKey(s); err == nil {
			t.Errorf("%.60s was accepted", s)
		}
	}
}
