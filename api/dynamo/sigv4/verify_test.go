package sigv4

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
	"github.com/holdfast-dev/holdfast/clock"
)

// one knows a single access key.
func one(id string, secret Secret) Lookup {
	return func(_ context.Context, accessKeyID string) (Secret, error) {
		if accessKeyID != id {
			return Secret{}, ErrUnknownKey
		}
		return secret, nil
	}
}

var (
	now    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	plain  = aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "secret"}
	withID = aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "secret", SessionToken: "token/+="}
)

func verifier(secret Secret, at time.Time) *Verifier {
	return New(Options{Lookup: one("AKID", secret), Clock: clock.NewManual(at), Service: "dynamodb"})
}

func hashOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// request is one that the SDK has signed at now, as a server gets it.
func request(t testing.TB, body string, change func(*http.Request)) *http.Request {
	t.Helper()
	r, err := http.NewRequest("POST", "http://localhost:8000/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810.GetItem")
	r.Header.Set("Content-Type", "application/x-amz-json-1.0")
	if err := v4.NewSigner().SignHTTP(t.Context(), plain, r, hashOf(body), "dynamodb", "eu-west-1", now); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	return r
}

func presigned(t testing.TB, expires string, change func(url string) string) *http.Request {
	t.Helper()
	r, err := http.NewRequest("POST", "http://localhost:8000/?X-Amz-Expires="+expires, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810.ListTables")
	url, _, err := v4.NewSigner().PresignHTTP(t.Context(), plain, r, hashOf("{}"), "dynamodb", "eu-west-1", now)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		url = change(url)
	}
	if r, err = http.NewRequest("POST", url, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRefusals(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	inAuthorization := func(old, with string) func(*http.Request) {
		return func(r *http.Request) {
			a := r.Header.Get("Authorization")
			if !strings.Contains(a, old) {
				t.Fatalf("%q is not in %q", old, a)
			}
			r.Header.Set("Authorization", strings.Replace(a, old, with, 1))
		}
	}
	tests := []struct {
		name      string
		change    func(*http.Request)
		exception string
		text      string
	}{
		{"1 both", func(r *http.Request) { r.URL.RawQuery = "X-Amz-Algorithm" }, "InvalidSignatureException",
			"Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header."},
		{"2 neither", func(r *http.Request) { r.Header.Del("Authorization") }, "MissingAuthenticationTokenException",
			"Request is missing Authentication Token"},
		{"2 another scheme", header("Authorization", "Basic AWS4-"), "MissingAuthenticationTokenException",
			"Request is missing Authentication Token"},
		{"2 half a scheme", header("Authorization", "AWS4"), "MissingAuthenticationTokenException",
			"Request is missing Authentication Token"},
		{"3 nothing", func(r *http.Request) { r.Header = http.Header{"Authorization": {"AWS4-"}} }, "IncompleteSignatureException",
			"Authorization header requires 'Credential' parameter. Authorization header requires 'Signature' parameter. " +
				"Authorization header requires 'SignedHeaders' parameter. " +
				"Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. Authorization=AWS4-"},
		{"3 no signature", header("Authorization", "AWS4-HMAC-SHA256 Credential=a,SignedHeaders=b"), "IncompleteSignatureException",
			"Authorization header requires 'Signature' parameter. Authorization=AWS4-HMAC-SHA256 Credential=a,SignedHeaders=b"},
		{"3 no date", func(r *http.Request) { r.Header.Del("X-Amz-Date") }, "IncompleteSignatureException",
			"Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. Authorization=" + request(t, "{}", nil).Header.Get("Authorization")},
		{"4 date", header("X-Amz-Date", "Sun, 01 Mar 2026 12:00:00 GMT"), "IncompleteSignatureException",
			"Date must be in ISO-8601 'basic format'. Got 'Sun, 01 Mar 2026 12:00:00 GMT'. See http://en.wikipedia.org/wiki/ISO_8601"},
		{"4 fraction", header("X-Amz-Date", "20260301T120000.5Z"), "IncompleteSignatureException",
			"Date must be in ISO-8601 'basic format'. Got '20260301T120000.5Z'. See http://en.wikipedia.org/wiki/ISO_8601"},
		{"5 old", header("X-Amz-Date", "20260301T114454Z"), "InvalidSignatureException",
			"Signature expired: 20260301T114454Z is now earlier than 20260301T114500Z (20260301T120000Z - 15 min.)"},
		{"6 ahead", header("X-Amz-Date", "20260301T121506Z"), "InvalidSignatureException",
			"Signature not yet current: 20260301T121506Z is still later than 20260301T121500Z (20260301T120000Z + 15 min.)"},
		{"7 host", inAuthorization(";host", ""), "InvalidSignatureException",
			"'Host' must be a 'SignedHeader' in the AWS Authorization."},
		{"7 nothing signed", header("Authorization", "AWS4-HMAC-SHA256 Credential=a,SignedHeaders=,Signature=b"), "InvalidSignatureException",
			"'Host' must be a 'SignedHeader' in the AWS Authorization."},
		{"8 algorithm", inAuthorization("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA25"), "IncompleteSignatureException",
			"Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA25' (only AWS4-HMAC-SHA256 for now). "},
		{"9 credential", inAuthorization("/aws4_request", ""), "IncompleteSignatureException",
			"Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, got 'AKID/20260301/eu-west-1/dynamodb'"},
		{"10 scope", inAuthorization("20260301/eu-west-1/dynamodb/aws4_request", "b/c:d/e/f"), "InvalidSignatureException",
			"Credential should be scoped to a valid region, not 'c:d'. Credential should be scoped to correct service: 'dynamodb'. " +
				"Credential should be scoped with a valid terminator: 'aws4_request', not 'f'. " +
				"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: 'b' != '20260301', from '20260301T120000Z'."},
		{"10 service", inAuthorization("dynamodb", "dynamodbstreams"), "InvalidSignatureException",
			"Credential should be scoped to correct service: 'dynamodb'. "},
		{"11 key", inAuthorization("AKID", "OTHER"), "UnrecognizedClientException",
			"The security token included in the request is invalid."},
		{"12 region", inAuthorization("eu-west-1", "eu-west-2"), "InvalidSignatureException", textMismatch},
		{"12 signature", inAuthorization("Signature=", "Signature=0"), "InvalidSignatureException", textMismatch},
		{"12 header", header("X-Amz-Target", "DynamoDB_20120810.DeleteItem"), "InvalidSignatureException", textMismatch},
		{"12 host", func(r *http.Request) { r.Host = "localhost" }, "InvalidSignatureException", textMismatch},
		{"12 method", func(r *http.Request) { r.Method = "PUT" }, "InvalidSignatureException", textMismatch},
		{"12 query", func(r *http.Request) { r.URL.RawQuery = "a=b" }, "InvalidSignatureException", textMismatch},
		{"12 path", func(r *http.Request) { r.URL.Path = "/a" }, "InvalidSignatureException", textMismatch},
		{"12 date", header("X-Amz-Date", "20260301T120001Z"), "InvalidSignatureException", textMismatch},
		{"13 token", header("X-Amz-Security-Token", "a"), "UnrecognizedClientException",
			"The security token included in the request is invalid"},
	}
	for _, tt := range tests {
		v := verifier(Secret{Key: "secret"}, now)
		_, err := v.Verify(t.Context(), request(t, "{}", tt.change), []byte("{}"))
		var f *fault.Error
		if !errors.As(err, &f) || f.Name != tt.exception || f.Message != tt.text {
			t.Errorf("%s:\ngot  %v\nwant %s: %s", tt.name, err, tt.exception, tt.text)
		}
	}
}

// TestTheFirstFaultIsTheAnswer repairs a request step by step.
func TestTheFirstFaultIsTheAnswer(t *testing.T) {
	credential := "a"
	date, algorithm, signed := "x", "AWS4-OTHER", "x"
	v := verifier(Secret{Key: "secret", Token: "t"}, now)
	for _, step := range []struct {
		want   string
		repair func()
	}{
		{"Date must be", func() { date = "20260301T000000Z" }},
		{"Signature expired", func() { date = "20260301T120000Z" }},
		{"'Host' must be", func() { signed = "x-amz-date;host" }},
		{"Unsupported AWS", func() { algorithm = "AWS4-HMAC-SHA256" }},
		{"exactly 5", func() { credential = "a/b/c/d/e" }},
		{"should be scoped", func() { credential = "a/20260301/r/dynamodb/aws4_request" }},
		{"is invalid.", func() { credential = "AKID/20260301/r/dynamodb/aws4_request" }},
		{"does not match", func() {}},
	} {
		r := exampleRequest(t, "POST", "/", fmt.Sprintf("Host: h\nX-Amz-Date: %s\nAuthorization: %s Credential=%s, SignedHeaders=%s, Signature=0", date, algorithm, credential, signed))
		if _, err := v.Verify(t.Context(), r, nil); err == nil || !strings.Contains(err.Error(), step.want) {
			t.Errorf("got %v, want %s", err, step.want)
		}
		step.repair()
	}
}

func TestPresignedRefusals(t *testing.T) {
	replace := func(old, with string) func(string) string {
		return func(url string) string {
			if !strings.Contains(url, old) {
				t.Fatalf("%q is not in %q", old, url)
			}
			return strings.Replace(url, old, with, 1)
		}
	}
	for _, tt := range []struct {
		name            string
		expires         string
		change          func(string) string
		at              time.Time
		exception, text string
	}{
		{"3 nothing", "60", func(string) string { return "http://localhost:8000/?X-Amz-Algorithm" }, now, "IncompleteSignatureException",
			"AWS query-string parameters must include 'X-Amz-Algorithm'. AWS query-string parameters must include 'X-Amz-Credential'. " +
				"AWS query-string parameters must include 'X-Amz-Signature'. AWS query-string parameters must include 'X-Amz-SignedHeaders'. " +
				"AWS query-string parameters must include 'X-Amz-Date'. Re-examine the query-string parameters."},
		{"3 no date", "60", replace("X-Amz-Date", "X-Date"), now, "IncompleteSignatureException",
			"AWS query-string parameters must include 'X-Amz-Date'. Re-examine the query-string parameters."},
		{"expires 0", "0", nil, now, "IncompleteSignatureException",
			"'X-Amz-Expires' must be a number of seconds from 1 to 604800. Re-examine the query-string parameters."},
		{"expires far", "604801", nil, now, "IncompleteSignatureException",
			"'X-Amz-Expires' must be a number of seconds from 1 to 604800. Re-examine the query-string parameters."},
		{"expires no number", "1m", nil, now, "IncompleteSignatureException",
			"'X-Amz-Expires' must be a number of seconds from 1 to 604800. Re-examine the query-string parameters."},
		{"5 old", "90", nil, now.Add(96 * time.Second), "InvalidSignatureException",
			"Signature expired: 20260301T120000Z is now earlier than 20260301T120006Z (20260301T120136Z - 90 sec.)"},
		{"5 minutes", "120", nil, now.Add(3 * time.Minute), "InvalidSignatureException",
			"Signature expired: 20260301T120000Z is now earlier than 20260301T120100Z (20260301T120300Z - 2 min.)"},
		{"6 ahead", "604800", nil, now.Add(-time.Hour), "InvalidSignatureException",
			"Signature not yet current: 20260301T120000Z is still later than 20260301T111500Z (20260301T110000Z + 15 min.)"},
		{"8 algorithm", "60", replace("AWS4-HMAC-SHA256", "AWS4"), now, "IncompleteSignatureException",
			"Unsupported AWS 'algorithm': 'AWS4' (only AWS4-HMAC-SHA256 for now). "},
		{"12 target", "60", replace("ListTables", "DeleteTable"), now, "InvalidSignatureException", textMismatch},
		{"12 longer", "60", replace("Expires=60", "Expires=61"), now, "InvalidSignatureException", textMismatch},
		{"12 more", "60", func(url string) string { return url + "&a=b" }, now, "InvalidSignatureException", textMismatch},
	} {
		v := verifier(Secret{Key: "secret"}, tt.at)
		_, err := v.Verify(t.Context(), presigned(t, tt.expires, tt.change), []byte("{}"))
		var f *fault.Error
		if !errors.As(err, &f) || f.Name != tt.exception || f.Message != tt.text {
			t.Errorf("%s:\ngot  %v\nwant %s: %s", tt.name, err, tt.exception, tt.text)
		}
	}
	for _, at := range []time.Time{now.Add(-10 * time.Minute), now, now.Add(604800 * time.Second)} {
		if _, err := verifier(Secret{Key: "secret"}, at).Verify(t.Context(), presigned(t, "604800", nil), []byte("{}")); err != nil {
			t.Errorf("at %s: %v", at, err)
		}
	}
	if _, err := verifier(Secret{Key: "secret"}, now).Verify(t.Context(), presigned(t, "60", nil), []byte("{ }")); err == nil {
		t.Error("another body passes")
	}
}

func TestTheWindowIsInclusive(t *testing.T) {
	for offset, want := range map[time.Duration]bool{
		0: true, 15 * time.Minute: true, -15 * time.Minute: true, 15*time.Minute + 3*time.Second: true, -15*time.Minute - 3*time.Second: true,
		16 * time.Minute: false, -16 * time.Minute: false, 24 * time.Hour: false,
	} {
		_, err := verifier(Secret{Key: "secret"}, now.Add(offset)).Verify(t.Context(), request(t, "{}", nil), []byte("{}"))
		if (err == nil) != want {
			t.Errorf("%v after it was signed: %v", offset, err)
		}
	}
}

func TestDateHeaderStandsInForXAmzDate(t *testing.T) {
	r := exampleRequest(t, "POST", "/", "Host: h\nDate: 20260301T120000Z\n")
	s := &signature{headers: []string{"date", "host"}}
	canonical := sha256.Sum256(canonicalRequest(r, s, hashOf("")))
	k := signingKey("secret", "20260301", "r", "dynamodb")
	mac := sign(k[:], "AWS4-HMAC-SHA256\n20260301T120000Z\n20260301/r/dynamodb/aws4_request\n"+hex.EncodeToString(canonical[:]))
	// Neither blanks after the commas nor the order of parameters and names count.
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 SignedHeaders=Host;date,Signature="+hex.EncodeToString(mac)+",Credential=AKID/20260301/r/dynamodb/aws4_request//")
	who, err := verifier(Secret{Key: "secret", Principal: "p"}, now).Verify(t.Context(), r, nil)
	if want := (Identity{AccessKeyID: "AKID", Region: "r", Principal: "p"}); err != nil || who != want {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestHashOfTheBody(t *testing.T) {
	const body = `{"a":1}`
	for _, tt := range []struct {
		given  string
		signed bool
		want   bool
	}{
		{hashOf(body), true, true},
		{hashOf(body), false, true},
		{hashOf("{}"), true, false},
		{hashOf("{}"), false, true}, // not signed, so it says nothing
		{strings.ToUpper(hashOf(body)), true, false},
		{"UNSIGNED-PAYLOAD", true, false},
		{"UNSIGNED-PAYLOAD", false, true},
		{"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", true, false},
		{streamingBody, true, false}, // the body is not framed
		{streamingBody, false, true},
	} {
		r, _ := http.NewRequest("POST", "http://localhost/", nil)
		hash := hashOf(body)
		if tt.signed {
			r.Header.Set(contentSHA256, tt.given)
			hash = tt.given
		}
		if err := v4.NewSigner().SignHTTP(t.Context(), plain, r, hash, "dynamodb", "r", now); err != nil {
			t.Fatal(err)
		}
		r.Header.Set(contentSHA256, tt.given)
		_, err := verifier(Secret{Key: "secret"}, now).Verify(t.Context(), r, []byte(body))
		if (err == nil) != tt.want {
			t.Errorf("%s, signed %v: %v", tt.given, tt.signed, err)
		}
	}
}

func TestHashThatIsSignedMustBeTheBodys(t *testing.T) {
	r, _ := http.NewRequest("POST", "http://localhost/", nil)
	r.Header.Set(contentSHA256, hashOf("{ }"))
	if err := v4.NewSigner().SignHTTP(t.Context(), plain, r, hashOf("{}"), "dynamodb", "r", now); err != nil {
		t.Fatal(err)
	}
	if _, err := verifier(Secret{Key: "secret"}, now).Verify(t.Context(), r, []byte("{}")); err == nil {
		t.Error("the hash of another body passes")
	}
}

func TestSessionTokens(t *testing.T) {
	for _, tt := range []struct {
		name    string
		secret  Secret
		with    aws.Credentials
		presign bool
		want    string
	}{
		{"right", Secret{Key: "secret", Token: "token/+="}, withID, false, ""},
		{"presigned", Secret{Key: "secret", Token: "token/+="}, withID, true, ""},
		{"still good", Secret{Key: "secret", Token: "token/+=", Expires: now.Add(1)}, withID, false, ""},
		{"over", Secret{Key: "secret", Token: "token/+=", Expires: now}, withID, false, "ExpiredTokenException: The security token included in the request is expired"},
		{"wrong", Secret{Key: "secret", Token: "token"}, withID, false, "UnrecognizedClientException: The security token included in the request is invalid"},
		{"missing", Secret{Key: "secret", Token: "token"}, plain, false, "UnrecognizedClientException: The security token included in the request is invalid"},
		{"none expected", Secret{Key: "secret"}, withID, true, "UnrecognizedClientException: The security token included in the request is invalid"},
		{"wrong secret first", Secret{Key: "other", Token: "x"}, withID, false, "InvalidSignatureException: " + textMismatch},
	} {
		r, _ := http.NewRequest("POST", "http://localhost/", nil)
		var err error
		if tt.presign {
			var url string
			if url, _, err = v4.NewSigner().PresignHTTP(t.Context(), tt.with, r, hashOf("{}"), "dynamodb", "r", now); err == nil {
				r, err = http.NewRequest("POST", url, nil)
			}
		} else {
			err = v4.NewSigner().SignHTTP(t.Context(), tt.with, r, hashOf("{}"), "dynamodb", "r", now)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if _, err := verifier(tt.secret, now).Verify(t.Context(), r, []byte("{}")); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestRegionIsCheckedWhenOneIsConfigured(t *testing.T) {
	for region, want := range map[string]bool{"": true, "eu-west-1": true, "eu-west-2": false} {
		v := New(Options{Lookup: one("AKID", Secret{Key: "secret"}), Clock: clock.NewManual(now), Service: "dynamodb", Region: region})
		_, err := v.Verify(t.Context(), request(t, "{}", nil), []byte("{}"))
		if (err == nil) != want {
			t.Errorf("region %q: %v", region, err)
		}
		if err != nil && err.Error() != "InvalidSignatureException: Credential should be scoped to a valid region, not 'eu-west-1'. " {
			t.Error(err)
		}
	}
}

func TestLookupThatFailsIsNoRefusal(t *testing.T) {
	down := errors.New("down")
	v := New(Options{Lookup: func(context.Context, string) (Secret, error) { return Secret{}, down }, Clock: clock.NewManual(now), Service: "dynamodb"})
	_, err := v.Verify(t.Context(), request(t, "{}", nil), []byte("{}"))
	var f *fault.Error
	if !errors.Is(err, down) || errors.As(err, &f) {
		t.Error(err)
	}
}

func TestClaimNeedsNoSecret(t *testing.T) {
	v := New(Options{Clock: clock.NewManual(now), Service: "dynamodb"})
	who, err := v.Claim(request(t, "{}", nil))
	if want := (Identity{AccessKeyID: "AKID", Region: "eu-west-1"}); err != nil || who != want {
		t.Errorf("%+v, %v", who, err)
	}
	if _, err := v.Claim(request(t, "{}", func(r *http.Request) { r.Header.Del("Authorization") })); err == nil {
		t.Error("an unsigned request passes")
	}
}

func TestReplacedSecretIsUsedAtOnce(t *testing.T) {
	secret := Secret{Key: "secret"}
	v := New(Options{
		Lookup: func(context.Context, string) (Secret, error) { return secret, nil },
		Clock:  clock.NewManual(now), Service: "dynamodb",
	})
	r := request(t, "{}", nil)
	for _, step := range []struct {
		secret string
		want   bool
	}{{"secret", true}, {"secret", true}, {"new", false}, {"secret", true}} {
		secret.Key = step.secret
		if _, err := v.Verify(t.Context(), r, []byte("{}")); (err == nil) != step.want {
			t.Errorf("secret %q: %v", step.secret, err)
		}
	}
}

func TestKeyCacheKeepsWhatIsUsed(t *testing.T) {
	c := keyCache{limit: 10}
	used := &signature{accessKeyID: "used"}
	c.put(used, "s", key{1})
	for i := range 100 {
		c.put(&signature{accessKeyID: strconv.Itoa(i)}, "s", key{2})
		if k, ok := c.get(used, "s"); !ok || k != (key{1}) {
			t.Fatalf("forgotten after %d others", i+1)
		}
		if n := len(c.young) + len(c.old); n > 20 {
			t.Fatalf("%d keys", n)
		}
	}
	if _, ok := c.get(&signature{accessKeyID: "0"}, "s"); ok {
		t.Error("nothing is forgotten")
	}
	if _, ok := c.get(used, "t"); ok {
		t.Error("the key of another secret is used")
	}
}

func TestAFailedSignatureIsNotRemembered(t *testing.T) {
	v := verifier(Secret{Key: "other"}, now)
	if _, err := v.Verify(t.Context(), request(t, "{}", nil), []byte("{}")); err == nil {
		t.Fatal("it passes")
	}
	if n := len(v.keys.young); n != 0 {
		t.Errorf("%d keys", n)
	}
}

// TestWhatTheSDKSignsIsAccepted sends random requests to a server, so that the
// verifier sees what net/http makes of them.
func TestWhatTheSDKSignsIsAccepted(t *testing.T) {
	v := New(Options{Lookup: one("AKID", Secret{Key: "secret", Token: "token/+="}), Clock: clock.NewManual(now), Service: "dynamodb"})
	var verified error
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = v.Verify(r.Context(), r, body)
		}
		verified = err
	}))
	defer server.Close()
	text := rapid.StringOf(rapid.RuneFrom(nil, &printable))
	rapid.Check(t, func(rt *rapid.T) {
		body := rapid.String().Draw(rt, "body")
		path := "/" + strings.Join(rapid.SliceOfN(rapid.StringMatching(`[a-zA-Z0-9 %/+=:@é~!*-]*`), 0, 3).Draw(rt, "path"), "/")
		r, err := http.NewRequest("POST", server.URL, strings.NewReader(body))
		if err != nil {
			rt.Fatal(err)
		}
		r.URL.Path = path
		query := r.URL.Query()
		for range rapid.IntRange(0, 4).Draw(rt, "parameters") {
			query.Add(rapid.SampledFrom([]string{"a", "b/", "b-", "ü", " "}).Draw(rt, "parameter"), rapid.String().Draw(rt, "value"))
		}
		presign := rapid.Bool().Draw(rt, "presign")
		if presign && rapid.Bool().Draw(rt, "with expiry") {
			query.Set("X-Amz-Expires", "60")
		}
		r.URL.RawQuery = query.Encode()
		for range rapid.IntRange(0, 6).Draw(rt, "headers") {
			r.Header.Add(rapid.SampledFrom([]string{"X-Amz-Target", "X-Custom", "Accept", "X-Amz-Meta_x"}).Draw(rt, "header"), text.Draw(rt, "value"))
		}
		if presign {
			url, headers, err := v4.NewSigner().PresignHTTP(t.Context(), withID, r, hashOf(body), "dynamodb", "r", now)
			if err != nil {
				rt.Fatal(err)
			}
			if r, err = http.NewRequest("POST", url, strings.NewReader(body)); err != nil {
				rt.Fatal(err)
			}
			r.Header = headers
		} else if err := v4.NewSigner().SignHTTP(t.Context(), withID, r, hashOf(body), "dynamodb", "r", now); err != nil {
			rt.Fatal(err)
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			rt.Fatal(err)
		}
		answer.Body.Close()
		if verified != nil {
			rt.Errorf("%s %s %q: %v", r.Method, r.URL, r.Header, verified)
		}
	})
}

// FuzzRead feeds anything that a client may write into what is parsed.
func FuzzRead(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=AKID/20260301/r/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature=0", "", "20260301T120000Z")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20260301%2Fr%2Fdynamodb%2Faws4_request&X-Amz-Date=20260301T120000Z&X-Amz-SignedHeaders=host&X-Amz-Signature=0&X-Amz-Expires=60", "")
	f.Add("AWS4-", "a=%zz&&=&%", "x")
	v := verifier(Secret{Key: "secret"}, now)
	f.Fuzz(func(t *testing.T, authorization, query, date string) {
		r, err := http.NewRequest("POST", "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = query
		r.Header.Set("Authorization", authorization)
		r.Header.Set("X-Amz-Date", date)
		var refusal *fault.Error
		if _, err := v.Verify(t.Context(), r, nil); !errors.As(err, &refusal) {
			t.Errorf("nobody has signed this: %v", err)
		} else if refusal.Message == "" {
			t.Error("a refusal without a text")
		}
	})
}

// FuzzPayload checks that framing loses nothing and is read in one way only.
func FuzzPayload(f *testing.F) {
	f.Add([]byte("2;chunk-signature=x\r\n{}\r\n0;chunk-signature=y\r\n\r\n"))
	f.Add([]byte("ffffffffffffffff;chunk-signature=x\r\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		payload, ok := Payload(body)
		if !ok {
			return
		}
		var whole int
		for rest := body; len(rest) > 0; {
			data, signature, next, ok := nextChunk(rest)
			if !ok || len(next) >= len(rest) {
				t.Fatalf("a piece of a well framed body is not, %q", signature)
			}
			whole += len(data)
			rest = next
		}
		if whole != len(payload) {
			t.Errorf("%d bytes of %d", len(payload), whole)
		}
	})
}

// printable are the runes that a header's value may have.
var printable = unicode.RangeTable{R16: []unicode.Range16{{Lo: ' ', Hi: '~', Stride: 1}, {Lo: 0xe0, Hi: 0xff, Stride: 1}}, LatinOffset: 2}
