package sync15

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

// large stores n records of some size.
func (w *world) large(n, size int) {
	w.Helper()
	payload := strings.Repeat("x", size)
	per := max(1, min(100, 2_600_000/size))
	for from := 0; from < n; from += per {
		var b strings.Builder
		for i := from; i < min(from+per, n); i++ {
			fmt.Fprintf(&b, `,{"id":"r%05d","payload":%q}`, i, payload)
		}
		o := w.do("POST", "storage/col", "["+b.String()[1:]+"]").want(200).outcome()
		if len(o.Failed) > 0 {
			w.Fatalf("not stored: %v", o.Failed)
		}
	}
}

// watched is a client that does something at each piece of an answer.
type watched struct {
	*httptest.ResponseRecorder
	keep    bool
	pieces  int
	bytes   int
	largest int
	onPiece func(n int)
}

func (p *watched) Write(b []byte) (int, error) {
	p.pieces++
	p.bytes += len(b)
	p.largest = max(p.largest, len(b))
	if p.onPiece != nil {
		p.onPiece(p.pieces)
	}
	if p.keep {
		return p.ResponseRecorder.Write(b)
	}
	return len(b), nil
}

// stream serves a GET and reports whether the handler cut it off.
func (w *world) stream(target string, p *watched) (aborted bool) {
	w.Helper()
	p.ResponseRecorder, p.pieces, p.bytes, p.largest = httptest.NewRecorder(), 0, 0, 0
	r := w.request(w.user, "GET", target, http.NoBody)
	defer func() {
		if e := recover(); e != nil {
			if err, ok := e.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(e)
			}
			aborted = true
		}
	}()
	w.server.ServeHTTP(p, r)
	return false
}

// streaming is a world whose answers are sent in pieces of some 64 KiB, with a
// collection of 300 records of 1 KiB, r00000 to r00299.
func streaming(t *testing.T, offload []string) *world {
	t.Helper()
	w := newWorld(t, setup{offload: offload, concurrency: 16})
	w.server.stream = 64 << 10
	w.large(300, 1<<10)
	return w
}

func TestALargeCollectionIsSentInPieces(t *testing.T) {
	w := newWorld(t, setup{})
	w.large(5, 1<<20)
	p := &watched{}
	if w.stream("storage/col?full=1", p) || p.pieces != 2 || p.largest < streamBytes || p.largest > streamBytes+1<<20 || p.bytes < 5<<20 {
		t.Errorf("%d bytes in %d pieces, the largest of %d", p.bytes, p.pieces, p.largest)
	}
	for _, off := range [][]string{nil, {"col"}} {
		w := streaming(t, off)
		// Without a limit and filter it is read as a whole, with one in two chunks.
		for _, query := range []string{"full=1", "full=1&newer=0", "full=1&newer=0&sort=oldest", "full=1&sort=index", "full=1&limit=299", "newer=0"} {
			p := &watched{keep: true}
			if w.stream("storage/col?"+query, p) {
				t.Fatal("cut off")
			}
			r := reply{t, p.Code, p.Header(), p.Body.String()}
			r.want(200).has("Content-Type", "application/json")
			if query == "newer=0" {
				if len(r.ids()) != 300 || p.pieces != 1 {
					t.Errorf("%d ids in %d pieces", len(r.ids()), p.pieces)
				}
				continue
			}
			if p.pieces < 4 {
				t.Errorf("%s: %d pieces", query, p.pieces)
			}
			r.has("Content-Length", "")
			var records []record
			r.decode(&records)
			r.has("X-Weave-Records", fmt.Sprint(len(records)))
			if n := len(records); n != 300 && query != "full=1&limit=299" || len(records[n-1].Payload) != 1<<10 {
				t.Errorf("%s: %d records", query, n)
			}
		}
		p := &watched{}
		w.stream("storage/col?full=1&limit=3", p)
		if p.pieces != 1 || p.Header().Get("X-Weave-Next-Offset") == "" || p.Header().Get("Content-Length") == "" {
			t.Errorf("a small page has %d pieces and %v", p.pieces, p.Header())
		}
	}
}

