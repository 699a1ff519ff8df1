package tokenserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// good is a request that is granted, on a bench without users.
var good = request{generation: 1234, keys: 1234, state: "aaaa"}

func (q request) with(name string, values ...string) request {
	h := q.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h[http.CanonicalHeaderKey(name)] = values
	q.header = h
	return q
}

func (q request) at(path string) request {
	q.path = path
	return q
}

func TestRequestsAreRefused(t *testing.T) {
	var (
		noAuth      = &failure{401, "error", "body", "", "Unauthorized"}
		scheme      = &failure{401, "error", "body", "", "Unsupported"}
		credentials = &failure{401, "invalid-credentials", "body", "", "Unauthorized"}
		noKeyID     = &failure{401, "invalid-key-id", "header", "", "Missing X-KeyID header"}
		keyIDText   = &failure{401, "invalid-key-id", "header", "", "Invalid X-KeyID header"}
		stateForm   = &failure{400, "error", "header", "X-Client-State", "Invalid client state value"}
		otherState  = &failure{401, "invalid-client-state", "body", "", "Unauthorized"}
		application = &failure{404, "error", "url", "application", "Unsupported application"}
		lost        = &failure{404, "error", "url", "", "Not Found"}
	)
	version := func(v string) *failure { return &failure{404, "error", "url", v, "Unsupported application version"} }
	for _, tt := range []struct {
		name string
		q    request
		want *failure // nil: granted
	}{
		{"no authorization", good.with("Authorization"), noAuth},
		{"no space in it", good.with("Authorization", "Bearer"), noAuth},
		{"not ASCII", good.with("Authorization", "Bearer tök"), noAuth},
		{"control character", good.with("Authorization", "Bearer a\x7f"), noAuth},
		{"another scheme", good.with("Authorization", "Unsupported-Auth-Scheme IHACKYOU"), scheme},
		{"another scheme, and no key id", good.with("Authorization", "Hawk id=1").with("X-KeyID"), scheme},
		{"two spaces", good.with("Authorization", "Bearer  token"), credentials},
		{"empty token", good.with("Authorization", "Bearer "), credentials},
		{"unknown token", good.with("Authorization", "Bearer nonsense"), credentials},

		{"no key id", good.with("X-KeyID"), noKeyID},
		{"empty key id", good.with("X-KeyID", ""), credentials},
		{"key id not ASCII", good.with("X-KeyID", "1234-\xff"), keyIDText},
		{"key id without dash", good.with("X-KeyID", "1234qqo"), credentials},
		{"client state not base64", good.with("X-KeyID", "1234-state!"), credentials},
		{"client state padded", good.with("X-KeyID", "1234-qqo="), credentials},
		{"client state in the other alphabet", good.with("X-KeyID", "1234-+/+/"), credentials},
		{"client state with loose bits", good.with("X-KeyID", "1234-qqp"), credentials},
		{"keys changed at no number", good.with("X-KeyID", "12x4-qqo"), credentials},
		{"keys changed at missing", good.with("X-KeyID", "-qqo"), credentials},
		{"keys changed at too large", good.with("X-KeyID", "9223372036854775808-qqo"), credentials},

		{"client state header malformed", good.with("X-Client-State", "state!"), stateForm},
		{"client state header empty", good.with("X-Client-State", ""), stateForm},
		{"client state header too long", good.with("X-Client-State", strings.Repeat("a", 33)), stateForm},
		{"client state header not ASCII", good.with("X-Client-State", "\xff"), stateForm},
		{"client state header differs", good.with("X-Client-State", "bbbb"), otherState},
		{"client state header in capitals", good.with("X-Client-State", "AAAA"), otherState},

		{"unknown application", good.at("/1.0/unknown/token"), application},
		{"unknown application and version", good.at("/1.0/storage/9.9"), application},
		{"unknown version", good.at("/1.0/sync/1.2"), version("1.2")},
		{"unknown version, escaped", good.at("/1.0/sync/1%2F5"), version("1/5")},
		{"unknown version, not UTF-8", good.at("/1.0/sync/%FF"), version("\uFFFD")},
		{"other paths", good.at("/1.0/sync"), lost},
		{"trailing slash", good.at("/1.0/sync/1.5/"), lost},
		{"empty application", good.at("/1.0//1.5"), lost},
		{"another prefix", good.at("/1.1/sync/1.5"), lost},
		{"events while they are off", good.at("/1.0/webhooks/fxa/events"), lost},

		// What is wrong first is what is told.
		{"scheme before path", good.with("Authorization", "Basic x").at("/1.0/unknown/token"), scheme},
		{"token before application", good.with("Authorization", "Bearer x").at("/1.0/unknown/token"), credentials},
		{"token before key id", good.with("Authorization", "Bearer x").with("X-KeyID"), credentials},
		{"key id before application", good.with("X-KeyID").at("/1.0/unknown/token"), noKeyID},
		{"base64 before client state header", good.with("X-KeyID", "1-!").with("X-Client-State", "!"), credentials},
		{"client state header before number", good.with("X-KeyID", "x-qqo").with("X-Client-State", "!"), stateForm},
		{"equality before number", good.with("X-KeyID", "x-qqo").with("X-Client-State", "bbbb"), otherState},
		{"number before application", good.with("X-KeyID", "x-qqo").at("/1.0/unknown/token"), credentials},
		{"application before query", good.at("/1.0/unknown/1.5?%zz"), application},

		{"client state header equal", good.with("X-Client-State", "aaaa"), nil},
		{"scheme in other letters", good.with("Authorization", "bEARER "+serviceAnswer(200, map[string]any{"user": "u", "scope": []string{oauth.Scope}})), nil},
		{"escaped path", good.at("/1.0/s%79nc/1%2E5"), nil},
		{"no client state", good.with("X-KeyID", "1234-"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			if tt.want == nil {
				b.get(t, tt.q)
				return
			}
			b.fails(t, tt.q, tt.want)
			if accounts, err := b.Accounts(t.Context(), "", 1); len(accounts) > 0 || err != nil {
				t.Errorf("a refused request left %v (%v)", accounts, err)
			}
			if tt.want == credentials && tt.q.header.Get("Authorization") != "" && !b.counted("request_error_oauth_total 1") {
				t.Error("request.error.oauth was not counted")
			}
			if tt.want == otherState && !b.counted("request_error_invalid_client_state_total 1") {
				t.Error("request.error.invalid_client_state was not counted")
			}
		})
	}
}

