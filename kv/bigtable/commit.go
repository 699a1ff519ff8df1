package bigtable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// part is one row of a commit: checked, written, or both.
type part struct {
	space *space
	key   string
	check *kv.Check
	write *kv.Write
	item  []byte // of the write

	row *row // as it was read, without the lock of anybody
}

// Commit implements kv.Engine. One row is one compare-and-set, behind a read if it is
// checked. Several are a transaction: see txn.
func (e *Engine) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	var names []string
	for i := range t.Checks {
		names = append(names, t.Checks[i].Space)
	}
	for i := range t.Writes {
		names = append(names, t.Writes[i].Space)
	}
	p, err := inSpaces(ctx, e, names, func() (uint64, error) { return e.commit(ctx, t) })
	var conflict *conflictError
	if errors.As(err, &conflict) {
		err = conflict.refs(t)
	}
	if err != nil {
		return 0, fmt.Errorf("bigtable: commit: %w", err)
	}
	return kv.Version(p), nil
}

func (e *Engine) commit(ctx context.Context, t *kv.Txn) (uint64, error) {
	parts, err := e.parts(ctx, t)
	if err != nil {
		return 0, err
	}
	writes := len(t.Writes) > 0
	switch {
	case len(parts) == 0:
		return e.hybrid.next(0), nil
	case !writes:
		return e.verify(ctx, parts)
	case len(parts) == 1:
		return e.commitOne(ctx, &parts[0])
	}
	tx, err := e.commitMany(ctx, parts)
	if err != nil {
		return 0, err
	}
	return tx.version.p, nil
}

// parts lists the rows of a transaction in the order of their tables and keys.
func (e *Engine) parts(ctx context.Context, t *kv.Txn) ([]part, error) {
	type place struct{ space, key string }
	index := make(map[place]int, len(t.Checks)+len(t.Writes))
	parts := make([]part, 0, len(t.Checks)+len(t.Writes))
	at := func(space string, key []byte) (*part, error) {
		p := place{space, string(key)}
		if i, ok := index[p]; ok {
			return &parts[i], nil
		}
		s, err := e.space(ctx, space)
		if err != nil {
			return nil, err
		}
		index[p] = len(parts)
		parts = append(parts, part{space: s, key: p.key})
		return &parts[len(parts)-1], nil
	}
	for i := range t.Checks {
		p, err := at(t.Checks[i].Space, t.Checks[i].Key)
		if err != nil {
			return nil, err
		}
		p.check = &t.Checks[i]
	}
	for i := range t.Writes {
		p, err := at(t.Writes[i].Space, t.Writes[i].Key)
		if err != nil {
			return nil, err
		}
		p.write = &t.Writes[i]
		if !p.write.Delete {
			p.item = encodeItem(p.write)
		}
	}
	sortParts(parts)
	return parts, nil
}

