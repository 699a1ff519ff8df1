package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// purgeSpace holds the purge messages of fixtures whose engine fails, so that a
// message is there if and only if its commit happened.
const purgeSpace = "test_purges"

// faulty is a fixture on an engine that can be made to fail.
type faulty struct {
	*fixture
	engine *kvtest.Faults
	user   User
	sent   int
}

func newFaulty(t *testing.T, opts Options, limits kv.Limits) *faulty {
	t.Helper()
	f := &faulty{fixture: &fixture{clock: clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}, user: User{UID: 7, FxaUID: "account", FxaKID: "key"}}
	f.engine = kvtest.NewFaults(kvtest.NewModel(f.clock))
	f.db = kv.New(f.engine, limits)
	must(t, f.db.CreateSpace(t.Context(), purgeSpace, kv.SpaceOptions{}))
	opts.SendPurge = func(tx *kv.Tx, message []byte) error {
		f.sent++
		tx.Put(kv.Write{Space: purgeSpace, Key: fmt.Appendf(nil, "%d", f.sent), Value: message})
		return nil
	}
	f.open(t, opts)
	return f
}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// loadPurges takes the messages out of their space.
func (f *faulty) loadPurges(t *testing.T) {
	t.Helper()
	f.purges = nil
	must(t, f.db.Scan(t.Context(), purgeSpace, kv.Range{}, func(row kv.Row) bool {
		f.purges = append(f.purges, bytes.Clone(row.Value))
		return true
	}))
}

// state is what a client can see of the user's storage.
func (f *faulty) state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	info, err := f.store.Usage(t.Context(), f.user)
	must(t, err)
	fmt.Fprintf(&b, "storage %v\n", info.Modified)
	for _, c := range info.Collections {
		fmt.Fprintf(&b, "%s %v %d records %d bytes:", c.Name, c.Modified, c.Count, c.Bytes)
		for _, sort := range []bso.Sort{bso.Newest, bso.Index} {
			l, err := f.store.List(t.Context(), f.user, c.Name, bso.Query{Full: true, Sort: sort})
			must(t, err)
			must(t, l.Records(t.Context(), func(records []Record) error {
				for _, r := range records {
					fmt.Fprintf(&b, " %s=%s@%v/%d", r.ID, r.Payload, r.Modified, r.SortIndex)
				}
				return nil
			}))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func patch(id, payload string, ttl int32) Patch {
	return Patch{Update: bso.Update{ID: id, Payload: []byte(payload), HasPayload: true, TTL: ttl, HasTTL: ttl > 0}}
}

// none is no precondition.
var none bso.Precondition

// prepare fills a storage with some of everything, and returns an open batch.
func (f *faulty) prepare(t *testing.T) (batch string) {
	t.Helper()
	ctx := t.Context()
	for _, id := range []string{"a", "b", "c"} {
		_, err := f.store.Put(ctx, f.user, "bookmarks", patch(id, "old "+id, 0), none)
		must(t, err)
	}
	_, err := f.store.Put(ctx, f.user, "bookmarks", patch("brief", "gone soon", 5), none)
	must(t, err)
	staged, err := f.store.StartBatch(ctx, f.user, "bookmarks", []Patch{patch("a", "staged", 0), patch("s", "staged", 0)}, none)
	must(t, err)
	return staged.Batch
}

// operations are all that changes a storage. batch is an open batch.
func operations(f *faulty, batch string) map[string]func(ctx context.Context) error {
	s, u := f.store, f.user
	return map[string]func(ctx context.Context) error{
		"put": func(ctx context.Context) error {
			_, err := s.Put(ctx, u, "bookmarks", patch("a", "new", 60), none)
			return err
		},
		"put in a collection without number": func(ctx context.Context) error {
			_, err := s.Put(ctx, u, "own", patch("a", "new", 0), none)
			return err
		},
		"post": func(ctx context.Context) error {
			_, err := s.Post(ctx, u, "bookmarks", []Patch{patch("a", "new", 0), patch("d", "new", 60), patch("brief", "again", 0)}, none)
			return err
		},
		"start batch": func(ctx context.Context) error {
			_, err := s.StartBatch(ctx, u, "tabs", []Patch{patch("a", "new", 0)}, none)
			return err
		},
		"append": func(ctx context.Context) error {
			_, err := s.Append(ctx, u, "bookmarks", batch, []Patch{patch("s", "again", 0), patch("t", "new", 0)}, none)
			return err
		},
		"commit": func(ctx context.Context) error {
			_, err := s.CommitBatch(ctx, u, "bookmarks", batch, []Patch{patch("b", "new", 0), patch("s", "over the staged one", 0)}, none)
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := s.Delete(ctx, u, "bookmarks", "a", none)
			return err
		},
		"delete some": func(ctx context.Context) error {
			_, err := s.DeleteSome(ctx, u, "bookmarks", []string{"a", "c", "brief"}, none)
			return err
		},
		"delete collection": func(ctx context.Context) error {
			_, err := s.DeleteCollection(ctx, u, "bookmarks", none)
			return err
		},
		"delete all": func(ctx context.Context) error {
			_, err := s.DeleteAll(ctx, u, none)
			return err
		},
	}
}

func TestAFaultAtAnyCallLeavesAnOperationDoneOrNotDone(t *testing.T) {
	for name := range operations(&faulty{fixture: &fixture{}}, "") {
		t.Run(name, func(t *testing.T) {
			kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
				f := newFaulty(t, Options{}, kvtest.ModelLimits)
				batch := f.prepare(t)
				f.clock.Advance(6 * time.Second) // brief has expired
				before := f.state(t)
				twin := newFaulty(t, Options{}, kvtest.ModelLimits) // to which nothing happens
				if other := twin.prepare(t); other != batch {
					t.Fatal("the twins differ")
				}
				twin.clock.Advance(6 * time.Second)
				must(t, operations(twin, batch)[name](t.Context()))
				done := twin.state(t)

				p.Arm(f.engine)
				err := operations(f, batch)[name](t.Context())
				f.engine.Reset()
				after := f.state(t)
				silent := name == "start batch" || name == "append"
				switch {
				case after != before && after != done:
					t.Errorf("state is\n%s\nafter\n%s", after, before)
				case err == nil && after != done:
					t.Errorf("no error, but nothing was done:\n%s", after)
				case err != nil && p.Failure == kvtest.Refused && after != before && !silent:
					t.Errorf("refused with %v, but done", err)
				case p.Failure == kvtest.LostAfter && p.Fired() && !errors.Is(err, kv.ErrUnknownOutcome):
					t.Errorf("the outcome is unknown, the error %v", err)
				case !p.Fired() && err != nil:
					t.Error(err)
				}
				f.finish(t)
				if again := f.state(t); again != after {
					t.Errorf("the workers have changed\n%s\nto\n%s", after, again)
				}
			})
		})
	}
}

