package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// readOne reads one record and compares it with the model.
func (w *worker) readOne(ctx context.Context, c *collection) {
	id := "r" + strconv.Itoa(w.rng.IntN(12))
	res, err := w.client.Do(ctx, syncclient.Request{Method: http.MethodGet, Target: "/storage/" + c.name + "/" + id})
	if err != nil || res.Status >= 500 {
		return
	}
	want, known := c.possible[0].Items[id]
	if !known {
		if res.Status != http.StatusNotFound {
			w.errorf("GET %s/%s, which does not exist: %d", c.name, id, res.Status)
		}
		return
	}
	var got shown
	if err := res.JSON(&got); err != nil || res.Status != http.StatusOK ||
		got.Payload != want.Payload || got.Modified.String() != want.Modified || got.SortIndex.String() != want.SortIndex {
		w.errorf("GET %s/%s: %d %v %.300s, want %.300v", c.name, id, res.Status, err, res.Body, want)
	}
}

// readPages reads a collection page by page, line by line, as a browser does that
// has not seen it before.
func (w *worker) readPages(ctx context.Context, c *collection) {
	base := fmt.Sprintf("/storage/%s?full=1&sort=oldest&limit=%d", c.name, 1+w.rng.IntN(5))
	header := map[string]string{"Accept": "application/newlines"}
	target, got := base, state{Items: map[string]item{}}
	last := int64(0)
	for {
		res, err := w.client.Do(ctx, syncclient.Request{Method: http.MethodGet, Target: target, Header: header})
		if err != nil || res.Status >= 500 {
			return
		}
		if res.Status != http.StatusOK {
			w.errorf("GET %s: %d %s", target, res.Status, res.Body)
			return
		}
		got.Modified = res.Header.Get("X-Last-Modified")
		got.Exists = got.Modified != "0.00"
		header["X-If-Unmodified-Since"] = got.Modified
		for line := range strings.Lines(res.Body) {
			var r shown
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				w.errorf("GET %s: %v in line %.300q", target, err, line)
				return
			}
			t, err := hundredths(r.Modified.String())
			if _, twice := got.Items[r.ID]; twice || err != nil || t < last {
				w.errorf("GET %s: record %s out of order or twice (%v)", target, r.ID, err)
			}
			last = t
			got.Items[r.ID] = item{r.Payload, r.SortIndex.String(), r.Modified.String()}
		}
		offset := res.Header.Get("X-Weave-Next-Offset")
		if offset == "" {
			break
		}
		target = base + "&offset=" + url.QueryEscape(offset)
	}
	if !c.possible[0].shows(got) {
		w.errorf("read by pages, collection %s is not what it should be\n%s", c.name, difference(c.possible, got))
	}
}

// A troupe is a number of records that are always written together, all with the
// number of the same generation. Whoever reads them sees one generation.
type troupe struct {
	t          *testing.T
	client     *syncclient.Client
	collection string
	// last is the last generation that was acknowledged, tried the last that
	// might be there.
	last, tried atomic.Int64
}

const troupeSize = 9

// members returns records of a generation. Large payloads take a reader so long
// that it has a chance to see two generations.
func (g *troupe) members(generation int64, from, to int) []patch {
	var ps []patch
	for i := from; i < to; i++ {
		payload := strconv.FormatInt(generation, 10) + strings.Repeat(" ", 2_000)
		ps = append(ps, patch{id: "m" + strconv.Itoa(i), payload: &payload})
	}
	return ps
}

// perform writes generations until stop is closed, in single POSTs and in batches.
func (g *troupe) perform(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		n := g.tried.Add(1)
		if n%2 == 0 && g.post(ctx, "", g.members(n, 0, troupeSize)) != nil || n%2 == 1 && g.inBatch(ctx, n) {
			g.last.Store(n)
		}
	}
}

func (g *troupe) inBatch(ctx context.Context, n int64) bool {
	res := g.post(ctx, "?batch=true", g.members(n, 0, 3))
	if res == nil {
		return false
	}
	var answer struct{ Batch string }
	if err := res.JSON(&answer); err != nil {
		g.t.Error(err)
		return false
	}
	return g.post(ctx, "?batch="+answer.Batch, g.members(n, 3, 7)) != nil &&
		g.post(ctx, "?commit=true&batch="+answer.Batch, g.members(n, 7, troupeSize)) != nil
}

// post returns nil if the request was not acknowledged.
func (g *troupe) post(ctx context.Context, query string, ps []patch) *syncclient.Response {
	res, err := g.client.Do(ctx, syncclient.Request{Method: http.MethodPost, Target: "/storage/" + g.collection + query, Body: jsonList(ps)})
	switch {
	case err != nil || res.Status >= 500:
		return nil
	case res.Status >= 300:
		g.t.Errorf("POST %s%s: %d %s", g.collection, query, res.Status, res.Body)
		return nil
	}
	return res
}

// watch reads until stop is closed.
func (g *troupe) watch(ctx context.Context, stop <-chan struct{}) {
	for !g.t.Failed() {
		select {
		case <-stop:
			return
		default:
			g.look(ctx)
		}
	}
}

// look reads once and reports whether there was an answer.
func (g *troupe) look(ctx context.Context) bool {
	least := g.last.Load()
	res, err := g.client.Do(ctx, syncclient.Request{Method: http.MethodGet, Target: "/storage/" + g.collection + "?full=1"})
	if err != nil || res.Status >= 500 {
		return false
	}
	most := g.tried.Load()
	s, err := parseCollection(res)
	if err != nil {
		g.t.Error(err)
		return true
	}
	var seen []string
	for _, it := range s.Items {
		seen = append(seen, strings.TrimSpace(it.Payload))
	}
	slices.Sort(seen)
	if same := slices.Compact(slices.Clone(seen)); len(same) > 1 || len(seen) != 0 && len(seen) != troupeSize {
		g.t.Errorf("a reader has seen parts of generations %v", seen)
		return true
	}
	generation := int64(0)
	if len(seen) > 0 {
		generation, err = strconv.ParseInt(seen[0], 10, 64)
	}
	if err != nil || generation < least || generation > most {
		g.t.Errorf("a reader has seen generation %d, want %d to %d (%v)", generation, least, most, err)
	}
	return true
}

// A mayfly writes records that expire soon, and batches that nobody commits.
type mayfly struct {
	t          *testing.T
	client     *syncclient.Client
	collection string
}

func (m *mayfly) run(ctx context.Context, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		rq := syncclient.Request{Method: http.MethodPut, Target: fmt.Sprintf("/storage/%s/e%d", m.collection, n%40),
			Body: fmt.Sprintf(`{"ttl":%d,"payload":%q}`, n%2, strings.Repeat("soon gone ", n%50))}
		if n%8 == 0 {
			rq = syncclient.Request{Method: http.MethodPost, Target: "/storage/" + m.collection + "?batch=true",
				Body: `[{"id":"never","payload":"never committed"}]`}
		}
		if res, err := m.client.Do(ctx, rq); err == nil && res.Status >= 300 && res.Status < 500 {
			m.t.Errorf("%s %s: %d %s", rq.Method, rq.Target, res.Status, res.Body)
		}
	}
}
