package bso

import (
	"net/http"
	"testing"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestAccept(t *testing.T) {
	if f, err := Accept(http.Header{}); f != JSON || err != nil {
		t.Errorf("without Accept: %v, %v", f, err)
	}
	for accept, want := range map[string]Format{
		"": JSON, "*/*": JSON, "application/json": JSON, "Application/JSON; charset=utf-8": JSON, "application/*": JSON, "application/newlines": Newlines,
		"application/json;q=0.9,*/*;q=0.2": JSON, "application/newlines;q=0.5, application/json;q=0.4": Newlines, "application/newlines;q=0.4, */*": JSON,
		"text/plain;q=1, application/json;q=0.9": JSON, "x/yy, application/newlines; level=1 ; Q=0.1": Newlines, "application/newlines, application/json": Newlines,
		"application/newlines;q=0, application/json;q=0.1": JSON, "application/newlines;q=5, */*;q=0.1": JSON,
	} {
		if got, err := Accept(header("Accept", accept)); err != nil || got != want {
			t.Errorf("%q: got %v, %v", accept, got, err)
		}
	}
	if got, err := Accept(header("Accept", "x/yy", "Accept", "application/newlines")); err != nil || got != Newlines {
		t.Errorf("two lines: got %v, %v", got, err)
	}
	for _, accept := range []string{"x/yy", "text/plain", "text/*", "application/json;q=0", "application/newlines;q=NaN", "json"} {
		_, err := Accept(header("Accept", accept))
		wantError(t, accept, err, 406, CodeOther)
	}
	if JSON.ContentType() != "application/json" || Newlines.ContentType() != "application/newlines" {
		t.Error("wrong content types")
	}
}

func TestBodyFormat(t *testing.T) {
	for contentType, want := range map[string]Format{
		"application/json": JSON, "text/plain": JSON, "text/plain; charset=utf-8": JSON, "APPLICATION/Newlines ;x": Newlines,
	} {
		if got, err := BodyFormat(header("Content-Type", contentType)); err != nil || got != want {
			t.Errorf("%q: got %v, %v", contentType, got, err)
		}
	}
	for name, h := range map[string]http.Header{
		"none": header(), "empty": header("Content-Type", ""), "other": header("Content-Type", "application/x-www-form-urlencoded"), "prefix": header("Content-Type", "application/json5"),
		"gzip": header("Content-Type", "application/json", "Content-Encoding", "gzip"),
	} {
		_, err := BodyFormat(h)
		wantError(t, name, err, 415, CodeOther)
	}
	if _, err := BodyFormat(header("Content-Type", "text/plain", "Content-Encoding", "Identity")); err != nil {
		t.Errorf("identity: %v", err)
	}
}

func TestPrecondition(t *testing.T) {
	const modified, unmodified = "X-If-Modified-Since", "X-If-Unmodified-Since"
	for _, tt := range []struct {
		method, header, value string
		resource              Timestamp
		notModified, failed   bool
	}{
		{"GET", modified, "10.00", 1000, true, false},
		{"HEAD", modified, "10", 999, true, false},
		{"GET", modified, "10", 1001, false, false},
		{"PUT", modified, "10", 1, false, false},
		{"PUT", unmodified, "10", 1000, false, false},
		{"PUT", unmodified, "10.00", 1001, false, true},
		{"GET", unmodified, " 10.00 ", 1001, false, true},
		{"PUT", unmodified, "0", 0, false, false},
		{"PUT", unmodified, "0", 1, false, true},
		{"DELETE", unmodified, "99999999999999999999", 1, false, false},
		{"GET", "X-Other", "1", 1, false, false},
	} {
		p, err := ParsePrecondition(tt.method, header(tt.header, tt.value))
		if err != nil {
			t.Errorf("%v: %v", tt, err)
		}
		if p.NotModified(tt.resource) != tt.notModified || p.Failed(tt.resource) != tt.failed {
			t.Errorf("%v: got not modified %v, failed %v", tt, p.NotModified(tt.resource), p.Failed(tt.resource))
		}
	}
	for _, method := range []string{"GET", "PUT"} {
		for name, h := range map[string]http.Header{
			"both": header(modified, "1", unmodified, "1"), "twice": header(unmodified, "1", unmodified, "1"), "negative": header(unmodified, "-1"), "empty": header(unmodified, ""),
			"word": header(modified, "abc"), "nan": header(modified, "NaN"), "negative zero": header(modified, "-0.0"),
		} {
			_, err := ParsePrecondition(method, h)
			wantError(t, name, err, 400, CodeOther)
		}
	}
}
