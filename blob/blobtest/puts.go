package blobtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing/iotest"

	"github.com/holdfast-dev/holdfast/blob"
)

func testPutIsBornUntrusted(f *fixture) {
	f.put("a/b", "hello")
	f.wantObject(f.store, "a/b", "hello", false, f.created())
}

func testPutNeverReplaces(f *fixture) {
	f.put("unfinalized", "first")
	f.put("finalized", "first")
	f.finalize("finalized")
	born := f.created()
	f.clock.Advance(1e9)
	for _, name := range []string{"unfinalized", "finalized"} {
		err := f.store.Put(f.ctx, name, strings.NewReader("second"), 6)
		if !errors.Is(err, blob.ErrExists) {
			f.Errorf("second Put(%q) = %v, want ErrExists", name, err)
		}
	}
	f.wantObject(f.store, "unfinalized", "first", false, born)
	f.wantObject(f.store, "finalized", "first", true, blob.FinalizedTime)

	// Nor does a Put that began when the name was free.
	for _, finalize := range []bool{false, true} {
		name := fmt.Sprintf("overtaken/%v", finalize)
		r, size := duringPut(func() error {
			f.put(name, "faster")
			if finalize {
				f.finalize(name)
			}
			return nil
		})
		if err := f.store.Put(f.ctx, name, r, size); !errors.Is(err, blob.ErrExists) {
			f.Errorf("overtaken Put(%q) = %v, want ErrExists", name, err)
		}
		if content, attrs := f.get(f.store, name); content != "faster" || attrs.Committed != finalize {
			f.Errorf("overtaken Put(%q) left %s, %+v", name, brief(content), attrs)
		}
	}
}

// readerFunc runs a function at each Read.
type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(p []byte) (int, error) { return r(p) }

// duringPut returns a reader of two chunks of 300,000 bytes that calls fn
// between them, and the number of bytes.
func duringPut(fn func() error) (io.Reader, int64) {
	const half = 300_000
	between := readerFunc(func([]byte) (int, error) {
		return 0, cmp.Or(fn(), io.EOF)
	})
	chunk := randomContent(half)
	return io.MultiReader(strings.NewReader(chunk), between, strings.NewReader(chunk)), 2 * half
}

func testPutIsInvisibleUntilComplete(f *fixture) {
	other := f.over(f.open())
	calls := 0
	r, size := duringPut(func() error {
		calls++
		f.wantGone(f.store, "dir/slow")
		f.wantGone(other, "dir/slow")
		if found, err := other.Finalize(f.ctx, "dir/slow"); found || err != nil {
			f.Errorf("Finalize during Put = %v, %v; want false, nil", found, err)
		}
		return nil
	})
	if err := f.store.Put(f.ctx, "dir/slow", r, size); err != nil {
		f.Fatalf("Put = %v", err)
	}
	if calls == 0 {
		f.Error("Put did not read its reader")
	}
	if a, err := other.Stat(f.ctx, "dir/slow"); err != nil || a.Size != size || a.Committed {
		f.Errorf("Stat = %+v, %v", a, err)
	}
}

func testCancelledPutLeavesNothing(f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx)
	r, size := duringPut(func() error { cancel(); return nil })
	if err := f.store.Put(ctx, "dir/cancelled", r, size); !errors.Is(err, context.Canceled) {
		f.Errorf("cancelled Put = %v, want context.Canceled", err)
	}
	f.wantGone(f.store, "dir/cancelled")
	f.wantGone(f.over(f.open()), "dir/cancelled")

	// The last byte was read when the context ended: all or nothing, then.
	ctx, cancel = context.WithCancel(f.ctx)
	err := f.store.Put(ctx, "dir/late", io.MultiReader(strings.NewReader("late"), readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, io.EOF
	})), 4)
	if err == nil {
		f.wantObject(f.store, "dir/late", "late", false, f.created())
	} else {
		f.wantGone(f.store, "dir/late")
	}
}

