package bigtable

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"sync"
	"time"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/kv"
)

// Status of a transaction, the first byte of its record.
const (
	pending   = 'P'
	committed = 'C' // followed by the version
	aborted   = 'A'
)

// finishedMark stands at the end of the status of a transaction none of whose rows
// is locked any more.
const finishedMark = 'F'

var (
	deadlineCell     = cell{"t", "e"} // Unix milliseconds by the coordinator's clock, 8
	participantsCell = cell{"t", "k"}
)

// pushGrace is added to deadlines, because clocks differ.
const pushGrace = time.Second

// record is what the log says of a transaction. Its status goes from none to P or A
// and from P to C or A, by compare-and-set. C and A are final. No record means
// that it was never committed and never will be, since its coordinator creates the
// record before all else and commits from P only.
type record struct {
	status   byte // 0: there is none
	version  version
	finished bool
	deadline time.Time
	raw      []byte
}

func parseRecord(raw, deadline []byte) (record, error) {
	r := record{raw: raw}
	if raw == nil {
		return r, nil
	}
	bad := fmt.Errorf("%w: transaction record of %d bytes", kv.ErrCorrupt, len(raw))
	if len(raw) == 0 {
		return r, bad
	}
	r.status = raw[0]
	rest := raw[1:]
	if r.status == committed {
		if len(rest) < versionSize {
			return r, bad
		}
		r.version, rest = parseVersion(rest), rest[versionSize:]
	}
	if bytes.Equal(rest, []byte{finishedMark}) && r.status != pending {
		r.finished, rest = true, nil
	}
	if len(rest) > 0 || r.status != pending && r.status != committed && r.status != aborted {
		return r, bad
	}
	if len(deadline) == 8 {
		r.deadline = time.UnixMilli(int64(binary.BigEndian.Uint64(deadline)))
	}
	return r, nil
}

func (r record) decided() bool { return r.status == committed || r.status == aborted }

const logShards = 16

// logKey spreads transactions over shards, and keeps those of a shard in the order
// of time.
func logKey(id txID) string {
	h := fnv.New64a()
	h.Write(id[:]) // never fails
	return string(append([]byte{byte(h.Sum64() % logShards)}, id[:]...))
}

func (e *Engine) newTxID() (txID, error) {
	var id txID
	binary.BigEndian.PutUint64(id[:], e.hybrid.next(0))
	copy(id[8:12], e.writer[:])
	_, err := io.ReadFull(e.opts.Rand, id[12:])
	return id, err
}

// createRecord makes the record of a transaction. The request is sent once: if the
// answer is lost and the record is not there, the id is given up.
func (e *Engine) createRecord(ctx context.Context, id txID, participants []byte) error {
	deadline := e.opts.Clock.Now().Add(e.opts.TxnDeadline)
	m := newMutation().set(recordCell, []byte{pending}).
		set(deadlineCell, binary.BigEndian.AppendUint64(nil, uint64(deadline.UnixMilli()))).
		set(participantsCell, participants)
	key := logKey(id)
	if err := m.check(key); err != nil {
		return err
	}
	p := recordCell.is(nil)
	var matched bool
	err := e.call(ctx, "create record", e.logTable.name, callTimeout, func(ctx context.Context) error {
		return e.logTable.bt.Apply(ctx, key, bt.NewCondMutation(p.filter, nil, m.bt), bt.GetCondMutationResult(&matched))
	})
	if err == nil && matched {
		return errAborted // somebody who met the id was faster
	}
	return err
}

// readRecords reads the records of transactions; those that have none too.
func (e *Engine) readRecords(ctx context.Context, ids []txID) (map[txID]record, error) {
	records := make(map[txID]record, len(ids))
	keys := make(bt.RowList, len(ids))
	for i, id := range ids {
		keys[i] = logKey(id)
	}
	var bad error
	filter := bt.ChainFilters(bt.FamilyFilter("^t$"), bt.ColumnFilter("^[se]$"), bt.LatestNFilter(1))
	err := e.read(ctx, "read records", e.logTable, callTimeout, keys, func() { clear(records) }, func(r bt.Row) bool {
		rec, err := parseRecord(newest(r, recordCell), newest(r, deadlineCell))
		bad = err
		records[txID([]byte(r.Key()[1:]))] = rec
		return err == nil
	}, bt.RowFilter(filter))
	if err == nil {
		err = bad
	}
	return records, err
}

// decide finds out what became of transactions. Those that have no record, and
// those past their deadline, are aborted; the others may be undecided.
func (e *Engine) decide(ctx context.Context, ids []txID) (map[txID]record, error) {
	decisions := make(map[txID]record, len(ids))
	open := ids
	for len(open) > 0 {
		var unknown []txID
		for _, id := range open {
			if rec, ok := e.own.committed(id); ok {
				decisions[id] = rec
			} else {
				unknown = append(unknown, id)
			}
		}
		if len(unknown) == 0 {
			break
		}
		records, err := e.readRecords(ctx, unknown)
		if err != nil {
			return nil, err
		}
		now := e.opts.Clock.Now()
		open = nil
		for _, id := range unknown {
			rec := records[id]
			if rec.decided() || rec.status == pending && now.Before(rec.deadline.Add(pushGrace)) {
				decisions[id] = rec
				continue
			}
			done, err := e.abort(ctx, id, rec.raw)
			if err != nil {
				return nil, err
			}
			if decisions[id] = (record{status: aborted}); !done {
				open = append(open, id)
			}
		}
	}
	return decisions, nil
}

// abort changes a record from P, or from none, to A. It reports whether it did;
// if not the record has changed.
func (e *Engine) abort(ctx context.Context, id txID, raw []byte) (bool, error) {
	step := "push"
	if raw == nil {
		step = "fence"
	}
	res, err := e.cas(ctx, step, e.logTable, logKey(id), recordCell.is(raw), newMutation().set(recordCell, []byte{aborted}))
	return res.applied, err
}

// participant is a row of a transaction, as its record names it.
type participant struct{ table, key string }

func encodeParticipants(parts []part) []byte {
	var b []byte
	for i := range parts {
		for _, s := range []string{parts[i].space.table.name, parts[i].key} {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		}
	}
	return b
}

func parseParticipants(b []byte) ([]participant, error) {
	var all []participant
	for len(b) > 0 {
		var p participant
		for _, s := range []*string{&p.table, &p.key} {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) {
				return nil, fmt.Errorf("%w: participants of a transaction", kv.ErrCorrupt)
			}
			*s, b = string(b[size:size+int(n)]), b[size+int(n):]
		}
		all = append(all, p)
	}
	return all, nil
}

// ownTxns are the transactions that this process has committed and not finished
// yet, so that it need not ask the log about them.
type ownTxns struct {
	mu  sync.Mutex
	all map[txID]version
}

func (o *ownTxns) init() { o.all = map[txID]version{} }

func (o *ownTxns) add(id txID, v version) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[id] = v
}

func (o *ownTxns) remove(id txID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, id)
}

func (o *ownTxns) committed(id txID) (record, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v, ok := o.all[id]
	return record{status: committed, version: v}, ok
}
