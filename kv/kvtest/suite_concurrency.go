package kvtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-dev/holdfast/kv"
)

func concurrencyCases() []suiteCase {
	return []suiteCase{
		{"OneWinnerPerVersion", caseOneWinner},
		{"OneInsertOfAnAbsentKeyWins", caseOneInsert},
		{"WriteSkewIsRefused", caseWriteSkew},
		{"ReadsOfAbsentKeysAreProtected", caseAbsentSkew},
		{"LargeAndSmallCommitsExcludeEachOther", caseLargeSkew},
		{"GetIsAConsistentCutDuringTransfers", caseTransfers},
		{"CommitIsAtomicAcrossSpaces", caseAtomicAcrossSpaces},
		{"ConcurrentTransactionsAreSerializable", caseSerializable},
	}
}

// settled wants err to be nil or a conflict over some of the refs.
func settled(err error, refs map[string]bool) error {
	var conflict *kv.ConflictError
	if err == nil {
		return nil
	}
	if !errors.As(err, &conflict) || len(conflict.Refs) == 0 {
		return fmt.Errorf("error = %w, want nil or a conflict with refs", err)
	}
	for _, p := range places(conflict.Refs) {
		if !refs[p] {
			return fmt.Errorf("conflict over %s, which was not checked", p)
		}
	}
	return nil
}

func caseOneWinner(f *fixture) {
	const workers, rounds = 8, 25
	f.space("a")
	first := f.write(put("a", "k", ""))
	winners := sync.Map{}    // from the version replaced to the worker
	var highest atomic.Int64 // successful commits
	f.parallel(workers, func(worker int) error {
		for won := 0; won < rounds; {
			row, err := f.db.GetOne(f.ctx, "a", []byte("k"))
			if err != nil {
				return err
			}
			pause(worker)
			_, err = f.db.Commit(f.ctx, &kv.Txn{
				Checks: []kv.Check{check("a", "k", row.Version)},
				Writes: []kv.Write{put("a", "k", string(row.Value)+"x")},
			})
			if err := settled(err, map[string]bool{`a/"k"`: true}); err != nil {
				return err
			}
			if err != nil {
				continue
			}
			won++
			highest.Add(1)
			if other, taken := winners.LoadOrStore(row.Version, worker); taken {
				return fmt.Errorf("workers %d and %v both replaced version %d", other, worker, row.Version)
			}
		}
		return nil
	})
	if row := f.get("a", "k"); len(row.Value) != workers*rounds || row.Version <= first {
		f.Errorf("%d commits are visible, %d were acknowledged", len(row.Value), highest.Load())
	}
}

func caseOneInsert(f *fixture) {
	f.space("a")
	for round := range 20 {
		key := fmt.Sprint(round)
		var winners atomic.Int64
		f.parallel(6, func(worker int) error {
			_, err := f.db.Commit(f.ctx, &kv.Txn{
				Checks: []kv.Check{check("a", key, 0)},
				Writes: []kv.Write{put("a", key, fmt.Sprint(worker))},
			})
			if err == nil {
				winners.Add(1)
			}
			return settled(err, map[string]bool{place("a", []byte(key)): true})
		})
		exists := f.get("a", key).Exists()
		if n := winners.Load(); n > 1 || (n == 1) != exists {
			f.Fatalf("%d inserts of one key were acknowledged; row exists: %v", n, exists)
		}
	}
}

// caseWriteSkew: two transactions read the same two rows and write one each.
func caseWriteSkew(f *fixture) {
	f.space("a")
	f.space("b")
	for range 40 {
		v := f.write(put("a", "x", "1"), put("b", "y", "1"))
		checks := []kv.Check{check("a", "x", v), check("b", "y", v)}
		f.onlyOne(checks, []kv.Write{put("a", "x", "0")}, []kv.Write{put("b", "y", "0")})
	}
}

// caseAbsentSkew: the same with rows that are not there.
func caseAbsentSkew(f *fixture) {
	f.space("a")
	for i := range 40 {
		x, y := fmt.Sprint(i, "x"), fmt.Sprint(i, "y")
		checks := []kv.Check{check("a", x, 0), check("a", y, 0)}
		f.onlyOne(checks, []kv.Write{put("a", x, "1")}, []kv.Write{put("a", y, "1")})
	}
}

// caseLargeSkew: the same for a transaction of so many rows that an engine may go
// about it in another way.
func caseLargeSkew(f *fixture) {
	f.space("a")
	rows := min(f.harness.Limits.CommitRows, 500)
	for i := range 15 {
		v := f.write(put("a", "x", "1"), put("a", "y", "1"))
		checks := []kv.Check{check("a", "x", v), check("a", "y", v)}
		small, large := []kv.Write{put("a", "x", "0")}, []kv.Write{put("a", "y", "0")}
		for j := range rows - 2 {
			large = append(large, put("a", fmt.Sprintf("%d of %d", j, i), "x"))
		}
		f.onlyOne(checks, large, small)
	}
}

