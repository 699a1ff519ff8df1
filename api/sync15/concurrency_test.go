package sync15

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// together runs f for 0 to n-1 at the same time.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	wg.Wait()
}

func TestOfWritesWithTheSamePreconditionExactlyOneWins(t *testing.T) {
	for _, off := range [][]string{nil, {"col"}} {
		w := newWorld(t, setup{offload: off})
		since := map[string]string{"storage/col/a": "0", "storage/col": "0"}
		for round := range 20 {
			for _, c := range []struct{ method, target, body string }{
				{"PUT", "storage/col/a", `{"payload":"of %d"}`}, {"POST", "storage/col", `[{"id":"a","payload":"of %d"}]`},
			} {
				var mu sync.Mutex
				winner, statuses, before := "", []int{}, since[c.target]
				together(4, func(i int) {
					n := round*100 + i
					r := w.do(c.method, c.target, fmt.Sprintf(c.body, n), "X-If-Unmodified-Since: "+before)
					mu.Lock()
					defer mu.Unlock()
					statuses = append(statuses, r.status)
					if r.status == 200 {
						winner = fmt.Sprintf("of %d", n)
						since["storage/col/a"], since["storage/col"] = r.header.Get("X-Last-Modified"), r.header.Get("X-Last-Modified")
					}
				})
				slices.Sort(statuses)
				if !slices.Equal(statuses, []int{200, 412, 412, 412}) {
					t.Fatalf("%s, round %d: statuses %v", c.method, round, statuses)
				}
				if got := w.get("col", "a"); got != winner {
					t.Fatalf("payload %q, but %q won", got, winner)
				}
			}
		}
		w.settle()
		if off != nil {
			w.wantPayloads(w.get("col", "a") + "*")
		}
	}
}

func TestWritesOfOneUserAtTheSameTimeAllSucceedWithTimesOfTheirOwn(t *testing.T) {
	w := newWorld(t, setup{})
	const writers, each = 4, 15
	var mu sync.Mutex
	at := map[string]string{} // time -> who
	together(writers, func(i int) {
		last := ""
		for j := range each {
			var r reply
			id := fmt.Sprintf("r%d-%d", i, j)
			switch j % 3 {
			case 0:
				r = w.do("POST", "storage/col", `[{"id":"`+id+`"},{"id":"`+id+`x"}]`)
			case 1:
				r = w.do("PUT", "storage/other/"+id, "{}")
			case 2:
				r = w.do("DELETE", "storage/col/"+fmt.Sprintf("r%d-%dx", i, j-2), "")
			}
			modified := r.header.Get("X-Last-Modified")
			mu.Lock()
			if r.status != 200 || at[modified] != "" || modified <= last || r.header.Get("X-Weave-Timestamp") != modified {
				t.Errorf("%s: status %d, time %s after %s, also that of %q", id, r.status, modified, last, at[modified])
			}
			at[modified] = id
			mu.Unlock()
			last = modified
		}
	})
	w.do("GET", "info/collection_counts", "").says(200, fmt.Sprintf(`{"col":%d,"other":%d}`, writers*each/3, writers*each/3))
	if n := w.counter("syncstorage_storage_conflict_total"); n != 0 {
		t.Errorf("%d conflicts reached clients", n)
	}
}

func TestReadersSeeOneCutOfACollection(t *testing.T) {
	for name, s := range map[string]setup{"inline": {}, "offloaded": {offload: []string{"col"}}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, s)
			w.server.stream = 1 << 10 // pieces, too
			var body strings.Builder
			for i := range 20 {
				fmt.Fprintf(&body, `,{"id":"r%d","payload":"PAYLOAD","ttl":1000}`, i)
			}
			write := func(n int) {
				w.do("POST", "storage/col", "["+strings.ReplaceAll(body.String()[1:], "PAYLOAD", strings.Repeat(fmt.Sprint(n%10), 100))+"]").want(200)
			}
			write(0)
			var done atomic.Bool
			var readers sync.WaitGroup
			whole, cut, later := atomic.Int64{}, atomic.Int64{}, atomic.Int64{}
			for i := range 3 {
				target := []string{"storage/col?full=1", "storage/col?full=1&newer=0&sort=oldest", "storage/col?full=1&ids=r1,r5,r7"}[i]
				readers.Go(func() {
					for !done.Load() {
						p := &watched{keep: true}
						switch {
						case w.stream(target, p):
							cut.Add(1)
							continue
						case p.Code == 503:
							later.Add(1)
							continue
						}
						whole.Add(1)
						checkCut(t, reply{t, p.Code, p.Header(), p.Body.String()})
					}
				})
			}
			readers.Go(func() {
				for !done.Load() {
					counts, usage := w.do("GET", "info/collection_counts", ""), w.do("GET", "info/collection_usage", "")
					if counts.status == 200 && counts.body != `{"col":20}` || usage.status == 200 && usage.body != `{"col":1.953125}` {
						t.Errorf("counts %s, usage %s", counts.body, usage.body)
					}
				}
			})
			for n := range 40 {
				write(n)
			}
			done.Store(true)
			readers.Wait()
			t.Logf("%d whole answers, %d cut off, %d to be asked for later", whole.Load(), cut.Load(), later.Load())
			checkCut(t, w.do("GET", "storage/col?full=1", ""))
		})
	}
}

