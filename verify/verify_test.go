package verify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/reconcile"
)

var start = time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC)

type world struct {
	*testing.T
	clock  *clock.Manual
	engine *kvtest.Faults
	objs   *blobtest.Faults
	plain  *kv.DB
	db     *kv.DB // with the expiry index
	store  *blob.Store
	index  *expiry.Index
}

func newWorld(t *testing.T) *world {
	c := clock.NewManual(start)
	w := &world{T: t, clock: c, engine: kvtest.NewFaults(kvtest.NewModel(c)), objs: blobtest.NewFaults(blobtest.NewMemory())}
	w.plain = kv.New(w.engine, kvtest.ModelLimits)
	for _, s := range []string{"rows", "staged"} {
		must(t, w.plain.CreateSpace(t.Context(), s, kv.SpaceOptions{Links: true}))
	}
	must(t, w.plain.CreateSpace(t.Context(), "plain", kv.SpaceOptions{}))
	must(t, expiry.Create(t.Context(), w.plain))
	w.index = expiry.NewIndex(func(s string) (expiry.Space, bool) { return expiry.Space{Table: s}, s == "rows" || s == "plain" })
	w.db = w.plain.WithHooks(w.index.Hook)
	w.store = blob.New(w.objs, blob.Options{Clock: c})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a row and, if given, its object.
func (w *world) put(space, key, link string, object bool, ttl time.Duration) {
	w.Helper()
	wr := kv.Write{Space: space, Key: []byte(key), Link: link}
	if name, ok := strings.CutPrefix(link, "mem://test/"); ok && object {
		must(w.T, w.store.Put(w.Context(), name, strings.NewReader(key), int64(len(key))))
	}
	if ttl != 0 {
		wr.ExpiresAt = w.clock.Now().Add(ttl)
	}
	_, err := w.db.Update(w.Context(), func(tx *kv.Tx) error { tx.Put(wr); return nil })
	must(w.T, err)
}

func (w *world) finalize(names ...string) {
	w.Helper()
	for _, n := range names {
		_, err := w.store.Finalize(w.Context(), n)
		must(w.T, err)
	}
}

func (w *world) options() (Options, *[]string) {
	lines := &[]string{}
	return Options{
		DB: w.plain, Store: w.store, Clock: w.clock, Index: w.index, Staged: []string{"staged"},
		Found: func(f Finding) {
			*lines = append(*lines, strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", f.Kind, f.Space, f.Key, f.Link)))
		},
	}, lines
}

func (w *world) want(want ...string) Report {
	w.Helper()
	opts, lines := w.options()
	report, err := Run(w.Context(), opts)
	must(w.T, err)
	slices.Sort(*lines)
	slices.Sort(want)
	if d := cmp.Diff(want, *lines); d != "" && len(want)+len(*lines) > 0 {
		w.Errorf("findings -want +got\n%s", d)
	}
	return report
}

func TestSoundHouseHasNoFindings(t *testing.T) {
	w := newWorld(t)
	w.put("rows", "1", "mem://test/1", true, 0)
	w.put("rows", "2", "mem://test/2", true, time.Hour)
	w.put("rows", "expired", "mem://test/e", true, -time.Hour)
	w.put("staged", "3", "mem://test/3", true, 0)
	w.put("plain", "4", "", false, time.Minute)
	w.put("rows", "inline", "", false, 0)
	w.finalize("1", "e")
	must(t, w.store.Put(t.Context(), "uploading", strings.NewReader(""), 0))
	report := w.want()
	want := Report{Rows: 6, Links: 4, Objects: 5, Entries: 3, Findings: map[Kind]int64{}}
	if d := cmp.Diff(want, report); d != "" {
		t.Error("report -want +got\n" + d)
	}
	if b, err := json.Marshal(report); err != nil || !strings.Contains(string(b), `"expiry_entries":3`) {
		t.Errorf("report as JSON: %s, %v", b, err)
	}
}

func TestEachDisagreementIsFound(t *testing.T) {
	w := newWorld(t)
	w.put("rows", "late", "mem://test/late", true, 0)
	w.put("rows", "lost", "mem://test/lost", false, 0)
	w.put("rows", "foreign", "gs://other/x", false, 0)
	w.put("rows", "nonsense", "nonsense", false, 0)
	must(t, w.store.Put(t.Context(), "abandoned", strings.NewReader(""), 0))
	w.clock.Advance(34 * 24 * time.Hour)
	must(t, w.store.Put(t.Context(), "fresh", strings.NewReader(""), 0))
	w.put("rows", "good", "mem://test/good", true, 0)
	for _, n := range []string{"orphan", "deleted"} {
		must(t, w.store.Put(t.Context(), n, strings.NewReader(""), 0))
	}
	w.finalize("good", "orphan")
	entry := func(key string, at time.Time) []byte {
		k, _ := w.index.Key("rows", kv.Row{Key: []byte(key), ExpiresAt: at})
		return k
	}
	w.put("rows", "other expiry", "", false, time.Hour)
	_, err := w.plain.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{
		{Space: "plain", Key: []byte("no entry"), ExpiresAt: w.clock.Now().Add(time.Hour)},
		{Space: expiry.IndexSpace, Key: entry("absent", w.clock.Now()), Value: []byte("rows")},
		{Space: expiry.IndexSpace, Key: entry("other expiry", w.clock.Now()), Value: []byte("rows")},
		{Space: expiry.IndexSpace, Key: entry("x", w.clock.Now()), Value: []byte("dropped")},
		{Space: expiry.IndexSpace, Key: []byte("rubbish"), Value: []byte("rows")},
	}})
	must(t, err)
	stale := func(key string) string {
		return fmt.Sprintf("stale_expiry_entry %s/%s", expiry.IndexSpace, entry(key, w.clock.Now()))
	}
	w.want(
		"missing_object rows/lost mem://test/lost",
		"foreign_link rows/foreign gs://other/x",
		"foreign_link rows/nonsense nonsense",
		"unfinalized_object rows/late mem://test/late",
		"orphan_object / mem://test/orphan",
		"overdue_object / mem://test/abandoned",
		"missing_expiry_entry plain/no entry",
		stale("absent"), stale("other expiry"), stale("x"),
		"stale_expiry_entry "+expiry.IndexSpace+"/rubbish",
	)
}