func TestAChangeWhileALargeCollectionIsSentCutsItOff(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"a record changes":        func(w *world) { w.put("col", "r00000", "changed") },
		"a record that was sent":  func(w *world) { w.put("col", "r00299", "changed") },
		"a record comes":          func(w *world) { w.put("col", "new", "x") },
		"a record goes":           func(w *world) { w.do("DELETE", "storage/col/r00000", "").want(200) },
		"only a life changes":     func(w *world) { w.do("PUT", "storage/col/r00000", `{"ttl":1000}`).want(200) },
		"the collection goes":     func(w *world) { w.do("DELETE", "storage/col", "").want(200) },
		"everything goes":         func(w *world) { w.do("DELETE", "storage", "").want(200); w.settle() },
		"everything is made anew": func(w *world) { w.do("DELETE", "storage", "").want(200); w.put("col", "r00000", "x") },
	} {
		for _, off := range [][]string{nil, {"col"}} {
			w := streaming(t, off)
			p := &watched{onPiece: func(n int) {
				if n == 1 {
					change(w)
				}
			}}
			if !w.stream("storage/col?full=1&newer=0", p) {
				t.Errorf("%s, offload %v: the answer of %d bytes is whole", name, off, p.bytes)
			}
			if !strings.Contains(w.log.String(), "collection changed while it was read") && off == nil {
				t.Errorf("%s: log %.500s", name, w.log)
			}
			// Another user's write changes nothing.
			other := w.newUser(5, "another", "k")
			p.onPiece = func(int) { w.as(other, "PUT", "storage/col/r00000", "{}").want(200) }
			if w.stream("storage/col?full=1&newer=0", p) {
				t.Errorf("%s: cut off by another user", name)
			}
		}
	}
}

func TestAClientSeesThatALargeAnswerWasCutOff(t *testing.T) {
	w := streaming(t, []string{"col"})
	w.removeLast()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.Host = host
		w.server.ServeHTTP(rw, r)
	}))
	defer srv.Close()
	const target = "/1.5/42/storage/col?full=1&newer=0"
	r, err := http.NewRequest("GET", srv.URL+target, nil)
	must(t, err)
	r.Header.Set("Authorization", w.user.sign(w.clock.Now(), "GET", target))
	resp, err := srv.Client().Do(r)
	must(t, err)
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the client takes the answer for whole")
	}
	if n := w.counter("syncstorage_storage_gcs_payload_missing_total"); n != 1 {
		t.Errorf("%d missing objects counted, want 1", n)
	}
}

// removeLast removes the object that a listing reads last.
func (w *world) removeLast() {
	w.Helper()
	_, err := w.memory.Delete(w.Context(), w.memory.Names()[0], blob.Condition{})
	must(w, err)
}

func TestAnOutageWhileALargeCollectionIsSentIsNoMissingObject(t *testing.T) {
	w := streaming(t, []string{"col"})
	p := &watched{onPiece: func(int) { w.objects.SetHook(blobtest.FailOn(blobtest.OpGet, blobtest.Before, blobtest.ErrInjected)) }}
	if !w.stream("storage/col?full=1&newer=0", p) {
		t.Error("the answer is whole")
	}
	// Nor is a record that was replaced meanwhile.
	w.objects.SetHook(nil)
	p.onPiece = func(n int) {
		if n == 1 {
			w.put("col", "r00000", "new")
			w.reconcile()
		}
	}
	if !w.stream("storage/col?full=1&newer=0", p) {
		t.Error("the answer is whole")
	}
	if n := w.counter("syncstorage_storage_gcs_payload_missing_total"); n != 0 {
		t.Errorf("%d missing objects counted", n)
	}
}

func TestAClientThatLeavesALargeAnswerEndsIt(t *testing.T) {
	w := streaming(t, []string{"col"})
	ctx, cancel := context.WithCancel(t.Context())
	reads := 0
	p := &watched{ResponseRecorder: httptest.NewRecorder(), onPiece: func(int) { cancel(); w.objects.ResetTrace() }}
	func() {
		defer func() { _ = recover() }()
		w.server.ServeHTTP(p, w.request(w.user, "GET", "storage/col?full=1&newer=0", http.NoBody).WithContext(ctx))
	}()
	for _, line := range w.objects.Trace() {
		if !strings.Contains(line, "failed") {
			reads++
		}
	}
	if p.bytes > 280<<10 || reads > 16 { // the chunk in hand may still be written
		t.Errorf("%d bytes written, %d objects read after the client had gone", p.bytes, reads)
	}
}

func TestAListOfManyRecordsDoesNotHoldThemAll(t *testing.T) {
	const size = 512
	for _, c := range []struct {
		records int
		sort    string
		offload []string
	}{{20_000, "newest", nil}, {10_000, "index", []string{"col"}}} {
		records, sort := c.records, c.sort
		w := newWorld(t, setup{offload: c.offload, concurrency: 16})
		w.server.stream = 64 << 10
		w.large(records, size)
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		w.objects.ResetTrace()
		before, most := heap(), uint64(0)
		p := &watched{onPiece: func(int) { w.objects.ResetTrace(); most = max(most, heap()) }}
		if w.stream("storage/col?full=1&sort="+sort, p) || p.bytes < records*size {
			t.Fatalf("%d bytes", p.bytes)
		}
		// What is held is the list of ids, a chunk or two and the buffer.
		if limit := uint64(records*100 + 1<<20); most > before+limit {
			t.Errorf("sort %s: %d KiB held for %d KiB", sort, (most-before)>>10, records*size>>10)
		}
	}
}
