package bigtable

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/kv"
)

// outboxEntry is a feed entry that is still in its row. Its timestamp tells the p of
// its version, its data the writer.
type outboxEntry struct {
	at   bt.Timestamp
	data []byte
}

func (o outboxEntry) p() uint64 { return uint64(o.at / 1000) }

// encodeOutbox returns a cell of o:e: format 2 (1), writer 6, entry. Format 1 had no
// writer.
func encodeOutbox(writer [writerSize]byte, feed []byte) []byte {
	return append(append([]byte{2}, writer[:]...), feed...)
}

func decodeOutbox(b []byte) (writer [writerSize]byte, feed []byte, err error) {
	switch {
	case len(b) > writerSize && b[0] == 2:
		return [writerSize]byte(b[1:]), b[1+writerSize:], nil
	case len(b) > 0 && b[0] == 1:
		return writer, b[1:], nil
	}
	return writer, nil, fmt.Errorf("%w: outbox entry", kv.ErrCorrupt)
}

// of reports whether the entry is that of the version v. Its p is not enough to tell:
// another process may have written the row under the same number.
func (o outboxEntry) of(v version) bool {
	writer, _, err := decodeOutbox(o.data)
	return err == nil && version{o.p(), writer} == v
}

// shardOf returns the shard of a key's entries.
func (s *space) shardOf(key string) int {
	h := fnv.New64a()
	h.Write([]byte(key)) // never fails
	return int(h.Sum64() % uint64(s.FeedShards))
}

// shardKey is the prefix of a shard's rows in the tables that all feeds share.
func (s *space) shardKey(shard int) string {
	return string(binary.BigEndian.AppendUint16(append([]byte(nil), s.stream[:]...), uint16(shard)))
}

const shardKeySize = streamIDSize + 2

// A hint says that a row may have an outbox entry. It is durable before the entry
// can exist, and goes away when the entry was forwarded or can never come, so no
// entry is ever without one.
//
// Its key is the shard's, the version 14 and the row's key. The whole version: two
// processes may use the same p, and the hint of one must not replace the other's.
// Its value is 'S' and the state that the row must have for the entry to come,
// or 'T' and the id of the transaction that brings it, which has locked the row.
type hint struct {
	key     string // its own
	version version
	row     string
	tx      txID   // zero if it is about a state
	state   []byte // nil: no state cell
}

const (
	hintState = 'S'
	hintTx    = 'T'
)

// writeHints writes the hints of all parts that have an entry. about is the state of
// the only row, or the transaction's id.
func (e *Engine) writeHints(ctx context.Context, parts []part, v version, about []byte) error {
	kind := byte(hintTx)
	if len(parts) == 1 {
		kind = hintState
	}
	var keys []string
	var ms []*mutation
	for i := range parts {
		p := &parts[i]
		if p.write == nil || p.write.Feed == nil {
			continue
		}
		keys = append(keys, p.space.shardKey(p.space.shardOf(p.key))+string(v.append(nil))+p.key)
		ms = append(ms, newMutation().set(hintCell, append([]byte{kind}, about...)))
	}
	if len(keys) == 0 {
		return nil
	}
	return e.plain(ctx, "write hints", e.outboxTable, keys, ms)
}

func parseHint(r bt.Row) (hint, error) {
	key, value := r.Key(), newest(r, hintCell)
	bad := fmt.Errorf("%w: hint of %d bytes", kv.ErrCorrupt, len(value))
	if len(key) <= shardKeySize+versionSize || len(value) == 0 {
		return hint{}, bad
	}
	h := hint{key: key, version: parseVersion([]byte(key[shardKeySize:])), row: key[shardKeySize+versionSize:]}
	switch about := value[1:]; {
	case value[0] == hintState && len(about) > 0:
		h.state = about
	case value[0] == hintState:
	case value[0] == hintTx && len(about) == txIDSize:
		h.tx = txID(about)
	default:
		return hint{}, bad
	}
	return h, nil
}

// hintPage bounds how many hints are looked at in one go.
const hintPage = 200

func (e *Engine) readHints(ctx context.Context, prefix, from string) ([]hint, error) {
	var hints []hint
	var bad error
	err := e.read(ctx, "read hints", e.outboxTable, callTimeout, bt.NewRange(from, string(kv.PrefixEnd([]byte(prefix)))), func() { hints = nil }, func(r bt.Row) bool {
		h, err := parseHint(r)
		hints = append(hints, h)
		bad = err
		return err == nil
	}, bt.LimitRows(hintPage), bt.RowFilter(hintCell.filter()))
	if err == nil {
		err = bad
	}
	return hints, err
}

// hintPatience is the age from which on a hint whose row has not changed makes the
// forwarder touch the row, so that the change can never come any more.
const hintPatience = 30 * time.Second

// settled reports whether a hint has done its work, given the row as it was read after
// the hint. It must have no outbox entries left. The row of a transaction was locked
// before the hint was written: if it is not any more, it was finished.
func (h hint) settled(r *row) bool {
	if h.tx != (txID{}) {
		return !r.state.locked || r.state.tx != h.tx
	}
	return string(r.state.raw) != string(h.state) || (r.state.raw == nil) != (h.state == nil)
}

// touch makes the change of a hint impossible whose writer seems to be gone.
func (e *Engine) touch(ctx context.Context, h hint, r *row) error {
	if e.opts.Clock.Now().Sub(kv.Version(h.version.p).Time()) < hintPatience {
		return nil
	}
	next := r.state.touched()
	if r.state.raw == nil {
		next = unlocked(version{p: e.hybrid.next(0), writer: e.writer}, flagPlaceholder, 1)
	}
	_, err := e.cas(ctx, "touch", r.space.table, r.key, stateCell.is(r.state.raw), newMutation().set(stateCell, next))
	return err
}
