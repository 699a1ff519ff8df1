package bso

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
)

// Limits are the bounds that the server announces and keeps, all inclusive. They
// must not be changed while requests are served.
type Limits struct {
	MaxRequestBytes       int64 // of a request's body
	MaxPostRecords        int64 // records applied per POST
	MaxPostBytes          int64 // payload bytes per POST
	MaxRecordPayloadBytes int64 // payload bytes of a record
	MaxTotalRecords       int64 // records of a batch
	MaxTotalBytes         int64 // payload bytes of a batch
	MaxQuota              int64 // bytes of a user

	// Collections replaces some limits in the collections named.
	Collections map[string]Override
}

// Override replaces the limits that are not nil.
type Override struct {
	MaxRecordPayloadBytes *int64 `json:"max_record_payload_bytes,omitempty"`
	MaxPostBytes          *int64 `json:"max_post_bytes,omitempty"`
	MaxRequestBytes       *int64 `json:"max_request_bytes,omitempty"`
}

// DefaultLimits returns the limits that clients know from the public service.
func DefaultLimits() Limits {
	return Limits{
		MaxRequestBytes:       2_621_440 + quotingRoom,
		MaxPostRecords:        100,
		MaxPostBytes:          2_621_440,
		MaxRecordPayloadBytes: 2_621_440,
		MaxTotalRecords:       10_000,
		MaxTotalBytes:         262_144_000,
		MaxQuota:              2_097_152_000,
	}
}

// quotingRoom is what a request needs beside its payloads for JSON's quotes.
const quotingRoom = 4096

// ParseOverrides reads overrides in JSON: {"name":{"max_post_bytes":…}}. Unknown
// keys are refused.
func ParseOverrides(text string) (map[string]Override, error) {
	var o map[string]Override
	if err := json.Unmarshal([]byte(text), &o, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("sync: parse the limits of collections: %w", err)
	}
	return o, nil
}

// named lists the limits under their names on the wire.
func (l *Limits) named() []namedLimit {
	return []namedLimit{
		{"max_request_bytes", l.MaxRequestBytes},
		{"max_post_records", l.MaxPostRecords},
		{"max_post_bytes", l.MaxPostBytes},
		{"max_record_payload_bytes", l.MaxRecordPayloadBytes},
		{"max_total_records", l.MaxTotalRecords},
		{"max_total_bytes", l.MaxTotalBytes},
		{"max_quota_limit", l.MaxQuota},
	}
}

type namedLimit struct {
	name  string
	value int64
}

// Validate returns everything that is wrong with l, joined. A limit must be
// positive.
func (l *Limits) Validate() error {
	var errs []error
	for _, n := range l.named() {
		if n.value <= 0 {
			errs = append(errs, fmt.Errorf("sync: %s is %d, want at least 1", n.name, n.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Collections)) {
		if !ValidCollection(name) {
			errs = append(errs, fmt.Errorf("sync: limits are set for %q, which cannot be a collection", name))
		}
		o := l.Collections[name]
		for _, v := range []*int64{o.MaxRecordPayloadBytes, o.MaxPostBytes, o.MaxRequestBytes} {
			if v != nil && *v <= 0 {
				errs = append(errs, fmt.Errorf("sync: a limit of collection %s is %d, want at least 1", name, *v))
			}
		}
	}
	return errors.Join(errs...)
}

// Warnings returns what is legal but will surprise: a body limit that leaves no
// room for the JSON around max_post_bytes of payload.
func (l *Limits) Warnings() []string {
	var out []string
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(l.Collections))...) {
		c := l.For(name)
		if c.MaxRequestBytes < c.MaxPostBytes+quotingRoom {
			out = append(out, fmt.Sprintf("max_request_bytes (%d) is less than %d bytes above max_post_bytes (%d) in collection %s",
				c.MaxRequestBytes, quotingRoom, c.MaxPostBytes, cmp.Or(name, "*")))
		}
	}
	return out
}

// CollectionLimits are the limits of a request to one collection.
type CollectionLimits struct {
	MaxRequestBytes       int64
	MaxPostRecords        int64
	MaxPostBytes          int64
	MaxRecordPayloadBytes int64
}

// For returns the limits of a collection.
func (l *Limits) For(collection string) CollectionLimits {
	c := CollectionLimits{l.MaxRequestBytes, l.MaxPostRecords, l.MaxPostBytes, l.MaxRecordPayloadBytes}
	o := l.Collections[collection]
	for _, r := range []struct {
		limit    *int64
		override *int64
	}{{&c.MaxRecordPayloadBytes, o.MaxRecordPayloadBytes}, {&c.MaxPostBytes, o.MaxPostBytes}, {&c.MaxRequestBytes, o.MaxRequestBytes}} {
		if r.override != nil {
			*r.limit = *r.override
		}
	}
	return c
}

// MaxBody returns the largest MaxRequestBytes of any collection, for a bound in
// the transport, where the collection is not known yet.
func (l *Limits) MaxBody() int64 {
	most := l.MaxRequestBytes
	for _, o := range l.Collections {
		if o.MaxRequestBytes != nil {
			most = max(most, *o.MaxRequestBytes)
		}
	}
	return most
}

// CheckLength judges a Content-Length, or a count of bytes read so far; negative
// is unknown. Too large is an error with status 413.
func (c CollectionLimits) CheckLength(n int64) error {
	if n > c.MaxRequestBytes {
		return &Error{Status: 413, Code: CodeTooLarge, Metric: "request.validate.request_bytes_exceeded",
			Detail: fmt.Sprintf("the body has more than %d bytes", c.MaxRequestBytes)}
	}
	return nil
}

// AppendConfiguration appends the body of info/configuration.
func (l *Limits) AppendConfiguration(dst []byte) ([]byte, error) {
	for i, n := range l.named() {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		dst = append(append(append(dst, sep, '"'), n.name...), `":`...)
		dst = strconv.AppendInt(dst, n.value, 10)
	}
	if len(l.Collections) > 0 {
		overrides, err := json.Marshal(l.Collections, json.Deterministic(true))
		if err != nil {
			return nil, fmt.Errorf("sync: render the limits of collections: %w", err)
		}
		dst = append(append(dst, `,"collections":`...), overrides...)
	}
	return append(dst, '}'), nil
}

// CheckAnnounced compares what the client of a POST says that it is going to send
// (X-Weave-Records, -Bytes, -Total-Records, -Total-Bytes) with the limits. Nobody
// compares it with what the client does send.
func (l *Limits) CheckAnnounced(collection string, h http.Header) error {
	c := l.For(collection)
	for _, a := range [...]struct {
		header string
		limit  int64
	}{
		{"X-Weave-Records", c.MaxPostRecords},
		{"X-Weave-Bytes", c.MaxPostBytes},
		{"X-Weave-Total-Records", l.MaxTotalRecords},
		{"X-Weave-Total-Bytes", l.MaxTotalBytes},
	} {
		values := h[a.header]
		if len(values) == 0 {
			continue
		}
		n, err := strconv.ParseUint(values[0], 10, 64)
		if errors.Is(err, strconv.ErrSyntax) {
			return bad("request.validate.batch.invalid_x_weave", "%s is not an unsigned integer", a.header)
		}
		if err != nil || n > uint64(a.limit) {
			return &Error{Status: 400, Code: CodeTooLarge, Metric: "request.validate.batch.size_exceeded",
				Detail: fmt.Sprintf("%s is over the limit of %d", a.header, a.limit)}
		}
	}
	return nil
}
