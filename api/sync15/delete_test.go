package sync15

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func TestDeletesAndWhatIsLeft(t *testing.T) {
	w := newWorld(t, setup{})
	for _, id := range []string{"a", "b", "c", "d"} {
		w.put("col", id, "x")
	}
	other := w.put("other", "a", "x")
	collection := func() string { return w.do("GET", "storage/col", "").header.Get("X-Last-Modified") }
	last := other
	rises := func(r reply) {
		t.Helper()
		got := r.want(200).header.Get("X-Last-Modified")
		if got <= last || r.body != `{"modified":`+got+`}` {
			t.Errorf("delete answers %s at %s, before it was %s", r.body, got, last)
		}
		last = got
	}
	// One record.
	rises(w.do("DELETE", "storage/col/a", "", "X-Confirm-Delete: 1"))
	if collection() != last {
		t.Errorf("collection has %s, want %s", collection(), last)
	}
	w.do("DELETE", "storage/col/a", "").says(404, "0")
	if collection() != last {
		t.Error("a delete of nothing has changed the collection")
	}
	// Some records.
	rises(w.do("DELETE", "storage/col?ids=b,nobody,b", ""))
	rises(w.do("DELETE", "storage/col?ids=nobody", ""))
	if collection() != last {
		t.Error("a delete of records that do not exist has not moved the collection")
	}
	rises(w.do("DELETE", "storage/col?ids=c,d", ""))
	w.do("GET", "storage/col", "").says(200, "[]").has("X-Last-Modified", last) // the collection stays
	w.do("GET", "info/collections", "").says(200, `{"col":`+last+`,"other":`+other+`}`)
	// A collection.
	rises(w.do("DELETE", "storage/col", ""))
	w.do("GET", "info/collections", "").says(200, `{"other":`+other+`}`).has("X-Last-Modified", last)
	w.do("DELETE", "storage/never", "").want(200)
	w.do("DELETE", "storage/never?ids=a", "").want(200)
	w.do("GET", "info/collections", "").says(200, `{"other":`+other+`}`).has("X-Last-Modified", last)
	// Everything, the tombstone too.
	for _, target := range []string{"storage", ""} {
		w.put("col", "a", "x")
		w.do("DELETE", "storage/col", "").want(200)
		w.put("col", "a", "x")
		w.do("DELETE", target, "").says(200, "{}")
		w.do("GET", "info/collections", "").says(200, "{}").has("X-Last-Modified", "0.00")
		w.do("GET", "storage/col", "").says(200, "[]").has("X-Last-Modified", "0.00")
		w.do("DELETE", target, "").says(200, "{}")
	}
	// Also a tombstone alone.
	w.put("col", "a", "x")
	w.do("DELETE", "storage/col", "").want(200)
	w.do("DELETE", "storage", "").says(200, "{}")
	w.do("GET", "info/quota", "").has("X-Last-Modified", "0.00")
}

func TestWhatIsWrittenAfterADeleteSurvivesThePurge(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	w.fill("col", 250, 100)
	w.batch("col", `[{"id":"s","payload":"staged"}]`)
	w.do("DELETE", "storage/col", "").want(200)
	w.put("col", "r001", "again")
	w.fill("col", 30, 10)
	w.do("DELETE", "storage", "").want(200)
	w.put("col", "r001", "for good")
	w.settle()
	w.do("GET", "storage/col", "").says(200, `["r001"]`)
	w.do("GET", "info/collection_usage", "").says(200, fmt.Sprintf(`{"col":%v}`, 8.0/1024))
	w.wantPayloads("for good*")
	w.wantRows(1)
}

// wantRows checks how many rows there are of records and their order, whoever's
// they are, and that there is none of batches.
func (w *world) wantRows(n int) {
	w.Helper()
	for space, want := range map[string]int{"bsos": n, "sync_bso_order": n, "sync_batches": 0, "batch_bsos": 0} {
		if got := len(w.rows(space)); got != want {
			w.Errorf("%d rows in %s, want %d", got, space, want)
		}
	}
}

func TestAPurgeGoesOnWhereItWasInterrupted(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	w.fill("col", 150, 100)
	w.batch("col", `[{"id":"s","payload":"staged"}]`)
	w.do("DELETE", "storage", "").want(200)
	waiting, err := w.purges.Peek(t.Context(), 10)
	must(t, err)
	if len(waiting) != 1 {
		t.Fatalf("%d messages for the purge", len(waiting))
	}
	// Every commit is refused once, by an error or by its loss.
	for step := 0; ; step++ {
		failed := false
		w.engine.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit && !failed {
				failed = true
				return kvtest.ErrInjected
			}
			return nil
		})
		if _, err := w.opts.Store.Purge(t.Context(), waiting[0].Payload); failed == (err == nil) {
			t.Fatalf("step %d: failed %v, error %v", step, failed, err)
		}
		w.engine.Reset()
		more, err := w.opts.Store.Purge(t.Context(), waiting[0].Payload)
		must(t, err)
		if !more {
			break
		}
	}
	w.wantRows(0)
	w.reconcile()
	w.wantPayloads()
	w.settle() // the message itself is still to be delivered, and finds nothing
}

func TestDeletedRecordsDoNotComeBackByTheSweeper(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	w.do("PUT", "storage/col/a", `{"payload":"x","ttl":5}`).want(200)
	w.batch("col", `[{"id":"s","payload":"staged"}]`)
	w.do("DELETE", "storage/col", "").want(200)
	w.put("col", "b", "y")
	w.clock.Advance(3 * time.Hour)
	w.sweep() // before the purge
	w.do("GET", "info/collection_counts", "").says(200, `{"col":1}`)
	w.settle()
	w.wantPayloads("y*")
	w.wantRows(1)
}

func TestFirstSyncOfANewAccount(t *testing.T) {
	// What a desktop client does, request by request.
	w := newWorld(t, setup{})
	accept := "Accept: application/json;q=0.9,*/*;q=0.2"
	w.do("GET", "info/collections", "", accept).says(200, "{}")
	w.do("GET", "info/configuration", "", accept).want(200)
	w.do("GET", "storage/meta/global", "", accept).says(404, "0")
	w.do("DELETE", "storage", "", accept, "X-Confirm-Delete: 1").want(200)
	r := w.do("PUT", "storage/meta/global", `{"id":"global","payload":"{}"}`, accept, "X-If-Unmodified-Since: 0").want(200)
	w.do("PUT", "storage/meta/global", `{"id":"global","payload":"{}"}`, accept, "X-If-Unmodified-Since: "+r.body).want(200)
	w.do("PUT", "storage/crypto/keys", `{"id":"keys","payload":"{}"}`, accept, "X-If-Unmodified-Since: 0").want(200)
	info := w.do("GET", "info/collections", "", accept).want(200).body
	meta := w.do("GET", "storage/meta/global", "", accept).want(200).record().Modified.String()
	if !strings.Contains(info, `"meta":`+meta) {
		t.Errorf("info %s, record %s", info, meta)
	}
	w.do("GET", "storage/bookmarks?full=1&newer=0&limit=1000", "", accept).says(200, "[]")
	b := w.do("POST", "storage/bookmarks?batch=true", `[{"id":"a","payload":"{}"}]`, "X-If-Unmodified-Since: 0").want(202)
	w.do("POST", "storage/bookmarks?commit=true&batch="+b.outcome().Batch, `[{"id":"b","payload":"{}"}]`,
		"X-If-Unmodified-Since: "+b.header.Get("X-Last-Modified")).want(200)
}