func testFailedPutLeavesNothing(f *fixture) {
	broken := errors.New("broken pipe")
	failing, size := duringPut(func() error { return broken })
	tests := []struct {
		name string
		r    io.Reader
		size int64
		want error
	}{
		{"reader fails at once", iotest.ErrReader(broken), 5, broken},
		{"reader fails midway", failing, size, broken},
		{"reader fails after the end", io.MultiReader(strings.NewReader("12345"), iotest.ErrReader(broken)), 5, broken},
		{"too short", strings.NewReader("1234"), 5, blob.ErrWrongSize},
		{"empty", strings.NewReader(""), 1, blob.ErrWrongSize},
		{"too long", strings.NewReader("123456"), 5, blob.ErrWrongSize},
		{"not empty", strings.NewReader("1"), 0, blob.ErrWrongSize},
		{"far too long", strings.NewReader(randomContent(1 << 20)), 5, blob.ErrWrongSize},
		{"negative", strings.NewReader(""), -1, blob.ErrWrongSize},
	}
	for _, test := range tests {
		if err := f.store.Put(f.ctx, test.name, test.r, test.size); !errors.Is(err, test.want) {
			f.Errorf("%s: Put = %v, want %v", test.name, err, test.want)
		}
		f.wantGone(f.store, test.name)
		f.put(test.name, "now it works")
	}
}

func testConcurrentPutsHaveOneWinner(f *fixture) {
	stores := []*blob.Store{f.store, f.over(f.open())}
	for round := range 8 {
		name := fmt.Sprintf("round %d/object", round)
		errs := together(8, func(i int) error {
			content := randomContent(1000 + i)
			return stores[i%2].Put(f.ctx, name, strings.NewReader(content), int64(len(content)))
		})
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner < 0:
				winner = i
			case err == nil:
				f.Errorf("%s: Puts %d and %d both succeeded", name, winner, i)
			case !errors.Is(err, blob.ErrExists):
				f.Errorf("%s: Put = %v, want ErrExists", name, err)
			}
		}
		if winner < 0 {
			f.Fatalf("%s: no Put succeeded", name)
		}
		f.wantObject(f.store, name, randomContent(1000+winner), false, f.created())
	}
}

// together runs fn in n goroutines that start at the same moment and returns
// their errors.
func together(n int, fn func(i int) error) []error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	gate := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-gate
			errs[i] = fn(i)
		})
	}
	close(gate)
	wg.Wait()
	return errs
}

func testContentOfEverySizeComesBack(f *fixture) {
	sizes := []int{0, 1, 2, 31, 32, 33, 4095, 4096, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 + 7, 5 << 20}
	for _, size := range sizes {
		name := fmt.Sprintf("size/%d", size)
		content := randomContent(size)
		// A reader that hands out odd pieces and its end together with data.
		r := iotest.DataErrReader(&pieces{strings.NewReader(content)})
		if err := f.store.Put(f.ctx, name, r, int64(size)); err != nil {
			f.Fatalf("Put of %d bytes = %v", size, err)
		}
		f.wantObject(f.store, name, content, false, f.created())
	}
}

// pieces limits each Read to 10,007 bytes.
type pieces struct{ r io.Reader }

func (p *pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), 10_007)]) }