// checkCut checks that all records of an answer come from the same write, and that
// the header says which.
func checkCut(t *testing.T, r reply) {
	var records []record
	if err := json.Unmarshal([]byte(r.body), &records); err != nil || r.status != 200 {
		t.Errorf("status %d, body %.100q: %v", r.status, r.body, err)
		return
	}
	for _, rec := range records {
		if rec.Payload != records[0].Payload || rec.Modified.String() != r.header.Get("X-Last-Modified") {
			t.Errorf("%s of %s has %.5s, X-Last-Modified %s, the first has %.5s", rec.ID, rec.Modified, rec.Payload, r.header.Get("X-Last-Modified"), records[0].Payload)
		}
	}
	if r.header.Get("X-Weave-Records") != fmt.Sprint(len(records)) {
		t.Errorf("X-Weave-Records %s, %d records", r.header.Get("X-Weave-Records"), len(records))
	}
}

func TestNobodySeesHalfOfAWipeOrOfACommit(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	var body strings.Builder
	for i := range 50 {
		fmt.Fprintf(&body, `,{"id":"r%d","payload":"p"}`, i)
	}
	var done atomic.Bool
	var readers sync.WaitGroup
	for _, target := range []string{"storage/col?full=1", "storage/col", "storage/col?sort=index"} {
		readers.Go(func() {
			for !done.Load() {
				r := w.do("GET", target, "")
				if n := r.header.Get("X-Weave-Records"); r.status == 200 && n != "0" && n != "50" || r.status != 200 && r.status != 503 {
					t.Errorf("%s: status %d, %s records", target, r.status, n)
				}
			}
		})
	}
	for range 15 {
		id := w.batch("col", "["+body.String()[1:]+"]")
		w.do("POST", "storage/col?commit=true&batch="+id, "[]").want(200)
		w.do("DELETE", "storage/col", "").want(200)
		w.purge()
		w.reconcile()
	}
	done.Store(true)
	readers.Wait()
	w.settle()
	w.wantPayloads()
	w.wantRows(0)
}

func TestWorkersAndWritersAtTheSameTimeLeaveRowsAndObjectsInAgreement(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}})
	var writers, workers sync.WaitGroup
	var done atomic.Bool
	for i := range 3 {
		writers.Go(func() {
			for j := range 25 {
				id := fmt.Sprintf("r%d", (i+j)%4)
				var r reply
				switch (i + j) % 5 {
				case 0, 1:
					r = w.do("PUT", "storage/col/"+id, fmt.Sprintf(`{"payload":"%d-%d","ttl":%d}`, i, j, j%3))
				case 2:
					r = w.do("DELETE", "storage/col?ids="+id, "")
				case 3:
					r = w.do("POST", "storage/col?batch=true", fmt.Sprintf(`[{"id":%q,"payload":"staged"}]`, id))
					var o outcome
					if json.Unmarshal([]byte(r.body), &o) == nil && j%2 == 0 {
						r = w.do("POST", "storage/col?commit=true&batch="+o.Batch, "[]")
						if r.status == 400 { // the collection was deleted meanwhile
							continue
						}
					}
				case 4:
					if j%10 == 9 {
						r = w.do("DELETE", "storage/col", "")
					} else {
						r = w.do("GET", "storage/col?full=1", "")
					}
				}
				if r.status != 200 && r.status != 202 && r.status != 503 {
					t.Errorf("status %d %s", r.status, r.body)
				}
				w.clock.Advance(50_000_000)
			}
		})
	}
	for _, work := range []func(){w.sweep, w.purge, w.reconcile} {
		workers.Go(func() {
			for !done.Load() {
				work()
			}
		})
	}
	writers.Wait()
	done.Store(true)
	workers.Wait()
	w.clock.Advance(3 * 3600 * 1_000_000_000)
	w.settle()
	w.checkLinks()
	w.checkObjects()
	if n := len(w.rows("bsos")); n != len(w.memory.Names()) || n != len(w.rows("sync_bso_order")) {
		t.Errorf("%d records, %d in order, objects %q", n, len(w.rows("sync_bso_order")), w.payloads())
	}
	w.do("DELETE", "storage", "").want(200)
	w.settle()
	w.wantPayloads()
	w.wantRows(0)
}

