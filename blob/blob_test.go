package blob_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
)

// prefixed is a driver that only has a URL prefix.
type prefixed struct {
	blob.Driver
	prefix string
}

func (p prefixed) URLPrefix() string { return p.prefix }

func TestURLGrammar(t *testing.T) {
	gs := blob.New(prefixed{prefix: "gs://payloads/"}, blob.Options{})
	file := blob.New(prefixed{prefix: "file:///"}, blob.Options{})
	tests := []struct {
		store *blob.Store
		url   string
		name  string
		err   error
	}{
		{gs, "gs://payloads/a", "a", nil},
		{gs, "gs://payloads/a b/%2F?x#y/é//", "a b/%2F?x#y/é//", nil},
		{gs, "gs://payloads//a", "/a", nil},
		{gs, "gs://payloads/" + strings.Repeat("x", 1024), strings.Repeat("x", 1024), nil},
		{gs, "gs://payloads/" + strings.Repeat("x", 1025), "", blob.ErrInvalidURL},
		{gs, "gs://payloads/", "", blob.ErrInvalidURL},
		{gs, "gs://payloads", "", blob.ErrInvalidURL},
		{gs, "gs:///a", "", blob.ErrInvalidURL},
		{gs, "gs://", "", blob.ErrInvalidURL},
		{gs, "gs:", "", blob.ErrInvalidURL},
		{gs, "", "", blob.ErrInvalidURL},
		{gs, "payloads/a", "", blob.ErrInvalidURL},
		{gs, "://payloads/a", "", blob.ErrInvalidURL},
		{gs, "g s://payloads/a", "", blob.ErrInvalidURL},
		{gs, "1s://payloads/a", "", blob.ErrInvalidURL},
		{gs, "gs://payloads/a\x00", "", blob.ErrInvalidURL},
		{gs, "gs://payloads2/a", "", blob.ErrForeignURL},
		{gs, "gs://payload/s/a", "", blob.ErrForeignURL},
		{gs, "GS://payloads/a", "", blob.ErrForeignURL},
		{gs, "s3://payloads/a", "", blob.ErrForeignURL},
		{gs, "file:///a", "", blob.ErrForeignURL},
		{file, "file:///a/b", "a/b", nil},
		{file, "file:////etc/passwd", "/etc/passwd", nil},
		{file, "file:///../x", "../x", nil},
		{file, "file:///..", "", blob.ErrInvalidURL},
		{file, "file:///", "", blob.ErrInvalidURL},
		{file, "file://host/a", "", blob.ErrForeignURL},
		{file, "gs://payloads/a", "", blob.ErrForeignURL},
	}
	for _, test := range tests {
		name, err := test.store.Name(test.url)
		if name != test.name || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("Name(%.60q) = %q, %v; want %q, %v", test.url, name, err, test.name, test.err)
		}
	}
}

func FuzzURLOfAnotherStoreIsNeverFollowed(f *testing.F) {
	for _, url := range []string{"gs://payloads/a", "gs://payloads/", "gs://other/x", "s3://payloads/a", "file:///a", "", "gs:/", "\xff://x/y"} {
		f.Add(url)
	}
	s := blob.New(prefixed{prefix: "gs://payloads/"}, blob.Options{})
	f.Fuzz(func(t *testing.T, url string) {
		name, err := s.Name(url)
		switch {
		case err == nil:
			if s.URL(name) != url || blob.CheckName(name) != nil {
				t.Errorf("Name(%q) = %q", url, name)
			}
		case errors.Is(err, blob.ErrInvalidURL) == errors.Is(err, blob.ErrForeignURL):
			t.Errorf("Name(%q) = %v, want exactly one of ErrInvalidURL and ErrForeignURL", url, err)
		}
	})
}

// cutShort is a driver whose content ends early or goes on too long.
type cutShort struct {
	*blobtest.Memory
	content string
}

func (c cutShort) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, blob.Attrs, error) {
	_, attrs, err := c.Memory.Get(ctx, name, offset, length)
	return io.NopCloser(strings.NewReader(c.content)), attrs, err
}

func put(t *testing.T, s *blob.Store, name string) {
	t.Helper()
	if err := s.Put(t.Context(), name, strings.NewReader("content"), 7); err != nil {
		t.Fatal(err)
	}
}

func TestWrongContentIsCorrupt(t *testing.T) {
	m := blobtest.NewMemory()
	put(t, blob.New(m, blob.Options{}), "a")
	for _, content := range []string{"", "conten", "content!", "content and much more", "c0ntent"} {
		s := blob.New(cutShort{m, content}, blob.Options{})
		r, _, err := s.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("read of %q = %v, want ErrCorrupt", content, err)
		}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("second read of %q = %v, want ErrCorrupt", content, err)
		}
	}
	for _, content := range []string{"", "ont", "onten"} {
		r, _, err := blob.New(cutShort{m, content}, blob.Options{}).GetRange(t.Context(), "a", 1, 4)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("read of %q as a range of 4 = %v, want ErrCorrupt", content, err)
		}
	}
}

