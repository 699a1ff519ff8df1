package queue

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// The spaces of a Service; doc.go describes their rows.
const (
	catalogSpace = "queue_catalog"
	messageSpace = "queue_message"
	readySpace   = "queue_ready"
	movedSpace   = "queue_moved"
	deadSpace    = "queue_dead"
)

// Limits of a message, in bytes. They leave room in a row for what is stored
// around it.
const (
	MaxKeySize     = kv.MaxKeySize - 64
	MaxPayloadSize = kv.MaxValueSize - 4<<10
	maxReasonSize  = 1 << 10
)

// record is a message as its row holds it.
type record struct {
	deliver, due time.Time
	lost         int // leases lost so far
	reason       string
	payload      []byte
	// prompt: it was due when it was sent. Only the ready index keeps that.
	prompt bool
}

// moved reports whether due is no longer the delivery time.
func (r *record) moved() bool { return !r.due.Equal(r.deliver) }

const recordFormat = 1

func (r *record) encode() []byte {
	b := make([]byte, 0, 32+len(r.reason)+len(r.payload))
	b = append(b, recordFormat)
	b = appendTime(b, r.deliver)
	b = appendTime(b, r.due)
	b = binary.AppendUvarint(b, uint64(r.lost))
	b = binary.AppendUvarint(b, uint64(len(r.reason)))
	b = append(b, r.reason...)
	return append(b, r.payload...)
}

// decodeRecord takes a record apart. The payload points into b.
func decodeRecord(b []byte) (record, error) {
	d := decoder{rest: b}
	format := d.byte()
	r := record{deliver: d.time(), due: d.time(), lost: int(d.uvarint())}
	r.reason = string(d.bytes(d.uvarint()))
	r.payload = d.rest
	if d.failed || format != recordFormat {
		return record{}, fmt.Errorf("%w: message of format %d", kv.ErrCorrupt, format)
	}
	return r, nil
}

// appendTime keeps all that a time.Time of years 1 to 9999 holds, to the
// nanosecond.
func appendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

// decoder reads what the append functions of this package wrote.
type decoder struct {
	rest   []byte
	failed bool
}

func (d *decoder) fail() { d.rest, d.failed = nil, true }

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail()
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) uvarint() uint64 {
	u, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return u
}

func (d *decoder) time() time.Time {
	sec, n := binary.Varint(d.rest)
	if n <= 0 {
		d.fail()
		return time.Time{}
	}
	d.rest = d.rest[n:]
	nsec := d.uvarint()
	if nsec >= 1e9 {
		d.fail()
		return time.Time{}
	}
	return time.Unix(sec, int64(nsec)).UTC()
}

func (q *Queue) messageKey(k []byte) []byte {
	return append(append(make([]byte, 0, len(q.prefix)+len(k)), q.prefix...), k...)
}

// shardPrefix begins the keys of a shard in readySpace and movedSpace.
func (q *Queue) shardPrefix(number int) []byte {
	return append(append(make([]byte, 0, len(q.prefix)+1), q.prefix...), byte(number))
}

// timeKey is the key of a message in readySpace and movedSpace.
func (q *Queue) timeKey(t time.Time, k []byte) []byte {
	b := append(make([]byte, 0, len(q.prefix)+9+len(k)), q.prefix...)
	return append(key.AppendTime(append(b, byte(q.shardNumber(k))), t), k...)
}

// timePlace is the place before all messages of a time.
func (sh *shard) timePlace(t time.Time) []byte {
	b := append(make([]byte, 0, len(sh.prefix)+8), sh.prefix...)
	return key.AppendTime(b, t)
}

// splitTimeKey is the inverse of timeKey. The message key points into b.
func (q *Queue) splitTimeKey(b []byte) (time.Time, []byte, error) {
	if len(b) <= len(q.prefix) {
		return time.Time{}, nil, fmt.Errorf("%w: key in an index of queue %s", kv.ErrCorrupt, q.name)
	}
	r := key.NewReader(b[len(q.prefix)+1:])
	t := r.Time()
	if r.Err() != nil {
		return time.Time{}, nil, fmt.Errorf("%w: key in an index of queue %s", kv.ErrCorrupt, q.name)
	}
	return t, r.Rest(), nil
}

// readyValue is what a row in readySpace says about its message.
func readyValue(r *record) []byte {
	v := uint64(len(r.payload)) << 2
	if r.moved() {
		v |= 1
	} else if r.prompt {
		v |= 2
	}
	return binary.AppendUvarint(nil, v)
}

func splitReadyValue(b []byte) (size int, moved, prompt bool) {
	v, _ := binary.Uvarint(b)
	return int(v >> 2), v&1 != 0, v&2 != 0
}

// put writes a message to its row and into the indexes. From then on the payload of r
// is that of the row.
func (q *Queue) put(tx *kv.Tx, row kv.Ref, r *record) {
	value, k := r.encode(), row.Key[len(q.prefix):]
	r.payload = value[len(value)-len(r.payload):]
	tx.Put(kv.Write{Space: row.Space, Key: row.Key, Value: value})
	tx.Put(kv.Write{Space: readySpace, Key: q.timeKey(r.due, k), Value: readyValue(r)})
	if r.moved() {
		tx.Put(kv.Write{Space: movedSpace, Key: q.timeKey(r.deliver, k)})
	}
}

// remove deletes a message from its row and from the indexes.
func (q *Queue) remove(tx *kv.Tx, row kv.Ref, r *record) {
	k := row.Key[len(q.prefix):]
	tx.Delete(row.Space, row.Key)
	tx.Delete(readySpace, q.timeKey(r.due, k))
	if r.moved() {
		tx.Delete(movedSpace, q.timeKey(r.deliver, k))
	}
}

// row names the row of a message.
func (q *Queue) row(k []byte) kv.Ref { return kv.Ref{Space: messageSpace, Key: q.messageKey(k)} }

func (q *Queue) refs(keys [][]byte) []kv.Ref {
	refs := make([]kv.Ref, len(keys))
	for i, k := range keys {
		refs[i] = q.row(k)
	}
	return refs
}
