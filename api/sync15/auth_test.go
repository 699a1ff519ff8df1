package sync15

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
)

func TestEveryHawkFailureIs401AndCounted(t *testing.T) {
	w := newWorld(t, setup{})
	const target = "/1.5/42/info/quota"
	good := func() string { return w.user.sign(w.clock.Now(), "GET", target) }
	raw, err := base64.URLEncoding.DecodeString(w.user.token)
	must(t, err)
	withToken := func(token string) string {
		u := w.user
		u.token = token
		return u.sign(w.clock.Now(), "GET", target)
	}
	flipped := append([]byte(nil), raw...)
	flipped[len(flipped)-1] ^= 1
	strange, err := hawk.NewKeyring("another master secret")
	must(t, err)
	token, key, err := strange.Mint(hawk.Claims{UID: 42, Node: "http://" + host, Salt: "a1b2c3", Expires: start.Add(time.Hour).Unix()})
	must(t, err)
	signed := func(method, path, h string, port uint16, at time.Time, nonce string) string {
		header := hawk.Header{ID: w.user.token, TS: fmt.Sprint(at.Unix()), Nonce: nonce}
		header.MAC = header.Sign(hawk.Request{Method: method, Target: path, Host: h, Port: port}, w.user.key)
		return header.String()
	}
	now := w.clock.Now()
	for _, c := range []struct{ name, header, metric string }{
		{"nothing", "", "missing_header"},
		{"prefix cut off", strings.TrimPrefix(good(), "Hawk "), "missing_prefix"},
		{"another scheme", "Bearer abc", "missing_prefix"},
		{"an attribute without quotes", "Hawk id=x", "header"},
		{"no id", `Hawk ts="1", nonce="n", mac="m"`, "missing_id"},
		{"not ASCII", good() + "é", "parse_error"},
		{"no base64", withToken("!!!"), "decode_error"},
		{"32 bytes", withToken(base64.URLEncoding.EncodeToString(raw[:32])), "id_too_short"},
		{"one bit of the signature", withToken(base64.URLEncoding.EncodeToString(flipped)), "hmac"},
		{"another master secret", user{42, token, key}.sign(now, "GET", target), "hmac"},
		{"another method", signed("POST", target, host, 80, now, "n"), "invalid_header"},
		{"another path", signed("GET", "/1.5/42/info/collections", host, 80, now, "n"), "invalid_header"},
		{"another query", signed("GET", target+"?x", host, 80, now, "n"), "invalid_header"},
		{"another host", signed("GET", target, "example.org", 80, now, "n"), "invalid_header"},
		{"another port", signed("GET", target, host, 443, now, "n"), "invalid_header"},
		{"another key", (user{42, w.user.token, "key"}).sign(now, "GET", target), "invalid_header"},
		{"a nonce changed", strings.Replace(signed("GET", target, host, 80, now, "abc"), "abc", "abd", 1), "invalid_header"},
		{"a time changed", strings.Replace(signed("GET", target, host, 80, now, "abc"), fmt.Sprint(now.Unix()), fmt.Sprint(now.Unix()+1), 1), "invalid_header"},
		{"more than a year ago", signed("GET", target, host, 80, now.Add(-hawk.Tolerance-time.Second), "n"), "invalid_header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			counter := "syncstorage_request_error_hawk_" + c.metric + "_total"
			before := w.counter(counter)
			r := w.do("GET", target, "", "Authorization:"+c.header)
			r.t = t
			r.says(401, "0").has("WWW-Authenticate", "Hawk").has("Content-Type", "application/json")
			if !decimals.MatchString(r.header.Get("X-Weave-Timestamp")) {
				t.Error("no X-Weave-Timestamp")
			}
			if w.counter(counter) != before+1 {
				t.Errorf("%s is not counted", counter)
			}
		})
	}
	w.do("GET", target, "", "Authorization:"+good()).want(200)
	w.do("GET", target, "", "Authorization:"+strings.Replace(good(), "Hawk", "hAWK", 1)).want(200)
	w.do("GET", target, "", "Authorization:"+signed("GET", target, host, 80, now.Add(-hawk.Tolerance), "n")).want(200)
	w.do("GET", target, "", "Authorization:"+signed("GET", target, host, 80, now.Add(hawk.Tolerance), "n")).want(200)
}