func testRangesAreClamped(f *fixture) {
	content := randomContent(100_000)
	f.put("ranged", content)
	f.put("empty", "")
	size := int64(len(content))
	tests := []struct {
		name           string
		offset, length int64
		want           string
	}{
		{"ranged", 0, -1, content},
		{"ranged", 0, size, content},
		{"ranged", 0, size + 1, content},
		{"ranged", 0, 1 << 62, content},
		{"ranged", 0, 0, ""},
		{"ranged", 0, 1, content[:1]},
		{"ranged", 1, -1, content[1:]},
		{"ranged", 777, 70_000, content[777:70_777]},
		{"ranged", size - 1, 1, content[size-1:]},
		{"ranged", size - 1, 100, content[size-1:]},
		{"ranged", size, -1, ""},
		{"ranged", size, 1, ""},
		{"ranged", size + 1, -1, ""},
		{"ranged", 1 << 62, 1 << 62, ""},
		{"empty", 0, -1, ""},
		{"empty", 0, 1, ""},
		{"empty", 5, 5, ""},
	}
	for _, test := range tests {
		r, attrs, err := f.store.GetRange(f.ctx, test.name, test.offset, test.length)
		if err != nil {
			f.Errorf("GetRange(%q, %d, %d) = %v", test.name, test.offset, test.length, err)
			continue
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || string(got) != test.want {
			f.Errorf("GetRange(%q, %d, %d): got %s, %v; want %s", test.name, test.offset, test.length, brief(string(got)), err, brief(test.want))
		}
		if stat, err := f.store.Stat(f.ctx, test.name); err != nil || attrs != stat {
			f.Errorf("GetRange(%q, %d, %d): attributes %+v, want %+v", test.name, test.offset, test.length, attrs, stat)
		}
	}
}

func testInvalidInputIsRefused(f *fixture) {
	names := []string{"", ".", "..", "nul\x00", "line\n", "line\r", "\xff", "half \xc3", strings.Repeat("x", blob.MaxNameLen+1)}
	for _, name := range names {
		_, finalizeErr := f.store.Finalize(f.ctx, name)
		_, statErr := f.store.Stat(f.ctx, name)
		_, deleteErr := f.store.Delete(f.ctx, name)
		_, discardErr := f.store.Discard(f.ctx, name)
		_, _, getErr := f.store.Get(f.ctx, name)
		for op, err := range map[string]error{
			"Put":      f.store.Put(f.ctx, name, strings.NewReader("x"), 1),
			"Copy":     f.store.Copy(f.ctx, name, "dst"),
			"Copy to":  f.store.Copy(f.ctx, "src", name),
			"Finalize": finalizeErr, "Stat": statErr, "Delete": deleteErr, "Discard": discardErr, "Get": getErr,
		} {
			if !errors.Is(err, blob.ErrInvalidName) {
				f.Errorf("%s(%s) = %v, want ErrInvalidName", op, brief(name), err)
			}
		}
	}
	for _, r := range [][2]int64{{-1, 1}, {0, -2}} {
		if _, _, err := f.store.GetRange(f.ctx, "x", r[0], r[1]); !errors.Is(err, blob.ErrInvalidRange) {
			f.Errorf("GetRange(%v) = %v, want ErrInvalidRange", r, err)
		}
	}
}

func testEndedContextFailsCalls(f *fixture) {
	f.put("there", randomContent(200_000))
	r, _, err := f.store.Get(f.ctx, "there")
	if err != nil {
		f.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(f.ctx)
	reading, _, err := f.store.Get(ctx, "there")
	if err != nil {
		f.Fatal(err)
	}
	defer reading.Close()
	cancel()
	if _, err := io.ReadAll(reading); !errors.Is(err, context.Canceled) {
		f.Errorf("read after the end of the context = %v, want context.Canceled", err)
	}
	_, finalizeErr := f.store.Finalize(ctx, "there")
	_, statErr := f.store.Stat(ctx, "there")
	_, deleteErr := f.store.Delete(ctx, "there")
	_, discardErr := f.store.Discard(ctx, "there")
	_, _, getErr := f.store.Get(ctx, "there")
	for op, err := range map[string]error{
		"Put":      f.store.Put(ctx, "new", strings.NewReader("x"), 1),
		"Copy":     f.store.Copy(ctx, "there", "dst"),
		"List":     f.store.List(ctx, "", "", func(blob.Attrs) bool { return true }),
		"Finalize": finalizeErr, "Stat": statErr, "Delete": deleteErr, "Discard": discardErr, "Get": getErr,
	} {
		if !errors.Is(err, context.Canceled) {
			f.Errorf("%s with an ended context = %v, want context.Canceled", op, err)
		}
	}
	f.wantGone(f.store, "new")
	f.wantObject(f.store, "there", randomContent(200_000), false, f.created())
}
