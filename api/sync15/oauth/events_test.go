package oauth

import (
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/clock"
)

func eventClaims(events claims) claims {
	return claims{"iss": "https://accounts.example.org", "aud": "client1", "sub": accountID, "iat": start.Unix(), "events": events}
}

func TestEventsVerify(t *testing.T) {
	private, public := newKey(t, "k1")
	_, other := newKey(t, "k2")
	c := clock.NewManual(start)
	e := NewEvents(NewKeys(Options{}, other, public), c, "client1", "https://accounts.example.org")
	change := claims{PasswordChange: claims{"changeTime": 1700000000123}}
	for name, tt := range map[string]struct {
		claims claims
		want   []Event
	}{
		"password":  {eventClaims(change), []Event{{Type: PasswordChange, AccountID: accountID, ChangeTime: time.UnixMilli(1700000000123).UTC()}}},
		"delete":    {eventClaims(claims{DeleteUser: claims{}}), []Event{{Type: DeleteUser, AccountID: accountID}}},
		"unknown":   {eventClaims(claims{"https://example.org/z": []int{1}, "https://example.org/a": nil}), []Event{{Type: "https://example.org/a", AccountID: accountID}, {Type: "https://example.org/z", AccountID: accountID}}},
		"none":      {eventClaims(claims{}), nil},
		"audiences": {eventClaims(claims{}).with("aud", []string{"x", "client1"}), nil},
		"expiry":    {eventClaims(claims{}).with("exp", start.Unix()), nil},
	} {
		got, err := e.Verify(t.Context(), sign(t, jose.RS256, private, "k1", "secevent+jwt", tt.claims))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	stranger, _ := newKey(t, "k1")
	for name, tt := range map[string]struct {
		token string
		want  Reason
	}{
		"opaque":           {"token", Malformed},
		"symmetric":        {sign(t, jose.HS256, make([]byte, 32), "k1", "", eventClaims(change)), Malformed},
		"unknown key":      {sign(t, jose.RS256, stranger, "k1", "", eventClaims(change)), InvalidSignature},
		"another issuer":   {sign(t, jose.RS256, private, "k1", "", eventClaims(change).with("iss", "x")), Untrusted},
		"no issuer":        {sign(t, jose.RS256, private, "k1", "", eventClaims(change).without("iss")), Untrusted},
		"another audience": {sign(t, jose.RS256, private, "k1", "", eventClaims(change).with("aud", "x")), Untrusted},
		"no audience":      {sign(t, jose.RS256, private, "k1", "", eventClaims(change).without("aud")), Untrusted},
		"expired":          {sign(t, jose.RS256, private, "k1", "", eventClaims(change).with("exp", start.Unix()-61)), Expired},
		"no account":       {sign(t, jose.RS256, private, "k1", "", eventClaims(change).without("sub")), Malformed},
		"no change time":   {sign(t, jose.RS256, private, "k1", "", eventClaims(claims{PasswordChange: claims{}})), Malformed},
		"time as text":     {sign(t, jose.RS256, private, "k1", "", eventClaims(claims{PasswordChange: claims{"changeTime": "1"}})), Malformed},
		"events of a list": {sign(t, jose.RS256, private, "k1", "", eventClaims(nil).with("events", []int{1})), Malformed},
	} {
		_, err := e.Verify(t.Context(), tt.token)
		wantRefused(t, name, err, tt.want)
	}
	unset := NewEvents(NewKeys(Options{}, public), c, "", "")
	_, err := unset.Verify(t.Context(), sign(t, jose.RS256, private, "k1", "", eventClaims(change).with("iss", "").with("aud", "")))
	wantRefused(t, "nothing configured", err, Untrusted)
}
