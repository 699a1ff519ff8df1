package bso

import (
	"net/http"
	"strconv"
	"strings"
)

// Format is how a list of records is written, in requests and answers.
type Format uint8

// The formats.
const (
	JSON     Format = iota // one array
	Newlines               // one value per line, each with a final newline
)

// ContentType returns the MIME type of f.
func (f Format) ContentType() string {
	if f == Newlines {
		return "application/newlines"
	}
	return "application/json"
}

// Accept chooses the format of a collection's GET from the Accept headers: the one
// with the highest quality, the first of equals. Types that the server does not
// have are skipped; if only such are named, the error has status 406.
func Accept(h http.Header) (Format, error) {
	lines := h["Accept"]
	if len(lines) == 0 {
		return JSON, nil
	}
	best, found, bestQ := JSON, false, 0.0
	empty := true
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			mediaType, parameters, _ := strings.Cut(item, ";")
			mediaType = strings.ToLower(strings.TrimSpace(mediaType))
			empty = empty && mediaType == ""
			format, known := acceptable(mediaType)
			if q := quality(parameters); known && q > bestQ {
				best, found, bestQ = format, true, q
			}
		}
	}
	if !found && !empty {
		return 0, &Error{Status: 406, Code: CodeOther, Metric: "request.validate.invalid_accept_header", Detail: "no acceptable format"}
	}
	return best, nil
}

func acceptable(mediaType string) (f Format, ok bool) {
	switch mediaType {
	case "*/*", "application/*", "application/json":
		return JSON, true
	case "application/newlines":
		return Newlines, true
	}
	return 0, false
}

// quality returns the value of the parameter q, 1 without one and 0 if it is wrong.
func quality(parameters string) float64 {
	for p := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if !strings.EqualFold(name, "q") {
			continue
		}
		q, err := strconv.ParseFloat(value, 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return 0
		}
		return q
	}
	return 1
}

// BodyFormat reads the headers Content-Type and Content-Encoding of a PUT or POST.
// text/plain is JSON, because desktop clients say that. What the server cannot read
// is an error with status 415; that a PUT knows no Newlines is for [ParsePut] to
// say.
func BodyFormat(h http.Header) (Format, error) {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return 0, unsupportedType("no content encoding is supported")
	}
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(mediaType)) {
	case "application/json", "text/plain":
		return JSON, nil
	case "application/newlines":
		return Newlines, nil
	}
	return 0, unsupportedType("the content type is missing or unknown")
}

func unsupportedType(detail string) error {
	return &Error{Status: 415, Code: CodeOther, Metric: "request.error.invalid_content_type", Detail: detail}
}

// Precondition makes a request depend on when its resource was last modified. The
// zero Precondition is always met.
type Precondition struct {
	kind  preconditionKind
	value Timestamp
}

type preconditionKind uint8

const (
	unconditional preconditionKind = iota
	modifiedSince
	unmodifiedSince
)

// ParsePrecondition reads X-If-Modified-Since and X-If-Unmodified-Since. Both at
// once, or a value that is no decimal number of seconds, is an error whatever the
// method is; X-If-Modified-Since has an effect only on GET and HEAD.
func ParsePrecondition(method string, h http.Header) (Precondition, error) {
	modified, unmodified := h["X-If-Modified-Since"], h["X-If-Unmodified-Since"]
	if len(modified)+len(unmodified) == 0 {
		return Precondition{}, nil
	}
	if len(modified)+len(unmodified) > 1 {
		return Precondition{}, bad("request.validate.mod_header.conflict", "more than one precondition")
	}
	p, text := Precondition{kind: unmodifiedSince}, unmodified
	if len(modified) == 1 {
		p.kind, text = modifiedSince, modified
	}
	var err error
	if p.value, err = ParseTimestamp(strings.TrimSpace(text[0])); err != nil {
		return Precondition{}, bad("request.validate.mod_header.negative", "a precondition is not a decimal number of seconds")
	}
	if p.kind == modifiedSince && method != http.MethodGet && method != http.MethodHead {
		return Precondition{}, nil
	}
	return p, nil
}

// NotModified reports whether a resource that was last modified at t is to be
// answered with 304.
func (p Precondition) NotModified(t Timestamp) bool { return p.kind == modifiedSince && t <= p.value }

// Failed reports whether the request on a resource that was last modified at t is
// to be answered with 412. The t of a resource that does not exist is 0.
func (p Precondition) Failed(t Timestamp) bool { return p.kind == unmodifiedSince && t > p.value }
