package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/e2e/program"
)

// pipeline is a server that offloads and a view of its objects.
type pipeline struct {
	browser
	home    *program.Home
	server  *program.Server
	objects *blob.Store
}

func newPipeline(t *testing.T, env ...string) *pipeline {
	home := newHome(t, append([]string{"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks,history,forms"}, env...)...)
	p := &pipeline{home: home, server: home.Serve(t)}
	p.browser = browser{t, login(t, home, newHTTP(t), "user")}
	p.objects = openObjects(t, home, clock.System{})
	return p
}

// expect waits until there are exactly n objects of a record or collection, all
// finalized, and returns how long that took.
func (p *pipeline) expect(n int, what string) time.Duration {
	p.t.Helper()
	began := time.Now()
	eventually(p.t, func() string {
		objects := objectsOf(p.t, p.objects, "user/"+what)
		finalized := 0
		for _, a := range objects {
			if a.Committed {
				finalized++
			}
		}
		if len(objects) != n || finalized != n {
			return fmt.Sprintf("%s has %d objects, %d finalized, want %d\n%s", what, len(objects), finalized, n, under(objects))
		}
		return ""
	})
	return time.Since(began)
}

func TestObjectsFollowTheRowsThatPointAtThem(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)

	p.put("/storage/bookmarks/a", `{"payload":"one"}`)
	t.Logf("finalized %v after the answer", p.expect(1, "bookmarks/a/"))
	old := objectsOf(t, p.objects, "user/bookmarks/a/")
	p.put("/storage/bookmarks/a", `{"payload":"two"}`)
	p.expect(1, "bookmarks/a/")
	for url := range objectsOf(t, p.objects, "user/bookmarks/a/") {
		if _, same := old[url]; same {
			t.Error("an overwritten record kept its object")
		}
	}
	p.put("/storage/bookmarks/a", `{"sortindex":4}`)
	p.put("/storage/bookmarks/a", `{"ttl":100000}`)
	waitForQueues(t, p.home)
	p.expect(1, "bookmarks/a/")
	p.put("/storage/bookmarks/empty", `{"payload":""}`)
	p.expect(1, "bookmarks/empty/")

	p.do(http.StatusOK, http.MethodDelete, "/storage/bookmarks/a", "")
	p.expect(0, "bookmarks/a/")
	p.do(http.StatusOK, http.MethodPost, "/storage/bookmarks", posts(0, 20, "some"))
	p.expect(20, "bookmarks/b")
	p.do(http.StatusOK, http.MethodDelete, "/storage/bookmarks?ids=b00,b01,b02", "")
	p.expect(17, "bookmarks/b")
	p.do(http.StatusOK, http.MethodDelete, "/storage/bookmarks", "")
	p.expect(0, "bookmarks/")
	p.put("/storage/history/h", `{"payload":"h"}`)
	p.expect(1, "")
	p.do(http.StatusOK, http.MethodDelete, "/storage", "")
	p.expect(0, "")
}

func TestObjectsOfBatches(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	start := func(body string) string {
		var answer struct{ Batch string }
		if err := p.do(http.StatusAccepted, http.MethodPost, "/storage/history?batch=true", body).JSON(&answer); err != nil {
			t.Fatal(err)
		}
		return answer.Batch
	}
	id := start(posts(0, 10, "first"))
	p.expect(10, "history/")
	p.do(http.StatusAccepted, http.MethodPost, "/storage/history?batch="+id, posts(5, 12, "again"))
	p.expect(12, "history/") // five were replaced while staged
	p.do(http.StatusOK, http.MethodPost, "/storage/history?commit=true&batch="+id, posts(11, 14, "at the commit"))
	p.expect(14, "history/") // one staged object did not make it into a row
	if got := p.payloads("history"); got["b11"] != "at the commit 11" || got["b05"] != "again 5" || got["b04"] != "first 4" {
		t.Errorf("after the commit: %v", got)
	}
	id = start(posts(0, 14, "second"))
	p.expect(28, "history/")
	p.do(http.StatusOK, http.MethodPost, "/storage/history?commit=true&batch="+id, "[]")
	p.expect(14, "history/")

	start(posts(0, 5, "abandoned"))
	p.expect(19, "history/")
	p.do(http.StatusOK, http.MethodDelete, "/storage", "")
	p.expect(0, "")
}

func TestObjectsOfExpiredRecordsGo(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	p.put("/storage/forms/short", `{"payload":"short","ttl":1}`)
	p.put("/storage/forms/none", `{"payload":"none","ttl":0}`)
	p.put("/storage/forms/long", `{"payload":"long","ttl":100000}`)
	p.expect(0, "forms/short/")
	p.expect(0, "forms/none/")
	p.expect(1, "forms/long/")
	if got := p.payloads("forms"); len(got) != 1 || got["long"] != "long" {
		t.Errorf("forms: %v", got)
	}
}

func TestObjectsSurviveThatTheirCollectionIsOptedOut(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	p.do(http.StatusOK, http.MethodPost, "/storage/bookmarks", posts(0, 5, "offloaded"))
	p.expect(5, "bookmarks/")
	p.server.Stop(t)
	p.home.Env = nil
	p.home.Serve(t)
	if got := p.payloads("bookmarks"); len(got) != 5 || got["b03"] != "offloaded 3" {
		t.Errorf("bookmarks: %v", got)
	}
	p.put("/storage/bookmarks/b00", `{"payload":"in the row"}`)
	p.expect(4, "bookmarks/")
	p.put("/storage/bookmarks/b01", `{"sortindex":1}`)
	waitForQueues(t, p.home)
	p.expect(4, "bookmarks/")
}

func TestRefusedWritesLeaveNoObjects(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	modified := p.put("/storage/bookmarks/a", `{"payload":"a"}`)
	p.put("/storage/bookmarks/a", `{"payload":"b"}`)
	p.do(http.StatusPreconditionFailed, http.MethodPut, "/storage/bookmarks/a", `{"payload":"c"}`, "X-If-Unmodified-Since", modified)
	p.do(http.StatusPreconditionFailed, http.MethodPost, "/storage/bookmarks", posts(0, 9, "c"), "X-If-Unmodified-Since", modified)
	p.do(http.StatusBadRequest, http.MethodPost, "/storage/bookmarks?batch=sammich", posts(0, 9, "c"))
	p.do(http.StatusBadRequest, http.MethodPut, "/storage/bookmarks/a", `{"payload":5}`)
	res := p.do(http.StatusOK, http.MethodPost, "/storage/bookmarks", `[{"id":"x","payload":"x","ttl":-1},{"id":"y","payload":"y"}]`)
	if !strings.Contains(res.Body, `"failed":{"x"`) {
		t.Errorf("an invalid record: %s", res.Body)
	}
	p.expect(2, "")
}
