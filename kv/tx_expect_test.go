package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// calls counts what reaches the engine, and keeps the checks of each commit.
type calls struct {
	gets   int
	checks [][]kv.Check
}

func (b *bed) count() *calls {
	n := &calls{}
	b.faults.Before(func(_ context.Context, c kvtest.Call) error {
		switch c.Op {
		case kvtest.OpGet:
			n.gets++
		case kvtest.OpCommit:
			n.checks = append(n.checks, c.Txn.Checks)
		}
		return nil
	})
	return n
}

func TestExpectIsCheckedLikeARead(t *testing.T) {
	b := newBed(t)
	v := b.mustCommit(t, put("plain", "there", "x"))
	n := b.count()
	for _, f := range []func(tx *kv.Tx) error{
		func(tx *kv.Tx) error {
			_, err := tx.GetAll(kv.Ref{Space: "plain", Key: []byte("there")}, kv.Ref{Space: "plain", Key: []byte("absent")})
			return err
		},
		func(tx *kv.Tx) error {
			if !tx.Expect("plain", []byte("there"), v) || !tx.Expect("plain", []byte("absent"), 0) {
				t.Error("Expect declined")
			}
			return nil
		},
	} {
		if _, err := b.Update(t.Context(), func(tx *kv.Tx) error {
			tx.Put(put("plain", "other", "y"))
			return f(tx)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.checks) != 2 || n.gets != 1 {
		t.Fatalf("%d commits, %d gets; want 2 and that of the first", len(n.checks), n.gets)
	}
	if diff := cmp.Diff(n.checks[0], n.checks[1]); diff != "" {
		t.Errorf("checks (-read +expected):\n%s", diff)
	}
}

func TestWrongExpectationRunsAgainAtOnceAndReads(t *testing.T) {
	past := func(b *bed) time.Time { return b.clock.Now().Add(-time.Second) }
	for name, c := range map[string]struct {
		stored func(*bed) *kv.Write
		expect func(kv.Version) kv.Version
	}{
		"absent, but there":   {func(*bed) *kv.Write { w := put("plain", "k", "x"); return &w }, func(kv.Version) kv.Version { return 0 }},
		"there, but absent":   {func(*bed) *kv.Write { return nil }, func(kv.Version) kv.Version { return 1 }},
		"another version":     {func(*bed) *kv.Write { w := put("plain", "k", "x"); return &w }, func(v kv.Version) kv.Version { return v - 1 }},
		"there, but expired":  {func(b *bed) *kv.Write { w := put("plain", "k", "x"); w.ExpiresAt = past(b); return &w }, func(v kv.Version) kv.Version { return v }},
		"absent, but expired": {func(b *bed) *kv.Write { w := put("plain", "k", "x"); w.ExpiresAt = past(b); return &w }, func(kv.Version) kv.Version { return 0 }},
	} {
		for _, writes := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBed(t)
					var v kv.Version
					if w := c.stored(b); w != nil {
						v = b.mustCommit(t, *w)
					}
					n, begin := b.count(), time.Now()
					var expected []bool
					_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
						ok := tx.Expect("plain", []byte("k"), c.expect(v))
						expected = append(expected, ok)
						if writes {
							tx.Put(put("plain", "other", "y"))
						}
						if ok {
							return nil
						}
						_, err := tx.Get("plain", []byte("k"))
						return err
					})
					if diff := cmp.Diff([]bool{true, false}, expected); err != nil || diff != "" || n.gets != 1 {
						t.Errorf("error %v, %d gets, answers of Expect (-want +got):\n%s", err, n.gets, diff)
					}
					if d := time.Since(begin); d != 0 {
						t.Errorf("ran again after %v", d)
					}
				})
			})
		}
	}
}

func TestExpectDeclinesWhatIsKnownOrInvalid(t *testing.T) {
	b := newBed(t)
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		if _, err := tx.Get("plain", []byte("read")); err != nil {
			return err
		}
		tx.Put(put("plain", "written", "x"))
		tx.Delete("plain", []byte("deleted"))
		if !tx.Expect("plain", []byte("expected"), 0) {
			t.Error("Expect declined")
		}
		for _, key := range []string{"read", "written", "deleted", "expected", "", strings.Repeat("k", kv.MaxKeySize+1)} {
			if tx.Expect("plain", []byte(key), 0) {
				t.Errorf("Expect accepted %.20q", key)
			}
		}
		if tx.Expect("no space", []byte("k"), 0) {
			t.Error("Expect accepted a bad name of a space")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	_, err = b.Update(t.Context(), func(tx *kv.Tx) error {
		tx.Expect("nowhere", []byte("k"), 0)
		return nil
	})
	if !errors.Is(err, kv.ErrSpaceNotFound) {
		t.Errorf("expecting in a space that does not exist: %v", err)
	}
}

func TestExpectDeclinesAfterAnyConflict(t *testing.T) {
	b := newBed(t)
	disturb := once(func() { b.mustCommit(t, put("plain", "n", "x")) })
	runs := 0
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		runs++
		_, err := tx.Get("plain", []byte("n"))
		if runs == 2 && tx.Expect("plain", []byte("k"), 0) {
			t.Error("Expect accepted on the second attempt")
		}
		tx.Put(put("plain", "other", "x"))
		disturb()
		return err
	})
	if err != nil || runs != 2 {
		t.Errorf("%d runs, error %v", runs, err)
	}
}

