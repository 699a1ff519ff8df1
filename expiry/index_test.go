package expiry

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func TestEntryKeyOfTheWorkedExample(t *testing.T) {
	base := unhex(t, "B3A90820 53 09 73657373696F6E2D31")
	got := EntryKey(Space{Scope: "123456789012", Table: "Sessions"}, 1767225600, base)
	want := unhex(t, "05 000000006955B900 0C 313233343536373839303132 08 53657373696F6E73 B3A90820530973657373696F6E2D31")
	if !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	e, err := ParseEntry(kv.Row{Key: got, Value: []byte("t_1")})
	if err != nil || e.Seconds != 1767225600 || e.Space != "t_1" || !bytes.Equal(e.RowKey, base) {
		t.Errorf("parsed %+v, %v", e, err)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	must(t, err)
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEntriesNeverComeBeforeTheirRowsExpire(t *testing.T) {
	for _, c := range []struct {
		at   time.Time
		want uint64
	}{
		{time.Time{}, 0},
		{time.Unix(0, 0), 1},
		{time.Unix(100, 0), 100},
		{time.Unix(100, 999), 100}, // engines cut it to 100
		{time.Unix(100, 1000), 101},
		{time.Unix(100, 999_999_999), 101},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), 253402300799},
	} {
		if got := seconds(c.at); got != c.want {
			t.Errorf("seconds(%v) = %d, want %d", c.at, got, c.want)
		}
	}
}

func FuzzEntryKey(f *testing.F) {
	f.Add("123", "table", uint64(7), []byte("key"))
	f.Add("", "", uint64(0), []byte{0})
	f.Fuzz(func(t *testing.T, scope, table string, sec uint64, key []byte) {
		if _, err := ParseEntry(kv.Row{Key: key, Value: []byte("x")}); err == nil && len(key) < 12 {
			t.Errorf("parsed %x", key)
		}
		if len(key) == 0 {
			return
		}
		k := EntryKey(Space{Scope: scope, Table: table}, sec, key)
		e, err := ParseEntry(kv.Row{Key: k, Value: []byte("space")})
		if err != nil || e.Seconds != sec || !bytes.Equal(e.RowKey, key) || e.Space != "space" {
			t.Errorf("%x: %+v, %v", k, e, err)
		}
	})
}

// world is a database with two spaces whose rows expire and one whose rows are
// not this package's business.
type world struct {
	*testing.T
	clock  *clock.Manual
	faults *kvtest.Faults
	index  *Index
	spaces map[string]Space
	plain  *kv.DB
	db     *kv.DB
}

func newWorld(t *testing.T, hooks ...kv.Hook) *world {
	c := clock.NewManual(time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC))
	faults := kvtest.NewFaults(kvtest.NewModel(c))
	w := &world{T: t, clock: c, faults: faults, plain: kv.New(faults, kvtest.ModelLimits)}
	w.spaces = map[string]Space{"a": {Scope: "s", Table: "a"}, "b": {Table: "b"}}
	w.index = NewIndex(func(name string) (Space, bool) { s, ok := w.spaces[name]; return s, ok })
	must(t, Create(t.Context(), w.plain))
	must(t, Create(t.Context(), w.plain))
	for _, s := range []string{"a", "b", "other", "messages"} {
		must(t, w.plain.CreateSpace(t.Context(), s, kv.SpaceOptions{Links: true}))
	}
	w.db = w.plain.WithHooks(append(hooks, w.index.Hook)...)
	return w
}

func (w *world) put(space, key string, ttl time.Duration) {
	w.Helper()
	_, err := w.db.Update(context.WithoutCancel(w.Context()), func(tx *kv.Tx) error {
		wr := kv.Write{Space: space, Key: []byte(key), Value: []byte("v")}
		if ttl != 0 {
			wr.ExpiresAt = w.clock.Now().Add(ttl)
		}
		tx.Put(wr)
		return nil
	})
	must(w.T, err)
}

func (w *world) delete(space, key string) {
	w.Helper()
	_, err := w.db.Update(w.Context(), func(tx *kv.Tx) error {
		tx.Delete(space, []byte(key))
		return nil
	})
	must(w.T, err)
}

// stored returns "space/key" of every row that is stored, expired or not.
func (w *world) stored() string {
	w.Helper()
	var keys []string
	for _, space := range []string{"a", "b", "other"} {
		must(w.T, w.plain.Scan(context.WithoutCancel(w.Context()), space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
			keys = append(keys, space+"/"+string(row.Key))
			return true
		}))
	}
	return strings.Join(keys, " ")
}

// checkIndex compares the entries with the rows.
func (w *world) checkIndex() {
	w.Helper()
	ctx := context.WithoutCancel(w.Context())
	want := map[string]string{}
	for space := range w.spaces {
		must(w.T, w.plain.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
			if key, ok := w.index.Key(space, row); ok {
				want[string(key)] = space
			}
			return true
		}))
	}
	got := 0
	must(w.T, w.plain.Scan(ctx, IndexSpace, kv.Range{}, func(row kv.Row) bool {
		got++
		if want[string(row.Key)] != string(row.Value) {
			w.Errorf("entry %x of %s has no row", row.Key, row.Value)
		}
		return true
	}))
	if got != len(want) {
		w.Errorf("%d entries for %d rows that expire", got, len(want))
	}
}

func TestIndexFollowsEachWrite(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	for range 300 {
		_, err := w.db.Update(t.Context(), func(tx *kv.Tx) error {
			for range 1 + rng.IntN(4) {
				space := []string{"a", "b", "other"}[rng.IntN(3)]
				wr := kv.Write{Space: space, Key: fmt.Append(nil, "k", rng.IntN(8))}
				switch rng.IntN(4) {
				case 0:
					wr.Delete = true
				case 1:
				default:
					wr.ExpiresAt = w.clock.Now().Add(time.Duration(rng.IntN(6)-2) * 700 * time.Millisecond)
				}
				tx.Put(wr)
			}
			return nil
		})
		must(t, err)
		w.checkIndex()
		w.clock.Advance(time.Duration(rng.IntN(1000)) * time.Millisecond)
	}
}

func TestUnchangedExpiryWritesNoEntry(t *testing.T) {
	w := newWorld(t)
	w.put("a", "k", time.Hour)
	key, _ := w.index.Key("a", kv.Row{Key: []byte("k"), ExpiresAt: w.clock.Now().Add(time.Hour)})
	before, err := w.plain.GetOne(t.Context(), IndexSpace, key)
	must(t, err)
	w.put("a", "k", time.Hour)
	after, err := w.plain.GetOne(t.Context(), IndexSpace, key)
	must(t, err)
	if !before.Exists() || before.Version != after.Version {
		t.Errorf("versions %d and %d", before.Version, after.Version)
	}
}

func TestRowWhoseEntryDoesNotFitIsRefused(t *testing.T) {
	w := newWorld(t)
	_, err := w.db.Update(t.Context(), func(tx *kv.Tx) error {
		tx.Put(kv.Write{Space: "a", Key: make([]byte, kv.MaxKeySize), ExpiresAt: w.clock.Now()})
		return nil
	})
	if err == nil || w.stored() != "" {
		t.Errorf("error %v, rows %q", err, w.stored())
	}
}
