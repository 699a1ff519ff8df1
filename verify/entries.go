package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
)

// pairs is how many rows and entries are read at one instant.
const pairs = 128

// checkRows reports those rows of a space that expire and have no entry. Row and
// entry are read at one instant, so that no commit comes between.
func (v *verifier) checkRows(ctx context.Context, space string, rows []kv.Row) error {
	if len(rows) == 0 {
		return nil
	}
	refs := make([]kv.Ref, 0, 2*len(rows))
	for _, row := range rows {
		entry, _ := v.Index.Key(space, row)
		refs = append(refs, kv.Ref{Space: space, Key: row.Key, IncludeExpired: true}, kv.Ref{Space: expiry.IndexSpace, Key: entry})
	}
	got, err := v.DB.Get(ctx, refs...)
	if err != nil {
		return err
	}
	for i := range rows {
		row, entry := got[2*i], got[2*i+1]
		if key, ok := v.Index.Key(space, row); ok && bytes.Equal(key, refs[2*i+1].Key) && !entry.Exists() {
			v.found(Finding{Kind: NoEntry, Space: space, Key: row.Key, Detail: "expires " + row.ExpiresAt.UTC().String()})
		}
	}
	return nil
}

// readEntries looks for entries without their rows.
func (v *verifier) readEntries(ctx context.Context) error {
	if v.Index == nil {
		return nil
	}
	var failure error
	var batch []expiry.Entry
	err := v.DB.Scan(ctx, expiry.IndexSpace, kv.Range{}, func(row kv.Row) bool {
		v.report.Entries++
		v.progress("expiry entries", v.report.Entries, 0)
		row.Key, row.Value = bytes.Clone(row.Key), bytes.Clone(row.Value)
		e, err := expiry.ParseEntry(row)
		if err != nil {
			v.found(Finding{Kind: StaleEntry, Space: expiry.IndexSpace, Key: row.Key, Detail: err.Error()})
			return true
		}
		if batch = append(batch, e); len(batch) == pairs {
			failure = v.checkEntries(ctx, batch)
			batch = batch[:0]
		}
		return failure == nil
	})
	if err == nil && failure == nil {
		failure = v.checkEntries(ctx, batch)
	}
	if err = errors.Join(err, failure); err != nil {
		return fmt.Errorf("read expiry index: %w", err)
	}
	return nil
}

func (v *verifier) checkEntries(ctx context.Context, batch []expiry.Entry) error {
	if len(batch) == 0 {
		return nil
	}
	refs := make([]kv.Ref, 0, 2*len(batch))
	for _, e := range batch {
		refs = append(refs, kv.Ref{Space: e.Space, Key: e.RowKey, IncludeExpired: true}, kv.Ref{Space: expiry.IndexSpace, Key: e.Key})
	}
	got, err := v.DB.Get(ctx, refs...)
	if gone(err) {
		return v.checkEntriesAlone(ctx, batch)
	}
	if err != nil {
		return err
	}
	for i, e := range batch {
		v.checkEntry(e, got[2*i], got[2*i+1])
	}
	return nil
}

// checkEntriesAlone reads entries one by one, because the space of some is gone.
func (v *verifier) checkEntriesAlone(ctx context.Context, batch []expiry.Entry) error {
	for _, e := range batch {
		entry, err := v.row(ctx, expiry.IndexSpace, e.Key)
		if err != nil {
			return err
		}
		_, err = v.row(ctx, e.Space, e.RowKey)
		switch {
		case gone(err):
			v.checkEntry(e, kv.Row{}, entry)
		case err != nil:
			return err
		default: // both at one instant
			if err := v.checkEntries(ctx, []expiry.Entry{e}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) checkEntry(e expiry.Entry, row, entry kv.Row) {
	key, ok := v.Index.Key(e.Space, row)
	if entry.Exists() && (!ok || !bytes.Equal(key, e.Key)) {
		v.found(Finding{Kind: StaleEntry, Space: expiry.IndexSpace, Key: e.Key, Detail: fmt.Sprintf("row %s/%q", e.Space, e.RowKey)})
	}
}
