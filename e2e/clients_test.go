package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

func TestBrowserRenewsItsTokenWhenItHasExpired(t *testing.T) {
	t.Parallel()
	home := newHome(t, "HOLDFAST_TOKENSERVER_TOKEN_DURATION=1s")
	home.Serve(t)
	b := browser{t, login(t, home, newHTTP(t), "user")}
	modified := b.put("/storage/tabs/a", `{"payload":"a"}`)
	eventually(t, func() string {
		res, err := b.Once(t.Context(), syncclient.Request{Method: http.MethodGet, Target: "/storage/tabs/a"})
		if err != nil || res.Status != http.StatusUnauthorized {
			return fmt.Sprintf("the token has not expired: %v %+v", err, res)
		}
		return ""
	})
	// Whether there is anything new may still be asked.
	if got := b.get("/info/collections").Body; got != `{"tabs":`+modified+`}` {
		t.Errorf("info/collections with an expired token: %s", got)
	}
	renewals := 0
	b.Renew = func(ctx context.Context) (syncclient.Grant, error) {
		renewals++
		return syncclient.Fetch(ctx, b.HTTP, home.SyncURL(), home.Output(t, "sync", "token", "user"), keyIDOf("user"))
	}
	b.get("/storage/tabs/a")
	if renewals != 1 {
		t.Errorf("%d renewals", renewals)
	}
}

func TestForeignTokensAreRefused(t *testing.T) {
	t.Parallel()
	home, other := newHome(t), newHome(t)
	home.Serve(t)
	other.Serve(t)
	hc := newHTTP(t)
	_, err := syncclient.Fetch(t.Context(), hc, home.SyncURL(), other.Output(t, "sync", "token", "user"), keyIDOf("user"))
	var refused *syncclient.StatusError
	if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		t.Errorf("the token of another server: %v", err)
	}
	token := home.Output(t, "sync", "token", "user")
	g, err := syncclient.Fetch(t.Context(), hc, home.SyncURL(), token, keyIDOf("user"))
	if err != nil {
		t.Fatal(err)
	}
	g.Key += "x"
	b := browser{t, syncclient.New(hc, g)}
	if res := b.do(http.StatusUnauthorized, http.MethodGet, "/storage/tabs", ""); res.Body != "0" || !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Hawk") {
		t.Errorf("a wrong key: %+v", res)
	}
}

// TestDevicesOfOneUserWriteAtOnce is about conflicts, which the server resolves or
// asks to come again.
func TestDevicesOfOneUserWriteAtOnce(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	const devices, writes = 8, 15
	var mu sync.Mutex
	times := map[string]bool{}
	var wg sync.WaitGroup
	for d := range devices {
		c := login(t, p.home, newHTTP(t), "user")
		c.Attempts, c.MostPause = 10, 50*time.Millisecond
		wg.Go(func() {
			for n := range writes {
				rq := syncclient.Request{Method: http.MethodPut, Target: fmt.Sprintf("/storage/bookmarks/d%d-%d", d, n), Body: `{"payload":"x"}`}
				res, err := c.Do(t.Context(), rq)
				if err != nil || res.Status != http.StatusOK {
					t.Errorf("device %d: %v %+v", d, err, res)
					return
				}
				mu.Lock()
				if times[res.Body] {
					t.Errorf("two writes of one user got the time %s", res.Body)
				}
				times[res.Body] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got := p.payloads("bookmarks"); len(got) != devices*writes {
		t.Errorf("%d records, want %d", len(got), devices*writes)
	}
	// Of all who have seen the same state only one may write.
	seen := p.get("/storage/bookmarks").Header.Get("X-Last-Modified")
	won := 0
	for range devices {
		wg.Go(func() {
			res, err := p.Do(t.Context(), syncclient.Request{Method: http.MethodPost, Target: "/storage/bookmarks",
				Body: `[{"id":"won","payload":"once"}]`, Header: map[string]string{"X-If-Unmodified-Since": seen}})
			switch {
			case err != nil || res.Status != http.StatusOK && res.Status != http.StatusPreconditionFailed:
				t.Errorf("%v %+v", err, res)
			case res.Status == http.StatusOK:
				mu.Lock()
				won++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d of %d writes under the same precondition were accepted", won, devices)
	}
	p.expect(devices*writes+1, "bookmarks/")
}

// TestMemoryUnderLargeRequests tells how much memory the server needs for many
// large requests at once; it must answer all of them.
func TestMemoryUnderLargeRequests(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	payload := strings.Repeat("large ", 400_000)
	var wg sync.WaitGroup
	for n := range 24 {
		wg.Go(func() {
			id := fmt.Sprintf("r%d", n)
			res, err := p.Do(t.Context(), syncclient.Request{Method: http.MethodPut, Target: "/storage/history/" + id, Body: (patch{id: id, payload: &payload}).json()})
			if err != nil || res.Status != http.StatusOK {
				t.Errorf("PUT: %v %+v", err, res)
			}
		})
	}
	wg.Wait()
	for range 3 {
		wg.Go(func() {
			res, err := p.Do(t.Context(), syncclient.Request{Method: http.MethodGet, Target: "/storage/history?full=1"})
			if err != nil || res.Status != http.StatusOK || len(res.Body) < 24*len(payload) {
				t.Errorf("GET: %v", err)
			}
		})
	}
	wg.Wait()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.server.PID()))
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") {
			t.Logf("24 uploads of %d bytes and 3 reads of them all: %s", len(payload), strings.TrimSpace(line))
		}
	}
}
