package tokenserver

import (
	"crypto/rand"
	"crypto/rsa"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// eventBench is a bench that receives events, and the account service's key.
type eventBench struct {
	*bench
	key *rsa.PrivateKey
}

func newEventBench(t *testing.T, metricsOnly bool) *eventBench {
	t.Helper()
	e := &eventBench{key: rsaKeys()[1]}
	e.bench = newBench(t, func(o *Options, _ *Policy) {
		keys := oauth.NewKeys(oauth.Options{},
			jose.JSONWebKey{Key: rsaKeys()[0].Public(), Algorithm: "RS256"}, jose.JSONWebKey{Key: e.key.Public(), Algorithm: "RS256"})
		o.Events = oauth.NewEvents(keys, o.Clock, "our-client-id", "https://accounts.example.com/")
		o.EventsMetricsOnly = metricsOnly
	})
	return e
}

// rsaKeys are made once, because that takes long: the account service's two, and
// a stranger's.
var rsaKeys = sync.OnceValue(func() (keys [3]*rsa.PrivateKey) {
	for i := range keys {
		var err error
		if keys[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err)
		}
	}
	return keys
})

func sign(t *testing.T, key *rsa.PrivateKey, audience string, events map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": "https://accounts.example.com/", "aud": audience, "sub": testID, "events": events,
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (e *eventBench) post(authorization string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/1.0/webhooks/fxa/events", nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	e.server.ServeHTTP(w, r)
	return w
}

// send posts events of the test's account, which must be accepted.
func (e *eventBench) send(t *testing.T, events map[string]any) {
	t.Helper()
	w := e.post("Bearer " + sign(t, e.key, "our-client-id", events))
	if w.Code != http.StatusOK || w.Body.Len() > 0 {
		t.Errorf("%d %s, want 200 without a body", w.Code, w.Body)
	}
	checkHeaders(t, e.bench, w)
}

var (
	deleted = map[string]any{oauth.DeleteUser: map[string]any{}}
	changed = map[string]any{oauth.PasswordChange: map[string]any{"changeTime": 5000}}
)

func TestDeletedAccountIsRetired(t *testing.T) {
	e := newEventBench(t, false)
	g := e.get(t, good)
	e.send(t, deleted)
	if u := e.user(t, g.UID); u.Generation != math.MaxInt64 || u.ReplacedAt == nil || *u.ReplacedAt != start.UnixMilli() {
		t.Errorf("user %+v, want it retired", u)
	}
	e.fails(t, good, badGeneration)
	e.fails(t, request{generation: 9999, keys: 9999, state: "bbbb"}, badState("new value with no generation change"))
	for _, line := range []string{"webhook_events_received_total 1", `webhook_events_processed_total{event_type="delete_user"} 1`} {
		if !e.counted(line) {
			t.Errorf("metrics do not show %s", line)
		}
	}
}

func TestChangedPasswordShutsOutOlderSessions(t *testing.T) {
	e := newEventBench(t, false)
	g := e.get(t, good)
	e.send(t, changed)
	e.send(t, map[string]any{oauth.PasswordChange: map[string]any{"changeTime": 3000}}) // late
	if u := e.user(t, g.UID); u.Generation != 4999 || u.ReplacedAt != nil || *u.KeysChangedAt != 1234 {
		t.Errorf("user %+v, want generation 4999", u)
	}
	e.fails(t, request{generation: 4998, keys: 1234, state: "aaaa"}, badGeneration)
	if again := e.get(t, request{generation: 5000, keys: 1234, state: "aaaa"}); again.UID != g.UID {
		t.Errorf("uid %d after the change, want %d", again.UID, g.UID)
	}
	if !e.counted(`webhook_events_processed_total{event_type="password_change"} 2`) {
		t.Error("webhook.events_processed was not counted")
	}
}

func TestEventsOfOneTokenAreAllActedOn(t *testing.T) {
	e := newEventBench(t, false)
	g := e.get(t, good)
	e.send(t, map[string]any{oauth.PasswordChange: changed[oauth.PasswordChange], oauth.DeleteUser: map[string]any{}, "https://example.com/unknown": nil})
	if u := e.user(t, g.UID); u.Generation != math.MaxInt64 {
		t.Errorf("user %+v, want it retired", u)
	}
	if !e.counted("webhook_events_received_total 3") {
		t.Error("webhook.events_received was not counted")
	}
}

func TestEventsThatMeanNothingAreAccepted(t *testing.T) {
	e := newEventBench(t, false)
	e.send(t, deleted) // of an account that has never been here
	g := e.get(t, good)
	e.send(t, map[string]any{"https://schemas.accounts.firefox.com/event/profile-change": map[string]any{}})
	e.send(t, nil)
	if u := e.user(t, g.UID); u.Generation != 1234 || u.ReplacedAt != nil {
		t.Errorf("user %+v", u)
	}
}

func TestEventsCanBeCountedOnly(t *testing.T) {
	e := newEventBench(t, true)
	g := e.get(t, good)
	e.send(t, deleted)
	if u := e.user(t, g.UID); u.Generation != 1234 || u.ReplacedAt != nil {
		t.Errorf("user %+v, want it unchanged", u)
	}
	if !e.counted("webhook_events_received_total 1") {
		t.Error("webhook.events_received was not counted")
	}
}

func TestEventsOfStrangersAreRefused(t *testing.T) {
	e := newEventBench(t, false)
	g := e.get(t, good)
	credentials := &failure{401, "invalid-credentials", "body", "", "Unauthorized"}
	for name, tt := range map[string]struct {
		authorization string
		want          *failure
	}{
		"no authorization": {"", &failure{401, "error", "body", "", "Unauthorized"}},
		"another scheme":   {"Basic x", &failure{401, "error", "body", "", "Unsupported"}},
		"no token":         {"Bearer nonsense", credentials},
		"another key":      {"Bearer " + sign(t, rsaKeys()[2], "our-client-id", deleted), credentials},
		"another audience": {"Bearer " + sign(t, e.key, "another-client-id", deleted), credentials},
		"an access token":  {"Bearer " + e.mint(testID, 1234), credentials},
	} {
		t.Run(name, func(t *testing.T) { wantFailure(t, e.bench, e.post(tt.authorization), tt.want) })
	}
	if u := e.user(t, g.UID); u.Generation != 1234 || u.ReplacedAt != nil {
		t.Errorf("user %+v, want it unchanged", u)
	}
	w := httptest.NewRecorder()
	e.server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/1.0/webhooks/fxa/events", nil))
	wantFailure(t, e.bench, w, &failure{405, "error", "body", "", "Method Not Allowed"})
}

// An event that was not acted on must not be acknowledged, so that it comes again.
func TestEventIsNotAcknowledgedBeforeItIsStored(t *testing.T) {
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		e := newEventBench(t, false)
		g := e.get(t, good)
		p.Arm(e.faults)
		w := e.post("Bearer " + sign(t, e.key, "our-client-id", deleted))
		e.faults.Reset()
		if (w.Code == http.StatusOK) == p.Fired() {
			t.Errorf("fault: %v, status %d", p.Fired(), w.Code)
		}
		e.send(t, deleted)
		if u := e.user(t, g.UID); u.Generation != math.MaxInt64 || u.ReplacedAt == nil {
			t.Errorf("user %+v, want it retired", u)
		}
	})
}
