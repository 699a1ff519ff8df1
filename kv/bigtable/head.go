package bigtable

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/holdfast-dev/holdfast/kv"
)

// firstEpoch makes all positions equally long.
const firstEpoch = 100_000

// place is where an entry stands in its shard. Whoever takes a shard over begins
// a new epoch, and only the owner of an epoch publishes in it, so that no place ever
// gets a second entry.
type place struct {
	epoch uint32
	index uint64
}

func (p place) less(q place) bool {
	return p.epoch < q.epoch || p.epoch == q.epoch && p.index < q.index
}

// position: epoch, 6 digits, and index, 15 digits.
func (p place) position() kv.Position {
	return kv.Position(fmt.Sprintf("%06d%015d", p.epoch, p.index))
}

func parsePosition(s kv.Position) (place, error) {
	if s == "" {
		return place{}, nil
	}
	if len(s) < 21 {
		return place{}, fmt.Errorf("%w: position", kv.ErrInvalid)
	}
	cut := len(s) - 15
	epoch, err := strconv.ParseUint(string(s[:cut]), 10, 32)
	if err != nil {
		return place{}, fmt.Errorf("%w: position", kv.ErrInvalid)
	}
	index, err := strconv.ParseUint(string(s[cut:]), 10, 64)
	if err != nil {
		return place{}, fmt.Errorf("%w: position", kv.ErrInvalid)
	}
	return place{uint32(epoch), index}, nil
}

// epoch is the part of a shard that one owner has published.
type epoch struct {
	number uint32
	// published entries can be read.
	published uint64
	// acknowledged of them are certain to have left their rows.
	acknowledged uint64
}

// head is the row that says who owns a shard and what is published in it. It only
// ever changes by compare-and-set, and never repeats a value.
type head struct {
	owner [writerSize]byte // zero: nobody
	// time of the entry published last, as a version. Entries never go back in
	// time, whatever the clocks of their writers say, so that those which are too
	// old are always the first ones.
	time uint64
	// trimmed is the last place that was removed.
	trimmed place
	epochs  []epoch
}

const epochSize = 4 + 8 + 8

// encode: format 1 (1), owner 6, time 8, trimmed epoch 4 and index 8, epochs.
func (h head) encode() []byte {
	b := append([]byte{1}, h.owner[:]...)
	b = binary.BigEndian.AppendUint64(b, h.time)
	b = binary.BigEndian.AppendUint32(b, h.trimmed.epoch)
	b = binary.BigEndian.AppendUint64(b, h.trimmed.index)
	for _, e := range h.epochs {
		b = binary.BigEndian.AppendUint32(b, e.number)
		b = binary.BigEndian.AppendUint64(b, e.published)
		b = binary.BigEndian.AppendUint64(b, e.acknowledged)
	}
	return b
}

const headSize = 1 + writerSize + 8 + 4 + 8

// parseHead decodes a head; nil is one that was never written.
func parseHead(b []byte) (head, error) {
	var h head
	if b == nil {
		return h, nil
	}
	if len(b) < headSize || b[0] != 1 || (len(b)-headSize)%epochSize != 0 {
		return h, fmt.Errorf("%w: head of a feed", kv.ErrCorrupt)
	}
	copy(h.owner[:], b[1:])
	b = b[1+writerSize:]
	h.time = binary.BigEndian.Uint64(b)
	h.trimmed = place{binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint64(b[12:])}
	for b = b[20:]; len(b) > 0; b = b[epochSize:] {
		h.epochs = append(h.epochs, epoch{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])})
	}
	return h, nil
}

func (h *head) current() *epoch { return &h.epochs[len(h.epochs)-1] }

// takenBy returns the head with a new epoch of a new owner. Epochs without entries,
// and those whose entries are gone, are left out.
func (h head) takenBy(owner [writerSize]byte) head {
	next := uint32(firstEpoch)
	var kept []epoch
	for _, e := range h.epochs {
		next = e.number + 1
		if e.published > 0 && (e.number > h.trimmed.epoch || e.number == h.trimmed.epoch && e.published > h.trimmed.index+1 || e.acknowledged < e.published) {
			kept = append(kept, e)
		}
	}
	h.epochs = append(kept, epoch{number: next})
	h.owner = owner
	return h
}

// after lists the places behind p that are published, in order, up to limit.
func (h head) after(p place, limit int) []place {
	var all []place
	for _, e := range h.epochs {
		if e.number < p.epoch {
			continue
		}
		first := uint64(0)
		if e.number == p.epoch {
			first = p.index + 1
		}
		for i := first; i < e.published && len(all) < limit; i++ {
			all = append(all, place{e.number, i})
		}
	}
	return all
}

// entryKey is the key of a published entry behind the shard's; headKey that of the
// head.
func entryKey(p place) string {
	b := binary.BigEndian.AppendUint32([]byte{'r'}, p.epoch)
	return string(binary.BigEndian.AppendUint64(b, p.index))
}

const headKey = "h"

// entry is a published feed entry.
type entry struct {
	place   place
	time    uint64 // of the head when it was published
	version uint64
	key     string
	data    []byte
}

// encode: format 1 (1), time 8, version 8, length of the key, key, data.
func (en entry) encode() []byte {
	b := make([]byte, 1, 1+8+8+binary.MaxVarintLen16+len(en.key)+len(en.data))
	b[0] = 1
	b = binary.BigEndian.AppendUint64(b, en.time)
	b = binary.BigEndian.AppendUint64(b, en.version)
	b = append(binary.AppendUvarint(b, uint64(len(en.key))), en.key...)
	return append(b, en.data...)
}

func parseEntry(b []byte) (entry, error) {
	bad := fmt.Errorf("%w: feed entry of %d bytes", kv.ErrCorrupt, len(b))
	if len(b) < 17 || b[0] != 1 {
		return entry{}, bad
	}
	en := entry{time: binary.BigEndian.Uint64(b[1:]), version: binary.BigEndian.Uint64(b[9:])}
	n, size := binary.Uvarint(b[17:])
	b = b[17:]
	if size <= 0 || n > uint64(len(b)-size) {
		return entry{}, bad
	}
	en.key, en.data = string(b[size:size+int(n)]), b[size+int(n):]
	return en, nil
}

func parseEntryKey(key string) (place, error) {
	if len(key) != 13 {
		return place{}, fmt.Errorf("%w: key of a feed entry", kv.ErrCorrupt)
	}
	return place{binary.BigEndian.Uint32([]byte(key[1:])), binary.BigEndian.Uint64([]byte(key[5:]))}, nil
}
