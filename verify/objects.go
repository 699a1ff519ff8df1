package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/kv"
)

const (
	// maxSuspects bounds the memory for suspects of one kind.
	maxSuspects = 100_000

	// overdueAfter is how long the lifecycle of a store may take beyond the
	// lifetime of an unfinalized object.
	overdueAfter = 3 * 24 * time.Hour
)

// readRows notes all links, and compares rows that expire with the index.
func (v *verifier) readRows(ctx context.Context) error {
	for _, space := range v.linked {
		if err := v.readSpace(ctx, space, v.noteLink); err != nil {
			return err
		}
	}
	for _, space := range v.expiring {
		if err := v.readSpace(ctx, space, func(context.Context, string, kv.Row) error { return nil }); err != nil {
			return err
		}
	}
	v.links.seal()
	return nil
}

// readSpace calls note for each row of a space and checks its expiry entry.
func (v *verifier) readSpace(ctx context.Context, space string, note func(context.Context, string, kv.Row) error) error {
	var failure error
	var expiring []kv.Row
	err := v.DB.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
		v.report.Rows++
		v.progress("rows", v.report.Rows, 0)
		if failure = note(ctx, space, row); failure != nil {
			return false
		}
		if !row.ExpiresAt.IsZero() && v.Index != nil && v.Index.Covers(space) {
			expiring = append(expiring, kv.Row{Key: bytes.Clone(row.Key), ExpiresAt: row.ExpiresAt})
			if len(expiring) == pairs {
				failure = v.checkRows(ctx, space, expiring)
				expiring = expiring[:0]
			}
		}
		return failure == nil
	})
	if err == nil && failure == nil {
		failure = v.checkRows(ctx, space, expiring)
	}
	if err = errors.Join(err, failure); err != nil && !gone(err) {
		return fmt.Errorf("read space %s: %w", space, err)
	}
	return nil
}

func (v *verifier) noteLink(ctx context.Context, space string, row kv.Row) error {
	if row.Link == "" {
		return nil
	}
	v.report.Links++
	name, err := v.Store.Name(row.Link)
	if err == nil {
		v.links.add(name, v.isOld(row))
		return nil
	}
	key := bytes.Clone(row.Key)
	if now, readErr := v.row(ctx, space, key); readErr != nil || now.Link != row.Link {
		return readErr
	}
	v.found(Finding{Kind: ForeignLink, Space: space, Key: key, Link: row.Link, Detail: err.Error()})
	return nil
}

func (v *verifier) row(ctx context.Context, space string, key []byte) (kv.Row, error) {
	rows, err := v.DB.Get(ctx, kv.Ref{Space: space, Key: key, IncludeExpired: true})
	if err != nil {
		return kv.Row{}, err
	}
	return rows[0], nil
}

// isOld reports whether the row was last written before the lag.
func (v *verifier) isOld(row kv.Row) bool {
	return row.Version.Time().Before(v.began.Add(-v.Lag))
}

// readObjects compares all objects with the links, and notes suspects.
func (v *verifier) readObjects(ctx context.Context) error {
	v.orphans, v.unfinalized, v.overdue = map[string]bool{}, map[string]bool{}, map[string]bool{}
	suspect := func(set map[string]bool, name string) {
		if len(set) == maxSuspects {
			v.report.Truncated = true
			return
		}
		set[name] = true
	}
	err := v.Store.List(ctx, "", "", func(a blob.Attrs) bool {
		v.report.Objects++
		v.progress("objects", v.report.Objects, 0)
		linked, old := v.links.meet(a.Name)
		switch {
		case !linked && a.Committed:
			suspect(v.orphans, a.Name)
		case !linked && v.isOverdue(a):
			suspect(v.overdue, a.Name)
		case linked && old && !a.Committed:
			suspect(v.unfinalized, a.Name)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	return nil
}

func (v *verifier) isOverdue(a blob.Attrs) bool {
	return !a.Committed && a.CustomTime.Before(v.began.Add(-blob.UnfinalizedLifetime-overdueAfter))
}

// confirm reads the rows again and settles every suspicion.
func (v *verifier) confirm(ctx context.Context) error {
	total := int64(v.links.unmetCount() + len(v.orphans) + len(v.unfinalized) + len(v.overdue))
	if total == 0 {
		return nil
	}
	v.progress("confirm", 0, total)
	for _, space := range v.linked {
		var failure error
		err := v.DB.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
			if row.Link != "" {
				failure = v.confirmRow(ctx, space, row)
			}
			return failure == nil
		})
		if err = errors.Join(err, failure); err != nil && !gone(err) {
			return fmt.Errorf("read space %s again: %w", space, err)
		}
	}
	if err := v.confirmOrphans(ctx); err != nil {
		return err
	}
	v.progress("confirm", total, total)
	return nil
}

// confirmRow settles what is suspected of the object of a row.
func (v *verifier) confirmRow(ctx context.Context, space string, row kv.Row) error {
	name, err := v.Store.Name(row.Link)
	if err != nil {
		return nil // reported already
	}
	delete(v.orphans, name)
	delete(v.overdue, name)
	missing, late := v.links.unmet(name), v.unfinalized[name] && v.isOld(row)
	if !missing && !late {
		return nil
	}
	attrs, err := v.Store.Stat(ctx, name)
	missing = errors.Is(err, blob.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	if !missing && (!late || attrs.Committed) {
		return nil
	}
	// The row had the link before the object was looked at. If it has it
	// afterwards it had it all the time, for no link is given twice.
	key := bytes.Clone(row.Key)
	now, err := v.row(ctx, space, key)
	if err != nil || now.Link != row.Link {
		return err
	}
	f := Finding{Kind: MissingObject, Space: space, Key: key, Link: row.Link}
	if !missing {
		f.Kind, f.Detail = Unfinalized, "row of "+row.Version.Time().Format(time.RFC3339)
	}
	v.found(f)
	return nil
}

// confirmOrphans settles suspicions of objects that the second reading of the rows
// has not met either. A row that went away meanwhile has left a change record,
// which is there until the object is deleted: so the records are read first, and
// then the objects.
func (v *verifier) confirmOrphans(ctx context.Context) error {
	if len(v.orphans) > 0 && v.Pending != nil {
		err := v.Pending(ctx, func(link string) {
			if name, err := v.Store.Name(link); err == nil {
				delete(v.orphans, name)
			}
		})
		if err != nil {
			return fmt.Errorf("read waiting change records: %w", err)
		}
	}
	for kind, suspects := range map[Kind]map[string]bool{Orphan: v.orphans, Overdue: v.overdue} {
		for name := range suspects {
			a, err := v.Store.Stat(ctx, name)
			if errors.Is(err, blob.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if kind == Orphan || v.isOverdue(a) {
				v.found(Finding{Kind: kind, Link: v.Store.URL(name)})
			}
		}
	}
	return nil
}