func TestThePathsUIDIsThatOfTheToken(t *testing.T) {
	w := newWorld(t, setup{})
	for _, c := range []struct{ method, target, body string }{
		{"GET", "/1.5/43/info/collections", ""}, {"GET", "/1.5/4/storage/col", ""}, {"PUT", "/1.5/420/storage/col/a", "{}"}, {"DELETE", "/1.5/43", ""},
		{"GET", "/1.5/9999999999/info/configuration", ""},
	} {
		w.do(c.method, c.target, c.body).says(400, "0").has("WWW-Authenticate", "")
	}
	if n := w.counter("syncstorage_request_validate_hawk_invalid_uid_total"); n != 5 {
		t.Errorf("%d counted, want 5", n)
	}
	w.do("GET", "/1.5/0000000042/info/collections", "").want(200)
}

func TestAnExpiredTokenServesToPollCollectionsOnly(t *testing.T) {
	w := newWorld(t, setup{})
	w.do("PUT", "storage/info/collections", "{}").want(200) // a record of a collection called info
	w.user = w.mint(hawk.Claims{UID: 42, FxAUID: "account", FxAKID: "0000000001234-key", Expires: start.Add(10 * time.Second).Unix()})
	w.clock.Advance(10*time.Second - time.Millisecond)
	w.do("GET", "storage/info", "").want(200)
	w.clock.Advance(time.Millisecond) // expired for 0 seconds
	w.do("GET", "info/collections", "").want(200)
	w.do("GET", "info/collections?x=y", "", "X-If-Modified-Since: 9999999999").want(304)
	w.do("GET", "info/configuration", "").want(200)
	for _, c := range []struct{ method, target string }{
		{"GET", "storage/info/collections"}, {"GET", "storage/info"}, {"GET", "info/quota"}, {"GET", "info/collection_counts"},
		{"GET", "info/collection_usage"}, {"HEAD", "info/collections"}, {"DELETE", "storage"}, {"POST", "storage/col"}, {"PUT", "storage/col/a"},
	} {
		w.do(c.method, c.target, "[]").says(401, "0").has("WWW-Authenticate", "Hawk")
	}
	// The rest of the token must be right all the same.
	w.do("GET", "info/collections", "", "Authorization:"+w.user.sign(w.clock.Now(), "GET", "/1.5/42/info/quota")).says(401, "0")
	stranger := w.user
	stranger.uid = 43
	w.as(stranger, "GET", "info/collections", "").says(400, "0")
}

func TestAChangingRequestIsTakenOnce(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.RememberReplays = 1000 }})
	for _, c := range []struct {
		method, target, body string
		first, again, anew   int
	}{
		{"GET", "/1.5/42/info/collections", "", 200, 200, 200},
		{"HEAD", "/1.5/42/info/quota", "", 200, 200, 200},
		{"PUT", "/1.5/42/storage/col/a", "{}", 200, 401, 200},
		{"POST", "/1.5/42/storage/col", "[]", 200, 401, 200},
		{"DELETE", "/1.5/42/storage/col/a", "", 200, 401, 404},
	} {
		auth := "Authorization:" + w.user.sign(w.clock.Now(), c.method, c.target)
		w.do(c.method, c.target, c.body, auth).want(c.first)
		w.do(c.method, c.target, c.body, auth).want(c.again)
		w.do(c.method, c.target, c.body).want(c.anew)
	}
	// A request that was refused before its signature was right is not remembered.
	target := "/1.5/42/storage/col/a"
	auth := w.user.sign(w.clock.Now(), "PUT", target)
	w.do("PUT", target+"?x", "{}", "Authorization:"+auth).says(401, "0")
	w.do("PUT", target, "{}", "Authorization:"+auth).want(200)
	// Without the option nothing is remembered.
	w = newWorld(t, setup{})
	auth = w.user.sign(w.clock.Now(), "PUT", target)
	for range 2 {
		w.do("PUT", target, "{}", "Authorization:"+auth).want(200)
	}
}

