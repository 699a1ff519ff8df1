package sync15

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/kv"
)

func TestAStoreThatIsDownOrHangsIsAnsweredWithRetryLater(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, timeout: 30 * time.Millisecond})
	w.put("col", "a", "x")
	for name, hook := range map[string]func(blobtest.Op) blobtest.Hook{
		"down":  func(op blobtest.Op) blobtest.Hook { return blobtest.FailOn(op, blobtest.Before, blobtest.ErrInjected) },
		"hangs": func(op blobtest.Op) blobtest.Hook { return blobtest.HangOn(op, blobtest.Before) },
	} {
		for _, op := range []blobtest.Op{blobtest.OpGet, blobtest.OpRead} {
			w.objects.SetHook(hook(op))
			for _, target := range []string{"storage/col/a", "storage/col?full=1"} {
				r := w.do("GET", target, "").says(503, "0").has("Retry-After", "10").has("Content-Type", "application/json").has("X-Last-Modified", "")
				if !decimals.MatchString(r.header.Get("X-Weave-Timestamp")) {
					t.Errorf("%s: no X-Weave-Timestamp", name)
				}
			}
			// What needs no object goes on.
			w.do("GET", "storage/col", "").says(200, `["a"]`)
			w.do("GET", "storage/col/a", "", "X-If-Modified-Since: 9999999999").want(304)
			w.do("GET", "storage/col?full=1", "", "X-If-Unmodified-Since: 1").want(412)
			w.do("GET", "storage/col?full=1&ids=nobody", "").says(200, "[]")
			w.do("GET", "info/collection_usage", "").want(200)
			w.do("PUT", "storage/other/a", `{"payload":"y"}`).want(200)
			w.do("PUT", "storage/col/a", `{"sortindex":1}`).want(200)
		}
		w.objects.SetHook(hook(blobtest.OpPut))
		w.do("PUT", "storage/col/b", `{"payload":"y"}`).says(503, "0").has("Retry-After", "10")
		w.do("POST", "storage/col", `[{"id":"b","payload":"y"}]`).says(503, "0").has("Retry-After", "10")
		w.do("GET", "storage/col", "").says(200, `["a"]`) // nothing falls back to the row
		w.objects.SetHook(nil)
		w.wantPayloads("x")
		if got := w.get("col", "a"); got != "x" {
			t.Errorf("%q", got)
		}
	}
	if n := w.counter("syncstorage_storage_gcs_payload_missing_total"); n != 0 {
		t.Errorf("%d missing objects counted: an outage is no loss", n)
	}
}

func TestAMissingObjectIsAnAlarmAndNeverALostRecord(t *testing.T) {
	w := offloaded(t)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		w.put("col", id, "payload of "+id)
	}
	w.removeObject("payload of b")
	w.removeObject("payload of c")
	w.removeObject("payload of d")
	for i := range 20 { // the order in which objects are found missing is anybody's guess
		for _, target := range []string{"storage/col?full=1", "storage/col?full=1&limit=4", "storage/col?full=1&sort=index", "storage/col?full=1&ids=b,c", "storage/col/b"} {
			w.do("GET", target, "").says(500, "0").has("Content-Type", "application/json").has("Retry-After", "")
		}
		if n := w.counter("syncstorage_storage_gcs_payload_missing_total"); n != 5*(i+1) {
			t.Fatalf("%d alarms, want %d", n, 5*(i+1))
		}
	}
	if log := w.log.String(); strings.Count(log, "object is missing: mem://test/account/col/") != 100 {
		t.Errorf("the log does not name the links:\n%.2000s", log)
	}
	if got := w.get("col", "a"); got != "payload of a" {
		t.Errorf("%q", got)
	}
	w.do("GET", "storage/col?full=1&ids=a,e", "").want(200).has("X-Weave-Records", "2")
	w.do("GET", "storage/col", "").want(200).has("X-Weave-Records", "5")
	w.put("col", "b", "again") // a write heals it
	if got := w.get("col", "b"); got != "again" {
		t.Errorf("%q", got)
	}
}

func TestAnUnreadableObjectIsA500(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"corrupt": func(w *world) { w.memory.Corrupt(w.object("payload")) },
		"not UTF-8": func(w *world) {
			name := w.object("payload")
			w.removeObject("payload")
			must(w, w.memory.Put(w.Context(), name, start, strings.NewReader("caf\xe9"), 4))
		},
	} {
		w := offloaded(t)
		w.put("col", "a", "payload")
		spoil(w)
		w.do("GET", "storage/col/a", "").says(500, "0").has("Retry-After", "")
		w.do("GET", "storage/col?full=1", "").says(500, "0")
		if log := w.log.String(); strings.Count(log, "unreadable") != 2 || strings.Contains(log, "caf") {
			t.Errorf("%s: log\n%s", name, log)
		}
	}
}

func TestALinkToAnotherStoreIsNotFollowed(t *testing.T) {
	w := offloaded(t)
	w.put("col", "a", "payload")
	_, err := w.db.Update(t.Context(), func(tx *kv.Tx) error {
		key := []byte(w.rows("bsos")[0])
		row, err := tx.Get("bsos", key)
		if err != nil {
			return err
		}
		tx.Put(kv.Write{Space: "bsos", Key: key, Value: row.Value, Link: "gs://another/" + strings.TrimPrefix(row.Link, "mem://test/")})
		return nil
	})
	must(t, err)
	w.objects.ResetTrace()
	w.do("GET", "storage/col/a", "").says(500, "0")
	w.do("GET", "storage/col?full=1", "").says(500, "0")
	if trace := w.objects.Trace(); len(trace) > 0 {
		t.Errorf("the store saw %q", trace)
	}
}

