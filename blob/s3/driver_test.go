package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/s3/s3test"
	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

func put(tb testing.TB, s *blob.Store, name, content string) {
	tb.Helper()
	if err := s.Put(tb.Context(), name, strings.NewReader(content), int64(len(content))); err != nil {
		tb.Fatal(err)
	}
}

func must(tb testing.TB, ok bool, err error) {
	tb.Helper()
	if !ok || err != nil {
		tb.Fatalf("%v, %v; want true, nil", ok, err)
	}
}

func list(tb testing.TB, s *blob.Store, prefix, after string) (names []string) {
	tb.Helper()
	err := s.List(tb.Context(), prefix, after, func(a blob.Attrs) bool {
		names = append(names, a.Name)
		return true
	})
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

// The costs that the package comment promises.
func TestRequestsPerCall(t *testing.T) {
	s := s3test.New(t)
	opts := optionsFor(s)
	opts.Buffer = 100
	d, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	store := blob.New(d, blob.Options{})
	ctx := t.Context()
	count := func(what string, want int, call func()) {
		t.Helper()
		s.Reset()
		call()
		if got := s.Requests(); len(got) != want {
			t.Errorf("%s makes %d requests, want %d: %v", what, len(got), want, got)
		}
	}
	read := func(name string) {
		r, _, err := store.Get(ctx, name)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			err = errors.Join(err, r.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	count("Put", 1, func() { put(t, store, "a", "x") })
	count("streamed Put", 2, func() { put(t, store, "long", strings.Repeat("x", 101)) })
	count("Get", 2, func() { read("a") })
	count("Stat", 2, func() { _, err = store.Stat(ctx, "a") })
	count("Finalize", 2, func() { ok, err := store.Finalize(ctx, "a"); must(t, ok, err) })
	count("Get of a finalized object", 2, func() { read("a") })
	count("Copy", 3, func() { err = errors.Join(err, store.Copy(ctx, "a", "b")) })
	count("Discard", 4, func() { ok, err := store.Discard(ctx, "b"); must(t, ok, err) })
	count("Delete", 4, func() { ok, err := store.Delete(ctx, "a"); must(t, ok, err) })
	count("Delete of nothing", 2, func() { _, err := store.Delete(ctx, "a"); _ = err })
	for _, name := range []string{"l/1", "l/2", "l/3"} {
		put(t, store, name, "x")
		ok, err := store.Finalize(ctx, name)
		must(t, ok, err)
	}
	count("List of finalized objects", 2, func() { list(t, store, "l/", "") })
	put(t, store, "l/4", "x")
	count("List with one that is not", 4, func() { list(t, store, "l/", "") })
	if err != nil {
		t.Error(err)
	}
}

func TestOldMarksAreDeletedByLists(t *testing.T) {
	s := s3test.New(t)
	store := blob.New(openTest(t, s), blob.Options{})
	ctx := t.Context()
	for _, name := range []string{"kept", "a/deleted", "discarded", "z/deleted"} {
		put(t, store, name, "x")
		if name != "discarded" {
			ok, err := store.Finalize(ctx, name)
			must(t, ok, err)
		}
		if name != "kept" {
			ok, err := store.Delete(ctx, name)
			must(t, ok, err)
		}
	}
	marks := func() (n int) {
		for _, key := range s.Keys(t) {
			if strings.HasPrefix(key, markPrefix) {
				n++
			}
		}
		return n
	}
	s.Advance(markAge - time.Minute)
	list(t, store, "", "")
	if got := marks(); got != 4 {
		t.Errorf("%d marks after a List within a day, want 4", got)
	}
	s.Advance(2 * time.Minute)
	for _, part := range []struct{ prefix, after string }{{"a/", ""}, {"", "discarded"}} {
		list(t, store, part.prefix, part.after)
	}
	if got := marks(); got != 2 { // those of discarded and kept
		t.Errorf("%d marks after Lists of some names, want 2: %q", got, s.Keys(t))
	}
	if err := store.List(ctx, "", "", func(blob.Attrs) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if got := marks(); got != 1 {
		t.Errorf("%d marks after a List of all names, want 1: %q", got, s.Keys(t))
	}
	if a, err := store.Stat(ctx, "kept"); err != nil || !a.Committed {
		t.Errorf("Stat = %+v, %v; want a finalized object", a, err)
	}
}

func TestHalfRemovedObjectIsNone(t *testing.T) {
	half := func(t *testing.T) (*s3test.Server, *blob.Store) {
		s := s3test.New(t)
		store := blob.New(openTest(t, s), blob.Options{})
		put(t, store, "half", "x")
		s.SetHook(func(_ int, r *http.Request, at faulthttp.Stage) faulthttp.Action {
			if r.Method == http.MethodDelete {
				return faulthttp.Fail(http.StatusForbidden, "")
			}
			return faulthttp.Pass
		})
		if _, err := store.Delete(t.Context(), "half"); err == nil {
			t.Fatal("Delete without right to delete returned no error")
		}
		s.SetHook(nil)
		if !slices.Contains(s.Keys(t), "half") {
			t.Fatal("the content is gone")
		}
		return s, store
	}
	calls := map[string]func(t *testing.T, store *blob.Store){
		"Stat and Get": func(t *testing.T, store *blob.Store) {
			_, err := store.Stat(t.Context(), "half")
			_, _, getErr := store.Get(t.Context(), "half")
			if !errors.Is(err, blob.ErrNotFound) || !errors.Is(getErr, blob.ErrNotFound) {
				t.Errorf("%v, %v; want ErrNotFound", err, getErr)
			}
		},
		"Finalize": func(t *testing.T, store *blob.Store) {
			if found, err := store.Finalize(t.Context(), "half"); found || err != nil {
				t.Errorf("Finalize = %v, %v; want false, nil", found, err)
			}
		},
		"List": func(t *testing.T, store *blob.Store) {
			if names := list(t, store, "", ""); names != nil {
				t.Errorf("List shows %v", names)
			}
		},
		"Delete": func(t *testing.T, store *blob.Store) {
			if found, err := store.Delete(t.Context(), "half"); found || err != nil {
				t.Errorf("Delete = %v, %v; want false, nil", found, err)
			}
		},
		"Put": func(t *testing.T, store *blob.Store) { put(t, store, "half", "new") },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			s, store := half(t)
			call(t, store)
			left := slices.Contains(s.Keys(t), "half")
			if reads := name == "Stat and Get" || name == "Finalize"; left != (reads || name == "Put") {
				t.Errorf("content is left: %v", left)
			}
			if name == "Put" {
				if a, err := store.Stat(t.Context(), "half"); err != nil || a.Size != 3 {
					t.Errorf("Stat = %+v, %v; want the new object", a, err)
				}
			}
		})
	}
}

func TestNamesLikeOurKeysAreNames(t *testing.T) {
	s := s3test.New(t)
	store := blob.New(openTest(t, s), blob.Options{})
	names := []string{
		".holdfast", ".holdfast!", ".holdfast.", ".holdfast/", ".holdfast/n/x", ".holdfast/probe", ".holdfast/s/a!b",
		".holdfast/\U0010ffff", ".holdfast0", "a", "a b", "a!", "a!b", "a\x01", "a/b",
		strings.Repeat("x", blob.MaxNameLen), // whose mark is before all content of ours
	}
	slices.Sort(names)
	for _, name := range names {
		put(t, store, name, "content of "+name)
		ok, err := store.Finalize(t.Context(), name)
		must(t, ok, err)
	}
	for _, prefix := range []string{"", ".", ".holdfast", ".holdfast/", ".holdfast/n", ".holdfast/s/", "a"} {
		for _, after := range append([]string{"", "!"}, names...) {
			var want []string
			for _, name := range names {
				if strings.HasPrefix(name, prefix) && name > after {
					want = append(want, name)
				}
			}
			if got := list(t, store, prefix, after); !slices.Equal(got, want) {
				t.Errorf("List(%q, %q) = %q, want %q", prefix, after, got, want)
			}
		}
	}
	long := ".holdfast/" + strings.Repeat("x", blob.MaxNameLen-len(".holdfast/"))
	if err := store.Put(t.Context(), long, strings.NewReader(""), 0); !errors.Is(err, blob.ErrInvalidName) {
		t.Errorf("Put of the longest name under our prefix = %v, want ErrInvalidName", err)
	}
}

func TestManyPages(t *testing.T) {
	s := s3test.New(t)
	d := openTest(t, s)
	store := blob.New(d, blob.Options{})
	var want []string
	for i := range 2300 {
		name := "page/" + string(rune('a'+i/676)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26))
		want = append(want, name)
		put(t, store, name, "")
		if i%100 != 0 {
			ok, err := store.Finalize(t.Context(), name)
			must(t, ok, err)
		}
	}
	s.Reset()
	if got := list(t, store, "", ""); !slices.Equal(got, want) {
		t.Errorf("%d names listed, want %d", len(got), len(want))
	}
	// Pages of content, of our own keys and of marks, and two for each unfinalized one.
	if n := len(s.Requests()); n > 8+2*23+2 {
		t.Errorf("%d requests", n)
	}
}

func TestForeignObject(t *testing.T) {
	s := s3test.New(t)
	store := blob.New(openTest(t, s), blob.Options{})
	s.PutRaw(t, "foreign", "content", nil)
	a, err := store.Stat(t.Context(), "foreign")
	if err != nil || a.Committed || a.HasCRC32C || a.CustomTime.IsZero() {
		t.Errorf("Stat = %+v, %v", a, err)
	}
	ok, err := store.Finalize(t.Context(), "foreign")
	must(t, ok, err)
	if a, err := store.Stat(t.Context(), "foreign"); err != nil || !a.Committed {
		t.Errorf("Stat = %+v, %v; want a finalized object", a, err)
	}
}

func TestPutKeepsAChecksum(t *testing.T) {
	store := blob.New(openTest(t, s3test.New(t)), blob.Options{})
	const content = "content of some length"
	put(t, store, "a", content)
	sum := blob.NewCRC32C()
	sum.Write([]byte(content)) // a hash never fails
	if a, err := store.Stat(t.Context(), "a"); err != nil || !a.HasCRC32C || a.CRC32C != sum.Sum32() {
		t.Errorf("Stat = %+v, %v; want the checksum %08x", a, err, sum.Sum32())
	}
}

func TestCorruptContentIsNoticed(t *testing.T) {
	s := s3test.New(t)
	store := blob.New(openTest(t, s), blob.Options{})
	s.PutRaw(t, "corrupt", "content", map[string]string{"crc32c": "1234abcd"})
	r, _, err := store.Get(t.Context(), "corrupt")
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		err = errors.Join(err, r.Close())
	}
	if !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("read = %v, want ErrCorrupt", err)
	}
	if err := store.Copy(t.Context(), "corrupt", "copy"); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("Copy = %v, want ErrCorrupt", err)
	}
	if slices.Contains(s.Keys(t), "copy") {
		t.Error("a corrupt object was copied")
	}
}