// finish runs the workers to their end and checks all rows.
func (f *faulty) finish(t *testing.T) {
	t.Helper()
	f.sweep(t)
	f.loadPurges(t)
	f.purge(t)
	f.checkRows(t)
}

func TestAFaultAtAnyCallOfAReadIsAnErrorAndNoWrongAnswer(t *testing.T) {
	for name, read := range map[string]func(f *faulty) (string, error){
		"get": func(f *faulty) (string, error) {
			r, err := f.store.Get(context.Background(), f.user, "bookmarks", "a")
			return string(r.Payload), err
		},
		"usage": func(f *faulty) (string, error) {
			info, err := f.store.Usage(context.Background(), f.user)
			return fmt.Sprint(info.Collections), err
		},
		"list": func(f *faulty) (s string, err error) {
			l, err := f.store.List(context.Background(), f.user, "bookmarks", bso.Query{Full: true, Newer: new(Timestamp)})
			if err != nil {
				return "", err
			}
			err = l.Records(context.Background(), func(records []Record) error {
				for _, r := range records {
					s += r.ID + string(r.Payload)
				}
				return nil
			})
			return s, errors.Join(err, l.Check(context.Background()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
				f := newFaulty(t, Options{}, kvtest.ModelLimits)
				f.prepare(t)
				want, err := read(f)
				must(t, err)
				p.Arm(f.engine)
				got, err := read(f)
				f.engine.Reset()
				if err == nil && (p.Fired() || got != want) {
					t.Errorf("read %q without an error, want %q", got, want)
				}
			})
		})
	}
}

