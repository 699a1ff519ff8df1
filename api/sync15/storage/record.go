package storage

import (
	"encoding/binary"
	"fmt"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/kv"
)

// Timestamp is the protocol's time, in hundredths of a second.
type Timestamp = bso.Timestamp

// Record is a record as it is stored. If Link is set, the payload is in the object
// there, and Payload is empty.
type Record struct {
	bso.Record
	Link string
	// Size is the length of the payload in bytes, wherever it is.
	Size int
}

// Patch is what a client gives of a record. If Link is set, the payload given is
// in the object there and has Size bytes, and Payload is not looked at.
type Patch struct {
	bso.Update
	Link string
	Size int
}

// size returns the length of the payload given.
func (p *Patch) size() int64 {
	if p.Link != "" {
		return int64(p.Size)
	}
	return int64(len(p.Payload))
}

// inline returns the payload given unless it is in an object: a row has one or
// the other.
func (p *Patch) inline() []byte {
	if p.Link != "" {
		return nil
	}
	return p.Payload
}

// merge lays what later gives over p.
func (p *Patch) merge(later Patch) {
	if later.HasPayload {
		p.HasPayload, p.Payload, p.Link, p.Size = true, later.Payload, later.Link, later.Size
	}
	if later.HasSortIndex {
		p.SortIndex, p.HasSortIndex = later.SortIndex, true
	}
	if later.HasTTL {
		p.TTL, p.HasTTL = later.TTL, true
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
		b = binary.AppendVarint(b, int64(r.SortIndex))
	}
	b = binary.AppendUvarint(b, uint64(r.Size))
	return append(b, r.Payload...)
}

// decodeRecord reads a row of bsos. The payload points into the row.
func decodeRecord(id string, row kv.Row) (Record, error) {
	v := valueReader{rest: row.Value}
	flags := v.byte()
	rec := Record{Link: row.Link}
	rec.ID, rec.Modified = id, Timestamp(v.uint())
	if rec.HasSortIndex = flags&flagSortIndex != 0; rec.HasSortIndex {
		rec.SortIndex = int32(v.int())
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
	if p.HasSortIndex {
		flags |= flagSortIndex
	}
	if p.HasTTL {
		flags |= flagTTL
	}
	b = append(b, flags)
	if p.HasSortIndex {
		b = binary.AppendVarint(b, int64(p.SortIndex))
	}
	if p.HasTTL {
		b = binary.AppendVarint(b, int64(p.TTL))
	}
	b = binary.AppendUvarint(b, uint64(p.size()))
	return append(b, p.inline()...)
}

// decodeStaged reads a row of batch_bsos. The payload points into the row.
func decodeStaged(id string, row kv.Row) (Patch, error) {
	v := valueReader{rest: row.Value}
	flags := v.byte()
	p := Patch{Link: row.Link}
	p.ID, p.HasPayload = id, flags&flagPayload != 0
	if p.HasSortIndex = flags&flagSortIndex != 0; p.HasSortIndex {
		p.SortIndex = int32(v.int())
	}
	if p.HasTTL = flags&flagTTL != 0; p.HasTTL {
		p.TTL = int32(v.int())
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
