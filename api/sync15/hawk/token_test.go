package hawk

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	ourSecret = "holdfast-test-secret"
	ourToken  = "eyJub2RlIjoiaHR0cHM6Ly9zeW5jLmV4YW1wbGUub3JnIiwiZnhhX2tpZCI6IjAwMDAwMDAwMDEyMzQtQUFFQ0F3UUZCZ2NJQ1FvTERBME9EdyIsImZ4YV91aWQiOiIwMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZiIsImhhc2hlZF9kZXZpY2VfaWQiOiIxMSIsImhhc2hlZF9meGFfdWlkIjoiMjIiLCJleHBpcmVzIjo0MTAyNDQ0ODAwLCJ1aWQiOjQyLCJ0b2tlbnNlcnZlcl9vcmlnaW4iOiJydXN0Iiwic2FsdCI6ImExYjJjMyJ9ieL7g8FbhyJ0cpxoIoxJljbiDVs2KJupSGsHGoVFDws="
	ourKey    = "EaZuUniuBiiFT-Mx3-4QYoiRvP-HDYZWG70-VTLkSyk="
)

var (
	ourClaims = Claims{
		Node: "https://sync.example.org", FxAKID: "0000000001234-AAECAwQFBgcICQoLDA0ODw",
		FxAUID: "0123456789abcdef0123456789abcdef", HashedDeviceID: "11", HashedFxAUID: "22",
		Expires: 4102444800, UID: 42, TokenserverOrigin: "rust", Salt: "a1b2c3",
	}
	ourNow = time.Unix(1700000000, 0)
)

