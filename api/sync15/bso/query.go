package bso

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// MaxIDs bounds the ids parameter.
const MaxIDs = 100

// Sort is the order of a collection's records.
type Sort uint8

// The orders. Ties are broken by id, in the direction given.
const (
	Newest Sort = iota // by modified, latest first; ids descending. The default
	Oldest             // by modified, earliest first; ids ascending
	Index              // by sortindex, largest first, unset last; ids ascending
)

// Query selects records of a collection for reading. Filters combine with AND.
type Query struct {
	IDs   []string   // only these; no restriction when empty
	Newer *Timestamp // modified strictly later
	Older *Timestamp // modified strictly earlier
	Full  bool       // objects instead of ids
	Limit *uint32    // most records of a page; 0 is an empty, last page
	Sort  Sort
	After *Cursor // the page starts behind this position; of the same Sort
}

// ParseQuery reads the raw query string of a GET of a collection. Unknown
// parameters are ignored; of a repeated one the first counts.
func ParseQuery(raw string) (Query, error) {
	var q Query
	var err error
	p := parseParams(raw)
	if p.ids != nil {
		if q.IDs, err = parseIDs(*p.ids); err != nil {
			return Query{}, err
		}
	}
	if q.Newer, err = parseTimeParam("newer", p.newer); err != nil {
		return Query{}, err
	}
	if q.Older, err = parseTimeParam("older", p.older); err != nil {
		return Query{}, err
	}
	q.Full = p.full != nil
	if p.limit != nil {
		n, err := strconv.ParseUint(*p.limit, 10, 32)
		if err != nil {
			return Query{}, bad("", "limit is not an unsigned 32-bit number")
		}
		limit := uint32(n)
		q.Limit = &limit
	}
	if q.Sort, err = parseSort(p.sort); err != nil {
		return Query{}, err
	}
	if p.offset != nil {
		if q.After, err = q.parseOffset(*p.offset); err != nil {
			return Query{}, err
		}
	}
	return q, nil
}

// parseOffset also refuses a position that no page of this query can end at.
func (q *Query) parseOffset(s string) (*Cursor, error) {
	c, err := ParseCursor(s)
	switch {
	case err != nil:
		return nil, err
	case c.Sort != q.Sort:
		return nil, bad("", "the offset belongs to another order")
	case c.Sort == Index:
		return &c, nil
	case q.Newer != nil && c.Modified < *q.Newer, q.Older != nil && c.Modified > *q.Older:
		return nil, bad("", "the offset lies outside of newer and older")
	}
	return &c, nil
}

func parseTimeParam(name string, s *string) (*Timestamp, error) {
	if s == nil {
		return nil, nil
	}
	t, err := ParseTimestamp(*s)
	if err != nil {
		return nil, bad("", "%s is not a decimal number of seconds", name)
	}
	return &t, nil
}

func parseSort(s *string) (Sort, error) {
	if s == nil {
		return Newest, nil
	}
	switch *s {
	case "newest":
		return Newest, nil
	case "oldest":
		return Oldest, nil
	case "index":
		return Index, nil
	}
	return 0, bad("", "sort is none of newest, oldest, index")
}

