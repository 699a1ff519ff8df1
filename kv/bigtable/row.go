package bigtable

import (
	"context"
	"fmt"
	"sync"
	"time"

	bt "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

// row is one row as it was read.
type row struct {
	space *space
	key   string
	state state
	item  []byte // the cell d:i; of a locked row, as before the lock
	// outbox has the row's feed entries, if they were asked for: oldest first.
	outbox []outboxEntry
}

var (
	rowFilter   = bt.ChainFilters(bt.FamilyFilter("^[dm]$"), bt.LatestNFilter(1))
	stateFilter = stateCell.filter()
	feedFilter  = bt.FamilyFilter("^[mo]$")
)

func decodeRow(s *space, r bt.Row) (*row, error) {
	st, err := parseState(newest(r, stateCell))
	if err != nil {
		return nil, fmt.Errorf("row %q of space %s: %w", r.Key(), s.Name, err)
	}
	out := &row{space: s, key: r.Key(), state: st, item: newest(r, itemCell)}
	items := r[outboxCell.family] // newest first
	for i := range items {
		item := items[len(items)-1-i]
		out.outbox = append(out.outbox, outboxEntry{at: item.Timestamp, data: item.Value})
	}
	return out, nil
}

// timePerRow is what a call gets beyond callTimeout for each row that it reads.
const timePerRow = 20 * time.Millisecond

// readRows reads rows of one space by their keys, absent ones included.
func (e *Engine) readRows(ctx context.Context, step string, s *space, keys []string, filter bt.Filter) (map[string]*row, error) {
	rows := make(map[string]*row, len(keys))
	var bad error
	timeout := callTimeout + time.Duration(len(keys))*timePerRow
	err := e.read(ctx, step, s.table, timeout, bt.RowList(keys), func() { clear(rows) }, func(r bt.Row) bool {
		row, err := decodeRow(s, r)
		bad, rows[r.Key()] = err, row
		return err == nil
	}, bt.RowFilter(filter))
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if rows[k] == nil {
			rows[k] = &row{space: s, key: k}
		}
	}
	return rows, nil
}

func (e *Engine) readRow(ctx context.Context, step string, s *space, key string) (*row, error) {
	rows, err := e.readRows(ctx, step, s, []string{key}, rowFilter)
	return rows[key], err
}

// image is what a row holds to everybody at one moment: its last committed state.
type image struct {
	version version // zero: there never was a row
	live    bool
	item    []byte
}

// image is what the row holds if the transaction that locks it, if any, ends as
// rec says.
func (r *row) image(rec record) (image, error) {
	if r.state.locked && rec.status == committed {
		in, err := parseIntent(r.state.intent)
		if err != nil {
			return image{}, fmt.Errorf("row %q of space %s: %w", r.key, r.space.Name, err)
		}
		switch in.kind {
		case intentWrite:
			return image{version: rec.version, live: true, item: in.item}, nil
		case intentDelete:
			return image{version: rec.version}, nil
		}
	}
	if r.state.raw == nil || r.state.flag == flagPlaceholder {
		return image{}, nil
	}
	return image{version: r.state.version, live: r.state.live(), item: r.item}, nil
}

// images resolves rows as a reader: it waits for nobody. A lock whose transaction is
// undecided does not count; one whose transaction is decided does, and is taken
// away behind the reader's back.
func (e *Engine) images(ctx context.Context, rows []*row) ([]image, error) {
	var ids []txID
	seen := map[txID]bool{}
	for _, r := range rows {
		if r.state.locked && !seen[r.state.tx] {
			seen[r.state.tx] = true
			ids = append(ids, r.state.tx)
		}
	}
	decisions, err := e.decide(ctx, ids)
	if err != nil {
		return nil, err
	}
	all := make([]image, len(rows))
	for i, r := range rows {
		rec := decisions[r.state.tx]
		if all[i], err = r.image(rec); err != nil {
			return nil, err
		}
		if r.state.locked && rec.decided() {
			e.help(r, rec)
		}
	}
	return all, nil
}

