package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a source of two spaces and some objects, and an empty target behind
// engines and stores that can fail.
type world struct {
	t          *testing.T
	clock      *clock.Manual
	from, to   Side
	rows       *kvtest.Faults   // the target's engine
	objects    *blobtest.Faults // the target's driver
	toBlobs    *blobtest.Memory
	dropObject func(name string)
}

// sourceDriver is a store with a prefix of its own.
type sourceDriver struct{ *blobtest.Memory }

func (sourceDriver) URLPrefix() string { return "mem://source/" }

func newWorld(t *testing.T) *world {
	c := clock.NewManual(begin)
	w := &world{t: t, clock: c, toBlobs: blobtest.NewMemory()}
	w.rows, w.objects = kvtest.NewFaults(kvtest.NewModel(c)), blobtest.NewFaults(w.toBlobs)
	w.from = Side{kvtest.NewDB(c), blob.New(sourceDriver{blobtest.NewMemory()}, blob.Options{Clock: c})}
	w.to = Side{kv.New(w.rows, smallLimits), blob.New(w.objects, blob.Options{Clock: c})}
	w.dropObject = func(name string) {
		if _, err := w.from.Objects.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	w.fill()
	return w
}

const records = 60 // more than two batches

// smallLimits makes batches of 20 rows.
var smallLimits = kv.Limits{CommitRows: 21, CommitBytes: 1 << 20}

func (w *world) fill() {
	for name, opts := range map[string]kv.SpaceOptions{"linked": {Links: true}, "plain": {}, "none": {FeedShards: 2, FeedRetention: time.Hour}} {
		w.ok(w.from.DB.CreateSpace(w.t.Context(), name, opts))
	}
	var writes []kv.Write
	for i := range records {
		writes = append(writes, kv.Write{Space: "plain", Key: fmt.Appendf(nil, "k%05d", i), Value: fmt.Appendf(nil, "value %d", i)})
	}
	for i := range 5 {
		name := fmt.Sprintf("u/c/%d", i)
		w.ok(w.from.Objects.Put(w.t.Context(), name, strings.NewReader(name), int64(len(name))))
		if i > 0 {
			_, err := w.from.Objects.Finalize(w.t.Context(), name)
			w.ok(err)
			writes = append(writes, kv.Write{Space: "linked", Key: []byte(name), Link: w.from.Objects.URL(name)})
		}
	}
	writes = append(writes,
		kv.Write{Space: "linked", Key: []byte("expired"), ExpiresAt: begin.Add(-time.Hour)},
		kv.Write{Space: "linked", Key: []byte("expires"), ExpiresAt: begin.Add(time.Hour), Value: []byte("v")})
	_, err := w.from.DB.Commit(w.t.Context(), &kv.Txn{Writes: writes})
	w.ok(err)
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) options() Options {
	return Options{From: w.from, To: w.to, SourceID: "source", Clock: w.clock}
}

func (w *world) rowsOf(s Side, space string) []kv.Row {
	w.t.Helper()
	var rows []kv.Row
	w.ok(s.DB.Scan(w.t.Context(), space, kv.Range{IncludeExpired: true}, func(row kv.Row) bool {
		row.Key, row.Value = slices.Clone(row.Key), slices.Clone(row.Value)
		rows = append(rows, row)
		return true
	}))
	return rows
}

func (w *world) wantCopied() {
	w.t.Helper()
	spaces, err := w.from.DB.Spaces(w.t.Context())
	w.ok(err)
	there, err := w.to.DB.Spaces(w.t.Context())
	w.ok(err)
	there = slices.DeleteFunc(there, func(s kv.SpaceInfo) bool { return s.Name == Space })
	if d := cmp.Diff(spaces, there); d != "" {
		w.t.Errorf("spaces (-want +got):\n%s", d)
	}
	for _, s := range spaces {
		want, got := w.rowsOf(w.from, s.Name), w.rowsOf(w.to, s.Name)
		for i := range want {
			if i < len(got) && got[i].Version <= want[i].Version {
				w.t.Errorf("%s/%q has version %d, in the source %d", s.Name, want[i].Key, got[i].Version, want[i].Version)
			}
			want[i].Version = 0
			want[i].Link = strings.Replace(want[i].Link, "mem://source/", "mem://test/", 1)
		}
		for i := range got {
			got[i].Version = 0
		}
		if d := cmp.Diff(want, got); d != "" {
			w.t.Errorf("rows of %s (-want +got):\n%s", s.Name, d)
		}
	}
	w.ok(w.from.Objects.List(w.t.Context(), "", "", func(want blob.Attrs) bool {
		content, got, err := w.to.Objects.Get(w.t.Context(), want.Name)
		w.ok(err)
		text, err := io.ReadAll(content)
		w.ok(err)
		if string(text) != want.Name || got.Committed != want.Committed {
			w.t.Errorf("object %s: %q, committed %v", want.Name, text, got.Committed)
		}
		return true
	}))
	w.ok(Check(w.t.Context(), w.to.DB))
}

func TestEverythingArrives(t *testing.T) {
	w := newWorld(t)
	var phases []string
	opts := w.options()
	opts.Progress = func(phase string, _ int64) {
		if len(phases) == 0 || phases[len(phases)-1] != phase {
			phases = append(phases, phase)
		}
	}
	report, err := Run(t.Context(), opts)
	w.ok(err)
	if want := (Report{Spaces: 3, Rows: records + 6, Objects: 5, Bytes: 25}); report != want {
		t.Errorf("report %+v, want %+v", report, want)
	}
	if want := []string{"objects", "rows"}; !slices.Equal(phases, want) {
		t.Errorf("phases %q, want %q", phases, want)
	}
	w.wantCopied()
	if report, err = Run(t.Context(), w.options()); err != nil || report != (Report{}) {
		t.Errorf("a second run: %+v, %v", report, err)
	}
}

// TestInterruptedCopyGoesOn fails each call to the target's engine once, in each way,
// and runs again.
func TestInterruptedCopyGoesOn(t *testing.T) {
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		w := newWorld(t)
		p.Arm(w.rows)
		_, err := Run(t.Context(), w.options())
		if p.Fired() && err == nil {
			t.Error("an error of the engine was passed over")
		}
		w.rows.Reset()
		if err != nil {
			if _, err = Run(t.Context(), w.options()); err != nil {
				t.Fatal(err)
			}
		}
		w.wantCopied()
	})
}