func TestOfflineRefusesTokensOfOthers(t *testing.T) {
	b := newOfflineBench(t)
	credentials := &failure{401, "invalid-credentials", "body", "", "Unauthorized"}
	b.fails(t, good.with("Authorization", "Bearer "+newBench(t).mint(testID, 1234)), credentials)
	token := b.mint(testID, 1234)
	b.clock.Advance(2 * time.Hour)
	b.fails(t, good.with("Authorization", "Bearer "+token), credentials)
	if !b.counted("jwt_error_expired_signature_total 1") {
		t.Error("jwt.error.expired_signature was not counted")
	}
}

func TestOtherMethodsAreRefused(t *testing.T) {
	b := newBench(t)
	for _, method := range []string{"HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		w := httptest.NewRecorder()
		b.server.ServeHTTP(w, httptest.NewRequest(method, "/1.0/sync/1.5", strings.NewReader("{}")))
		wantFailure(t, b, w, &failure{405, "error", "body", "", "Method Not Allowed"})
		if got := w.Header().Get("Allow"); got != "GET" {
			t.Errorf("%s: Allow %q", method, got)
		}
	}
}

func TestAccountServiceThatDoesNotAnswerIsNotARefusal(t *testing.T) {
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, url := range map[string]string{"silent": silent.URL, "gone": gone.URL} {
		t.Run(name, func(t *testing.T) {
			o := oauth.Options{Server: url, Timeout: 20 * time.Millisecond}
			b := newBench(t, func(opts *Options, _ *Policy) { opts.Accounts = oauth.NewAccounts(o, oauth.NewKeys(o)) })
			b.fails(t, good, &failure{503, "error", "body", "", "Resource is not available"})
			if !b.counted("request_error_resource_unavailable_total 1") {
				t.Error("request.error.resource_unavailable was not counted")
			}
		})
	}
	t.Run("failing", func(t *testing.T) {
		b := newBench(t)
		b.fails(t, good.with("Authorization", "Bearer "+serviceAnswer(502, nil)), &failure{503, "error", "body", "", "Resource is not available"})
	})
}

func TestAccountServiceThatRefusesIsBelieved(t *testing.T) {
	b := newBench(t)
	for name, token := range map[string]string{
		"refused":        serviceAnswer(401, map[string]any{"code": 401}),
		"without scope":  serviceAnswer(200, map[string]any{"user": testID, "scope": []string{"profile"}}),
		"without user":   serviceAnswer(200, map[string]any{"scope": []string{oauth.Scope}}),
		"not an account": serviceAnswer(200, []int{1}),
	} {
		t.Run(name, func(t *testing.T) {
			b.fails(t, good.with("Authorization", "Bearer "+token), &failure{401, "invalid-credentials", "body", "", "Unauthorized"})
		})
	}
}

