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
	// flagOwner says that the account follows: in rows with a link, because
	// change records name it and the key has only its hash.
	flagOwner = 0x08
)

// appendHeader appends the first byte and, if there is a link, the owner.
func appendHeader(b []byte, flags byte, link string, owner User) []byte {
	if link == "" {
		return append(b, formatOne|flags)
	}
	b = append(b, formatOne|flags|flagOwner)
	for _, s := range [...]string{owner.ObjectPrefix(), owner.FxaKID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

// header reads what appendHeader wrote.
func (r *valueReader) header() (flags byte, account, keyID string) {
	flags = r.byte()
	r.bad = r.bad || flags&formatMask != formatOne
	if flags&flagOwner != 0 {
		account, keyID = r.text(), r.text()
	}
	return flags, account, keyID
}

// headerSize bounds what appendHeader appends.
func headerSize(owner User) int {
	return 1 + 2*binary.MaxVarintLen64 + len(owner.FxaUID) + len(owner.FxaKID) + binary.MaxVarintLen64
}

func (r *Record) encode(owner User) []byte {
	b := make([]byte, 0, headerSize(owner)+3*binary.MaxVarintLen64+len(r.Payload))
	var flags byte
	if r.HasSortIndex {
		flags |= flagSortIndex
	}
	b = appendHeader(b, flags, r.Link, owner)
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
	flags, _, _ := v.header()
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
	if v.bad || len(rec.Payload) != inline {
		return Record{}, fmt.Errorf("%w: row of a record", kv.ErrCorrupt)
	}
	return rec, nil
}

// encodeStaged renders a patch as the value of a row of batch_bsos.
func (p *Patch) encodeStaged(owner User) []byte {
	b := make([]byte, 0, headerSize(owner)+3*binary.MaxVarintLen64+len(p.Payload))
	var flags byte
	if p.HasPayload {
		flags |= flagPayload
	}
	if p.HasSortIndex {
		flags |= flagSortIndex
	}
	if p.HasTTL {
		flags |= flagTTL
	}
	b = appendHeader(b, flags, p.Link, owner)
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
	flags, _, _ := v.header()
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
	if v.bad || p.HasPayload && p.Link == "" && len(p.Payload) != p.Size {
		return Patch{}, fmt.Errorf("%w: row of a staged record", kv.ErrCorrupt)
	}
	return p, nil
}
