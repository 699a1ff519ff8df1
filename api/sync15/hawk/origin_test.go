package hawk

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePublicURL(t *testing.T) {
	for s, want := range map[string]Origin{
		"https://Sync.Example.org":         {"https", "sync.example.org", 443, ""},
		"https://sync.example.org/":        {"https", "sync.example.org", 443, ""},
		"http://localhost:5000/a/b%20c/":   {"http", "localhost", 5000, "/a/b%20c"},
		"HTTP://[::1]:81":                  {"http", "[::1]", 81, ""},
		"https://[2001:db8::1]/firefox":    {"https", "[2001:db8::1]", 443, "/firefox"},
		"https://sync.example.org:443/x//": {"https", "sync.example.org", 443, "/x"},
	} {
		got, err := ParsePublicURL(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s, diff)
		}
		if again, err := ParsePublicURL(got.String()); err != nil || again != got {
			t.Errorf("%s was rendered as %s", s, got)
		}
	}
	for _, s := range []string{
		"", "sync.example.org", "ftp://host", "https://", "https://host:0", "https://host:65536", "https://host:",
		"https://u:p@host", "https://host/?q=1", "https://host/#f", "https:host", "https://a b",
	} {
		if got, err := ParsePublicURL(s); err == nil {
			t.Errorf("%q was read as %v", s, got)
		}
	}
}

func TestArrivalOrigin(t *testing.T) {
	for name, tt := range map[string]struct {
		arrival Arrival
		want    Origin
	}{
		"plain":             {Arrival{Scheme: "http", Host: "Example.org"}, Origin{"http", "example.org", 80, ""}},
		"tls":               {Arrival{Scheme: "https", Host: "example.org"}, Origin{"https", "example.org", 443, ""}},
		"port":              {Arrival{Scheme: "https", Host: "example.org:8000"}, Origin{"https", "example.org", 8000, ""}},
		"ipv6":              {Arrival{Scheme: "http", Host: "[::1]"}, Origin{"http", "[::1]", 80, ""}},
		"x-forwarded":       {Arrival{Scheme: "http", Host: "10.0.0.1:8000", ForwardedHost: "example.org", ForwardedProto: "https"}, Origin{"https", "example.org", 443, ""}},
		"x-forwarded lists": {Arrival{Scheme: "http", Host: "h", ForwardedHost: "a.org:1, b.org:2", ForwardedProto: "https, http"}, Origin{"https", "a.org", 1, ""}},
		"only proto":        {Arrival{Scheme: "http", Host: "example.org", ForwardedProto: "https"}, Origin{"https", "example.org", 443, ""}},
		"forwarded":         {Arrival{Scheme: "http", Host: "h", Forwarded: `for=1.2.3.4;Host="a.org:7"; proto=HTTPS, host=b.org`, ForwardedHost: "c.org", ForwardedProto: "http"}, Origin{"https", "a.org", 7, ""}},
		"forwarded partly":  {Arrival{Scheme: "http", Host: "h", Forwarded: `for=1.2.3.4;proto=https`, ForwardedHost: "c.org"}, Origin{"https", "c.org", 443, ""}},
	} {
		got, err := tt.arrival.Origin()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, a := range map[string]Arrival{
		"no host": {Scheme: "http"}, "port": {Scheme: "http", Host: "h:x"}, "scheme": {Scheme: "http", Host: "h", ForwardedProto: "ws"},
		"bare ipv6": {Scheme: "http", Host: "::1"}, "path": {Scheme: "http", Host: "h/x"},
	} {
		_, err := a.Origin()
		t.Run(name, func(t *testing.T) { wantReason(t, err, InvalidHeader) })
	}
}

func TestPrefixIsPutBeforeTheReceivedTarget(t *testing.T) {
	o, err := ParsePublicURL("https://example.org/firefox/")
	if err != nil {
		t.Fatal(err)
	}
	want := Request{Method: "GET", Target: "/firefox/1.5/42/storage/a%2Fb?full=1", Host: "example.org", Port: 443}
	if diff := cmp.Diff(want, o.Request("GET", "/1.5/42/storage/a%2Fb?full=1")); diff != "" {
		t.Error(diff)
	}
}
