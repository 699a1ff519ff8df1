package sigv4

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
)

const exampleSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

// exampleTime is that of AWS's worked example and test suite.
var exampleTime = time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)

func TestSigningKeyOfTheWorkedExample(t *testing.T) {
	k := signingKey(exampleSecret, "20150830", "us-east-1", "iam")
	if got := hex.EncodeToString(k[:]); got != "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9" {
		t.Error(got)
	}
}

// The vectors are AWS's: the documentation's example and the signature test suite.
func TestPublishedSignatures(t *testing.T) {
	const date = "X-Amz-Date: 20150830T123600Z\n"
	tests := []struct {
		name, method, target, header, body string
		service, signed, signature         string
	}{
		{"worked example", "GET", "/?Action=ListUsers&Version=2010-05-08",
			"Host: iam.amazonaws.com\n" + date + "Content-Type: application/x-www-form-urlencoded; charset=utf-8\n", "",
			"iam", "content-type;host;x-amz-date", "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"},
		{"get-vanilla", "GET", "/", "Host: example.amazonaws.com\n" + date, "",
			"service", "host;x-amz-date", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"post-vanilla", "POST", "/", "Host: example.amazonaws.com\n" + date, "",
			"service", "host;x-amz-date", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
		{"get-vanilla-query-order-key-case", "GET", "/?Param2=value2&Param1=value1", "Host: example.amazonaws.com\n" + date, "",
			"service", "host;x-amz-date", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
		{"get-header-value-trim", "GET", "/", "Host: example.amazonaws.com\nMy-Header1: value1\nMy-Header2: \"a   b   c\"\n" + date, "",
			"service", "host;my-header1;my-header2;x-amz-date", "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
		{"get-header-key-duplicate", "GET", "/", "Host: example.amazonaws.com\nMy-Header1: value2\nMy-Header1: value2\nMy-Header1: value1\n" + date, "",
			"service", "host;my-header1;x-amz-date", "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
		{"post-x-www-form-urlencoded", "POST", "/", "Host: example.amazonaws.com\nContent-Type: application/x-www-form-urlencoded\n" + date, "Param1=value1",
			"service", "content-type;host;x-amz-date", "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
	}
	for _, tt := range tests {
		r := exampleRequest(t, tt.method, tt.target, tt.header)
		r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/"+tt.service+
			"/aws4_request, SignedHeaders="+tt.signed+", Signature="+tt.signature)
		v := New(Options{Lookup: one("AKIDEXAMPLE", Secret{Key: exampleSecret}), Clock: clock.NewManual(exampleTime), Service: tt.service})
		if _, err := v.Verify(t.Context(), r, []byte(tt.body)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if _, err := v.Verify(t.Context(), r, []byte(tt.body+"x")); err == nil {
			t.Errorf("%s: another body passes", tt.name)
		}
	}
}

// TestPublishedStream is the example of S3's documentation: 65 KiB in pieces of 64.
func TestPublishedStream(t *testing.T) {
	piece := func(size int, signature string) string {
		return strconv.FormatInt(int64(size), 16) + ";chunk-signature=" + signature + "\r\n" + strings.Repeat("a", size) + "\r\n"
	}
	pieces := []string{
		piece(65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
		piece(1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
		piece(0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
	}
	request := func() *http.Request {
		r := exampleRequest(t, "PUT", "/examplebucket/chunkObject.txt", `Host: s3.amazonaws.com
X-Amz-Date: 20130524T000000Z
X-Amz-Storage-Class: REDUCED_REDUNDANCY
X-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD
Content-Encoding: aws-chunked
X-Amz-Decoded-Content-Length: 66560
Content-Length: 66824
Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class,Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9
`)
		if !Streaming(r.Header) {
			t.Fatal("not seen to be streaming")
		}
		return r
	}
	v := New(Options{
		Lookup:  one("AKIAIOSFODNN7EXAMPLE", Secret{Key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}),
		Clock:   clock.NewManual(time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)),
		Service: "s3",
	})
	body := strings.Join(pieces, "")
	if _, err := v.Verify(t.Context(), request(), []byte(body)); err != nil {
		t.Fatal(err)
	}
	payload, ok := Payload([]byte(body))
	if !ok || !bytes.Equal(payload, bytes.Repeat([]byte("a"), 66560)) {
		t.Errorf("payload of %d bytes, %v", len(payload), ok)
	}
	for name, bad := range map[string]string{
		"another byte":     strings.Replace(body, "aaa\r\n", "aab\r\n", 1),
		"without the end":  pieces[0] + pieces[1],
		"without a piece":  pieces[0] + pieces[2],
		"turned around":    pieces[1] + pieces[0] + pieces[2],
		"more at the end":  body + "x",
		"a piece repeated": pieces[0] + pieces[0] + pieces[1] + pieces[2],
		"empty":            "",
		"no frame":         "{}",
		"cut":              body[:1000],
	} {
		if _, err := v.Verify(t.Context(), request(), []byte(bad)); err == nil || !strings.Contains(err.Error(), textMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := request()
	r.Header.Set("X-Amz-Decoded-Content-Length", "66559")
	if _, err := v.Verify(t.Context(), r, []byte(body)); err == nil {
		t.Error("another decoded length passes")
	}
}

// exampleRequest is a request as a server gets it.
func exampleRequest(t *testing.T, method, target, header string) *http.Request {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: method, URL: u, Header: http.Header{}, ContentLength: -1}
	for line := range strings.Lines(header) {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); name == "Host" {
			r.Host = value
		} else {
			r.Header.Add(name, value)
		}
	}
	return r
}
