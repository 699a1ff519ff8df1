package changes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/queue"
)

// rowQueue is a queue whose messages are rows of a space.
type rowQueue struct{}

func (rowQueue) Send(tx *kv.Tx, messages ...queue.Outgoing) error {
	for _, m := range messages {
		tx.Put(kv.Write{Space: "messages", Key: m.Key, Value: m.Payload})
	}
	return nil
}

// Keys of rows are "user/id", those of staged rows "user/batch/id".
func testTables(space string) (Table, bool) {
	field := func(names ...string) func(_, _ []byte) ([]Field, error) {
		return func(key, _ []byte) ([]Field, error) {
			parts := strings.Split(string(key), "/")
			if len(parts) != len(names) {
				return nil, fmt.Errorf("%d parts", len(parts))
			}
			var fs []Field
			for i, n := range names {
				fs = append(fs, Field{n, parts[i]})
			}
			return fs, nil
		}
	}
	switch space {
	case "rows":
		return Table{Name: "bsos", Keys: field("fxa_uid", "bso_id")}, true
	case "staged":
		return Table{
			Name: StagedTable, Keys: field("fxa_uid", "batch_id", "batch_bso_id"),
			Permanent: func(key []byte) (string, []byte, error) {
				p := strings.Split(string(key), "/")
				return "rows", []byte(p[0] + "/" + p[2]), nil
			},
		}, true
	default:
		return Table{}, false
	}
}

type world struct {
	*testing.T
	clock *clock.Manual
	plain *kv.DB // without the hook
	db    *kv.DB
	seen  map[string]bool
}

func newWorld(t *testing.T) *world { return newWorldOn(t, func(e kv.Engine) kv.Engine { return e }) }

func newWorldOn(t *testing.T, wrap func(kv.Engine) kv.Engine) *world {
	c := clock.NewManual(time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC))
	plain := kv.New(wrap(kvtest.NewModel(c)), kvtest.ModelLimits)
	for _, s := range []string{"rows", "staged", "other"} {
		must(t, plain.CreateSpace(t.Context(), s, kv.SpaceOptions{Links: true}))
	}
	must(t, plain.CreateSpace(t.Context(), "messages", kv.SpaceOptions{}))
	capture := NewCapture(rowQueue{}, testTables, rand.NewChaCha8([32]byte{}))
	return &world{T: t, clock: c, plain: plain, db: plain.WithHooks(capture.Hook), seen: map[string]bool{}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(space, key, link string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte("v"), Link: link}
}

func del(space, key string) kv.Write { return kv.Write{Space: space, Key: []byte(key), Delete: true} }

func (w *world) commit(tag string, writes ...kv.Write) kv.Version {
	w.Helper()
	v, err := w.db.Update(w.Context(), func(tx *kv.Tx) error {
		tx.SetTag(tag)
		for _, wr := range writes {
			tx.Put(wr)
		}
		return nil
	})
	must(w.T, err)
	return v
}

// records returns the records sent since the last call, one line per mod.
func (w *world) records() []string {
	w.Helper()
	lines := []string{}
	must(w.T, w.plain.Scan(w.Context(), "messages", kv.Range{}, func(row kv.Row) bool {
		if w.seen[string(row.Key)] {
			return true
		}
		w.seen[string(row.Key)] = true
		r, err := Decode(Stamp(row.Value, row.Version))
		must(w.T, err)
		if want := row.Version.Time().Format("2006-01-02T15:04:05.000000000Z"); r.CommitTimestamp != want {
			w.Errorf("time %s, want %s", r.CommitTimestamp, want)
		}
		for _, m := range r.Mods {
			line := fmt.Sprintf("%s %s %s %s>%s", r.TableName, r.ModType, m.Keys, m.Old, m.New)
			if r.TransactionTag != "" {
				line += " tag=" + r.TransactionTag
			}
			if r.System {
				line += " system"
			}
			lines = append(lines, line)
		}
		return true
	}))
	return lines
}

func (w *world) want(what string, want ...string) {
	w.Helper()
	if want == nil {
		want = []string{}
	}
	less := func(a, b string) bool { return a < b }
	if d := cmp.Diff(want, w.records(), cmpopts.SortSlices(less)); d != "" {
		w.Errorf("%s: records -want +got\n%s", what, d)
	}
}

func TestEachChangeOfALinkIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.commit("", put("rows", "u/1", "A"))
	w.want("insert", `bsos INSERT {"fxa_uid":"u","bso_id":"1"} >A`)
	w.commit("", put("rows", "u/1", "B"))
	w.want("replace", `bsos UPDATE {"fxa_uid":"u","bso_id":"1"} A>B`)
	w.commit("", put("rows", "u/1", "B"))
	w.want("same link")
	w.commit("", put("rows", "u/1", ""))
	w.want("inline", `bsos UPDATE {"fxa_uid":"u","bso_id":"1"} B>`)
	w.commit("", put("rows", "u/1", ""))
	w.want("still inline")
	w.commit("", put("rows", "u/1", "C"))
	w.want("link again", `bsos UPDATE {"fxa_uid":"u","bso_id":"1"} >C`)
	w.commit("x", del("rows", "u/1"))
	w.want("delete", `bsos DELETE {"fxa_uid":"u","bso_id":"1"} C> tag=x`)
	w.commit("", del("rows", "u/1"))
	w.want("delete of nothing")
	w.commit("", put("rows", "u/2", ""))
	w.want("inline row")
	w.commit("", del("rows", "u/2"))
	w.want("delete of an inline row")
	w.commit("", put("other", "u/1", "D"))
	w.want("space that is not captured")
}

func TestExpiredRowsReleaseTheirLinks(t *testing.T) {
	w := newWorld(t)
	short := func(key, link string) kv.Write {
		wr := put("rows", key, link)
		wr.ExpiresAt = w.clock.Now().Add(time.Second)
		return wr
	}
	w.commit("", short("u/1", "A"), short("u/2", "B"))
	w.records()
	w.clock.Advance(time.Minute)
	w.commit("", put("rows", "u/1", "C"))
	w.want("taken over", `bsos UPDATE {"fxa_uid":"u","bso_id":"1"} A>C`)
	w.commit(ExpiryTag, del("rows", "u/2"))
	w.want("swept", `bsos DELETE {"fxa_uid":"u","bso_id":"2"} B> tag=RowDeletionPolicy system`)
}

func TestBatchCommitHandsLinksOver(t *testing.T) {
	w := newWorld(t)
	w.commit("", put("staged", "u/b/1", "A"), put("staged", "u/b/2", "B"), put("staged", "u/b/3", ""))
	w.want("staging",
		`batch_bsos INSERT {"fxa_uid":"u","batch_id":"b","batch_bso_id":"1"} >A`,
		`batch_bsos INSERT {"fxa_uid":"u","batch_id":"b","batch_bso_id":"2"} >B`)
	w.commit("", put("rows", "u/2", "OLD"))
	w.records()
	w.commit(BatchCommitTag,
		put("rows", "u/1", "A"), put("rows", "u/2", "B"), put("rows", "u/3", ""),
		del("staged", "u/b/1"), del("staged", "u/b/2"), del("staged", "u/b/3"))
	w.want("commit",
		`bsos INSERT {"fxa_uid":"u","bso_id":"1"} >A tag=batch_commit`,
		`bsos UPDATE {"fxa_uid":"u","bso_id":"2"} OLD>B tag=batch_commit`,
		`batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"1"} A> tag=batch_commit`,
		`batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"2"} B> tag=batch_commit`)
}

func TestStagedLinkThatLosesIsReleased(t *testing.T) {
	w := newWorld(t)
	w.commit("", put("staged", "u/b/1", "A"), put("staged", "u/b/2", "B"), put("staged", "u/b/3", "C"), put("rows", "u/2", "OLD"))
	w.records()
	w.commit(BatchCommitTag,
		put("rows", "u/1", "A"),    // staged A,
		put("rows", "u/1", "BODY"), // overwritten by the body of the commit
		put("rows", "u/2", ""),     // staged inline after B
		del("staged", "u/b/1"), del("staged", "u/b/2"),
		del("staged", "u/b/3")) // not applied at all
	w.want("commit",
		`bsos INSERT {"fxa_uid":"u","bso_id":"1"} >BODY tag=batch_commit`,
		`bsos UPDATE {"fxa_uid":"u","bso_id":"2"} OLD> tag=batch_commit`,
		`bsos UPDATE {"fxa_uid":"u","bso_id":"1"} A> tag=batch_commit`,
		`bsos UPDATE {"fxa_uid":"u","bso_id":"2"} B> tag=batch_commit`,
		`bsos UPDATE {"fxa_uid":"u","bso_id":"3"} C> tag=batch_commit`,
		`batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"1"} A> tag=batch_commit`,
		`batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"2"} B> tag=batch_commit`,
		`batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"3"} C> tag=batch_commit`)
}