// onlyOne commits each list of writes with all checks, at once, where each makes a
// check of the others fail.
func (f *fixture) onlyOne(checks []kv.Check, writes ...[]kv.Write) {
	f.Helper()
	refs := map[string]bool{}
	for _, c := range checks {
		refs[place(c.Space, c.Key)] = true
	}
	var done atomic.Int64
	f.parallel(len(writes), func(i int) error {
		_, err := f.db.Commit(f.ctx, &kv.Txn{Checks: checks, Writes: writes[i]})
		if err == nil {
			done.Add(1)
		}
		return settled(err, refs)
	})
	if n := done.Load(); n > 1 {
		f.Fatalf("%d transactions that exclude each other were committed", n)
	}
}

// while runs fn over and over beside other. other, which gets the number of its
// run, is repeated until fn has met some of it.
func (f *fixture) while(other func(run int) error, fn func() error) {
	f.Helper()
	const rounds, most = 5, 20
	var done atomic.Bool
	var met atomic.Int64
	f.parallel(2, func(i int) error {
		if i == 0 {
			defer done.Store(true)
			met.Store(0)
			for run := range most {
				if err := other(run); err != nil || met.Load() >= rounds {
					return err
				}
			}
			return nil
		}
		for !done.Load() {
			if err := fn(); err != nil {
				met.Store(rounds)
				return err
			}
			met.Add(1)
		}
		return nil
	})
}

func number(b []byte) int {
	if len(b) != 8 {
		return 0
	}
	return int(int64(binary.BigEndian.Uint64(b)))
}

func numberBytes(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(int64(n))) }

func caseTransfers(f *fixture) {
	const accounts, each, workers, transfers = 6, 100, 4, 25
	var refs []kv.Ref
	var setup []kv.Write
	for i := range accounts {
		space := []string{"a", "b"}[i%2]
		f.space(space)
		refs = append(refs, kv.Ref{Space: space, Key: []byte{byte(i)}})
		setup = append(setup, kv.Write{Space: space, Key: []byte{byte(i)}, Value: numberBytes(each)})
	}
	f.write(setup...)
	transfer := func(ctx context.Context, from, to kv.Ref, n int) error {
		_, err := f.db.Update(ctx, func(tx *kv.Tx) error {
			rows, err := tx.GetAll(from, to)
			if err != nil {
				return err
			}
			pause(n)
			tx.Put(kv.Write{Space: from.Space, Key: from.Key, Value: numberBytes(number(rows[0].Value) - n)})
			tx.Put(kv.Write{Space: to.Space, Key: to.Key, Value: numberBytes(number(rows[1].Value) + n)})
			return nil
		})
		return err
	}
	sum := func() error {
		rows, err := f.db.Get(f.ctx, refs...)
		total := 0
		for _, r := range rows {
			total += number(r.Value)
		}
		if err == nil && total != accounts*each {
			err = fmt.Errorf("accounts hold %d, want %d", total, accounts*each)
		}
		return err
	}
	f.while(func(int) error {
		return concurrently(workers, func(w int) error {
			for i := range transfers {
				from, to := refs[(w+i)%accounts], refs[(w+i*i+1)%accounts]
				if from.Key[0] == to.Key[0] {
					continue
				}
				if err := transfer(f.ctx, from, to, w+1); err != nil {
					return err
				}
			}
			return nil
		})
	}, sum)
	f.ok(sum())
}

// caseAtomicAcrossSpaces: rows written together are read together.
func caseAtomicAcrossSpaces(f *fixture) {
	var refs []kv.Ref
	for _, space := range []string{"a", "b", "c"} {
		f.space(space)
		for _, key := range []string{"\x00", "m", "\xff"} {
			refs = append(refs, kv.Ref{Space: space, Key: []byte(key)})
		}
	}
	writeAll := func(i int) error {
		t := &kv.Txn{}
		for _, r := range refs {
			// Every third commit removes the rows.
			t.Writes = append(t.Writes, kv.Write{Space: r.Space, Key: r.Key, Delete: i%3 == 2})
		}
		_, err := f.db.Commit(f.ctx, t)
		return err
	}
	f.while(func(int) error {
		for i := range 60 {
			if err := writeAll(i); err != nil {
				return err
			}
			pause(2)
		}
		return nil
	}, func() error {
		rows, err := f.db.Get(f.ctx, refs...)
		for i := range rows {
			if rows[i].Version != rows[0].Version {
				return fmt.Errorf("one read shows versions %d and %d of rows that are written together", rows[0].Version, rows[i].Version)
			}
		}
		return err
	})
}