func TestReadOfAnExpectedRowReturnsWhatIsStored(t *testing.T) {
	b := newBed(t)
	v := b.mustCommit(t, put("links", "k", "old"))
	var replaced []string
	db := b.WithHooks(func(tx *kv.Tx) error {
		changes, err := tx.Changes(func(space string) bool { return space == "links" })
		if err != nil {
			return err
		}
		for old, w := range changes {
			replaced = append(replaced, string(old.Value)+" -> "+string(w.Value))
		}
		return nil
	})
	n := b.count()
	_, err := db.Update(t.Context(), func(tx *kv.Tx) error {
		tx.Expect("links", []byte("k"), v)
		if row, err := tx.Get("links", []byte("k")); err != nil || string(row.Value) != "old" || row.Version != v {
			t.Errorf("read after Expect: %+v, %v", row, err)
		}
		tx.Expect("links", []byte("new"), 0)
		tx.Put(put("links", "k", "newer"))
		tx.Put(put("links", "new", "first"))
		if row, err := tx.Get("links", []byte("k")); err != nil || string(row.Value) != "newer" || row.Version != v {
			t.Errorf("read after Expect and Put: %+v, %v", row, err)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"old -> newer", " -> first"}, replaced); err != nil || diff != "" {
		t.Errorf("error %v, changes (-want +got):\n%s", err, diff)
	}
	if n.gets != 2 || len(n.checks) != 1 || len(n.checks[0]) != 2 {
		t.Errorf("%d gets, checks %v", n.gets, n.checks)
	}
}

// Neither a check of what was expected nor one of what was read sees it: the row may
// stay as it was read, or become what was expected.
func TestReadThatRefutesAnExpectationIsNeverCommitted(t *testing.T) {
	sizeOf := func(row kv.Row, err error) (int, error) { return len(row.Value), err }
	for name, read := range map[string]func(tx *kv.Tx) (int, error){
		"get": func(tx *kv.Tx) (int, error) { return sizeOf(tx.Get("plain", []byte("k"))) },
		"changes": func(tx *kv.Tx) (int, error) {
			tx.Put(put("plain", "k", "x"))
			changes, err := tx.Changes(func(space string) bool { return space == "plain" })
			if err != nil {
				return 0, err
			}
			for old := range changes {
				return sizeOf(old, nil)
			}
			return 0, nil
		},
		"scan": func(tx *kv.Tx) (size int, err error) {
			err = tx.Scan(kv.Ref{Space: "links", Key: []byte("guard")}, "plain", kv.Prefix([]byte("k")), func(row kv.Row) bool {
				size += len(row.Value)
				return true
			})
			return size, err
		},
	} {
		for _, stays := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stays=%v", name, stays), func(t *testing.T) {
				b := newBed(t)
				b.mustCommit(t, put("plain", "k", "x"))
				disturb := once(func() { b.mustCommit(t, kv.Write{Space: "plain", Key: []byte("k"), Delete: true}) })
				var runs, size int
				var expected bool
				_, err := b.Update(t.Context(), func(tx *kv.Tx) (err error) {
					runs++
					expected = tx.Expect("plain", []byte("k"), 0)
					size, err = read(tx)
					tx.Put(put("links", "other", ""))
					if !stays {
						disturb()
					}
					return err
				})
				if want := map[bool]int{true: 1, false: 0}[stays]; err != nil || runs != 2 || expected || size != want {
					t.Errorf("error %v after %d runs, expected %v; read a value of %d bytes, want %d", err, runs, expected, size, want)
				}
			})
		}
	}
}

func TestReadOfARowThatHasExpiredRefutesThatItLives(t *testing.T) {
	b := newBed(t)
	v := b.mustCommit(t, changed(put("plain", "k", "x"), func(w *kv.Write) { w.ExpiresAt = b.clock.Now() }))
	runs := 0
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		runs++
		tx.Expect("plain", []byte("k"), v)
		_, err := tx.Get("plain", []byte("k"))
		tx.Put(put("plain", "other", "x"))
		return err
	})
	if err != nil || runs != 2 {
		t.Errorf("error %v after %d runs, want 2", err, runs)
	}
}

// What fails because of a wrong expectation must not be told to the caller.
func TestErrorAfterExpectIsTriedOnceMore(t *testing.T) {
	boom := errors.New("boom")
	for _, where := range []string{"function", "hook"} {
		b := newBed(t)
		b.mustCommit(t, put("plain", "k", "x"))
		for _, want := range []error{nil, boom} {
			runs := 0
			fail := func(expected bool) error {
				if expected {
					return errors.New("of an expectation")
				}
				return want
			}
			var expected bool
			_, err := b.WithHooks(func(*kv.Tx) error {
				if where == "hook" {
					return fail(expected)
				}
				return nil
			}).Update(t.Context(), func(tx *kv.Tx) error {
				runs++
				expected = tx.Expect("plain", []byte("k"), 0)
				if where == "function" {
					return fail(expected)
				}
				return nil
			})
			if err != want || runs != 2 {
				t.Errorf("in the %s: error %v after %d runs, want %v after 2", where, err, runs, want)
			}
		}
	}
}

func TestUnknownOutcomeWithExpectationsIsNotRunAgain(t *testing.T) {
	b := newBed(t)
	b.faults.After(func(_ context.Context, c kvtest.Call, err error) error {
		if c.Op == kvtest.OpCommit {
			return kv.ErrUnknownOutcome
		}
		return err
	})
	runs := 0
	_, err := b.Update(t.Context(), func(tx *kv.Tx) error {
		runs++
		tx.Expect("plain", []byte("k"), 0)
		tx.Put(put("plain", "k", "x"))
		return nil
	})
	if !errors.Is(err, kv.ErrUnknownOutcome) || runs != 1 {
		t.Errorf("error %v after %d runs", err, runs)
	}
}