func TestBesideAChangeStreamOnlyLosersAreReleased(t *testing.T) {
	w := newWorld(t)
	w.db = w.plain.WithHooks(NewReleases(rowQueue{}, testTables, rand.NewChaCha8([32]byte{})).Hook)
	w.commit("", put("staged", "u/b/1", "A"), put("staged", "u/b/2", "B"), put("rows", "u/2", "OLD"))
	w.want("staging")
	w.commit(BatchCommitTag, put("rows", "u/1", "BODY"), put("rows", "u/2", "B"), del("staged", "u/b/1"), del("staged", "u/b/2"))
	w.want("commit", `bsos UPDATE {"fxa_uid":"u","bso_id":"1"} A> tag=batch_commit`)
	w.commit("", del("rows", "u/1"), del("rows", "u/2"))
	w.want("deletes")
}

func TestStagedRowsMayGoInALaterCommit(t *testing.T) {
	w := newWorld(t)
	w.commit("", put("staged", "u/b/1", "A"))
	w.commit(BatchCommitTag, put("rows", "u/1", "A"))
	w.records()
	w.commit(BatchCommitTag, del("staged", "u/b/1"))
	w.want("later", `batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"1"} A> tag=batch_commit`)
}

func TestAbandonedBatchReleasesItsLinks(t *testing.T) {
	w := newWorld(t)
	w.commit("", put("staged", "u/b/1", "A"))
	w.records()
	w.commit("", del("staged", "u/b/1"))
	w.want("abandoned", `batch_bsos DELETE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"1"} A>`)
}

func TestMovedLinkIsNeverNamedAsOld(t *testing.T) {
	w := newWorld(t)
	w.commit("", put("rows", "u/1", "A"), put("rows", "u/2", "B"), put("rows", "u/3", "C"))
	w.records()
	w.commit("", put("rows", "u/1", "B"), put("rows", "u/2", "A"), del("rows", "u/3"), put("rows", "u/4", "C"))
	w.want("swap and move",
		`bsos UPDATE {"fxa_uid":"u","bso_id":"1"} >B`,
		`bsos UPDATE {"fxa_uid":"u","bso_id":"2"} >A`,
		`bsos INSERT {"fxa_uid":"u","bso_id":"4"} >C`)
	w.commit("", put("staged", "u/b/1", "S"))
	w.records()
	w.commit(BatchCommitTag, put("rows", "u/1", "S"), put("staged", "u/b/1", "T"))
	w.want("moved and replaced under the tag",
		`bsos UPDATE {"fxa_uid":"u","bso_id":"1"} B>S tag=batch_commit`,
		`batch_bsos UPDATE {"fxa_uid":"u","batch_id":"b","batch_bso_id":"1"} >T tag=batch_commit`)
}

func TestLargeRecordsAreSplit(t *testing.T) {
	w := newWorld(t)
	const n = 3000
	var writes []kv.Write
	for i := range n {
		writes = append(writes, put("rows", fmt.Sprintf("u/%d", i), strings.Repeat("L", 200)+fmt.Sprint(i)))
	}
	w.commit("", writes...)
	messages, mods := 0, 0
	must(t, w.plain.Scan(t.Context(), "messages", kv.Range{}, func(row kv.Row) bool {
		messages++
		if len(row.Value) > 2*maxMessageBytes {
			t.Errorf("message of %d bytes", len(row.Value))
		}
		r, err := Decode(row.Value)
		must(t, err)
		mods += len(r.Mods)
		return true
	}))
	if mods != n || messages < 3 {
		t.Errorf("%d mods in %d messages", mods, messages)
	}
}

