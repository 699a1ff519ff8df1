package bso

import (
	"bytes"
	"cmp"
	"unicode/utf8"
)

// Update is what a client wrote about one record. What was not given, or was null,
// keeps its stored value.
type Update struct {
	ID         string
	Payload    []byte // exactly as given, in UTF-8; a part of the request's body
	HasPayload bool

	SortIndex    int32
	HasSortIndex bool

	TTL    int32 // seconds
	HasTTL bool
}

// Failure is a record of a POST that is not written while others are.
type Failure struct {
	ID     string // any text: the id itself may be the fault
	Reason string
}

// The reasons of a [Failure] on which clients send the record again.
const (
	RetryBytes = "retry bytes" // the record, or the request up to it, is too large
	RetryCount = "retry bso"   // the request has too many records
)

// Post is the body of a POST. No id occurs twice in it.
type Post struct {
	Updates []Update  // what to write, in the order of the request
	Failed  []Failure // what not to
}

// PayloadBytes returns the length of all payloads that are to be written.
func (p *Post) PayloadBytes() int64 {
	var n int64
	for i := range p.Updates {
		n += int64(len(p.Updates[i].Payload))
	}
	return n
}

// Trim lets at most so many records and payload bytes through and moves the others
// to Failed: what is left of a batch's limits.
func (p *Post) Trim(records, payloadBytes int64) {
	kept := p.Updates[:0]
	for _, u := range p.Updates {
		payloadBytes -= int64(len(u.Payload))
		switch {
		case payloadBytes < 0:
			p.Failed = append(p.Failed, Failure{u.ID, RetryBytes})
		case int64(len(kept)) >= records:
			p.Failed = append(p.Failed, Failure{u.ID, RetryCount})
		default:
			kept = append(kept, u)
		}
	}
	p.Updates = kept
}

// maxInteger bounds sortindex, on both sides of 0, and ttl.
const maxInteger = 999_999_999

// ParsePut reads the body of a PUT of record id. It takes body over: the payload is
// a part of it, and its escapes are decoded in place. Any fault is an [*Error].
//
// Of a key that is repeated the last one counts. \u escapes of half a surrogate
// pair are malformed.
func ParsePut(body []byte, f Format, collection, id string, limits CollectionLimits) (Update, error) {
	if f != JSON {
		return Update{}, errShape
	}
	if !utf8.Valid(body) {
		return Update{}, errSyntax
	}
	s := scanner{b: body}
	if k := s.kind(); k != kindObject {
		return Update{}, wrongShape(&s, k)
	}
	var r record
	if !s.record(&r) || !s.atEnd() {
		return Update{}, errSyntax
	}
	if r.id == idOther || r.id == idInteger || r.id == idText && !ValidID(r.ID) {
		return Update{}, invalid("request.process.invalid_bso", "the id in the body is not valid")
	}
	r.ID = id
	if fault := cmp.Or(r.malformed(), r.outOfRange()); fault != "" {
		return Update{}, invalid("request.process.invalid_bso", "%s", fault)
	}
	if knownBad(collection, r.Payload) {
		return Update{}, errKnownBad
	}
	if int64(len(r.Payload)) > limits.MaxRecordPayloadBytes {
		return Update{}, invalid("request.validate.payload_too_large", "the payload has %d bytes, the limit is %d", len(r.Payload), limits.MaxRecordPayloadBytes)
	}
	return r.Update, nil
}

var (
	errSyntax    = invalid("request.validate.invalid_body_json", "the body is not valid JSON in UTF-8")
	errShape     = invalid("request.validate.bad_bso_body", "the body does not have the shape of the request")
	errMissingID = invalid("request.store.missing_bso_id", "a record has no id")
	errDuplicate = invalid("request.store.duplicate_bso_id", "two records have the same id")
	errKnownBad  = invalid("request.process.known_bad_bso", "a payload is encrypted with a known bad IV")
)

// wrongShape tells valid JSON of a wrong kind from what is not JSON at all.
func wrongShape(s *scanner, k kind) error {
	if k == kindNone || !s.skip() {
		return errSyntax
	}
	return errShape
}

// ParsePost reads the body of a POST. It takes body over like [ParsePut]. A fault
// of the whole request is an [*Error]; a fault of one record only is a [Failure].
func ParsePost(body []byte, f Format, collection string, limits CollectionLimits) (Post, error) {
	if !utf8.Valid(body) {
		return Post{}, errSyntax
	}
	c := collector{collection: collection, limits: limits}
	var err error
	if f == Newlines {
		err = c.lines(body)
	} else {
		err = c.array(body)
	}
	if err != nil {
		return Post{}, err
	}
	return c.post, nil
}

// collector sorts the records of a POST into those to write and those not to.
type collector struct {
	collection string
	limits     CollectionLimits
	seen       map[string]struct{} // ids of all records so far
	total      int64               // payload bytes of all well-formed records so far
	post       Post
}

func (c *collector) array(body []byte) error {
	s := scanner{b: body}
	if k := s.kind(); k != kindArray {
		return wrongShape(&s, k)
	}
	s.i++
	for closed := s.take(']'); !closed; closed = s.take(']') {
		if len(c.seen) > 0 && !s.take(',') {
			return errSyntax
		}
		if err := c.element(&s); err != nil {
			return err
		}
	}
	if !s.atEnd() {
		return errSyntax
	}
	return nil
}

// lines reads one object per line. The newline of the last line may be missing;
// no line may be empty.
func (c *collector) lines(body []byte) error {
	for len(body) > 0 {
		line := body
		if i := bytes.IndexByte(body, '\n'); i >= 0 {
			line, body = body[:i], body[i+1:]
		} else {
			body = nil
		}
		s := scanner{b: line}
		if err := c.element(&s); err != nil {
			return err
		}
		if !s.atEnd() {
			return errSyntax
		}
	}
	return nil
}

func (c *collector) element(s *scanner) error {
	if k := s.kind(); k != kindObject {
		return wrongShape(s, k)
	}
	var r record
	if !s.record(&r) {
		return errSyntax
	}
	if r.id == idMissing || r.id == idOther {
		return errMissingID
	}
	if c.seen == nil {
		c.seen = make(map[string]struct{})
	}
	if _, ok := c.seen[r.ID]; ok {
		return errDuplicate
	}
	c.seen[r.ID] = struct{}{}
	if knownBad(c.collection, r.Payload) {
		return errKnownBad
	}
	if reason := c.judge(&r); reason != "" {
		c.post.Failed = append(c.post.Failed, Failure{r.ID, reason})
	} else {
		c.post.Updates = append(c.post.Updates, r.Update)
	}
	return nil
}

// judge returns why r is not written, or "". What has the right types counts
// towards the size even if it fails.
func (c *collector) judge(r *record) string {
	if r.malformed() != "" {
		return r.malformed()
	}
	size := int64(len(r.Payload))
	c.total += size
	switch {
	case size > c.limits.MaxRecordPayloadBytes || c.total > c.limits.MaxPostBytes:
		return RetryBytes
	case r.outOfRange() != "":
		return r.outOfRange()
	case int64(len(c.post.Updates)) >= c.limits.MaxPostRecords:
		return RetryCount
	}
	return ""
}
