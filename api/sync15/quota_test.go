package sync15

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAWriteIsRefusedOnceTheQuotaIsReached(t *testing.T) {
	for _, off := range [][]string{nil, {"col"}} {
		w := newWorld(t, setup{quota: 100, enforce: true, offload: off})
		w.put("col", "a", strings.Repeat("x", 99))
		w.put("col", "b", strings.Repeat("x", 50)) // one write may overshoot
		batch := ""
		w.settle()
		objects := len(w.payloads())
		for _, c := range []struct{ method, target, body string }{
			{"PUT", "storage/col/c", `{"payload":"x"}`},
			{"PUT", "storage/col/c", `{}`},
			{"PUT", "storage/other/c", `{}`},
			{"PUT", "storage/col/a", `{"payload":""}`},
			{"POST", "storage/col", `[{"id":"c","payload":"x"}]`},
			{"POST", "storage/col", `[]`},
			{"POST", "storage/col?batch=true", `[{"id":"c","payload":"x"}]`},
			{"POST", "storage/col?batch=true&commit=true", `[{"id":"c","payload":"x"}]`},
		} {
			w.do(c.method, c.target, c.body).says(403, "14")
		}
		if n := w.counter("syncstorage_storage_quota_at_limit_total"); n != 8 {
			t.Errorf("%d writes at the limit counted, want 8", n)
		}
		if n := len(w.payloads()); n != objects {
			t.Errorf("%d objects, %d before", n, objects)
		}
		// Deletes are always allowed, and make room.
		w.do("DELETE", "storage/col/b", "").want(200)
		w.put("col", "c", "x")
		w.do("DELETE", "storage/col?ids=a", "").want(200)
		// In a batch what is staged counts as if it were there.
		batch = w.batch("col", fmt.Sprintf(`[{"id":"s","payload":%q}]`, strings.Repeat("x", 98)))
		w.do("POST", "storage/col?batch="+batch, `[{"id":"t","payload":"x"}]`).says(403, "14")
		w.do("POST", "storage/col?batch="+batch, `[{"id":"s","payload":"x"}]`).want(202) // replaced, not added
		w.do("POST", "storage/col?batch="+batch, `[{"id":"t","payload":"x"}]`).want(202)
		w.do("POST", "storage/col?batch=true", fmt.Sprintf(`[{"id":"s","payload":%q}]`, strings.Repeat("x", 99))).says(403, "14")
		w.do("POST", "storage/col?commit=true&batch="+batch, `[]`).want(200)
		w.do("GET", "info/collection_counts", "").says(200, `{"col":3}`)
		w.do("DELETE", "storage", "").want(200)
		w.settle()
		w.wantPayloads()
	}
}

func TestAFullQuotaThatIsNotEnforcedIsOnlyCounted(t *testing.T) {
	w := newWorld(t, setup{quota: 10})
	w.put("col", "a", strings.Repeat("x", 10))
	w.do("PUT", "storage/col/b", `{"payload":"x"}`).want(200)
	w.do("POST", "storage/col", `[{"id":"c"}]`).want(200)
	w.do("POST", "storage/other?batch=true", `[{"id":"c"}]`).want(202)
	if n := w.counter("syncstorage_storage_quota_at_limit_total"); n != 3 {
		t.Errorf("counted %d, want 3", n)
	}
	w.do("GET", "info/quota", "").says(200, fmt.Sprintf("[%v,null]", 11.0/1024))
}

func TestExpiredRecordsAreNoUsage(t *testing.T) {
	w := newWorld(t, setup{quota: 100, enforce: true})
	w.do("PUT", "storage/col/brief", fmt.Sprintf(`{"payload":%q,"ttl":5}`, strings.Repeat("x", 100))).want(200)
	w.do("PUT", "storage/col/a", `{}`).says(403, "14")
	w.clock.Advance(6 * time.Second)
	// The expired record does not count although nobody has removed it yet ...
	w.put("col", "a", strings.Repeat("x", 60))
	w.do("GET", "info/collection_counts", "").says(200, `{"col":1}`)
	w.do("GET", "info/quota", "").says(200, fmt.Sprintf("[%v,%v]", 60.0/1024, 100.0/1024))
	// ... and is not subtracted again when it is removed.
	w.settle()
	w.do("GET", "info/collection_counts", "").says(200, `{"col":1}`)
	w.do("GET", "info/quota", "").says(200, fmt.Sprintf("[%v,%v]", 60.0/1024, 100.0/1024))
	w.put("col", "b", strings.Repeat("x", 40))
	w.do("PUT", "storage/col/c", `{}`).says(403, "14")
}