func TestObjectOfAWaitingRecordIsNoOrphan(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"pending", "orphan"} {
		must(t, w.store.Put(t.Context(), n, strings.NewReader(""), 0))
	}
	w.finalize("pending", "orphan")
	opts, lines := w.options()
	opts.Pending = func(_ context.Context, fn func(string)) error {
		fn("mem://test/pending")
		fn("gs://other/x")
		return nil
	}
	_, err := Run(t.Context(), opts)
	must(t, err)
	if d := cmp.Diff([]string{"orphan_object / mem://test/orphan"}, *lines); d != "" {
		t.Error("-want +got\n" + d)
	}
}

func TestRowsAndObjectsThatComeDuringTheRunAreNoFindings(t *testing.T) {
	w := newWorld(t)
	w.put("rows", "1", "mem://test/1", true, 0)
	w.finalize("1")
	done := false
	w.objs.SetHook(func(_ context.Context, c blobtest.Call) error {
		if c.Op == blobtest.OpList && c.Stage == blobtest.Before && !done {
			done = true
			w.put("rows", "2", "mem://test/2", true, 0) // after the rows were read
			w.finalize("2")
			w.put("rows", "1", "mem://test/3", true, 0) // and one replaced
			_, err := w.store.Delete(t.Context(), "1")
			must(t, err)
		}
		return nil
	})
	w.want()
	if !done {
		t.Error("nothing came")
	}
}

func TestRowThatGoesDuringItsConfirmationIsNoFinding(t *testing.T) {
	w := newWorld(t)
	w.put("rows", "1", "mem://test/1", false, 0)
	w.objs.SetHook(func(_ context.Context, c blobtest.Call) error {
		if c.Op == blobtest.OpStat && c.Stage == blobtest.After {
			w.put("rows", "1", "mem://test/2", true, 0)
		}
		return nil
	})
	w.want()
}

func TestExpiryThatChangesWhileItIsCheckedIsNoFinding(t *testing.T) {
	w := newWorld(t)
	w.put("rows", "1", "", false, time.Hour)
	busy := false
	w.engine.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpGet && !busy {
			busy = true
			w.put("rows", "1", "", false, 2*time.Hour)
			busy = false
		}
		return nil
	})
	w.want()
}

func TestChecksAreRunAndErrorsEndTheRun(t *testing.T) {
	w := newWorld(t)
	opts, lines := w.options()
	opts.Checks = []Check{{Name: "queue", Run: func(_ context.Context, found func(string, []byte, string)) error {
		found("queue_ready", []byte("k"), "no message")
		return nil
	}}}
	report, err := Run(t.Context(), opts)
	must(t, err)
	if report.Findings[Inconsistent] != 1 || (*lines)[0] != "inconsistent queue_ready/k" {
		t.Errorf("report %+v, findings %q", report, *lines)
	}
	broken := errors.New("broken")
	opts.Checks[0].Run = func(context.Context, func(string, []byte, string)) error { return broken }
	if _, err := Run(t.Context(), opts); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestVerifyReportsEveryFaultOfEngineAndStore(t *testing.T) {
	build := func(t *testing.T) *world {
		w := newWorld(t)
		w.put("rows", "lost", "mem://test/lost", false, 0)
		w.put("rows", "late", "mem://test/late", true, time.Hour)
		must(t, w.store.Put(t.Context(), "orphan", strings.NewReader(""), 0))
		w.finalize("orphan")
		w.clock.Advance(2 * time.Hour)
		return w
	}
	check := func(w *world, failed bool) {
		opts, lines := w.options()
		_, err := Run(w.Context(), opts)
		if (err != nil) != failed {
			w.Errorf("error %v, a call failed: %v", err, failed)
		}
		if err == nil && len(*lines) != 3 {
			w.Errorf("findings %q", *lines)
		}
	}
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		w := build(t)
		p.Arm(w.engine)
		opts, _ := w.options()
		_, err := Run(t.Context(), opts)
		if (err != nil) != p.Fired() {
			t.Errorf("error %v, fired %v", err, p.Fired())
		}
		w.engine.Reset()
		check(w, false)
	})
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		w := build(t)
		fired := false
		w.objs.SetHook(func(ctx context.Context, c blobtest.Call) error {
			err := hook(ctx, c)
			fired = fired || err != nil
			return err
		})
		opts, _ := w.options()
		_, err := Run(t.Context(), opts)
		if (err != nil) != fired {
			t.Errorf("error %v, fired %v", err, fired)
		}
		w.objs.SetHook(nil)
		check(w, false)
	})
}