func sortParts(parts []part) {
	slices.SortFunc(parts, func(a, b part) int {
		if c := strings.Compare(a.space.table.name, b.space.table.name); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
}

// conflictError names the checks that failed, or that could not be settled.
type conflictError struct{ checks map[*kv.Check]bool }

func (e *conflictError) Error() string { return "checks failed" }

func (e *conflictError) refs(t *kv.Txn) error {
	out := &kv.ConflictError{}
	for i := range t.Checks {
		if c := &t.Checks[i]; e.checks[c] {
			out.Refs = append(out.Refs, kv.Ref{Space: c.Space, Key: bytes.Clone(c.Key), IncludeExpired: c.IncludeExpired})
		}
	}
	return out
}

// conflict returns an error about the parts for which failed is true and which
// have a check; nil if there are none.
func conflict(parts []part, failed func(p *part) bool) error {
	checks := map[*kv.Check]bool{}
	for i := range parts {
		if p := &parts[i]; p.check != nil && failed(p) {
			checks[p.check] = true
		}
	}
	if len(checks) == 0 {
		return nil
	}
	return &conflictError{checks}
}

// holds reports whether the part's check is true of an image of its row.
func (p *part) holds(i image, now int64) (bool, error) {
	if p.check == nil {
		return true, nil
	}
	r, err := i.row(nil, now, p.check.IncludeExpired)
	return err == nil && r.Version == p.check.Version, err
}

// compare evaluates the checks of parts on images of their rows.
func (e *Engine) compare(parts []part, images []image) error {
	now := e.opts.Clock.Now().UnixMicro()
	failed := map[*part]bool{}
	for i := range parts {
		ok, err := parts[i].holds(images[i], now)
		if err != nil {
			return fmt.Errorf("row %q of space %s: %w", parts[i].key, parts[i].space.Name, err)
		}
		failed[&parts[i]] = !ok
	}
	return conflict(parts, func(p *part) bool { return failed[p] })
}

// floor returns what the version of a commit must be above.
func (p *part) floor() uint64 {
	f := p.space.floor
	if p.check != nil {
		f = max(f, uint64(p.check.Version))
	}
	if p.row != nil {
		f = max(f, p.row.state.version.p)
	}
	return f
}

func (e *Engine) nextVersion(parts []part) version {
	var floor uint64
	for i := range parts {
		floor = max(floor, parts[i].floor())
	}
	return version{p: e.hybrid.next(floor), writer: e.writer}
}

// verify is a commit of checks only: a snapshot of the rows' versions.
func (e *Engine) verify(ctx context.Context, parts []part) (uint64, error) {
	places := make([]*row, len(parts))
	for i := range parts {
		places[i] = &row{space: parts[i].space, key: parts[i].key}
	}
	images, err := e.snapshot(ctx, places)
	if err != nil {
		return 0, err
	}
	if err := e.compare(parts, images); err != nil {
		return 0, err
	}
	return e.nextVersion(parts).p, nil
}

// intent is what the part does, as a lock says it.
func (p *part) intent() intent {
	switch {
	case p.write == nil:
		return intent{kind: intentRead}
	case p.write.Delete:
		return intent{kind: intentDelete, feed: p.write.Feed}
	}
	return intent{kind: intentWrite, feed: p.write.Feed, item: p.item}
}

// conflictWaits are the times for which a writer waits for a lock on a row that it
// has checked, before it reports a conflict. Rows that are not checked are
// waited for until the context ends.
var conflictWaits = []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond}

const mostConflictWait = 100 * time.Millisecond

// commitOne writes one row.
func (e *Engine) commitOne(ctx context.Context, p *part) (uint64, error) {
	if p.check == nil && p.write.Feed == nil {
		v := e.nextVersion([]part{*p})
		done, err := e.change(ctx, p, v, olderThan(v.p))
		if done || err != nil {
			return v.p, err
		}
	}
	defer e.stripes.lock(ctx, []part{*p})()
	for try := 0; ; try++ {
		r, err := e.readRow(ctx, "read row", p.space, p.key)
		if err != nil {
			return 0, err
		}
		if r, err = e.settle(ctx, r); err != nil {
			return 0, err
		}
		// A lock that is left belongs to a transaction that is undecided, so the row
		// still is what it was before.
		before, err := r.image(record{})
		if err != nil {
			return 0, err
		}
		if err := e.compare([]part{*p}, []image{before}); err != nil {
			return 0, err
		}
		if r.state.locked {
			if err := e.waitForLock(ctx, []part{*p}, try); err != nil {
				return 0, err
			}
			continue
		}
		p.row = r
		v := e.nextVersion([]part{*p})
		if p.write.Feed != nil {
			if err := e.writeHints(ctx, []part{*p}, v, r.state.raw); err != nil {
				return 0, err
			}
		}
		done, err := e.change(ctx, p, v, stateCell.is(r.state.raw))
		if done || err != nil {
			return v.p, err
		}
		if err := pause(ctx, firstBackoff<<min(try, 5)/8); err != nil {
			return 0, err
		}
	}
}

// waitForLock waits before another attempt at rows that were locked or changed by
// others. It gives up if one of them was checked and has been waited for enough.
func (e *Engine) waitForLock(ctx context.Context, busy []part, try int) error {
	wait := mostConflictWait
	if try < len(conflictWaits) {
		wait = conflictWaits[try]
	} else if err := conflict(busy, func(*part) bool { return true }); err != nil {
		return err
	}
	return pause(ctx, wait)
}

// change writes a row under a predicate. If the answer is lost for good, the row may
// tell what happened; otherwise the outcome is unknown. In no case is the change
// tried again under a new version.
func (e *Engine) change(ctx context.Context, p *part, v version, cond predicate) (done bool, err error) {
	m, next, _ := changed(v, p.intent())
	m.set(stateCell, next)
	res, err := e.cas(ctx, "write row", p.space.table, p.key, cond, m)
	switch {
	case err == nil && (res.applied || !res.unsure):
		e.wakeFeed(p.space, p.key, p.write.Feed)
		return res.applied, nil
	case err != nil && !res.unsure:
		return false, err
	}
	rows, readErr := e.readRows(ctx, "read outcome", p.space, []string{p.key}, feedFilter)
	if readErr == nil {
		r := rows[p.key]
		ours := r.state.version == v && r.state.raw != nil
		if ours || slices.ContainsFunc(r.outbox, func(o outboxEntry) bool { return o.of(v) }) {
			e.wakeFeed(p.space, p.key, p.write.Feed)
			return true, nil
		}
	}
	return false, errors.Join(kv.ErrUnknownOutcome, ctx.Err())
}
