package offload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/metrics"
)

var start = time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC)

type world struct {
	*testing.T
	memory *blobtest.Memory
	faults *blobtest.Faults
	store  *blob.Store
	off    *Offloader
	reg    *metrics.Registry
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, memory: blobtest.NewMemory(), reg: metrics.New()}
	w.faults = blobtest.NewFaults(w.memory)
	w.store = blob.New(w.faults, blob.Options{Clock: clock.NewManual(start)})
	w.off = New(w.store, w.store, Options{Clock: clock.NewManual(start), Random: rand.NewChaCha8([32]byte{}), Metrics: w.reg, Concurrency: 1})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func payloads(texts ...string) []Payload {
	var ps []Payload
	for i, s := range texts {
		ps = append(ps, Payload{Prefix: fmt.Sprint("u/c/", i), Data: []byte(s)})
	}
	return ps
}

func (w *world) upload(texts ...string) *Uploads {
	w.Helper()
	u, err := w.off.Upload(w.Context(), "put_bso", payloads(texts...))
	must(w.T, err)
	return u
}

func (w *world) wantObjects(n int) {
	w.Helper()
	if got := len(w.memory.Names()); got != n {
		w.Errorf("%d objects, want %d", got, n)
	}
	must(w.T, w.reg.Err())
}

func TestWhatWasUploadedIsResolved(t *testing.T) {
	w := newWorld(t)
	u := w.upload("one", "", "drei ä")
	links := u.Links()
	for i, link := range links {
		if !strings.HasPrefix(link, fmt.Sprintf("mem://test/u/c/%d/", i)) || len(link) != len("mem://test/u/c/0/")+36 {
			t.Errorf("link %s", link)
		}
	}
	got, err := w.off.Resolve(t.Context(), []string{links[2], links[0], links[1], links[0]})
	must(t, err)
	if d := cmp.Diff([][]byte{[]byte("drei ä"), []byte("one"), {}, []byte("one")}, got); d != "" {
		t.Error("-want +got\n" + d)
	}
	if w.upload("one").Links()[0] == links[0] {
		t.Error("a name was used twice")
	}
}

func TestSettleRemovesOnlyAfterACertainFailure(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		left int
	}{
		"committed":       {nil, 2},
		"unknown":         {kv.ErrUnknownOutcome, 2},
		"unknown, joined": {errors.Join(context.DeadlineExceeded, fmt.Errorf("commit: %w", kv.ErrUnknownOutcome)), 2},
		"conflict":        {&kv.ConflictError{}, 0},
		"refused":         {errors.New("precondition failed"), 0},
		"too large":       {kv.ErrTooLarge, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			u := w.upload("a", "b")
			u.Settle(t.Context(), c.err)
			w.wantObjects(c.left)
		})
	}
}

func TestDiscardRemovesOneObject(t *testing.T) {
	w := newWorld(t)
	u := w.upload("a", "b", "c")
	u.Discard(t.Context(), 1)
	w.wantObjects(2)
	if _, err := w.off.Resolve(t.Context(), u.Links()[1:2]); !errors.Is(err, ErrMissing) {
		t.Errorf("resolve: %v", err)
	}
}

func TestInvariant2_SettleNeverRemovesAFinalizedObject(t *testing.T) {
	w := newWorld(t)
	u := w.upload("a")
	_, err := w.store.Finalize(t.Context(), w.memory.Names()[0])
	must(t, err)
	u.Settle(t.Context(), errors.New("refused"))
	w.wantObjects(1)
}

func TestUploadFailsFastAndCleansUp(t *testing.T) {
	w := newWorld(t)
	n := 0
	w.faults.SetHook(blobtest.On(blobtest.OpPut, blobtest.Before, func(context.Context, blobtest.Call) error {
		if n++; n == 3 {
			return blobtest.ErrInjected
		}
		return nil
	}))
	_, err := w.off.Upload(t.Context(), "post_collection", payloads("a", "b", "c", "d", "e", "f", "g"))
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, blobtest.ErrInjected) {
		t.Errorf("error %v", err)
	}
	w.wantObjects(0)
	if n > 4 { // one more may have been under way
		t.Errorf("%d puts after a failure of the third", n)
	}
	rec := httptest.NewRecorder()
	w.reg.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	if line := `syncstorage_storage_gcs_payload_cleanup_total{handler="post_collection",reason="",result="success"}`; !strings.Contains(rec.Body.String(), line) {
		t.Errorf("no metric %s", line)
	}
}