// TestBusyHouseHasNoFalseFindings verifies again and again while rows come, change
// and go, batches are committed, and the reconciler works.
func TestBusyHouseHasNoFalseFindings(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	svc, err := queue.Open(ctx, w.plain, queue.Options{TokenKey: make([]byte, 16), Rand: rand.Reader})
	must(t, err)
	q, err := svc.Create(ctx, changes.QueueName, queue.Settings{Lease: time.Minute, LocalReceivers: true})
	must(t, err)
	tables := func(space string) (changes.Table, bool) {
		t := changes.Table{Name: space, Keys: func(_, _ []byte) ([]changes.Field, error) { return nil, nil }}
		if space == "staged" {
			t.Name, t.Permanent = changes.StagedTable, func(k []byte) (string, []byte, error) { return "rows", k, nil }
		}
		return t, space == "rows" || space == "staged"
	}
	db := w.db.WithHooks(changes.NewCapture(q, tables, rand.Reader).Hook)
	rec := reconcile.New(reconcile.NewQueueSource(w.plain, q), w.store, reconcile.Options{Clock: w.clock, Wait: 10 * time.Millisecond})
	var background, writers sync.WaitGroup
	background.Go(func() { must(t, svc.Run(ctx)) })
	background.Go(func() { must(t, rec.Run(ctx)) })
	for g := range 3 {
		writers.Go(func() {
			for i := range 60 {
				name := fmt.Sprint(g, "-", i)
				key, link := []byte(fmt.Sprint(g, "/", i%4)), w.store.URL(name)
				if err := w.store.Put(ctx, name, strings.NewReader("x"), 1); err != nil {
					t.Error(err)
				}
				for _, step := range []func(tx *kv.Tx){
					func(tx *kv.Tx) { tx.Put(kv.Write{Space: "staged", Key: key, Link: link}) },
					func(tx *kv.Tx) {
						tx.SetTag(changes.BatchCommitTag)
						tx.Delete("staged", key)
						tx.Put(kv.Write{Space: "rows", Key: key, Link: link, ExpiresAt: start.Add(time.Duration(1+i) * time.Hour)})
					},
				} {
					if _, err := db.Update(ctx, func(tx *kv.Tx) error { step(tx); return nil }); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	opts, lines := w.options()
	opts.Pending = PendingIn(q)
	stop := make(chan struct{})
	go func() { writers.Wait(); close(stop) }()
	runs := 0
	for done := false; !done; runs++ {
		select {
		case <-stop:
			done = true
		default:
		}
		if _, err := Run(ctx, opts); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	background.Wait()
	if len(*lines) > 0 {
		t.Errorf("%d false findings in %d runs, the first: %s", len(*lines), runs, (*lines)[0])
	}
}

func TestProgressTellsOfEachPhase(t *testing.T) {
	w := newWorld(t)
	_, err := w.plain.Update(t.Context(), func(tx *kv.Tx) error {
		for i := range 2500 {
			tx.Put(kv.Write{Space: "rows", Key: fmt.Append(nil, i), Link: fmt.Sprint("mem://test/", i)})
		}
		return nil
	})
	must(t, err)
	opts, lines := w.options()
	var calls []string
	opts.Progress = func(phase string, done, total int64) { calls = append(calls, fmt.Sprint(phase, " ", done, "/", total)) }
	_, err = Run(t.Context(), opts)
	must(t, err)
	want := []string{"rows 1000/0", "rows 2000/0", "confirm 0/2500", "confirm 2500/2500"}
	if d := cmp.Diff(want, calls); d != "" || len(*lines) != 2500 {
		t.Errorf("%d findings, calls -want +got\n%s", len(*lines), d)
	}
}

func TestLinkSet(t *testing.T) {
	s := newLinkSet()
	s.add("a", false)
	s.add("b", true)
	s.add("b", false)
	s.add("b", false)
	s.add("c", false)
	s.seal()
	if linked, old := s.meet("a"); !linked || old {
		t.Error("a is linked and not old")
	}
	if linked, old := s.meet("b"); !linked || !old {
		t.Error("b is linked and old")
	}
	if linked, _ := s.meet("x"); linked {
		t.Error("x is not linked")
	}
	if !s.unmet("c") || s.unmet("b") || s.unmet("x") || s.unmetCount() != 1 {
		t.Error("only c is unmet")
	}
}
