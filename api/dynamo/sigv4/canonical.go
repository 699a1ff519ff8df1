package sigv4

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// canonicalRequest is the form of a request that is hashed and signed.
func canonicalRequest(r *http.Request, s *signature, bodyHash string) []byte {
	b := make([]byte, 0, 1024)
	b = append(append(b, r.Method...), '\n')
	b = append(appendPath(b, r.URL.EscapedPath()), '\n')
	b = append(appendQuery(b, s), '\n')
	for _, name := range s.headers {
		b = append(append(b, name...), ':')
		b = append(appendHeader(b, r, name), '\n')
	}
	b = append(b, '\n')
	for i, name := range s.headers {
		if i > 0 {
			b = append(b, ';')
		}
		b = append(b, name...)
	}
	return append(append(b, '\n'), bodyHash...)
}

// appendPath escapes a path once more than the request does, as all services but S3
// want it.
func appendPath(b []byte, path string) []byte {
	if path == "" {
		return append(b, '/')
	}
	return appendEscaped(b, path, true)
}

// appendQuery writes the parameters in the order of their escaped form, without the
// signature of a presigned request.
func appendQuery(b []byte, s *signature) []byte {
	pairs := make([]pair, 0, len(s.query))
	for _, p := range s.query {
		if s.presigned && p.name == "X-Amz-Signature" {
			continue
		}
		pairs = append(pairs, pair{escaped(p.name), escaped(p.value)})
	}
	slices.SortFunc(pairs, func(x, y pair) int {
		if c := strings.Compare(x.name, y.name); c != 0 {
			return c
		}
		return strings.Compare(x.value, y.value)
	})
	for i, p := range pairs {
		if i > 0 {
			b = append(b, '&')
		}
		b = append(append(append(b, p.name...), '='), p.value...)
	}
	return b
}

// appendHeader writes the values of a header, given in lower case. The host is not among
// the headers of net/http, nor is the length of a request that was never sent.
func appendHeader(b []byte, r *http.Request, name string) []byte {
	values := r.Header[textproto.CanonicalMIMEHeaderKey(name)]
	switch {
	case name == "host":
		values = []string{r.Host}
	case len(values) > 0:
	case name == "content-length" && r.ContentLength >= 0:
		return strconv.AppendInt(b, r.ContentLength, 10)
	}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendCollapsed(b, strings.Trim(v, " \t"))
	}
	return b
}

// appendCollapsed writes s with one space for each run of spaces.
func appendCollapsed(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] != ' ' || s[i-1] != ' ' { // s does not begin with one
			b = append(b, s[i])
		}
	}
	return b
}

func escaped(s string) string { return string(appendEscaped(nil, s, false)) }

func appendEscaped(b []byte, s string, keepSlash bool) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range []byte(s) {
		if unreserved(c) || c == '/' && keepSlash {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~'
}
