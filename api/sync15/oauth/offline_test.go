package oauth

import (
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/holdfast-dev/holdfast/clock"
)

var (
	_ Verifier = (*Accounts)(nil)
	_ Verifier = (*Offline)(nil)
)

func newOffline(t testing.TB, secret string, c clock.Clock) *Offline {
	t.Helper()
	o, err := NewOffline(secret, c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOfflineAcceptsItsOwnTokensUntilTheyExpire(t *testing.T) {
	c := clock.NewManual(start)
	o := newOffline(t, "secret0", c)
	for generation, want := range map[int64]*int64{0: nil, 7: ptr(7)} {
		c.Set(start)
		token, err := o.Mint(accountID, generation, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newOffline(t, "secret0", c).Verify(t.Context(), token)
		wantIdentity(t, "another server with the secret", got, err, want)
		c.Advance(time.Hour + leeway)
		got, err = o.Verify(t.Context(), token)
		wantIdentity(t, "in its last second", got, err, want)
		c.Advance(time.Second)
		_, err = o.Verify(t.Context(), token)
		wantRefused(t, "expired", err, Expired)
		c.Set(start)
		_, err = newOffline(t, "secret1", c).Verify(t.Context(), token)
		wantRefused(t, "another secret", err, InvalidSignature)
	}
}

func TestOfflineRefusesForeignTokens(t *testing.T) {
	c := clock.NewManual(start)
	o := newOffline(t, "secret0", c)
	private, _ := newKey(t, "k1")
	mint := func(typ string, c claims) string { return sign(t, jose.HS256, o.key, "", typ, c) }
	good := mint(offlineType, goodClaims())
	if _, err := o.Verify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	header, rest, _ := strings.Cut(good, ".")
	for name, tt := range map[string]struct {
		token string
		want  Reason
	}{
		"empty":            {"", Malformed},
		"opaque":           {`{"status": 200}`, Malformed},
		"RS256":            {sign(t, jose.RS256, private, "", offlineType, goodClaims()), Malformed},
		"HS512":            {sign(t, jose.HS512, []byte(strings.Repeat("k", 64)), "", offlineType, goodClaims()), Malformed},
		"alg none":         {"eyJhbGciOiJub25lIn0." + rest, Malformed},
		"no payload":       {header + ".." + rest, Malformed},
		"access token":     {mint("at+jwt", goodClaims()), Untrusted},
		"no type":          {mint("", goodClaims()), Untrusted},
		"claims of a list": {mint(offlineType, goodClaims().with("sub", []string{"a"})), Malformed},
		"no scope":         {mint(offlineType, goodClaims().without("scope")), MissingScope},
		"no expiry":        {mint(offlineType, goodClaims().without("exp")), Expired},
		"raw secret":       {sign(t, jose.HS256, []byte(strings.Repeat("secret0", 5)), "", offlineType, goodClaims()), InvalidSignature},
	} {
		_, err := o.Verify(t.Context(), tt.token)
		wantRefused(t, name, err, tt.want)
	}
}

func TestOfflineMintsNoNonsense(t *testing.T) {
	o := newOffline(t, "secret0", clock.NewManual(start))
	for _, id := range []string{"", "a b", "a@b", "a/b", "é", strings.Repeat("a", 65)} {
		if _, err := o.Mint(id, 0, time.Hour); err == nil {
			t.Errorf("a token for %q was minted", id)
		}
	}
	if _, err := o.Mint("a", 0, time.Millisecond); err == nil {
		t.Error("a token without a lifetime was minted")
	}
	if _, err := o.Mint("a", -1, time.Hour); err == nil {
		t.Error("a token of generation -1 was minted")
	}
	if _, err := NewOffline("", clock.NewManual(start)); err == nil {
		t.Error("an empty secret was accepted")
	}
}

func FuzzOfflineVerify(f *testing.F) {
	o := newOffline(f, "secret0", clock.NewManual(start))
	token, err := o.Mint(accountID, 7, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, s string) {
		// Base64 lets the last digit of a signature vary, so only the claims count.
		if id, err := o.Verify(t.Context(), s); err == nil && (id.AccountID != accountID || *id.Generation != 7) {
			t.Errorf("%q was accepted as %v", s, id)
		}
	})
}
