package hawk

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Origin is the address under which clients reach the server. Clients sign it, so
// behind a proxy it must be known what they see.
type Origin struct {
	Scheme string // "http" or "https"
	Host   string // lower case; an IPv6 address has brackets
	Port   uint16
	Prefix string // path that a proxy strips; empty, or with a leading and no trailing slash
}

// ParsePublicURL reads an operator's setting like "https://example.org/sync".
func ParsePublicURL(s string) (Origin, error) {
	u, err := url.Parse(s)
	if err != nil {
		return Origin{}, fmt.Errorf("hawk: parse the public URL: %w", err)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return Origin{}, fmt.Errorf("hawk: the public URL %s has more than scheme, host, port and path", u.Redacted())
	}
	o, err := newOrigin(u.Scheme, u.Host)
	if err != nil {
		return Origin{}, fmt.Errorf("hawk: the public URL %q: %w", s, err)
	}
	o.Prefix = strings.TrimRight(u.EscapedPath(), "/")
	return o, nil
}

// Arrival is how a request reached the server, when no public URL is configured.
// The three forwarded headers must be left empty unless a trusted proxy sent the
// request.
type Arrival struct {
	Scheme         string // "https" when the connection itself had TLS, else "http"
	Host           string // the Host header
	Forwarded      string // Forwarded (RFC 7239)
	ForwardedHost  string // X-Forwarded-Host
	ForwardedProto string // X-Forwarded-Proto
}

// Origin returns the address that the client used. Of several proxies the first
// one counts, which is the client's; Forwarded counts more than the X- headers. A
// host that makes no sense is an [InvalidHeader] error.
func (a Arrival) Origin() (Origin, error) {
	host, scheme := parseForwarded(a.Forwarded)
	scheme = firstOf(scheme, a.ForwardedProto, a.Scheme)
	host = firstOf(host, a.ForwardedHost, a.Host)
	o, err := newOrigin(scheme, host)
	if err != nil {
		return Origin{}, refuse(InvalidHeader, "%s", err)
	}
	return o, nil
}

// firstOf returns the first element of the first list that has one.
func firstOf(lists ...string) string {
	for _, list := range lists {
		first, _, _ := strings.Cut(list, ",")
		if first = strings.TrimSpace(first); first != "" {
			return first
		}
	}
	return ""
}

// parseForwarded returns host and proto of the first element of a Forwarded header.
func parseForwarded(s string) (host, proto string) {
	s, _, _ = strings.Cut(s, ",")
	for pair := range strings.SplitSeq(s, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		value = strings.Trim(value, `"`)
		switch strings.ToLower(name) {
		case "host":
			host = value
		case "proto":
			proto = value
		}
	}
	return host, proto
}

func newOrigin(scheme, host string) (Origin, error) {
	o := Origin{Scheme: strings.ToLower(scheme)}
	switch o.Scheme {
	case "https":
		o.Port = 443
	case "http":
		o.Port = 80
	default:
		return Origin{}, errors.New("the scheme is neither http nor https")
	}
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		name, port = host[:i], host[i+1:]
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Origin{}, errors.New("the port is not a number from 1 to 65535")
		}
		o.Port = uint16(n)
	}
	if name == "" || strings.ContainsAny(name, "/@ \t\r\n") || strings.Contains(name, ":") != strings.HasPrefix(name, "[") {
		return Origin{}, errors.New("the host is missing or malformed")
	}
	o.Host = strings.ToLower(name)
	return o, nil
}

// Request returns what a client signed that sent method to this origin and whose
// request arrived with the raw target (path and query).
func (o Origin) Request(method, target string) Request {
	return Request{Method: method, Target: o.Prefix + target, Host: o.Host, Port: o.Port}
}

// String returns o as a URL without a trailing slash. The port is left out where
// the scheme implies it.
func (o Origin) String() string {
	s := o.Scheme + "://" + o.Host
	if o.Scheme == "https" && o.Port != 443 || o.Scheme == "http" && o.Port != 80 {
		s += ":" + strconv.Itoa(int(o.Port))
	}
	return s + o.Prefix
}
