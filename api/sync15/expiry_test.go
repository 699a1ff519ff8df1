package sync15

import (
	"strings"
	"testing"
	"time"
)

func TestWhatHasExpiredIsGoneFromEveryViewAtOnce(t *testing.T) {
	for _, swept := range []bool{false, true} {
		w := newWorld(t, setup{offload: []string{"off"}})
		for _, col := range []string{"col", "off"} {
			w.do("POST", "storage/"+col, `[{"id":"brief","payload":"xxxx","ttl":10,"sortindex":1},{"id":"stays","payload":"yy","sortindex":2}]`).want(200)
		}
		times := w.do("GET", "info/collections", "").want(200)
		w.clock.Advance(10*time.Second - time.Millisecond)
		w.do("GET", "info/collection_counts", "").says(200, `{"col":2,"off":2}`)
		w.do("GET", "storage/col?sort=index", "").says(200, `["stays","brief"]`)
		w.clock.Advance(time.Millisecond)
		if swept {
			w.clock.Advance(time.Second)
			w.settle()
			w.wantPayloads("yy*")
		}
		for _, col := range []string{"col", "off"} {
			for _, query := range []string{"", "?sort=index", "?sort=oldest", "?newer=1", "?ids=brief,stays", "?older=9999999999", "?limit=2"} {
				w.do("GET", "storage/"+col+query, "").says(200, `["stays"]`).has("X-Weave-Records", "1").has("X-Weave-Next-Offset", "")
			}
			w.do("GET", "storage/"+col+"/brief", "").says(404, "0")
			w.do("DELETE", "storage/"+col+"/brief", "").says(404, "0")
		}
		w.do("GET", "info/collection_counts", "").says(200, `{"col":1,"off":1}`)
		w.do("GET", "info/collection_usage", "").says(200, `{"col":0.001953125,"off":0.001953125}`)
		w.do("GET", "info/quota", "").says(200, `[0.00390625,null]`)
		// No timestamp has changed.
		w.do("GET", "info/collections", "").says(200, times.body).has("X-Last-Modified", times.header.Get("X-Last-Modified"))
		w.do("PUT", "storage/col/brief", "{}", "X-If-Unmodified-Since: 0").want(200)
	}
}

func TestALifeOfZeroSecondsIsStoredAndOver(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"off"}})
	w.clock.Advance(time.Millisecond) // between two ticks
	for _, col := range []string{"col", "off"} {
		w.do("PUT", "storage/"+col+"/a", `{"payload":"x","ttl":0}`).want(200)
		w.do("GET", "storage/"+col+"/a", "").says(404, "0")
		w.do("GET", "storage/"+col, "").says(200, "[]")
		w.put(col, "b", "y")
		w.do("PUT", "storage/"+col+"/b", `{"ttl":0}`).want(200)
		w.do("GET", "storage/"+col+"/b", "").says(404, "0")
	}
	w.do("GET", "info/collection_counts", "").says(200, "{}")
	w.clock.Advance(time.Second)
	w.settle()
	w.wantPayloads()
}

func TestAnExpiredRowThatIsTakenOverReleasesItsLink(t *testing.T) {
	for name, write := range map[string]func(w *world){
		"payload":     func(w *world) { w.put("col", "a", "new") },
		"inline":      func(w *world) { w.server.opts.OffloadCollections = nil; w.put("col", "a", "new") },
		"no payload":  func(w *world) { w.do("PUT", "storage/col/a", `{"sortindex":1}`).want(200) },
		"POST":        func(w *world) { w.do("POST", "storage/col", `[{"id":"a","payload":"new"}]`).want(200) },
		"delete some": func(w *world) { w.do("DELETE", "storage/col?ids=a", "").want(200) },
		"commit": func(w *world) {
			w.do("POST", "storage/col?commit=true&batch="+w.batch("col", `[{"id":"a","payload":"new"}]`), "[]").want(200)
		},
		"collection": func(w *world) { w.do("DELETE", "storage/col", "").want(200) },
		"everything": func(w *world) { w.do("DELETE", "storage", "").want(200) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{offload: []string{"col"}})
			w.do("PUT", "storage/col/a", `{"payload":"old","ttl":5}`).want(200)
			w.reconcile()
			w.clock.Advance(6 * time.Second)
			write(w)
			w.purge()
			w.reconcile()
			for _, p := range w.payloads() {
				if p != "new*" {
					t.Errorf("object %q is still there", p)
				}
			}
			w.settle() // and the sweeper finds nothing wrong
			if r := w.do("GET", "storage/col?full=1", "").want(200); strings.Contains(r.body, "old") {
				t.Errorf("the old record is back: %s", r.body)
			}
		})
	}
}

func TestANewLifeTakesThePlaceOfTheOldOne(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	w.do("PUT", "storage/col/a", `{"payload":"x","ttl":5}`).want(200)
	w.do("PUT", "storage/col/a", `{"ttl":500}`).want(200)
	w.do("PUT", "storage/col/b", `{"payload":"y","ttl":500}`).want(200)
	w.do("PUT", "storage/col/b", `{"ttl":5}`).want(200)
	w.clock.Advance(7 * time.Second)
	w.settle()
	w.do("GET", "storage/col", "").says(200, `["a"]`)
	w.wantPayloads("x*")
	w.clock.Advance(500 * time.Second)
	w.settle()
	w.do("GET", "storage/col", "").says(200, `[]`)
	w.wantPayloads()
	w.do("GET", "info/collection_counts", "").says(200, "{}")
}
