package blobtest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

func TestMemoryConforms(t *testing.T) {
	blobtest.Run(t, func(testing.TB) func() blob.Driver {
		m := blobtest.NewMemory()
		return func() blob.Driver { return m }
	})
}

func TestFaultsWithoutHookConforms(t *testing.T) {
	blobtest.Run(t, func(testing.TB) func() blob.Driver {
		m := blobtest.NewMemory()
		return func() blob.Driver { return blobtest.NewFaults(m) }
	})
}

func newFaulty() (*blobtest.Memory, *blobtest.Faults, *blob.Store) {
	m := blobtest.NewMemory()
	f := blobtest.NewFaults(m)
	return m, f, blob.New(f, blob.Options{})
}

func put(ctx context.Context, s *blob.Store, name, content string) error {
	return s.Put(ctx, name, strings.NewReader(content), int64(len(content)))
}

func TestFaultBeforeMeansNotDone(t *testing.T) {
	m, f, s := newFaulty()
	f.SetHook(blobtest.FailOn(blobtest.OpPut, blobtest.Before, blobtest.ErrInjected))
	if err := put(t.Context(), s, "a", "x"); !errors.Is(err, blobtest.ErrInjected) {
		t.Errorf("Put = %v, want ErrInjected", err)
	}
	if names := m.Names(); len(names) != 0 {
		t.Errorf("objects: %v", names)
	}
}

func TestFaultAfterMeansDoneButReportedFailed(t *testing.T) {
	m, f, s := newFaulty()
	f.SetHook(blobtest.FailAt(1, blobtest.After, blobtest.ErrInjected))
	if err := put(t.Context(), s, "a", "x"); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Delete(t.Context(), "a"); found || !errors.Is(err, blobtest.ErrInjected) {
		t.Errorf("Delete = %v, %v; want false, ErrInjected", found, err)
	}
	if names := m.Names(); len(names) != 0 {
		t.Errorf("objects: %v", names)
	}
}

func TestFaultInReadReachesReader(t *testing.T) {
	_, f, s := newFaulty()
	if err := put(t.Context(), s, "a", "hello"); err != nil {
		t.Fatal(err)
	}
	for _, stage := range []blobtest.Stage{blobtest.Before, blobtest.After} {
		f.SetHook(blobtest.FailOn(blobtest.OpRead, stage, blobtest.ErrInjected))
		r, _, err := s.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !errors.Is(err, blobtest.ErrInjected) {
			t.Errorf("%s: read = %v, want ErrInjected", stage, err)
		}
	}
}

func TestTraceShowsOrderAndFailures(t *testing.T) {
	_, f, s := newFaulty()
	ctx := t.Context()
	err := errors.Join(
		put(ctx, s, "a", "x"),
		s.Copy(ctx, "a", "b"),
		func() error { _, err := s.Discard(ctx, "b"); return err }(),
		func() error { _, err := s.Finalize(ctx, "a"); return err }(),
		func() error { _, err := s.Delete(ctx, "a"); return err }(),
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stat(ctx, "a"); !errors.Is(err, blob.ErrNotFound) {
		t.Fatal(err)
	}
	want := []string{"put a", "copy a to b", "discard b", "finalize a", "delete a", "stat a: failed"}
	if diff := cmp.Diff(want, f.Trace()); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
	f.ResetTrace()
	if got := f.Trace(); len(got) != 0 {
		t.Errorf("trace after reset: %v", got)
	}
}

func TestHangEndsWithContextAndDelayWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, s := newFaulty()
		f.SetHook(blobtest.Hooks(
			blobtest.HangOn(blobtest.OpStat, blobtest.Before),
			blobtest.DelayOn(blobtest.OpPut, blobtest.After, time.Hour),
		))
		begin := time.Now()
		if err := put(t.Context(), s, "a", "x"); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("Put = %v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Stat(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stat = %v, want DeadlineExceeded", err)
		}
	})
}

func TestEachFaultVisitsEveryCallOnce(t *testing.T) {
	runs, failures := 0, map[string]int{}
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		runs++
		_, f, s := newFaulty()
		f.SetHook(hook)
		if err := put(t.Context(), s, "a", "x"); err != nil {
			failures["put"]++
			return
		}
		if _, err := s.Finalize(t.Context(), "a"); err != nil {
			failures["finalize"]++
		}
	})
	if want := map[string]int{"put": 2, "finalize": 2}; runs != 6 || !cmp.Equal(want, failures) {
		t.Errorf("%d runs with failures %v, want 6 with %v", runs, failures, want)
	}
}

func TestMemoryCloneIsIndependentAndCorruptIsNoticed(t *testing.T) {
	m, _, s := newFaulty()
	if err := put(t.Context(), s, "a", "hello"); err != nil {
		t.Fatal(err)
	}
	clone := blob.New(m.Clone(), blob.Options{})
	if !m.Corrupt("a") || m.Corrupt("b") {
		t.Error("Corrupt reports the wrong thing")
	}
	read := func(s *blob.Store) error {
		r, _, err := s.Get(t.Context(), "a")
		if err == nil {
			_, err = io.Copy(new(bytes.Buffer), r)
		}
		return err
	}
	if err := read(s); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("read of a spoiled object = %v, want ErrCorrupt", err)
	}
	if err := read(clone); err != nil {
		t.Errorf("read of the clone = %v", err)
	}
}