// parseIDs splits at commas, trims, and drops what is empty.
func parseIDs(s string) ([]string, error) {
	var ids []string
	for id := range strings.SplitSeq(s, ",") {
		id = strings.TrimSpace(id)
		if id == "" {
			continue
		}
		if !ValidID(id) {
			return nil, bad("", "ids holds an invalid id")
		}
		if len(ids) == MaxIDs {
			return nil, bad("", "ids holds more than %d ids", MaxIDs)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// ParseDeletion reads the raw query string of a DELETE of a collection. It returns
// the ids to delete, or none if the whole collection is meant. An ids parameter
// that names nothing is an error, lest an empty list wipe the collection.
func ParseDeletion(raw string) (ids []string, err error) {
	p := parseParams(raw)
	if p.ids == nil {
		return nil, nil
	}
	ids, err = parseIDs(*p.ids)
	if err == nil && len(ids) == 0 {
		err = bad("", "ids is empty")
	}
	return ids, err
}

// Batch is what a POST wants of batches.
type Batch struct {
	Start  bool   // open a batch with this body
	ID     string // append to this batch; empty if Start, or without a batch
	Commit bool   // then publish it
}

// Plain reports whether the POST needs no batch: it has none, or opens and commits
// it at once.
func (b Batch) Plain() bool { return b.ID == "" && (!b.Start || b.Commit) }

// ParseBatch reads the raw query string of a POST to a collection.
func ParseBatch(raw string) (Batch, error) {
	p := parseParams(raw)
	var b Batch
	if p.commit != nil {
		if !strings.EqualFold(*p.commit, "true") {
			return Batch{}, bad("request.validate.batch.invalid_id", "commit is not true")
		}
		if p.batch == nil {
			return Batch{}, bad("request.validate.batch.missing_id", "commit without batch")
		}
		b.Commit = true
	}
	switch {
	case p.batch == nil:
	case *p.batch == "" || strings.EqualFold(*p.batch, "true"):
		b.Start = true
	case validBatchID(*p.batch):
		b.ID = *p.batch
	default:
		return Batch{}, bad("request.validate.batch.invalid_id", "the batch id is malformed")
	}
	return b, nil
}

const batchIDBytes = 16

// NewBatchID reads 128 random bits and returns them as 22 characters that need no
// encoding in a URL.
func NewBatchID(random io.Reader) (string, error) {
	var b [batchIDBytes]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("sync: read a batch id: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b[:]), nil
}

func validBatchID(s string) bool {
	if len(s) != base64.RawURLEncoding.EncodedLen(batchIDBytes) {
		return false
	}
	for i := range len(s) {
		if !isURLSafe(s[i]) {
			return false
		}
	}
	return true
}

// Cursor is the position of a record in a sorted collection: the last one of a
// page. Because it names the record and not its number, records that are deleted
// meanwhile make the next page neither skip nor repeat others.
type Cursor struct {
	Sort      Sort
	Modified  Timestamp // with Newest and Oldest
	SortIndex *int32    // with Index; nil for a record without one
	ID        string
}

const (
	cursorVersion = 1
	unsetIndex    = math.MinInt32 // outside of the legal range of a sortindex
)

// String returns c as an opaque token of the characters A-Z, a-z, 0-9, '-' and '_':
// base64url of a version byte, the sort, eight bytes of modified or sortindex, and
// the id.
func (c Cursor) String() string {
	value := int64(c.Modified)
	if c.Sort == Index {
		value = unsetIndex
		if c.SortIndex != nil {
			value = int64(*c.SortIndex)
		}
	}
	b := append(make([]byte, 0, 80), cursorVersion, byte(c.Sort))
	b = binary.BigEndian.AppendUint64(b, uint64(value))
	return base64.RawURLEncoding.EncodeToString(append(b, c.ID...))
}

// ParseCursor reads what String made; anything else is an [*Error].
func ParseCursor(s string) (Cursor, error) {
	if strings.ContainsAny(s, "\r\n") { // which the decoder would skip
		return Cursor{}, errCursor
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 10 || b[0] != cursorVersion {
		return Cursor{}, errCursor
	}
	c := Cursor{Sort: Sort(b[1]), ID: string(b[10:])}
	value := int64(binary.BigEndian.Uint64(b[2:]))
	switch {
	case c.Sort > Index || !ValidID(c.ID):
		return Cursor{}, errCursor
	case c.Sort != Index:
		if value < 0 || value > int64(MaxTimestamp) {
			return Cursor{}, errCursor
		}
		c.Modified = Timestamp(value)
	case value != unsetIndex:
		if value < -maxInteger || value > maxInteger {
			return Cursor{}, errCursor
		}
		index := int32(value)
		c.SortIndex = &index
	}
	return c, nil
}

var errCursor = bad("", "the offset is not one of this server's")