func TestThePurgeAndTheSweeperCanStopAnywhereAndBeginAgain(t *testing.T) {
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		f := newFaulty(t, Options{}, kvtest.ModelLimits)
		ctx := t.Context()
		f.prepare(t)
		var many []Patch
		for i := range 2*purgeChunk + 5 {
			many = append(many, patch(fmt.Sprintf("r%03d", i), "x", int32(i%2*5)))
		}
		_, err := f.store.StartBatch(ctx, f.user, "bookmarks", many, none)
		must(t, err)
		_, err = f.store.Post(ctx, f.user, "bookmarks", many, none)
		must(t, err)
		_, err = f.store.StartBatch(ctx, f.user, "tabs", many, none) // expires
		must(t, err)
		_, err = f.store.DeleteCollection(ctx, f.user, "bookmarks", none)
		must(t, err)
		_, err = f.store.Put(ctx, f.user, "bookmarks", patch("a", "kept", 0), none)
		must(t, err)
		f.clock.Advance(3 * time.Hour)
		f.loadPurges(t)
		want := f.state(t)
		p.Arm(f.engine)
		f.stepOnce()
		f.engine.Reset()
		if got := f.state(t); got != want {
			t.Errorf("state is\n%s\nwant\n%s", got, want)
		}
		f.finish(t)
		if got := f.state(t); got != want {
			t.Errorf("in the end the state is\n%s\nwant\n%s", got, want)
		}
		for space, n := range map[string]int{SpaceRecords: 1, spaceOrder: 1, SpaceBatches: 0, SpaceStaged: 0} {
			if got := f.count(t, space); got != n {
				t.Errorf("%d rows in %s, want %d", got, space, n)
			}
		}
	})
}

// stepOnce does some of the workers' steps, until an error.
func (f *faulty) stepOnce() {
	ctx := context.Background()
	for range 3 {
		if _, err := f.store.Purge(ctx, f.purges[0]); err != nil {
			return
		}
	}
	for space, expired := range ExpirySpaces() {
		var first []byte
		err := f.db.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
			if row.Expired {
				first = bytes.Clone(row.Key)
			}
			return first == nil
		})
		if err != nil || first == nil {
			continue
		}
		_, err = f.db.Update(ctx, func(tx *kv.Tx) error {
			rows, err := tx.GetAll(kv.Ref{Space: space, Key: first, IncludeExpired: true})
			if err != nil || !rows[0].Expired {
				return err
			}
			_, err = expired.Remove(tx, space, rows[0])
			return err
		})
		if err != nil {
			return
		}
	}
}

func (f *faulty) count(t *testing.T, space string) int {
	t.Helper()
	n := 0
	must(t, f.db.Scan(t.Context(), space, kv.Range{IncludeExpired: true}, func(kv.Row) bool {
		n++
		return true
	}))
	return n
}

func TestABrokenPurgeMessageIsAnError(t *testing.T) {
	f := newFaulty(t, Options{}, kvtest.ModelLimits)
	f.prepare(t)
	want := f.state(t)
	for _, message := range []string{"", "{", `{"places":[""]}`, `{"places":[null]}`, `{"places":"x"}`} {
		if _, err := f.store.Purge(t.Context(), []byte(message)); err == nil {
			t.Errorf("%q is accepted", message)
		}
	}
	if got := f.state(t); got != want {
		t.Errorf("state is\n%s", got)
	}
}

func TestRecordsOfAListingThatHasChangedAreAnError(t *testing.T) {
	for name, change := range map[string]func(f *faulty) error{
		"update": func(f *faulty) error {
			_, err := f.store.Put(context.Background(), f.user, "bookmarks", patch("a", "new", 0), none)
			return err
		},
		"delete": func(f *faulty) error {
			_, err := f.store.Delete(context.Background(), f.user, "bookmarks", "a", none)
			return err
		},
		"delete and put": func(f *faulty) error {
			_, err := f.store.DeleteAll(context.Background(), f.user, none)
			_, err2 := f.store.Put(context.Background(), f.user, "bookmarks", patch("a", "new", 0), none)
			return errors.Join(err, err2)
		},
	} {
		f := newFaulty(t, Options{}, kvtest.ModelLimits)
		f.prepare(t)
		l, err := f.store.List(t.Context(), f.user, "bookmarks", bso.Query{Full: true, Newer: new(Timestamp)})
		must(t, err)
		if l.Whole() {
			t.Fatal("the records were read with the listing")
		}
		must(t, change(f))
		err = l.Records(t.Context(), func(records []Record) error {
			for _, r := range records {
				if string(r.Payload) == "new" {
					t.Errorf("%s: a record of another cut is handed out", name)
				}
			}
			return nil
		})
		if name == "update" && !errors.Is(err, ErrChanged) || err != nil && !errors.Is(err, ErrChanged) {
			t.Errorf("%s: error %v", name, err)
		}
		if err := l.Check(t.Context()); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: Check says %v", name, err)
		}
	}
}
