package storage

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
)

// Timestamp is the protocol's time, in hundredths of a second.
type Timestamp = bso.Timestamp

// Record is a record as it is stored.
type Record struct {
	ID       string
	Modified Timestamp
	// SortIndex counts if HasSortIndex.
	SortIndex    int64
	HasSortIndex bool
	// Payload is the inline payload; empty if Link is set.
	Payload []byte
	// Link is where the payload is, if it is not inline.
	Link string
	// Size is the length of the payload in bytes, wherever it is.
	Size int
}

// Patch is what a client gives of a record. What it does not give stays.
type Patch struct {
	ID string
	// HasPayload tells whether a payload is given: in Payload, or, if Link is
	// set, in the object there, with Size bytes.
	HasPayload bool
	Payload    []byte
	Link       string
	Size       int
	// SortIndex and TTL, in seconds, are nil if not given.
	SortIndex, TTL *int64
}

// size returns the length of the payload given.
func (p *Patch) size() int64 {
	if p.Link != "" {
		return int64(p.Size)
	}
	return int64(len(p.Payload))
}

// merge lays what later gives over p.
func (p *Patch) merge(later Patch) {
	if later.HasPayload {
		p.HasPayload, p.Payload, p.Link, p.Size = true, later.Payload, later.Link, later.Size
	}
	if later.SortIndex != nil {
		p.SortIndex = later.SortIndex
	}
	if later.TTL != nil {
		p.TTL = later.TTL
	}
}

// Stored forms begin with a byte that is the format in its upper half and flags
// in the lower one.
const (
	formatMask = 0xf0
	formatOne  = 0x10

	flagSortIndex = 0x01
	flagPayload   = 0x02 // staged records only
	flagTTL       = 0x04 // staged records only
)

func (r *Record) encode() []byte {
	b := make([]byte, 0, 1+3*binary.MaxVarintLen64+len(r.Payload))
	flags := byte(formatOne)
	if r.HasSortIndex {
		flags |= flagSortIndex
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(r.Modified))
	if r.HasSortIndex {
		b = binary.AppendVarint(b, r.SortIndex)
	}
	b = binary.AppendUvarint(b, uint64(r.Size))
	return append(b, r.Payload...)
}

// decodeRecord reads a row of bsos. The payload points into the row.
func decodeRecord(id string, row kv.Row) (Record, error) {
	v := valueReader{rest: row.Value}
	flags := v.byte()
	rec := Record{ID: id, Modified: Timestamp(v.uint()), HasSortIndex: flags&flagSortIndex != 0, Link: row.Link}
	if rec.HasSortIndex {
		rec.SortIndex = v.int()
	}
	rec.Size = int(v.uint())
	rec.Payload = v.rest
	inline := rec.Size
	if row.Link != "" {
		inline = 0
	}
	if v.bad || flags&formatMask != formatOne || len(rec.Payload) != inline {
		return Record{}, fmt.Errorf("%w: row of a record", kv.ErrCorrupt)
	}
	return rec, nil
}

// encodeStaged renders a patch as the value of a row of batch_bsos.
func (p *Patch) encodeStaged() []byte {
	b := make([]byte, 0, 1+3*binary.MaxVarintLen64+len(p.Payload))
	flags := byte(formatOne)
	if p.HasPayload {
		flags |= flagPayload
	}
	if p.SortIndex != nil {
		flags |= flagSortIndex
	}
	if p.TTL != nil {
		flags |= flagTTL
	}
	b = append(b, flags)
	if p.SortIndex != nil {
		b = binary.AppendVarint(b, *p.SortIndex)
	}
	if p.TTL != nil {
		b = binary.AppendVarint(b, *p.TTL)
	}
	b = binary.AppendUvarint(b, uint64(p.size()))
	if p.Link == "" {
		b = append(b, p.Payload...)
	}
	return b
}

// decodeStaged reads a row of batch_bsos. The payload points into the row.
func decodeStaged(id string, row kv.Row) (Patch, error) {
	v := valueReader{rest: row.Value}
	flags := v.byte()
	p := Patch{ID: id, HasPayload: flags&flagPayload != 0, Link: row.Link}
	if flags&flagSortIndex != 0 {
		i := v.int()
		p.SortIndex = &i
	}
	if flags&flagTTL != 0 {
		i := v.int()
		p.TTL = &i
	}
	p.Size = int(v.uint())
	if p.HasPayload && p.Link == "" {
		p.Payload = v.rest
	}
	if v.bad || flags&formatMask != formatOne || p.HasPayload && p.Link == "" && len(p.Payload) != p.Size {
		return Patch{}, fmt.Errorf("%w: row of a staged record", kv.ErrCorrupt)
	}
	return p, nil
}

// ceilTimestamp rounds t up to the next tick of the protocol's clock. Rounding up
// makes a write that follows a read in the same tick newer than the time which
// the reader was told.
func ceilTimestamp(t time.Time) Timestamp {
	const tick = int64(10 * time.Millisecond)
	n := t.UnixNano()
	ts := n / tick
	if n%tick > 0 {
		ts++
	}
	return Timestamp(ts)
}