func TestFaultsOfTheCaptureEndTheCommit(t *testing.T) {
	w := newWorld(t)
	broken := errors.New("broken")
	for name, c := range map[string]*Capture{
		"random":     NewCapture(rowQueue{}, testTables, strings.NewReader("")),
		"queue":      NewCapture(brokenQueue{broken}, testTables, rand.NewChaCha8([32]byte{})),
		"link":       NewCapture(rowQueue{}, testTables, rand.NewChaCha8([32]byte{})),
		"staged BUG": NewCapture(rowQueue{}, func(string) (Table, bool) { return Table{Name: StagedTable}, true }, nil),
	} {
		must(t, w.plain.DropSpace(t.Context(), "rows"))
		must(t, w.plain.CreateSpace(t.Context(), "rows", kv.SpaceOptions{Links: true}))
		_, err := w.plain.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("rows", "u/1", "OLD")}})
		must(t, err)
		_, err = w.plain.WithHooks(c.Hook).Update(t.Context(), func(tx *kv.Tx) error {
			tx.SetTag(BatchCommitTag)
			switch name {
			case "link":
				tx.Put(put("rows", "u/1", "\xff"))
			default:
				tx.Delete("rows", []byte("u/1"))
			}
			return nil
		})
		if err == nil {
			t.Errorf("%s: committed", name)
		}
		if row, _ := w.plain.GetOne(t.Context(), "rows", []byte("u/1")); row.Link != "OLD" {
			t.Errorf("%s: row %+v", name, row)
		}
	}
	w.want("after refused commits")
}

type brokenQueue struct{ err error }

func (q brokenQueue) Send(*kv.Tx, ...queue.Outgoing) error { return q.err }

// TestInvariant2_NoChangeWithoutRecordWhateverFails replays the same commits with
// a failure at each engine call and compares what the rows hold with what the
// records say.
func TestInvariant2_NoChangeWithoutRecordWhateverFails(t *testing.T) {
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		var faults *kvtest.Faults
		w := newWorldOn(t, func(e kv.Engine) kv.Engine { faults = kvtest.NewFaults(e); return faults })
		w.commit("", put("rows", "u/1", "A"), put("staged", "u/b/1", "B"))
		p.Arm(faults)
		for _, fn := range []func(tx *kv.Tx) error{
			func(tx *kv.Tx) error { tx.Put(put("rows", "u/1", "C")); return nil },
			func(tx *kv.Tx) error {
				tx.SetTag(BatchCommitTag)
				tx.Put(put("rows", "u/1", "B"))
				tx.Delete("staged", []byte("u/b/1"))
				return nil
			},
			func(tx *kv.Tx) error { tx.Delete("rows", []byte("u/1")); return nil },
		} {
			_, _ = w.db.Update(context.WithoutCancel(t.Context()), fn)
		}
		faults.Reset()
		added, removed := map[string]bool{}, map[string]bool{}
		must(t, w.plain.Scan(t.Context(), "messages", kv.Range{}, func(row kv.Row) bool {
			r, err := Decode(row.Value)
			must(t, err)
			for _, m := range r.Mods {
				if m.New != "" {
					added[m.New] = true
				}
				if m.Old != "" && !r.IsHandover(m) {
					removed[m.Old] = true
				}
			}
			return true
		}))
		held := map[string]bool{}
		for _, space := range []string{"rows", "staged"} {
			must(t, w.plain.Scan(t.Context(), space, kv.Range{}, func(row kv.Row) bool {
				held[row.Link] = true
				return true
			}))
		}
		for _, link := range []string{"A", "B", "C"} {
			if held[link] && (!added[link] || removed[link]) {
				t.Errorf("%s is held: added %v, removed %v", link, added[link], removed[link])
			}
			if !held[link] && added[link] && !removed[link] {
				t.Errorf("%s leaks", link)
			}
		}
	})
}

func BenchmarkHook(b *testing.B) {
	c := clock.NewManual(time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC))
	db := kvtest.NewDB(c)
	must(b, db.CreateSpace(b.Context(), "rows", kv.SpaceOptions{Links: true}))
	must(b, db.CreateSpace(b.Context(), "messages", kv.SpaceOptions{}))
	db = db.WithHooks(NewCapture(rowQueue{}, testTables, rand.NewChaCha8([32]byte{})).Hook)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, err := db.Update(b.Context(), func(tx *kv.Tx) error {
			tx.Put(put("rows", "u/1", fmt.Sprint("gs://bucket/u/c/1/", i)))
			return nil
		})
		must(b, err)
	}
}
