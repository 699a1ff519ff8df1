package sync15

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv/pebble"
)

// onPebble is a world on the embedded engine in a folder of its own, with all hooks.
func onPebble(b *testing.B) *world {
	b.Helper()
	engine, err := pebble.Open(b.Context(), b.TempDir(), pebble.Options{Clock: clock.System{}})
	must(b, err)
	// Cleanups run last in, first out: the queues end before the engine.
	b.Cleanup(func() { must(b, engine.Close()) })
	return newWorld(b, setup{engine: engine, limits: pebble.Limits()})
}

// ciphertext is a payload as clients make them: JSON with base64, of some size.
func ciphertext(b *testing.B, size int) string {
	b.Helper()
	raw := make([]byte, size*3/4)
	_, err := rand.Read(raw)
	must(b, err)
	return `{\"ciphertext\":\"` + base64.StdEncoding.EncodeToString(raw) + `\",\"IV\":\"c2l4dGVlbiByYW5kb20gYg==\",\"hmac\":\"` + strings.Repeat("0123456789abcdef", 4) + `\"}`
}

// discard is a client that reads nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// bench serves one request per call of its result and wants a 200.
func (w *world) bench(b *testing.B, u user, method string) func(target, body string) {
	return func(target, body string) {
		d := &discard{header: http.Header{}}
		w.server.ServeHTTP(d, w.request(u, method, target, strings.NewReader(body)))
		if d.status != 200 {
			b.Fatalf("status %d", d.status)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{300, 4 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			w := onPebble(b)
			put := w.bench(b, w.user, "PUT")
			body := `{"id":"x","payload":"` + ciphertext(b, size) + `"}`
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				put(fmt.Sprintf("storage/bookmarks/r%05d", n%1000), body)
			}
		})
	}
}

// BenchmarkPutParallel is many users at once, whose commits share the disk's sync.
func BenchmarkPutParallel(b *testing.B) {
	w := onPebble(b)
	body := `{"id":"x","payload":"` + ciphertext(b, 300) + `"}`
	var users atomic.Uint64
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		uid := users.Add(1)
		put := w.bench(b, w.newUser(uid, fmt.Sprintf("account%d", uid), "key"), "PUT")
		for n := 0; pb.Next(); n++ {
			put(fmt.Sprintf("storage/bookmarks/r%05d", n%1000), body)
		}
	})
}

// post100 is the body of a POST of 100 records.
func post100(b *testing.B, from, size int) string {
	var s strings.Builder
	payload := ciphertext(b, size)
	for i := range 100 {
		fmt.Fprintf(&s, `,{"id":"r%05d","sortindex":%d,"payload":"%s"}`, from+i, i, payload)
	}
	return "[" + s.String()[1:] + "]"
}

func BenchmarkPost100(b *testing.B) {
	for _, size := range []int{300, 20 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			w := onPebble(b)
			post := w.bench(b, w.user, "POST")
			bodies := make([]string, 10)
			for i := range bodies {
				bodies[i] = post100(b, i*100, size)
			}
			b.SetBytes(int64(len(bodies[0])))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				post("storage/bookmarks", bodies[n%len(bodies)])
			}
		})
	}
}

func BenchmarkGetFull1000(b *testing.B) {
	for name, query := range map[string]string{"all": "full=1", "newer": "full=1&newer=1", "index": "full=1&sort=index&limit=1000", "ids": "newer=1"} {
		b.Run(name, func(b *testing.B) {
			w := onPebble(b)
			post, get := w.bench(b, w.user, "POST"), w.bench(b, w.user, "GET")
			size := 0
			for i := range 10 {
				body := post100(b, i*100, 300)
				size += len(body)
				post("storage/bookmarks", body)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				get("storage/bookmarks?"+query, "")
			}
		})
	}
}
