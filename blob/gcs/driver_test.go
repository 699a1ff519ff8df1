package gcs

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/gcs/gcstest"
	"github.com/holdfast-dev/holdfast/clock"
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

func read(tb testing.TB, s *blob.Store, name string, offset int64) string {
	tb.Helper()
	r, _, err := s.GetRange(tb.Context(), name, offset, -1)
	if err != nil {
		tb.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		tb.Fatal(err)
	}
	return string(content)
}

func TestOpenNamesTheWrongSetting(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(key, []byte(`{"type":"service_account","private_key":"a-private-key"`), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(*gcstest.Server, *Options)
		want   string
	}{
		{"no bucket", func(_ *gcstest.Server, o *Options) { o.Bucket = "" }, "no bucket is set"},
		{"missing bucket", func(_ *gcstest.Server, o *Options) { o.Bucket = "elsewhere" }, "no such bucket"},
		{"bad endpoint", func(_ *gcstest.Server, o *Options) { o.Endpoint = "localhost:4443" }, "endpoint"},
		{"no key file", func(_ *gcstest.Server, o *Options) { o.Endpoint, o.CredentialsPath = "", key+"x" }, "no such file"},
		{"broken key file", func(_ *gcstest.Server, o *Options) { o.Endpoint, o.CredentialsPath = "", key }, "credentials"},
		{"not authenticated", func(s *gcstest.Server, _ *Options) {
			s.SetHook(faulthttp.Always(faulthttp.Before, faulthttp.Fail(http.StatusUnauthorized, "")))
		}, "credentials are not valid"},
		{"no rights", func(s *gcstest.Server, _ *Options) {
			s.SetHook(faulthttp.Always(faulthttp.Before, faulthttp.Fail(http.StatusForbidden, "")))
		}, "lack rights"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := gcstest.New(t)
			opts := Options{Bucket: s.Bucket, Endpoint: s.URL, RetryFirst: time.Millisecond}
			test.change(s, &opts)
			d, err := Open(t.Context(), opts)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Open = %v, want an error with %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "a-private-key") {
				t.Errorf("the error shows the key: %v", err)
			}
			if d != nil {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestEmulatorOfTheEnvironmentIsUsed(t *testing.T) {
	s := gcstest.New(t)
	t.Setenv("STORAGE_EMULATOR_HOST", s.URL)
	d, err := Open(t.Context(), Options{Bucket: s.Bucket})
	if err != nil {
		t.Fatal(err)
	}
	store := blob.New(d, blob.Options{})
	put(t, store, "a/b", "content")
	if got := read(t, store, "a/b", 0); got != "content" {
		t.Errorf("content is %q", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// The costs that the package comment promises.
func TestRequestsPerCall(t *testing.T) {
	s := gcstest.New(t)
	d, err := Open(t.Context(), Options{Bucket: s.Bucket, Endpoint: s.URL, ChunkSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
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
	count("Put", 1, func() { put(t, store, "a", "x") })
	count("Put of three chunks", 4, func() { put(t, store, "long", strings.Repeat("x", 3*chunkUnit-1)) })
	count("Stat", 1, func() { _, err = store.Stat(ctx, "a") })
	count("Get", 2, func() { read(t, store, "a", 0) })
	count("Finalize", 1, func() { ok, err := store.Finalize(ctx, "a"); must(t, ok, err) })
	count("Get of a finalized object", 1, func() { read(t, store, "a", 0) })
	count("GetRange", 2, func() { read(t, store, "long", 5) })
	count("Copy", 1, func() { err = errors.Join(err, store.Copy(ctx, "a", "b")) })
	count("Discard", 2, func() { ok, err := store.Discard(ctx, "b"); must(t, ok, err) })
	count("Delete", 2, func() { ok, err := store.Delete(ctx, "a"); must(t, ok, err) })
	count("Delete of nothing", 2, func() { _, err = store.Delete(ctx, "a") })
	count("List", 1, func() { err = errors.Join(err, store.List(ctx, "", "", func(blob.Attrs) bool { return true })) })
	if err != nil {
		t.Error(err)
	}
}

// TestBucketShowsTheState: rules of the bucket look at the custom time and nothing else,
// other programs at the metadata.
func TestBucketShowsTheState(t *testing.T) {
	s := gcstest.New(t)
	d := openTest(t, s)
	born := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	store := blob.New(d, blob.Options{Clock: clock.NewManual(born)})
	check := func(what string, customTime time.Time, committed string) {
		t.Helper()
		attrs, err := d.bucket.Object("a").Attrs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !attrs.CustomTime.Equal(customTime) || attrs.Metadata["committed"] != committed || attrs.Metadata[metaCreated] == "" {
			t.Errorf("after %s: custom time %v, metadata %v; want %v and committed %s", what, attrs.CustomTime, attrs.Metadata, customTime, committed)
		}
	}
	put(t, store, "a", "x")
	check("Put", born, "false")
	ok, err := store.Finalize(t.Context(), "a")
	must(t, ok, err)
	check("Finalize", blob.FinalizedTime, "true")
}

// TestDiscardLooksAgain: what another program writes into the metadata, between the look
// at an object and its deletion, does not keep it.
func TestDiscardLooksAgain(t *testing.T) {
	s := gcstest.New(t)
	d := openTest(t, s)
	store := blob.New(d, blob.Options{})
	put(t, store, "a", "x")
	s.SetHook(func(_ int, r *http.Request, at faulthttp.Stage) faulthttp.Action {
		if r.Method == http.MethodDelete && at == faulthttp.Before {
			s.SetHook(nil)
			_, err := d.bucket.Object("a").Update(t.Context(), storage.ObjectAttrsToUpdate{Metadata: map[string]string{"other": "x"}})
			if err != nil {
				t.Error(err)
			}
		}
		return faulthttp.Pass
	})
	ok, err := store.Discard(t.Context(), "a")
	must(t, ok, err)
	if _, err := store.Stat(t.Context(), "a"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("Stat = %v, want ErrNotFound", err)
	}
}

func TestObjectsOfOtherWriters(t *testing.T) {
	s := gcstest.New(t)
	store := blob.New(openTest(t, s), blob.Options{})
	ctx := t.Context()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	far := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte("plain")); err != nil || z.Close() != nil {
		t.Fatal("gzip fails")
	}
	s.PutForeign("bare", "x", time.Time{}, nil, "")
	s.PutForeign("unfinalized", "x", at, map[string]string{"committed": "false"}, "")
	s.PutForeign("moved", "x", at, map[string]string{"committed": "false", "created": "2020-01-02T03:04:05.678Z"}, "")
	s.PutForeign("year 9999", "x", far, map[string]string{"committed": "true"}, "")
	s.PutForeign("year 9999 without metadata", "x", far, nil, "")
	s.PutForeign("gzip", packed.String(), at, map[string]string{"committed": "true"}, "gzip")
	tests := []struct {
		name      string
		committed bool
		time      time.Time
	}{
		{"unfinalized", false, at},
		{"moved", false, at},
		{"year 9999", true, blob.FinalizedTime},
		{"year 9999 without metadata", true, blob.FinalizedTime},
		{"gzip", true, blob.FinalizedTime},
	}
	for _, test := range tests {
		a, err := store.Stat(ctx, test.name)
		if err != nil || a.Committed != test.committed || !a.CustomTime.Equal(test.time) {
			t.Errorf("Stat(%q) = %+v, %v; want %v, %v", test.name, a, err, test.committed, test.time)
		}
		r, got, err := store.Get(ctx, test.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil || got != a {
			t.Errorf("Get(%q): attributes %+v, %v; want %+v", test.name, got, err, a)
		}
	}
	if a, err := store.Stat(ctx, "bare"); err != nil || a.Committed || time.Since(a.CustomTime) > time.Hour {
		t.Errorf("Stat of an object without custom time = %+v, %v", a, err)
	}
	if got := read(t, store, "gzip", 0); got != packed.String() {
		t.Errorf("compressed content came as %q", got)
	}
	for _, name := range []string{"bare", "unfinalized", "year 9999", "year 9999 without metadata", "gzip"} {
		ok, err := store.Finalize(ctx, name)
		must(t, ok, err)
		if removed, err := store.Discard(ctx, name); removed || err != nil {
			t.Errorf("Discard of finalized %q = %v, %v", name, removed, err)
		}
	}
}

func TestCheck(t *testing.T) {
	rule := func(conditions map[string]any) map[string]any {
		return map[string]any{"action": map[string]any{"type": "Delete"}, "condition": conditions}
	}
	rules := func(all ...map[string]any) map[string]any {
		return map[string]any{"lifecycle": map[string]any{"rule": all}}
	}
	good := rule(map[string]any{"daysSinceCustomTime": 30})
	var printed map[string]any
	if err := json.Unmarshal([]byte(LifecyclePolicy()), &printed); err != nil {
		t.Fatal(err)
	}
	cold := map[string]any{"action": map[string]any{"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": map[string]any{"age": 9}}
	tests := []struct {
		name    string
		bucket  map[string]any
		setting string
		want    blob.Level
	}{
		{"what LifecyclePolicy prints", map[string]any{"lifecycle": printed}, "lifecycle", blob.OK},
		{"no rule", nil, "lifecycle", blob.Problem},
		{"another storage class", rules(good, cold), "lifecycle", blob.OK},
		{"only another storage class", rules(cold), "lifecycle", blob.Problem},
		{"too short", rules(rule(map[string]any{"daysSinceCustomTime": 7})), "lifecycle", blob.Problem},
		{"too short beside", rules(good, rule(map[string]any{"daysSinceCustomTime": 7})), "lifecycle", blob.Problem},
		{"long", rules(rule(map[string]any{"daysSinceCustomTime": 90})), "lifecycle", blob.Note},
		{"limited", rules(rule(map[string]any{"daysSinceCustomTime": 30, "matchesPrefix": []string{"a"}})), "lifecycle", blob.Problem},
		{"limited beside", rules(good, rule(map[string]any{"daysSinceCustomTime": 30, "age": 40})), "lifecycle", blob.Note},
		{"age", rules(good, rule(map[string]any{"age": 3650})), "lifecycle", blob.Problem},
		{"all", rules(good, rule(map[string]any{"age": 0})), "lifecycle", blob.Problem},
		{"prefix", rules(good, rule(map[string]any{"matchesPrefix": []string{"a"}})), "lifecycle", blob.Problem},
		{"custom time before", rules(good, rule(map[string]any{"customTimeBefore": "2025-01-01"})), "lifecycle", blob.Note},
		{"custom time before the end", rules(good, rule(map[string]any{"customTimeBefore": "2300-01-01"})), "lifecycle", blob.Problem},
		{"old versions", rules(good, rule(map[string]any{"numNewerVersions": 1})), "lifecycle", blob.OK},
		{"archived", rules(good, rule(map[string]any{"age": 1, "isLive": false})), "lifecycle", blob.OK},
		{"versioning", map[string]any{"versioning": map[string]any{"enabled": true}}, "versioning", blob.Note},
		{"soft delete", map[string]any{"softDeletePolicy": map[string]any{"retentionDurationSeconds": "604800"}}, "soft delete", blob.Note},
		{"retention", map[string]any{"retentionPolicy": map[string]any{"retentionPeriod": "86400", "effectiveTime": "2026-01-01T00:00:00Z"}}, "retention", blob.Problem},
		{"holds", map[string]any{"defaultEventBasedHold": true}, "holds", blob.Problem},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := gcstest.New(t)
			s.SetBucket(test.bucket)
			findings, err := openTest(t, s).Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			worst := blob.OK
			for _, f := range findings {
				if f.Setting == test.setting {
					worst = max(worst, f.Level)
				}
			}
			if worst != test.want {
				t.Errorf("%s is %v, want %v: %v", test.setting, worst, test.want, findings)
			}
		})
	}
}

func TestCheckWithoutRightToLook(t *testing.T) {
	s := gcstest.New(t)
	d := openTest(t, s)
	s.SetHook(func(_ int, r *http.Request, at faulthttp.Stage) faulthttp.Action {
		if strings.HasSuffix(r.URL.Path, "/b/"+s.Bucket) {
			return faulthttp.Fail(http.StatusForbidden, "")
		}
		return faulthttp.Pass
	})
	findings, err := d.Check(t.Context())
	if err != nil || len(findings) != 1 || findings[0].Level != blob.Note || findings[0].Setting != "rights" {
		t.Errorf("Check = %v, %v; want one note on rights", findings, err)
	}
}

// An upload that is cut off between chunks goes on, or fails and leaves nothing.
func TestLostChunks(t *testing.T) {
	s := gcstest.New(t)
	d, err := Open(t.Context(), Options{Bucket: s.Bucket, Endpoint: s.URL, ChunkSize: 1, RetryFirst: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	store := blob.New(d, blob.Options{})
	content := strings.Repeat("0123456789abcdef", 3*chunkUnit/16)
	for n := range 5 {
		for _, fault := range []faulthttp.Action{faulthttp.Drop, faulthttp.Fail(http.StatusServiceUnavailable, "")} {
			name := fmt.Sprintf("%d/%v", n, fault == faulthttp.Drop)
			s.SetHook(faulthttp.At(n, faulthttp.Before, fault))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := store.Put(ctx, name, strings.NewReader(content), int64(len(content)))
			cancel()
			s.SetHook(nil)
			if err != nil {
				t.Errorf("fault at request %d: Put = %v", n, err)
				continue
			}
			if got := read(t, store, name, 0); got != content {
				t.Errorf("fault at request %d: %d bytes came back, or others", n, len(got))
			}
		}
	}
}

// zeros is content that needs no memory.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// forgetful takes resumable uploads and keeps nothing, so that the heap is the driver's.
type forgetful struct {
	url  string
	got  int64
	most uint64
}

func (f *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	f.most = max(f.most, m.HeapAlloc)
	n, _ := io.Copy(io.Discard, r.Body)
	switch {
	case r.URL.Query().Get("upload_id") == "" && strings.HasPrefix(r.URL.Path, "/upload/"):
		w.Header().Set("Location", f.url+"/upload/storage/v1/b/b/o?upload_id=1")
	case strings.HasPrefix(r.URL.Path, "/upload/"):
		f.got += n
		if strings.HasSuffix(r.Header.Get("Content-Range"), "/*") {
			w.Header().Set("X-Http-Status-Code-Override", "308")
			w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", f.got-1))
			return
		}
		fallthrough
	default:
		_, _ = io.WriteString(w, "{}")
	}
}

func TestLargeObjectsNeedLittleMemory(t *testing.T) {
	const size, chunk = 100 << 20, 1 << 20
	f := new(forgetful)
	s := faulthttp.New(t, f)
	f.url = s.URL
	d, err := Open(t.Context(), Options{Bucket: "b", Endpoint: s.URL, ChunkSize: chunk})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f.most = 0
	if err := blob.New(d, blob.Options{}).Put(t.Context(), "large", io.LimitReader(zeros{}, size), size); err != nil {
		t.Fatal(err)
	}
	if f.got != size {
		t.Errorf("the server got %d bytes", f.got)
	}
	t.Logf("heap grew by %d KiB during a Put of 100 MiB in chunks of 1 MiB", (int64(f.most)-int64(before.HeapAlloc))>>10)
	if f.most > before.HeapAlloc+8*chunk {
		t.Errorf("heap grew from %d to %d bytes", before.HeapAlloc, f.most)
	}
}

func BenchmarkStore(b *testing.B) {
	content := strings.Repeat("0123456789abcdef", 1280)
	store := blob.New(openTest(b, gcstest.New(b)), blob.Options{})
	put(b, store, "read", content)
	b.Run("Put20KB", func(b *testing.B) {
		for b.Loop() {
			put(b, store, "put/"+time.Now().Format(time.RFC3339Nano), content)
		}
	})
	b.Run("Get20KB", func(b *testing.B) {
		for b.Loop() {
			read(b, store, "read", 0)
		}
	})
	b.Run("Finalize", func(b *testing.B) {
		for b.Loop() {
			ok, err := store.Finalize(b.Context(), "read")
			must(b, ok, err)
		}
	})
}

func TestUploadEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &remembering{ctx: ctx, r: strings.NewReader("x")}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, context.Canceled) || !errors.Is(r.err, context.Canceled) {
		t.Errorf("Read = %d, %v", n, err)
	}
}