// zeros is content that needs no memory.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestLargeObjectsNeedLittleMemory(t *testing.T) {
	const size = 100 << 20
	var most uint64
	s := faulthttp.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("list-type"):
			_, _ = io.WriteString(w, "<ListBucketResult></ListBucketResult>")
		case strings.HasSuffix(r.URL.Path, "probe"):
			w.WriteHeader(http.StatusPreconditionFailed)
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodPut:
			buf := make([]byte, 1<<20)
			for n, total := 0, 0; ; total++ {
				var err error
				if n, err = r.Body.Read(buf); n == 0 && err != nil {
					break
				}
				if total%500 == 0 {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapAlloc)
				}
			}
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Length", "104857600")
			_, _ = io.CopyN(w, zeros{}, size)
		}
	}))
	d, err := Open(t.Context(), Options{Bucket: "b", Endpoint: s.URL, PathStyle: true, AccessKeyID: "x", SecretAccessKey: "y"})
	if err != nil {
		t.Fatal(err)
	}
	store := blob.New(d, blob.Options{})
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := store.Put(t.Context(), "large", io.LimitReader(zeros{}, size), size); err != nil {
		t.Fatal(err)
	}
	t.Logf("heap grew by %d KiB during a Put of 100 MiB", (int64(most)-int64(before.HeapAlloc))>>10)
	if most > before.HeapAlloc+4<<20 {
		t.Errorf("heap grew from %d to %d bytes", before.HeapAlloc, most)
	}
	r, _, err := store.Get(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, r)
	if err := errors.Join(err, r.Close()); err != nil || n != size {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func BenchmarkStore(b *testing.B) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1280)
	s := s3test.New(b)
	store := blob.New(openTest(b, s), blob.Options{})
	put(b, store, "read", string(content))
	b.Run("Put20KB", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			put(b, store, "put/"+strings.Repeat("x", i%200)+time.Now().Format(time.RFC3339Nano), string(content))
		}
	})
	b.Run("Get20KB", func(b *testing.B) {
		for b.Loop() {
			r, _, err := store.Get(b.Context(), "read")
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				err = errors.Join(err, r.Close())
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Finalize", func(b *testing.B) {
		for b.Loop() {
			ok, err := store.Finalize(b.Context(), "read")
			must(b, ok, err)
		}
	})
}