func TestAConflictThatDoesNotEndIsForTheClientToRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { conflictThatDoesNotEnd(newWorld(t, setup{offload: []string{"col"}})) })
}

func conflictThatDoesNotEnd(w *world) {
	w.engine.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpCommit && len(c.Txn.Writes) > 0 && c.Txn.Writes[0].Space != "sync_collections" {
			return &kv.ConflictError{Refs: []kv.Ref{{Space: "sync_heads", Key: []byte("k")}}}
		}
		return nil
	})
	r := w.do("PUT", "storage/col/a", `{"payload":"x"}`)
	w.engine.Reset()
	r.says(503, "0").has("Retry-After", "10")
	w.wantPayloads()
	if n := w.counter("syncstorage_storage_conflict_total"); n != 1 {
		w.Errorf("%d conflicts counted", n)
	}
}

func TestTheLogHoldsNoPayloadTokenOrSecret(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, door: func(o *Options) { o.RememberReplays = 100 }})
	const payload = "QXJlIHlvdSByZWFkaW5nIHRoaXM"
	fail := func(name string, f func()) {
		before := len(w.log.String())
		f()
		w.engine.Reset()
		w.objects.SetHook(nil)
		if len(w.log.String()) == before {
			t.Errorf("%s logs nothing", name)
		}
	}
	all := func() {
		for _, col := range []string{"col", "inline"} {
			w.do("PUT", "storage/"+col+"/a", `{"payload":"`+payload+`"}`)
			w.do("POST", "storage/"+col, `[{"id":"a","payload":"`+payload+`"}]`)
			w.do("POST", "storage/"+col+"?batch=true", `[{"id":"a","payload":"`+payload+`"}]`)
			w.do("GET", "storage/"+col+"/a", "")
			w.do("GET", "storage/"+col+"?full=1", "")
			w.do("DELETE", "storage/"+col, "")
		}
	}
	all()
	for _, cause := range []error{kvtest.ErrInjected, kv.ErrUnknownOutcome, kv.ErrTooLarge, kv.ErrCorrupt, context.DeadlineExceeded} {
		fail(cause.Error(), func() {
			w.engine.Before(func(_ context.Context, c kvtest.Call) error {
				if c.Op == kvtest.OpCommit {
					return fmt.Errorf("%v: %w", c, cause)
				}
				return nil
			})
			all()
		})
		fail(cause.Error(), func() {
			w.engine.Before(func(context.Context, kvtest.Call) error { return cause })
			all()
		})
	}
	for _, op := range []blobtest.Op{blobtest.OpPut, blobtest.OpGet, blobtest.OpRead} {
		fail(string(op), func() {
			w.objects.SetHook(blobtest.FailOn(op, blobtest.Before, blobtest.ErrInjected))
			all()
		})
	}
	fail("a corrupt object", func() {
		w.put("col", "a", payload+"1")
		w.memory.Corrupt(w.object(payload + "1"))
		w.do("GET", "storage/col/a", "").want(500)
	})
	fail("a missing object", func() {
		w.put("col", "a", payload+"2")
		w.removeObject(payload + "2")
		w.do("GET", "storage/col?full=1", "").want(500)
	})
	fail("a corrupt row", func() {
		_, err := w.plain.Update(t.Context(), func(tx *kv.Tx) error {
			tx.Put(kv.Write{Space: "bsos", Key: []byte(w.rows("bsos")[0]), Value: []byte{0xee, 1, 2, 3}})
			return nil
		})
		must(t, err)
		w.do("GET", "storage/col/a", "")
		w.do("GET", "storage/col?full=1", "")
	})
	// Faults of clients.
	auth := w.user.sign(w.clock.Now(), "PUT", "/1.5/42/storage/col/a")
	for range 2 {
		w.do("PUT", "storage/col/a", `{"payload":"`+payload+`"`, "Authorization: "+auth)
	}
	w.do("PUT", "storage/col/a", `{"payload":"`+payload+`","x":"`+payload+`"}`)
	w.do("GET", "storage/col", "", "Authorization: "+auth[:len(auth)-9])
	w.serve(w.request(w.user, "GET", "storage/col", http.NoBody, "Authorization: Bearer "+w.user.token))
	log := w.log.String()
	for name, secret := range map[string]string{
		"payload": payload, "token": w.user.token, "key": w.user.key, "master secret": masterSecret, "part of the token": w.user.token[:40],
	} {
		if strings.Contains(log, secret) {
			t.Errorf("the log holds the %s:\n%.3000s", name, log)
		}
	}
}