func TestTheAddressThatClientsSigned(t *testing.T) {
	const target = "/1.5/42/info/quota"
	public, err := hawk.ParsePublicURL("https://sync.example.com/prefix/")
	must(t, err)
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for _, c := range []struct {
		name        string
		options     Options
		remote      string
		headers     map[string]string
		path, host  string
		port        uint16
		wantRefused bool
	}{
		{"as it arrives", Options{}, "1.2.3.4:5", nil, target, host, 80, false},
		{"a forwarded header of a stranger", Options{TrustedProxies: trusted}, "11.2.3.4:5", map[string]string{"X-Forwarded-Host": "front.org", "X-Forwarded-Proto": "https"}, target, "front.org", 443, true},
		{"a stranger's request as it arrives", Options{TrustedProxies: trusted}, "11.2.3.4:5", map[string]string{"X-Forwarded-Host": "front.org", "X-Forwarded-Proto": "https"}, target, host, 80, false},
		{"no proxy is trusted", Options{}, "10.2.3.4:5", map[string]string{"X-Forwarded-Host": "front.org"}, target, "front.org", 80, true},
		{"a trusted proxy", Options{TrustedProxies: trusted}, "10.2.3.4:5", map[string]string{"X-Forwarded-Host": "front.org", "X-Forwarded-Proto": "https"}, target, "front.org", 443, false},
		{"a trusted proxy of IPv6", Options{TrustedProxies: trusted}, "[::1]:5", map[string]string{"X-Forwarded-Host": "front.org:8443"}, target, "front.org", 8443, false},
		{"an IPv4 address in IPv6", Options{TrustedProxies: trusted}, "[::ffff:10.1.2.3]:5", map[string]string{"Forwarded": `for=x;host="front.org";proto=https`}, target, "front.org", 443, false},
		{"a trusted proxy without headers", Options{TrustedProxies: trusted}, "10.2.3.4:5", nil, target, host, 80, false},
		{"a proxy that sends nonsense", Options{TrustedProxies: trusted}, "10.2.3.4:5", map[string]string{"X-Forwarded-Host": "a b"}, target, "a b", 80, true},
		{"a public URL with a prefix", Options{PublicURL: &public}, "1.2.3.4:5", nil, "/prefix" + target, "sync.example.com", 443, false},
		{"a public URL goes over forwarded headers", Options{PublicURL: &public, TrustedProxies: trusted}, "10.2.3.4:5", map[string]string{"X-Forwarded-Host": "front.org"}, "/prefix" + target, "sync.example.com", 443, false},
		{"a public URL whose prefix was not signed", Options{PublicURL: &public}, "1.2.3.4:5", nil, target, "sync.example.com", 443, true},
		{"an address without port", Options{TrustedProxies: trusted}, "unix", map[string]string{"X-Forwarded-Host": "front.org"}, target, "front.org", 80, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{door: func(o *Options) { o.PublicURL, o.TrustedProxies = c.options.PublicURL, c.options.TrustedProxies }})
			h := hawk.Header{ID: w.user.token, TS: fmt.Sprint(start.Unix()), Nonce: "n"}
			h.MAC = h.Sign(hawk.Request{Method: "GET", Target: c.path, Host: c.host, Port: c.port}, w.user.key)
			r := w.request(w.user, "GET", target, http.NoBody, "Authorization: "+h.String())
			r.RemoteAddr = c.remote
			for name, value := range c.headers {
				r.Header.Set(name, value)
			}
			want := 200
			if c.wantRefused {
				want = 401
			}
			w.serve(r).want(want)
		})
	}
}

func TestARequestInAbsoluteFormIsTheSame(t *testing.T) {
	w := newWorld(t, setup{})
	r := w.request(w.user, "GET", "info/quota", http.NoBody)
	r.RequestURI = "http://" + host + r.RequestURI
	w.serve(r).want(200)
	r = w.request(w.user, "GET", "info/quota", http.NoBody)
	r.RequestURI = "http://" + host
	w.serve(r).says(404, "0")
}

func TestTheConfigurationIsForEverybodyIfTheOperatorSaysSo(t *testing.T) {
	w := newWorld(t, setup{})
	w.do("GET", "info/configuration", "", "Authorization:").says(401, "0")
	w = newWorld(t, setup{door: func(o *Options) { o.AllowAnonymousConfiguration = true }})
	w.do("GET", "info/configuration", "", "Authorization:").want(200).has("X-Last-Modified", "0.00")
	w.do("GET", "info/configuration", "").want(200)
	w.do("GET", "info/configuration", "", "Authorization: Hawk x").says(401, "0")
	w.do("GET", "/1.5/43/info/configuration", "").says(400, "0")
	w.do("GET", "info/quota", "", "Authorization:").says(401, "0")
	w.do("PUT", "info/configuration", "", "Authorization:").says(405, "0")
}
