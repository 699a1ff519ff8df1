package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/admin"
	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// upload is a request whose body is half sent.
type upload struct {
	body *io.PipeWriter
	rest string
	done chan struct{}
	res  *http.Response
	err  error
}

// beginUpload sends the first half of a record and waits until the server must
// have taken up the request.
func beginUpload(t *testing.T, c *syncclient.Client, target, text string) *upload {
	t.Helper()
	r, w := io.Pipe()
	u := &upload{body: w, rest: text[len(text)/2:], done: make(chan struct{})}
	hr, err := c.Sign(t.Context(), syncclient.Request{Method: http.MethodPut, Target: target}, r)
	if err != nil {
		t.Fatal(err)
	}
	hr.ContentLength = int64(len(text))
	go func() {
		defer close(u.done)
		if u.res, u.err = c.HTTP.Do(hr); u.err == nil {
			_, u.err = io.Copy(io.Discard, u.res.Body)
			u.res.Body.Close()
		}
	}()
	if _, err := io.WriteString(w, text[:len(text)/2]); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *upload) finish() {
	io.WriteString(u.body, u.rest)
	u.body.Close()
	<-u.done
}

func TestStopCutsNoRequest(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	var uploads []*upload
	text := `{"payload":"` + strings.Repeat("half sent ", 20_000) + `"}`
	for i := range 10 {
		uploads = append(uploads, beginUpload(t, p.Client, fmt.Sprintf("/storage/bookmarks/u%d", i), text))
	}
	eventually(t, func() string {
		if n := activeRequests(t, p.home); n < len(uploads) {
			return fmt.Sprintf("the server has %d requests in work", n)
		}
		return ""
	})
	p.server.Signal(t, syscall.SIGTERM)
	if !p.server.WaitLog(t, "stopping") {
		t.Fatal("the server did not say that it stops")
	}
	for i, u := range uploads {
		if u.finish(); u.err != nil || u.res.StatusCode != http.StatusOK {
			t.Errorf("upload %d, begun before the signal: %v %v", i, u.err, u.res)
		}
	}
	if status := p.server.Wait(t); status != 0 {
		t.Errorf("status %d\n%s", status, p.server.Log())
	}
	p.home.Serve(t)
	if got := p.payloads("bookmarks"); len(got) != len(uploads) {
		t.Errorf("%d records are there, %d were acknowledged", len(got), len(uploads))
	}
}

// activeRequests asks the server how many requests it has in work, beside this.
func activeRequests(t *testing.T, home *program.Home) int {
	t.Helper()
	res, err := http.Get(home.SyncURL() + "/__lbheartbeat__")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Active int `json:"active_connections"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer.Active - 1
}

// TestStopUnderLoad stops a server while everybody goes on to write.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	home := newHome(t, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks,history,forms")
	server := home.Serve(t)
	hc := newHTTP(t)
	c := newCast(t, seed, func(user string) *syncclient.Client { return login(t, home, hc, user) }, true)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.perform(t.Context(), stop)
	}()
	eventually(t, func() string {
		if c.troupe.last.Load() < 20 {
			return "there is no load"
		}
		return ""
	})
	began := time.Now()
	server.Stop(t)
	t.Logf("stopped after %v; %s", time.Since(began), c.tally())
	close(stop)
	<-done
	home.Serve(t)
	c.curtain(t)
	waitForQueues(t, home)
	agrees(t, home)
}

func TestStopWaitsForNobodyForEver(t *testing.T) {
	t.Parallel()
	p := newPipeline(t, "HOLDFAST_SHUTDOWN_TIMEOUT=300ms")
	u := beginUpload(t, p.Client, "/storage/bookmarks/never", strings.Repeat(" ", 10_000))
	p.put("/storage/bookmarks/a", `{"payload":"a"}`)
	p.server.Signal(t, syscall.SIGTERM)
	if status := p.server.Wait(t); status != 0 {
		t.Errorf("status %d\n%s", status, p.server.Log())
	}
	u.body.CloseWithError(context.Canceled)
	<-u.done
}

// TestStopLosesNoLease stops a server with much work in hand, several times.
func TestStopLosesNoLease(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	server := p.server
	for round := range 3 {
		p.do(http.StatusOK, http.MethodPost, "/storage/history", posts(0, 100, fmt.Sprint("round ", round)))
		server.Stop(t)
		server = p.home.Serve(t)
	}
	// What a lease lost would have to wait for is the lease of a minute.
	p.expect(100, "history/")
	waitForQueues(t, p.home)
	var messages []admin.Message
	out := p.home.Output(t, "queue", "peek", "payload_link_changes", "--json")
	if err := json.Unmarshal([]byte(out), &messages); err != nil || len(messages) > 0 {
		t.Errorf("messages: %v %s", err, out)
	}
	if strings.Contains(server.Log(), "level=WARN msg=\"change record failed") {
		t.Errorf("change records failed:\n%s", server.Log())
	}
}