func keyring(t testing.TB, secrets ...string) *Keyring {
	t.Helper()
	k, err := NewKeyring(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signed returns the token of any payload text, valid or not.
func signed(t testing.TB, secret, payload string) string {
	s := keyring(t, secret).secrets[0]
	return base64.URLEncoding.EncodeToString(append([]byte(payload), s.sign([]byte(payload))...))
}

func wantReason(t *testing.T, err error, want Reason) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason != want {
		t.Errorf("got error %v, want reason %q", err, want)
	}
}

func TestMintReproducesTheVector(t *testing.T) {
	k := keyring(t, ourSecret)
	if got, want := hex.EncodeToString(k.secrets[0].signing), "387cc77e7cbb84fb159bb7c356fcdc312877618d84dd0c7075865b084372bbd5"; got != want {
		t.Errorf("signing key %s, want %s", got, want)
	}
	token, key, err := k.Mint(ourClaims)
	if err != nil {
		t.Fatal(err)
	}
	if token != ourToken || key != ourKey {
		t.Errorf("got token %s and key %s", token, key)
	}
}

func TestVerifyReturnsWhatWasMinted(t *testing.T) {
	k := keyring(t, ourSecret)
	for name, verify := range map[string]func(string, time.Time) (*Token, error){
		"keyring": k.Verify, "cache": NewCache(k, 10).Verify,
	} {
		for range 3 { // the cache answers the later rounds
			got, err := verify(ourToken, ourNow)
			if err != nil {
				t.Fatal(name, err)
			}
			if diff := cmp.Diff(&Token{Claims: ourClaims, Key: ourKey}, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestVerifyAcceptsEverySecretOfTheKeyringAndMintsWithTheFirst(t *testing.T) {
	both := keyring(t, "new secret", ourSecret)
	got, err := both.Verify(ourToken, ourNow)
	if err != nil || got.Key != ourKey {
		t.Errorf("token of the second secret: %v, %v", got, err)
	}
	token, key, err := both.Mint(ourClaims)
	if err != nil {
		t.Fatal(err)
	}
	got, err = keyring(t, "new secret").Verify(token, ourNow)
	if err != nil || got.Key != key {
		t.Errorf("token of the first secret: %v, %v", got, err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	raw, err := base64.URLEncoding.DecodeString(ourToken)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.URLEncoding.EncodeToString
	changed := bytes.Clone(raw)
	changed[len(changed)-1] ^= 1
	changedPayload := bytes.Replace(raw, []byte(`"uid":42`), []byte(`"uid":43`), 1)
	claims := func(s string) string { return signed(t, ourSecret, s) }
	tests := []struct {
		name, token string
		want        Reason
	}{
		{"empty", "", IDTooShort},
		{"not base64", "!" + ourToken, DecodeError},
		{"without padding", strings.TrimRight(ourToken, "="), DecodeError},
		{"with a newline", ourToken[:8] + "\n" + ourToken[8:], DecodeError},
		{"standard alphabet", base64.StdEncoding.EncodeToString([]byte{0xfb, 0xff, 0xbf}), DecodeError},
		{"second spelling of the last digit", strings.TrimSuffix(ourToken, "ws=") + "wt=", DecodeError},
		{"cut to 32 bytes", encode(raw[:32]), IDTooShort},
		{"cut to 33 bytes", encode(raw[:33]), BadSignature},
		{"one byte of S changed", encode(changed), BadSignature},
		{"payload changed", encode(changedPayload), BadSignature},
		{"another secret", signed(t, "other", string(raw[:len(raw)-32])), BadSignature},
		{"not JSON", claims("uid=1"), InvalidJSON},
		{"not an object", claims("[1]"), InvalidJSON},
		{"no uid", claims(`{"node":"n","expires":9e9,"salt":"s"}`), InvalidJSON},
		{"no node", claims(`{"uid":1,"expires":9e9,"salt":"s"}`), InvalidJSON},
		{"no expires", claims(`{"node":"n","uid":1,"salt":"s"}`), InvalidJSON},
		{"no salt", claims(`{"node":"n","uid":1,"expires":9e9}`), InvalidJSON},
		{"uid a string", claims(`{"node":"n","uid":"1","expires":9e9,"salt":"s"}`), InvalidJSON},
		{"uid negative", claims(`{"node":"n","uid":-1,"expires":9e9,"salt":"s"}`), InvalidJSON},
		{"fxa_uid a number", claims(`{"node":"n","uid":1,"expires":9e9,"salt":"s","fxa_uid":1}`), InvalidJSON},
		{"expired", claims(`{"node":"n","uid":1,"expires":1699999999,"salt":"s"}`), Expired},
		{"expired by 0 seconds", claims(`{"node":"n","uid":1,"expires":1700000000,"salt":"s"}`), Expired},
		{"rounded down", claims(`{"node":"n","uid":1,"expires":1700000000.49,"salt":"s"}`), Expired},
		{"long ago", claims(`{"node":"n","uid":1,"expires":-1e300,"salt":"s"}`), Expired},
	}
	k := keyring(t, ourSecret)
	cache := NewCache(k, 100)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := k.Verify(tt.token, ourNow)
			wantReason(t, err, tt.want)
			for range 2 {
				_, err = cache.Verify(tt.token, ourNow)
				wantReason(t, err, tt.want)
			}
			if tt.want != Expired {
				_, err = k.VerifyIgnoringExpiry(tt.token)
				wantReason(t, err, tt.want)
			} else if _, err := cache.VerifyIgnoringExpiry(tt.token); err != nil {
				t.Errorf("with the expiry ignored: %v", err)
			}
		})
	}
}

func TestVerifyAcceptsForeignSpellingsOfClaims(t *testing.T) {
	for payload, want := range map[string]Claims{
		`{"node":"n","uid":1,"expires":1700000000.5,"salt":"s"}`:                           {Node: "n", UID: 1, Expires: 1700000001, Salt: "s", TokenserverOrigin: "python"},
		`{"salt":"s","new":[{}],"fxa_kid":"k","uid":9999999999,"expires":9e300,"node":""}`: {FxAKID: "k", UID: 9999999999, Expires: 1 << 53, Salt: "s", TokenserverOrigin: "python"},
	} {
		got, err := keyring(t, ourSecret).Verify(signed(t, ourSecret, payload), ourNow)
		if err != nil {
			t.Errorf("%s: %v", payload, err)
			continue
		}
		if diff := cmp.Diff(want, got.Claims); diff != "" {
			t.Errorf("%s (-want +got):\n%s", payload, diff)
		}
	}
}

func TestCacheChecksTheExpiryAtEachCall(t *testing.T) {
	c := NewCache(keyring(t, ourSecret), 10)
	if _, err := c.Verify(ourToken, ourNow); err != nil {
		t.Fatal(err)
	}
	_, err := c.Verify(ourToken, time.Unix(ourClaims.Expires, 0))
	wantReason(t, err, Expired)
	if _, err := c.Verify(ourToken, time.Unix(ourClaims.Expires-1, 0)); err != nil {
		t.Errorf("one second before the expiry: %v", err)
	}
}

func TestCacheStaysBoundedAndKeepsWhatIsUsed(t *testing.T) {
	const size = 8 * shards
	k := keyring(t, ourSecret)
	c := NewCache(k, size)
	used, err := c.Verify(ourToken, ourNow)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 10 * size {
				claims := ourClaims
				claims.UID = uint64(worker*100000 + i)
				token, key, err := k.Mint(claims)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := c.Verify(token, ourNow)
				if err != nil || got.UID != claims.UID || got.Key != key {
					t.Errorf("uid %d: got %v, %v", claims.UID, got, err)
				}
				if again, _ := c.Verify(ourToken, ourNow); worker == 0 && again.UID != 42 {
					t.Errorf("got uid %d for the used token", again.UID)
				}
			}
		})
	}
	wg.Wait()
	n := 0
	for i := range c.shards {
		n += len(c.shards[i].tokens.young) + len(c.shards[i].tokens.old)
	}
	if n > 2*size {
		t.Errorf("%d tokens are cached, want at most %d", n, 2*size)
	}
	if again, _ := c.Verify(ourToken, ourNow); again != used {
		t.Error("the token that was used all the time was forgotten")
	}
}

func TestCacheComparesTheTextAndNotOnlyItsHash(t *testing.T) {
	c := NewCache(keyring(t, ourSecret), 10)
	hash := maphash.String(c.seed, ourToken)
	c.shards[hash%shards].tokens.put(hash, cachedToken{text: "another", token: &Token{Key: "another"}})
	if got, err := c.Verify(ourToken, ourNow); err != nil || got.Key != ourKey {
		t.Errorf("a token with the same hash was returned: %v, %v", got, err)
	}
}

func TestNewKeyringRefusesEmptySecrets(t *testing.T) {
	for _, secrets := range [][]string{nil, {""}, {"a", ""}} {
		if _, err := NewKeyring(secrets...); err == nil {
			t.Errorf("NewKeyring(%q) succeeded", secrets)
		}
	}
}

func TestMintNeedsASalt(t *testing.T) {
	if _, _, err := keyring(t, "s").Mint(Claims{Node: "n"}); err == nil {
		t.Error("a token without salt was minted")
	}
	salt, err := NewSalt(bytes.NewReader([]byte{0xa1, 0xb2, 0xc3}))
	if err != nil || salt != "a1b2c3" {
		t.Errorf("got salt %q, %v", salt, err)
	}
	if _, err := NewSalt(bytes.NewReader(nil)); err == nil {
		t.Error("a salt came out of an empty source")
	}
}

func TestErrorsNameTheReasonAndNoSecret(t *testing.T) {
	_, err := keyring(t, ourSecret).Verify(signed(t, ourSecret, `{"uid":"private"}`), ourNow)
	if got := err.Error(); got != "hawk: invalid_json" {
		t.Errorf("got %q", got)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(ourToken, `{"node":"n","uid":1,"expires":9e9,"salt":"s"}`)
	f.Add("", `[]`)
	k := keyring(f, ourSecret)
	f.Fuzz(func(t *testing.T, token, payload string) {
		if _, err := k.Verify(token, ourNow); err == nil && token != ourToken {
			t.Errorf("a forged token was accepted: %q", token)
		}
		got, err := k.VerifyIgnoringExpiry(signed(t, ourSecret, payload))
		if err != nil {
			return
		}
		if got.Salt == "" {
			return // accepted, but Mint would not make it
		}
		minted, key, err := k.Mint(got.Claims)
		if err != nil {
			t.Fatal(err)
		}
		again, err := k.VerifyIgnoringExpiry(minted)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&Token{Claims: got.Claims, Key: key}, again); diff != "" {
			t.Error(diff)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	k := keyring(b, ourSecret)
	origin, _ := ParsePublicURL("https://sync.example.org")
	r := origin.Request("GET", "/1.5/42/storage/bookmarks?full=1&newer=1700000000.12")
	h := Header{ID: ourToken, TS: "1700000000", Nonce: "abc123"}
	h.MAC = h.Sign(r, ourKey)
	text := h.String()
	request := func(b *testing.B, verify func(string, time.Time) (*Token, error)) {
		b.ReportAllocs()
		for b.Loop() {
			h, err := ParseHeader(text)
			if err != nil {
				b.Fatal(err)
			}
			token, err := verify(h.ID, ourNow)
			if err != nil {
				b.Fatal(err)
			}
			if err := h.Verify(r, token.Key, ourNow); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("warm", func(b *testing.B) { request(b, NewCache(k, 1000).Verify) })
	b.Run("cold", func(b *testing.B) { request(b, k.Verify) })
	b.Run("replay", func(b *testing.B) {
		g := NewReplayGuard(1 << 18)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			h.Nonce = fmt.Sprint(i)
			g.Seen(h)
			i++
		}
	})
	b.Run("parallel", func(b *testing.B) {
		c := NewCache(k, 1000)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				h, _ := ParseHeader(text)
				token, err := c.Verify(h.ID, ourNow)
				if err != nil || h.Verify(r, token.Key, ourNow) != nil {
					b.Error("refused")
				}
			}
		})
	})
}