func TestEngineFailuresAreServerErrors(t *testing.T) {
	internal := func(code int) *failure { return &failure{code, "internal-error", "internal", "", "Server error"} }
	for name, tt := range map[string]struct {
		err  error
		want *failure
	}{
		"failed":   {kvtest.ErrInjected, internal(500)},
		"unknown":  {kv.ErrUnknownOutcome, internal(503)},
		"corrupt":  {kv.ErrCorrupt, internal(500)},
		"closed":   {kv.ErrClosed, internal(500)},
		"deadline": {context.DeadlineExceeded, &failure{504, "elapsed", "body", "", "Elapsed"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.faults.Before(func(_ context.Context, c kvtest.Call) error {
				if c.Op == kvtest.OpCommit {
					return tt.err
				}
				return nil
			})
			b.fails(t, good, tt.want)
			b.faults.Reset()
			if g := b.get(t, good); g.UID != 1 {
				t.Errorf("uid %d", g.UID)
			}
		})
	}
}

func TestUnknownOutcomeConverges(t *testing.T) {
	b := newBench(t)
	b.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if c.Op == kvtest.OpCommit && err == nil {
			return kv.ErrUnknownOutcome
		}
		return err
	})
	b.fails(t, good, &failure{503, "internal-error", "internal", "", "Server error"})
	b.faults.Reset()
	if g := b.get(t, good); g.UID != 1 {
		t.Errorf("uid %d, want the one that was given out", g.UID)
	}
	if n := b.node(t, b.nodeID); n.Load != 1 {
		t.Errorf("node %+v, want the account counted once", n)
	}
	checkStore(t, b.storeBench)
}

func TestEngineThatHangsIsGivenUp(t *testing.T) {
	b := newBench(t, func(o *Options, _ *Policy) { o.StoreTimeout = 20 * time.Millisecond })
	b.faults.Before(func(ctx context.Context, c kvtest.Call) error {
		<-ctx.Done()
		return ctx.Err()
	})
	b.fails(t, good, &failure{504, "elapsed", "body", "", "Elapsed"})
}

func TestEndlessConflictIsGivenUp(t *testing.T) {
	b := newBench(t, func(o *Options, _ *Policy) { o.StoreTimeout = 20 * time.Millisecond })
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit {
			return &kv.ConflictError{}
		}
		return nil
	})
	b.fails(t, good, &failure{504, "elapsed", "body", "", "Elapsed"})
}

// TestEveryErrorHasAnAnswer lists all errors that the parts below export.
func TestEveryErrorHasAnAnswer(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
	}{
		{&oauth.RefusedError{Reason: oauth.Expired}, 401},
		{oauth.ErrUnavailable, 503},
		{errors.Join(oauth.ErrUnavailable, context.DeadlineExceeded), 503},
		{&ClaimsError{Status: invalidGeneration}, 401},
		{ErrNewUsersDisabled, 403},
		{ErrNoNode, 503},
		{errRetiredWithoutNode, 500},
		{errTooManyUsers, 500},
		{errNoUIDLeft, 500},
		{ErrNodeNotFound, 500}, {ErrNodeExists, 500}, {ErrInvalidNode, 500}, // not met by requests
		{kv.ErrUnknownOutcome, 503},
		{errors.Join(context.DeadlineExceeded, &kv.ConflictError{}), 504},
		{context.Canceled, 500}, // nobody reads it
		{&kv.ConflictError{}, 500},
		{kv.ErrTooLarge, 500}, {kv.ErrInvalid, 500}, {kv.ErrClosed, 500}, {kv.ErrSpaceNotFound, 500},
		{kv.ErrSpaceMismatch, 500}, {kv.ErrUnguardedRange, 500}, {kv.ErrFeedTrimmed, 500}, {kv.ErrCorrupt, 500},
	} {
		if got := failureOf(errors.Join(errors.New("context"), tt.err)); got.code != tt.code {
			t.Errorf("%v: %d, want %d", tt.err, got.code, tt.code)
		}
	}
}

// FuzzRequest sends any headers and any path: there is always a complete answer.
func FuzzRequest(f *testing.F) {
	f.Add("/1.0/sync/1.5?duration=7", "Bearer x", "1234-qqo", "aaaa")
	f.Add("/1.0/%ff/%2f", "bearer  ", "9-", "")
	f.Fuzz(func(t *testing.T, path, authorization, keyID, state string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		u, err := r.URL.Parse(path)
		if err != nil {
			return
		}
		r.URL = u
		r.Header = http.Header{"Authorization": {authorization}, "X-Keyid": {keyID}, "X-Client-State": {state}}
		b := newOfflineBench(t)
		if strings.HasPrefix(authorization, "Bearer x") {
			r.Header.Set("Authorization", "Bearer "+b.mint(testID, 5))
		}
		w := httptest.NewRecorder()
		b.server.ServeHTTP(w, r)
		checkHeaders(t, b, w)
		if w.Code >= 500 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