func TestInterruptedBetweenAnyTwoObjectsItGoesOn(t *testing.T) {
	boom := errors.New("boom")
	for n := 1; ; n++ {
		w := newWorld(t)
		calls := 0
		opts := w.options()
		opts.Concurrency = 1
		w.objects.SetHook(func(context.Context, blobtest.Call) error {
			if calls++; calls == n {
				return boom
			}
			return nil
		})
		_, err := Run(t.Context(), opts)
		if err == nil {
			if calls >= n {
				t.Fatalf("the failure of call %d was passed over", n)
			}
			return
		}
		if err := Check(t.Context(), w.to.DB); !errors.Is(err, ErrUnfinished) {
			t.Errorf("the unfinished target: %v", err)
		}
		w.objects.SetHook(nil)
		_, err = Run(t.Context(), w.options())
		w.ok(err)
		w.wantCopied()
	}
}

func TestAnInterruptedCopyDoesNotRepeatWhatIsNoted(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	opts := w.options()
	opts.Progress = func(phase string, done int64) {
		if phase == "rows" && done >= 46 {
			cancel()
		}
	}
	first, err := Run(ctx, opts)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	second, err := Run(t.Context(), w.options())
	w.ok(err)
	if total := first.Rows + second.Rows; second.Objects != 0 || total < records+6 || total > records+6+20 {
		t.Errorf("first %+v, then %+v", first, second)
	}
	w.wantCopied()
}

func TestATargetInUseIsRefused(t *testing.T) {
	w := newWorld(t)
	w.ok(w.to.DB.CreateSpace(t.Context(), "plain", kv.SpaceOptions{}))
	_, err := w.to.DB.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{{Space: "plain", Key: []byte("mine"), Value: []byte("v")}}})
	w.ok(err)
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("error %v", err)
	}
	if rows := w.rowsOf(w.to, "plain"); len(rows) != 1 {
		t.Errorf("%d rows in the target", len(rows))
	}
}

func TestAnotherSourceIsRefused(t *testing.T) {
	w := newWorld(t)
	_, err := Run(t.Context(), w.options())
	w.ok(err)
	opts := w.options()
	opts.SourceID = "another"
	if _, err := Run(t.Context(), opts); !errors.Is(err, ErrOtherSource) {
		t.Errorf("error %v", err)
	}
}

func TestAnUnfinishedSourceIsRefused(t *testing.T) {
	w := newWorld(t)
	w.ok(w.from.DB.CreateSpace(t.Context(), Space, kv.SpaceOptions{}))
	_, err := w.from.DB.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{note(sourceKey, []byte("x"))}})
	w.ok(err)
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, ErrUnfinished) {
		t.Errorf("error %v", err)
	}
}

func TestASpaceWithOtherOptionsIsRefused(t *testing.T) {
	w := newWorld(t)
	w.ok(w.to.DB.CreateSpace(t.Context(), "linked", kv.SpaceOptions{}))
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, kv.ErrSpaceMismatch) {
		t.Errorf("error %v", err)
	}
}

func TestForeignLinksAreReported(t *testing.T) {
	w := newWorld(t)
	_, err := w.from.DB.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{{Space: "linked", Key: []byte("f"), Link: "gs://other/x"}}})
	w.ok(err)
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, blob.ErrForeignURL) || !strings.Contains(err.Error(), `"f"`) {
		t.Errorf("error %v", err)
	}
}

func TestADifferentObjectInTheTargetIsReported(t *testing.T) {
	w := newWorld(t)
	w.ok(w.to.Objects.Put(t.Context(), "u/c/1", strings.NewReader("other"), 5))
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("error %v", err)
	}
}

func TestAnObjectThatTheLifecycleTakesMeanwhileIsPassedOver(t *testing.T) {
	w := newWorld(t)
	dropped := false
	w.objects.SetHook(func(_ context.Context, c blobtest.Call) error {
		if !dropped {
			dropped = true
			w.dropObject("u/c/4")
		}
		return nil
	})
	opts := w.options()
	opts.Concurrency = 1
	report, err := Run(t.Context(), opts)
	w.ok(err)
	if _, err := w.to.Objects.Stat(t.Context(), "u/c/4"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("the object: %v, report %+v", err, report)
	}
}

func TestVersionsRiseAlsoWhereTheSourcesClockIsAhead(t *testing.T) {
	w := newWorld(t)
	late := clock.NewManual(begin.Add(time.Hour))
	w.to.DB = kv.New(kvtest.NewModel(clock.NewManual(begin.Add(-time.Hour))), kvtest.ModelLimits)
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, ErrClockBehind) {
		t.Errorf("error %v", err)
	}
	opts := w.options()
	opts.Clock = clock.NewManual(begin.Add(-time.Hour))
	if _, err := Run(t.Context(), opts); !errors.Is(err, ErrClockBehind) {
		t.Errorf("error %v", err)
	}
	w.to.DB = kv.New(kvtest.NewModel(late), kvtest.ModelLimits)
	_, err := Run(t.Context(), w.options())
	w.ok(err)
}