func TestErrorsNameOperationAndObjectOnce(t *testing.T) {
	s := blob.New(blobtest.NewMemory(), blob.Options{})
	_, err := s.Stat(t.Context(), "some/object")
	if got, want := err.Error(), `blob: stat "some/object": object not found`; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
}

var start = time.Date(2026, time.May, 1, 0, 0, 0, 0, time.UTC)

// aged returns a store in which all objects named have just become due.
func aged(t *testing.T, driver blob.Driver, names ...string) (*blob.Store, *clock.Manual) {
	t.Helper()
	now := clock.NewManual(start)
	s := blob.New(driver, blob.Options{Clock: now})
	for _, name := range names {
		put(t, s, name)
	}
	now.Advance(blob.UnfinalizedLifetime + time.Millisecond)
	return s, now
}

func TestLifecycleTakesManyObjectsInBatches(t *testing.T) {
	m := blobtest.NewMemory()
	var names []string
	for i := range 2500 {
		names = append(names, fmt.Sprintf("%04d", i))
	}
	s, _ := aged(t, m, names...)
	worker := blob.NewLifecycle(s, blob.LifecycleOptions{})
	for step, want := range []int{1500, 500, 0} {
		more, err := worker.Step(t.Context())
		if err != nil || more != (step < 2) || len(m.Names()) != want {
			t.Fatalf("step %d: more %v, %v, %d objects left; want %v, nil, %d", step, more, err, len(m.Names()), step < 2, want)
		}
	}
}

func TestLifecycleGoesOnPastAnObjectThatCannotBeRemoved(t *testing.T) {
	m := blobtest.NewMemory()
	f := blobtest.NewFaults(m)
	s, _ := aged(t, f, "a", "b", "c")
	f.SetHook(blobtest.On(blobtest.OpDiscard, blobtest.Before, func(_ context.Context, c blobtest.Call) error {
		if c.Name == "b" {
			return blobtest.ErrInjected
		}
		return nil
	}))
	worker := blob.NewLifecycle(s, blob.LifecycleOptions{})
	if more, err := worker.Step(t.Context()); more || !errors.Is(err, blobtest.ErrInjected) {
		t.Errorf("Step = %v, %v; want false, ErrInjected", more, err)
	}
	if diff := cmp.Diff([]string{"b"}, m.Names()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	f.SetHook(nil)
	if more, err := worker.Step(t.Context()); more || err != nil || len(m.Names()) != 0 {
		t.Errorf("next pass: %v, %v, objects %v", more, err, m.Names())
	}
}

func TestLifecycleReadsAgainBeforeItRemoves(t *testing.T) {
	f := blobtest.NewFaults(blobtest.NewMemory())
	s, _ := aged(t, f, "a")
	f.ResetTrace()
	if _, err := blob.NewLifecycle(s, blob.LifecycleOptions{}).Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stat a", "discard a", "list "}, f.Trace()); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

func TestLifecycleSurvivesAFaultAtEveryCall(t *testing.T) {
	blobtest.EachFault(t, func(t *testing.T, hook blobtest.Hook) {
		m := blobtest.NewMemory()
		s, now := aged(t, m, "due 1", "due 2", "saved")
		if _, err := s.Finalize(t.Context(), "saved"); err != nil {
			t.Fatal(err)
		}
		put(t, s, "young")
		f := blobtest.NewFaults(m)
		f.SetHook(hook)
		worker := blob.NewLifecycle(blob.New(f, blob.Options{Clock: now}), blob.LifecycleOptions{})
		for range 2 { // the second pass makes good for a fault in the first
			_, err := worker.Step(t.Context())
			if err != nil && !errors.Is(err, blobtest.ErrInjected) {
				t.Errorf("Step = %v", err)
			}
		}
		// At most the fault itself was in the second pass.
		_, err := worker.Step(t.Context())
		if diff := cmp.Diff([]string{"saved", "young"}, m.Names()); diff != "" && err == nil {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
}

func TestLifecycleRunRepeatsRetriesAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := blobtest.NewMemory()
		f := blobtest.NewFaults(m)
		s, _ := aged(t, f, "a")
		var log bytes.Buffer
		worker := blob.NewLifecycle(s, blob.LifecycleOptions{Period: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		f.SetHook(blobtest.FailOn(blobtest.OpList, blobtest.Before, blobtest.ErrInjected))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- worker.Run(ctx) }()
		synctest.Wait()
		if len(m.Names()) != 1 {
			t.Error("removed although List failed")
		}
		f.SetHook(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(m.Names()) != 0 {
			t.Error("not retried a minute after the error")
		}
		f.ResetTrace()
		time.Sleep(time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]string{"list "}, f.Trace()); diff != "" {
			t.Errorf("an hour later (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		for _, want := range []string{"lifecycle step failed", "removed=1"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("log lacks %q:\n%s", want, log.String())
			}
		}
	})
}