func TestTransfersRunAtTheSameTimeUpToTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		off := New(w.store, w.store, Options{Clock: clock.System{}, Random: rand.NewChaCha8([32]byte{})})
		var now, most atomic.Int64
		w.faults.SetHook(func(_ context.Context, c blobtest.Call) error {
			if c.Op == blobtest.OpRead {
				return nil
			}
			if c.Stage == blobtest.After {
				now.Add(-1)
				return nil
			}
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			return nil
		})
		began := time.Now()
		u, err := off.Upload(t.Context(), "put_bso", payloads("1", "2", "3", "4", "5", "6", "7", "8"))
		must(t, err)
		_, err = off.Resolve(t.Context(), u.Links())
		must(t, err)
		u.Settle(t.Context(), errors.New("refused"))
		if d := time.Since(began); most.Load() != defaultConcurrency || d != 6*time.Second {
			t.Errorf("up to %d at a time, %v in all", most.Load(), d)
		}
	})
}

func TestClientThatGoesAwayDoesNotStopTheCleanup(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	u, err := w.off.Upload(ctx, "put_bso", payloads("a", "b"))
	must(t, err)
	cancel()
	u.Settle(ctx, errors.New("refused"))
	w.wantObjects(0)

	w.faults.SetHook(blobtest.On(blobtest.OpPut, blobtest.After, func(context.Context, blobtest.Call) error { return context.Canceled }))
	if _, err := w.off.Upload(ctx, "put_bso", payloads("a")); errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	w.wantObjects(0)
}

func TestStoreThatHangsEndsInAnError(t *testing.T) {
	for _, op := range []blobtest.Op{blobtest.OpPut, blobtest.OpGet, blobtest.OpDiscard} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				u := w.upload("a")
				w.faults.SetHook(blobtest.HangOn(op, blobtest.Before))
				began := time.Now()
				var err error
				switch op {
				case blobtest.OpPut:
					_, err = w.off.Upload(t.Context(), "put_bso", payloads("b"))
				case blobtest.OpGet:
					_, err = w.off.Resolve(t.Context(), u.Links())
				default:
					u.Settle(t.Context(), errors.New("refused"))
					err = ErrUnavailable
				}
				if d := time.Since(began); !errors.Is(err, ErrUnavailable) || d > 2*defaultTimeout {
					t.Errorf("error %v after %v", err, d)
				}
			})
		})
	}
}

func TestResolveTellsErrorsApart(t *testing.T) {
	w := newWorld(t)
	good := w.upload("good").Links()[0]
	binary := w.upload("\xff\xfe").Links()[0]
	rotten := w.upload("rotten").Links()[0]
	name, err := w.store.Name(rotten)
	must(t, err)
	w.memory.Corrupt(name)
	gone := w.store.URL("u/gone")
	for name, c := range map[string]struct {
		link string
		want error
	}{
		"missing":   {gone, ErrMissing},
		"binary":    {binary, ErrUnreadable},
		"corrupt":   {rotten, ErrUnreadable},
		"foreign":   {"gs://other/x", blob.ErrForeignURL},
		"malformed": {"nonsense", blob.ErrInvalidURL},
	} {
		_, err := w.off.Resolve(t.Context(), []string{good, c.link})
		if !errors.Is(err, c.want) || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		var missing *MissingError
		if c.want == ErrMissing && (!errors.As(err, &missing) || missing.Link != gone) {
			t.Errorf("%v does not name the link", err)
		}
	}
	w.faults.SetHook(blobtest.FailOn(blobtest.OpGet, blobtest.Before, blobtest.ErrInjected))
	if _, err := w.off.Resolve(t.Context(), []string{good}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("store down: %v", err)
	}
	w.faults.ResetTrace()
	if _, err := w.off.Resolve(t.Context(), nil); err != nil || len(w.faults.Trace()) > 0 {
		t.Errorf("nothing to resolve: %v, calls %q", err, w.faults.Trace())
	}
}

