package hawk

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// MaxHeaderBytes bounds an Authorization header. A token with every claim filled
// is below 1 KiB.
const MaxHeaderBytes = 8 << 10

// Tolerance is how far a client's clock may be off. Devices with wrong clocks are
// common enough that clients rely on a whole year of 52 weeks.
const Tolerance = 52 * 7 * 24 * time.Hour

// Header holds the attributes of an Authorization header. Hash, Ext, App and Dlg
// are optional and empty when they were not sent.
type Header struct {
	ID    string // the token
	TS    string // seconds since the epoch, as sent: the text is part of the MAC
	Nonce string
	MAC   string // padded base64, standard alphabet

	Hash string // of the request's body; part of the MAC, never compared with the body
	Ext  string
	App  string
	Dlg  string
}

const prefix = "Hawk "

// ParseHeader reads an Authorization header. The scheme's case and the order of
// the attributes are free; unknown and repeated attributes are refused. The
// result shares memory with s.
func ParseHeader(s string) (Header, error) {
	if s == "" {
		return Header{}, &Error{Reason: MissingHeader}
	}
	if len(s) > MaxHeaderBytes {
		return Header{}, refuse(BadHeader, "longer than %d bytes", MaxHeaderBytes)
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return Header{}, &Error{Reason: ParseError}
		}
	}
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return Header{}, &Error{Reason: MissingPrefix}
	}
	h, err := parseAttributes(s[len(prefix):])
	switch {
	case err != nil:
		return Header{}, err
	case h.ID == "":
		return Header{}, &Error{Reason: MissingID}
	case h.TS == "" || h.Nonce == "" || h.MAC == "":
		return Header{}, refuse(BadHeader, "ts, nonce or mac is missing")
	}
	return h, nil
}

// parseAttributes reads name="value" pairs with commas between them. A value holds
// no quote and no backslash, so none needs an escape.
func parseAttributes(s string) (Header, error) {
	var h Header
	var seen uint8
	for first := true; ; first = false {
		s = strings.TrimLeft(s, " ")
		if s == "" && !first {
			return h, nil
		}
		name, rest, ok := strings.Cut(s, `="`)
		if !ok {
			return h, refuse(BadHeader, "an attribute has no quoted value")
		}
		field, bit := h.attribute(name)
		if field == nil {
			return h, refuse(BadHeader, "unknown attribute")
		}
		if seen&bit != 0 {
			return h, refuse(BadHeader, "%s is repeated", name)
		}
		seen |= bit
		value, rest, ok := strings.Cut(rest, `"`)
		if !ok || strings.IndexByte(value, '\\') >= 0 {
			return h, refuse(BadHeader, "%s is not well quoted", name)
		}
		*field = value
		s = strings.TrimLeft(rest, " ")
		if s == "" {
			return h, nil
		}
		if s[0] != ',' {
			return h, refuse(BadHeader, "no comma after %s", name)
		}
		s = s[1:]
	}
}

func (h *Header) attribute(name string) (field *string, bit uint8) {
	switch name {
	case "id":
		return &h.ID, 1 << 0
	case "ts":
		return &h.TS, 1 << 1
	case "nonce":
		return &h.Nonce, 1 << 2
	case "mac":
		return &h.MAC, 1 << 3
	case "hash":
		return &h.Hash, 1 << 4
	case "ext":
		return &h.Ext, 1 << 5
	case "app":
		return &h.App, 1 << 6
	case "dlg":
		return &h.Dlg, 1 << 7
	}
	return nil, 0
}

// String renders h as an Authorization header, as a client sends it.
func (h Header) String() string {
	var b strings.Builder
	b.WriteString(prefix + `id="` + h.ID + `", ts="` + h.TS + `", nonce="` + h.Nonce + `", mac="` + h.MAC + `"`)
	for _, a := range [...]struct{ name, value string }{{"hash", h.Hash}, {"ext", h.Ext}, {"app", h.App}, {"dlg", h.Dlg}} {
		if a.value != "" {
			b.WriteString(`, ` + a.name + `="` + a.value + `"`)
		}
	}
	return b.String()
}

// Request is the part of an HTTP request that a Hawk MAC covers, as the client saw
// it: see [Origin] for what proxies change.
type Request struct {
	Method string // upper case
	Target string // raw path and query, exactly as the client requested them
	Host   string // lower case, without the port; an IPv6 address keeps its brackets
	Port   uint16
}

// Sign returns the MAC of r under key with the other attributes of h. h.MAC is not
// read.
func (h Header) Sign(r Request, key string) string {
	var space [512]byte
	b := append(space[:0], "hawk.1.header\n"...)
	line := func(s string) { b = append(append(b, s...), '\n') }
	line(h.TS)
	line(h.Nonce)
	line(r.Method)
	line(r.Target)
	line(r.Host)
	b = append(strconv.AppendUint(b, uint64(r.Port), 10), '\n')
	line(h.Hash)
	line(h.Ext)
	if h.App != "" {
		line(h.App)
		line(h.Dlg)
	}
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(b)
	return base64.StdEncoding.EncodeToString(mac.Sum(b[:0]))
}

// Verify checks that whoever sent h knows key and meant exactly r, at a time that
// differs from now by no more than [Tolerance].
func (h Header) Verify(r Request, key string, now time.Time) error {
	ts, err := strconv.ParseInt(h.TS, 10, 64)
	if err != nil {
		return refuse(InvalidHeader, "ts is not a whole number")
	}
	// ts is compared as a number: time.Time arithmetic would wrap for absurd values.
	limit, at := int64(Tolerance/time.Second), now.Unix()
	if ts < at-limit || ts > at+limit {
		return refuse(InvalidHeader, "ts is more than a year off")
	}
	// Both are compared as text: base64 of 32 bytes has one canonical form.
	if !hmac.Equal([]byte(h.MAC), []byte(h.Sign(r, key))) {
		return refuse(InvalidHeader, "the mac does not match")
	}
	return nil
}
