package kv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// scanKeys scans a range in a transaction under the guard row.
func scanKeys(tx *kv.Tx, space string, r kv.Range) (keys []string, err error) {
	err = tx.Scan(kv.Ref{Space: "plain", Key: []byte("guard")}, space, r, func(row kv.Row) bool {
		keys = append(keys, string(row.Key))
		return true
	})
	return keys, err
}

func TestScanInATransactionNeedsAGuard(t *testing.T) {
	b := newBed(t)
	for _, guard := range []kv.Ref{{}, {Space: "plain"}, {Key: []byte("k")}} {
		_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			return tx.Scan(guard, "plain", kv.Range{}, func(kv.Row) bool { return true })
		})
		if !errors.Is(err, kv.ErrUnguardedRange) {
			t.Errorf("guard %v: error = %v, want %v", guard, err, kv.ErrUnguardedRange)
		}
	}
}

func TestScanInATransactionRefusesRangesItWrote(t *testing.T) {
	b := newBed(t)
	for key, want := range map[string]error{"a": nil, "b": kv.ErrInvalid, "c": kv.ErrInvalid, "d": nil} {
		_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			tx.Put(put("fed", key, "x"))
			if _, err := scanKeys(tx, "links", kv.Range{}); err != nil {
				t.Errorf("range of another space: %v", err)
			}
			_, err := scanKeys(tx, "fed", kv.Range{Start: []byte("b"), End: []byte("d")})
			return err
		})
		if !errors.Is(err, want) {
			t.Errorf("write of %s: error = %v, want %v", key, err, want)
		}
	}
}

func TestScanInATransactionIsProtected(t *testing.T) {
	for name, disturbance := range map[string]kv.Write{
		"insert":         put("links", "c", "x"),
		"change":         put("links", "a", "y"),
		"delete":         {Space: "links", Key: []byte("b"), Delete: true},
		"delete of last": {Space: "links", Key: []byte("b"), Delete: true},
	} {
		b := newBed(t)
		b.mustCommit(t, put("links", "a", "x"), put("links", "b", "x"))
		disturb := once(func() { b.mustCommit(t, disturbance, put("plain", "guard", "x")) })
		runs := 0
		_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			runs++
			keys, err := scanKeys(tx, "links", kv.Range{})
			tx.Put(put("plain", "result", fmt.Sprint(keys)))
			disturb()
			return err
		})
		if err != nil || runs != 2 {
			t.Errorf("%s: %d runs, error %v", name, runs, err)
		}
	}
}

// A row that is read twice is checked as it was read first.
func TestScanDoesNotReplaceAnEarlierRead(t *testing.T) {
	b := newBed(t)
	b.mustCommit(t, put("links", "a", "old"))
	disturb := once(func() { b.mustCommit(t, put("links", "a", "new")) })
	runs := 0
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		runs++
		if _, err := tx.Get("links", []byte("a")); err != nil {
			return err
		}
		disturb()
		_, err := scanKeys(tx, "links", kv.Range{})
		return err
	})
	if err != nil || runs != 2 {
		t.Errorf("%d runs, error %v", runs, err)
	}
}

// The guard is read before the range: what happens in between must not go
// unnoticed, not even when the range is empty and nothing is written.
func TestReadOnlyScanIsProtectedBetweenGuardAndRange(t *testing.T) {
	b := newBed(t)
	b.mustCommit(t, put("links", "a", "x"), put("plain", "guard", "1 row"))
	disturb := once(func() {
		b.mustCommit(t, kv.Write{Space: "links", Key: []byte("a"), Delete: true}, put("plain", "guard", "0 rows"))
	})
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpScan {
			disturb()
		}
		return nil
	})
	var seen string
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		guard, err := tx.Get("plain", []byte("guard"))
		if err != nil {
			return err
		}
		keys, err := scanKeys(tx, "links", kv.Range{})
		seen = fmt.Sprintf("%s, scanned %d", guard.Value, len(keys))
		return err
	})
	if want := "0 rows, scanned 0"; err != nil || seen != want {
		t.Errorf("saw %q, error %v; want %q", seen, err, want)
	}
}

func TestRowsOfAScanMayBeKeptInATransaction(t *testing.T) {
	b := newBed(t)
	b.mustCommit(t, put("links", "a", "1"), put("links", "b", "2"))
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		if _, err := scanKeys(tx, "links", kv.Range{}); err != nil {
			return err
		}
		row, err := tx.Get("links", []byte("a"))
		if string(row.Value) != "1" {
			t.Errorf("value = %q, want 1", row.Value)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