// S3 answers so to one of two conditional writes of a key at the same time, and wants
// it repeated.
func TestConflictsAreRepeated(t *testing.T) {
	s := s3test.New(t)
	opts := optionsFor(s)
	opts.Buffer = 10
	d, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	store := blob.New(d, blob.Options{})
	conflict := func() {
		met := false
		s.SetHook(func(_ int, r *http.Request, at faulthttp.Stage) faulthttp.Action {
			if r.Method != http.MethodPut || at != faulthttp.Before || met {
				return faulthttp.Pass
			}
			met = true
			return faulthttp.Fail(http.StatusConflict, "<Error><Code>ConditionalRequestConflict</Code></Error>")
		})
	}
	conflict()
	put(t, store, "a", "x")
	conflict()
	ok, err := store.Finalize(t.Context(), "a")
	must(t, ok, err)
	conflict()
	ok, err = store.Delete(t.Context(), "a")
	must(t, ok, err)
	conflict()
	err = store.Put(t.Context(), "stream", strings.NewReader("more than ten"), 13)
	if err == nil || errors.Is(err, blob.ErrExists) {
		t.Errorf("streamed Put of a free name that met a conflict = %v, want another error", err)
	}
}

func TestMarksOfLiveObjectsStay(t *testing.T) {
	s := s3test.New(t)
	store := blob.New(openTest(t, s), blob.Options{})
	ctx := t.Context()
	// The marks of these are in another order than the names.
	names := []string{"a", "a b", "a\x01", "a b c"}
	for _, name := range names {
		put(t, store, name, "old")
		ok, err := store.Delete(ctx, name)
		must(t, ok, err)
		put(t, store, name, "new")
		ok, err = store.Finalize(ctx, name)
		must(t, ok, err)
	}
	s.Advance(markAge + time.Minute)
	for range 2 {
		for _, after := range append([]string{""}, names...) {
			list(t, store, "", after)
		}
	}
	for _, name := range names {
		if a, err := store.Stat(ctx, name); err != nil || !a.Committed {
			t.Errorf("Stat(%q) = %+v, %v; want a finalized object", name, a, err)
		}
	}
}

func TestMarkOfAnotherIncarnationMeansNothing(t *testing.T) {
	s := s3test.New(t)
	d := openTest(t, s)
	store := blob.New(d, blob.Options{})
	put(t, store, "a", "x")
	s.PutRaw(t, markKey("a", strings.Repeat("A", idLen), "another"), string(finalized), nil)
	// One of the same content, from an object of that name before.
	put(t, store, "b", "x")
	o, err := d.head(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	before := markKey("b", strings.Repeat("A", idLen), o.etag)
	s.PutRaw(t, before, string(finalized), nil)
	s.Age(before, time.Hour)
	err = store.List(t.Context(), "", "", func(a blob.Attrs) bool {
		if a.Committed {
			t.Errorf("List shows %+v", a)
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}

func TestStreamEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &remembering{ctx: ctx, r: strings.NewReader("x")}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, context.Canceled) || !errors.Is(r.err, context.Canceled) {
		t.Errorf("Read = %d, %v", n, err)
	}
}