func TestUploadNeedsRandomness(t *testing.T) {
	w := newWorld(t)
	off := New(w.store, w.store, Options{Clock: clock.System{}, Random: strings.NewReader("")})
	if _, err := off.Upload(t.Context(), "put_bso", payloads("a")); err == nil {
		t.Error("no error")
	}
	w.wantObjects(0)
}

// write is an offloaded write as a door does it.
func (w *world) write(db *kv.DB, text string) error {
	ctx := context.WithoutCancel(w.Context())
	u, err := w.off.Upload(ctx, "put_bso", payloads(text))
	if err != nil {
		return err
	}
	_, err = db.Update(ctx, func(tx *kv.Tx) error {
		if _, err := tx.Get("rows", []byte("k")); err != nil {
			return err
		}
		tx.Put(kv.Write{Space: "rows", Key: []byte("k"), Link: u.Links()[0]})
		return nil
	})
	u.Settle(ctx, err)
	return err
}

// TestInvariant1_RowsPointAtObjectsWhateverFails fails each call of the engine and of
// the store, before and after it.
func TestInvariant1_RowsPointAtObjectsWhateverFails(t *testing.T) {
	check := func(w *world, plain *kv.DB, err error, crashed bool) {
		w.Helper()
		row, getErr := plain.GetOne(context.WithoutCancel(w.Context()), "rows", []byte("k"))
		must(w.T, getErr)
		if row.Link != "" {
			if _, err := w.off.Resolve(w.Context(), []string{row.Link}); err != nil {
				w.Errorf("the row points at nothing: %v", err)
			}
		}
		if err == nil && !row.Exists() {
			w.Error("no row although the write succeeded")
		}
		// Invariant 3: what no row points at is gone, or left to the lifecycle
		// because nobody could know or because cleaning failed.
		if n := len(w.memory.Names()); !row.Exists() && n > 0 && !errors.Is(err, kv.ErrUnknownOutcome) && !crashed {
			w.Errorf("%d objects are left after %v", n, err)
		}
	}
	open := func(t *testing.T) (*world, *kvtest.Faults, *kv.DB) {
		w := newWorld(t)
		engine := kvtest.NewFaults(kvtest.NewModel(clock.NewManual(start)))
		db := kv.New(engine, kvtest.ModelLimits)
		must(t, db.CreateSpace(t.Context(), "rows", kv.SpaceOptions{Links: true}))
		return w, engine, db
	}
	kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
		w, engine, db := open(t)
		p.Arm(engine)
		err := w.write(db, "x")
		engine.Reset()
		// The engine's crash is this process's: then nothing is cleaned up, or
		// only what the error allows. Only a link must not dangle.
		if p.Fired() && p.Failure == kvtest.CrashedAfter {
			return
		}
		check(w, db, err, false)
	})
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		w, _, db := open(t)
		w.faults.SetHook(hook)
		err := w.write(db, "x")
		w.faults.SetHook(nil)
		check(w, db, err, false)
	})
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		w, engine, db := open(t)
		engine.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit {
				return kvtest.ErrInjected
			}
			return nil
		})
		w.faults.SetHook(hook)
		err := w.write(db, "x")
		w.faults.SetHook(nil)
		engine.Reset()
		check(w, db, err, true)
	})
}

func TestGoldenOrderOfAnOffloadedWrite(t *testing.T) {
	w := newWorld(t)
	var lines []string
	model := kvtest.NewModel(clock.NewManual(start))
	db := kv.New(kvtest.NewTrace(model, func(s string) { lines = append(lines, s) }), kvtest.ModelLimits)
	must(t, db.CreateSpace(t.Context(), "rows", kv.SpaceOptions{Links: true}))
	lines = nil
	w.faults.SetHook(func(_ context.Context, c blobtest.Call) error {
		if c.Stage == blobtest.After && c.Op != blobtest.OpRead {
			lines = append(lines, string(c.Op))
		}
		return nil
	})
	must(t, w.write(db, "x"))
	got := strings.Join(lines, "\n")
	put, commit := strings.Index(got, "put"), strings.Index(got, "commit")
	if put != 0 || commit < put || strings.Contains(got, "discard") {
		t.Errorf("the object must come before its row, and stay:\n%s", got)
	}
}