// finish takes the lock from a row whose transaction is decided, and makes the
// change if it is committed. It returns the row as it is now, nil if the row was not
// locked by the transaction any more. Anybody may do it, at any time, and again: the
// lock contains the transaction's id, so nothing newer is ever touched.
func (e *Engine) finish(ctx context.Context, r *row, rec record) (*row, error) {
	next := state{raw: r.state.touched()}
	m := newMutation()
	item := r.item
	if rec.status == committed {
		in, err := parseIntent(r.state.intent)
		if err != nil {
			return nil, fmt.Errorf("row %q of space %s: %w", r.key, r.space.Name, err)
		}
		if in.kind != intentRead {
			m, next.raw, item = changed(rec.version, in)
		}
	}
	m.set(stateCell, next.raw)
	next, err := parseState(next.raw)
	if err != nil {
		return nil, err
	}
	header := r.state.raw[:headerSize]
	res, err := e.cas(ctx, "finish", r.space.table, r.key, stateCell.begins(header), m)
	if isCode(err, codes.NotFound) {
		return nil, nil // the space was dropped
	}
	if err != nil || !res.applied {
		return nil, err
	}
	return &row{space: r.space, key: r.key, state: next, item: item}, nil
}

// changed returns the mutations of a write or delete, but for the state cell, and
// the state after it.
func changed(v version, in intent) (m *mutation, next, item []byte) {
	m = newMutation().deleteFamily(itemCell)
	next = unlocked(v, flagTombstone, 0)
	if in.kind == intentWrite {
		next = unlocked(v, flagLive, 0)
		m.set(itemCell, in.item)
		item = in.item
	}
	if in.feed != nil {
		m.setAt(outboxCell, entryTime(v.p), encodeOutbox(v.writer, in.feed))
	}
	return m, next, item
}

// settle resolves a row as a writer: it takes the lock away if its transaction is
// decided. The row that it returns is locked only by a transaction that may
// still commit.
func (e *Engine) settle(ctx context.Context, r *row) (*row, error) {
	for r.state.locked {
		decisions, err := e.decide(ctx, []txID{r.state.tx})
		if err != nil {
			return nil, err
		}
		rec := decisions[r.state.tx]
		if !rec.decided() {
			return r, nil
		}
		next, err := e.finish(ctx, r, rec)
		if err != nil {
			return nil, err
		}
		if next == nil {
			if next, err = e.readRow(ctx, "read again", r.space, r.key); err != nil {
				return nil, err
			}
		}
		r = next
	}
	return r, nil
}

// helping are the rows from which readers have locks taken away at the moment.
type helping struct {
	mu   sync.Mutex
	rows map[participant]bool
}

// mostHelpers bounds how many rows are unlocked for readers at once. Rows beyond it
// stay locked until somebody writes or reads them again.
const mostHelpers = 64

// help finishes a row in the background, unless its coordinator is this process.
func (e *Engine) help(r *row, rec record) {
	if _, ours := e.own.committed(r.state.tx); ours {
		return
	}
	id := participant{r.space.table.name, r.key}
	h := &e.helping
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rows[id] || len(h.rows) >= mostHelpers {
		return
	}
	if h.rows == nil {
		h.rows = map[participant]bool{}
	}
	h.rows[id] = true
	e.job(func(ctx context.Context) {
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.rows, id)
		}()
		if _, err := e.finish(ctx, r, rec); err != nil {
			e.log.Debug("bigtable: lock not taken away", "space", r.space.Name, "error", err)
		}
	})
}

// row turns an image into what the contract returns. Expired rows are absent unless
// asked for.
func (i image) row(key []byte, now int64, includeExpired bool) (kv.Row, error) {
	r := kv.Row{Key: key}
	if !i.live {
		return r, nil
	}
	if err := decodeItem(i.item, &r); err != nil {
		return kv.Row{}, err
	}
	r.Version = kv.Version(i.version.p)
	if !r.ExpiresAt.IsZero() && r.ExpiresAt.UnixMicro() <= now {
		if r.Expired = true; !includeExpired {
			return kv.Row{Key: key}, nil
		}
	}
	return r, nil
}