func TestALinkWithoutAStoreIsA500(t *testing.T) {
	w := offloaded(t)
	w.put("col", "a", "payload")
	w.server.opts.Offload, w.server.opts.OffloadCollections = nil, nil
	w.do("GET", "storage/col/a", "").says(500, "0")
	w.do("GET", "storage/col?full=1", "").says(500, "0")
	w.do("GET", "storage/col", "").says(200, `["a"]`)
	w.put("col", "a", "inline")
	if got := w.get("col", "a"); got != "inline" {
		t.Errorf("%q", got)
	}
}

// raceGet runs f once, when the first object is about to be read.
func (w *world) raceGet(f func()) {
	done := false
	w.objects.SetHook(blobtest.On(blobtest.OpGet, blobtest.Before, func(context.Context, blobtest.Call) error {
		if !done {
			done = true
			f()
		}
		return nil
	}))
}

func TestARecordThatIsReplacedWhileItIsReadIsReadAnew(t *testing.T) {
	for name, replace := range map[string]func(w *world){
		"by an object": func(w *world) { w.put("col", "a", "new") },
		"in the row": func(w *world) {
			w.server.opts.OffloadCollections = nil
			w.put("col", "a", "new")
		},
	} {
		for _, target := range []string{"storage/col/a", "storage/col?full=1", "storage/col?full=1&limit=1", "storage/col?full=1&sort=index&ids=a"} {
			w := newWorld(t, setup{offload: []string{"col"}, concurrency: 1})
			w.put("col", "a", "old")
			w.raceGet(func() {
				replace(w)
				w.reconcile() // and the old object is gone
			})
			r := w.do("GET", target, "").want(200)
			modified := shift(t, stamp(0), 1)
			if !strings.Contains(r.body, `"payload":"new"`) || !strings.Contains(r.body, `"modified":`+modified) {
				t.Errorf("%s, %s: %s", name, target, r.body)
			}
			r.has("X-Last-Modified", modified).has("X-Weave-Timestamp", modified)
			if n := w.counter("syncstorage_storage_gcs_payload_missing_total"); n != 0 {
				t.Errorf("%d missing objects counted", n)
			}
		}
	}
}

func TestARecordThatIsDeletedWhileItIsReadIsGone(t *testing.T) {
	for name, remove := range map[string]func(w *world){
		"record":     func(w *world) { w.do("DELETE", "storage/col/a", "").want(200) },
		"some":       func(w *world) { w.do("DELETE", "storage/col?ids=a", "").want(200) },
		"collection": func(w *world) { w.do("DELETE", "storage/col", "").want(200) },
		"storage":    func(w *world) { w.do("DELETE", "storage", "").want(200) },
	} {
		w := newWorld(t, setup{offload: []string{"col"}, concurrency: 1})
		race := func() {
			w.put("col", "a", "old")
			w.raceGet(func() {
				remove(w)
				w.settle()
			})
		}
		race()
		w.do("GET", "storage/col/a", "").says(404, "0")
		race()
		r := w.do("GET", "storage/col?full=1", "").says(200, "[]").has("X-Weave-Records", "0")
		if kept := name == "record" || name == "some"; kept == (r.header.Get("X-Last-Modified") == "0.00") {
			t.Errorf("%s: X-Last-Modified %q", name, r.header.Get("X-Last-Modified"))
		}
	}
}

func TestACollectionThatIsReplacedAgainAndAgainIsForTheClientToRetry(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, concurrency: 1})
	w.put("col", "a", "0")
	n := 0
	w.objects.SetHook(blobtest.On(blobtest.OpGet, blobtest.Before, func(context.Context, blobtest.Call) error {
		n++
		w.put("col", "a", fmt.Sprint(n))
		w.reconcile()
		return nil
	}))
	w.do("GET", "storage/col?full=1", "").says(503, "0").has("Retry-After", "10")
	if n != readAttempts {
		t.Errorf("%d attempts, want %d", n, readAttempts)
	}
}

func TestLinkedRecordsInManyPagesAndOrders(t *testing.T) {
	w := offloaded(t)
	w.fill("col", 30, 7)
	w.server.opts.OffloadCollections = nil
	w.do("POST", "storage/col", `[{"id":"r003","payload":"p3"},{"id":"r010","payload":"p10"}]`).want(200) // some are inline again
	for _, sort := range []string{"newest", "oldest", "index"} {
		ids := w.do("GET", "storage/col?sort="+sort, "").ids()
		var got []string
		offset := ""
		for {
			target := "storage/col?full=1&limit=7&sort=" + sort
			if offset != "" {
				target += "&offset=" + offset
			}
			r := w.do("GET", target, "").want(200)
			var records []record
			r.decode(&records)
			for _, rec := range records {
				got = append(got, rec.ID)
				var n int
				fmt.Sscanf(rec.ID, "r%d", &n)
				if rec.Payload != fmt.Sprintf("p%d", n) {
					t.Errorf("%s has %q", rec.ID, rec.Payload)
				}
			}
			if offset = r.header.Get("X-Weave-Next-Offset"); offset == "" {
				break
			}
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: %q, want %q", sort, got, ids)
		}
	}
}

func TestHeadAsksForObjectsToo(t *testing.T) {
	w := offloaded(t)
	w.put("col", "a", "x")
	w.do("HEAD", "storage/col/a", "").want(200).has("X-Last-Modified", stamp(0))
	w.objects.SetHook(blobtest.FailOn(blobtest.OpGet, blobtest.Before, blobtest.ErrInjected))
	w.do("HEAD", "storage/col/a", "").want(http.StatusServiceUnavailable)
}
