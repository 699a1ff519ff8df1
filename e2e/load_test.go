package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// A worker keeps a model of the collections that it alone writes to. What the
// server has acknowledged must be there; what it was asked to do but has not
// answered may be there, all of it or nothing.
type worker struct {
	t      *testing.T
	rng    *rand.Rand
	client *syncclient.Client
	user   *timeline
	name   string

	collections []*collection
	// wipes allows the worker to delete the whole storage, because it has the
	// user for itself.
	wipes bool
	// noFailures says that 500 is no acceptable answer.
	noFailures bool
	// latecomers says that a write without an answer may still happen after its
	// process was killed, in the database that it had sent it to.
	latecomers bool

	payloads int
	unsure   bool
	acked    atomic.Int64
	unknown  atomic.Int64
}

// collection is a collection in a worker's model.
type collection struct {
	name     string
	possible []state // what it may be; one state unless the worker is unsure
	batch    *batch  // one that is not committed yet
}

// batch is a batch in progress: what may be staged.
type batch struct {
	id     string
	staged [][]patch
}

// timeline checks that a user's timestamps rise.
type timeline struct {
	mu   sync.Mutex
	last int64
}

func (l *timeline) now() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *timeline) saw(t int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, t)
}

// hundredths reads a timestamp of the protocol.
func hundredths(s string) (int64, error) {
	whole, fraction, ok := strings.Cut(s, ".")
	if !ok || len(fraction) != 2 {
		return 0, fmt.Errorf("%q is no timestamp with two decimals", s)
	}
	return strconv.ParseInt(whole+fraction, 10, 64)
}

func (w *worker) errorf(format string, args ...any) {
	w.t.Errorf(w.name+": "+format, args...)
}

// run works until stop is closed. It begins with a look at what is there.
func (w *worker) run(ctx context.Context, stop <-chan struct{}) {
	w.unsure = true
	for !w.unsure || w.settle(ctx, stop) {
		if w.t.Failed() {
			return
		}
		select {
		case <-stop:
			return
		default:
			w.step(ctx)
		}
	}
}

// settle reads what the server has, as often as needed, until the worker is sure
// again. It returns false if stop is closed before, or the test has failed.
func (w *worker) settle(ctx context.Context, stop <-chan struct{}) bool {
	for !w.t.Failed() {
		if (!w.latecomers || w.shutOut(ctx)) && w.look(ctx) {
			return true
		}
		select {
		case <-stop:
			return false
		default:
		}
	}
	return false
}

// shutOut makes a write, which no write before it can follow any more: all writes of a
// user are checked against the last one. It returns false if it has no answer.
func (w *worker) shutOut(ctx context.Context) bool {
	res, err := w.client.Do(ctx, syncclient.Request{Method: http.MethodPut, Target: "/storage/" + w.name + "/x", Body: `{"payload":""}`})
	return err == nil && res.Status == http.StatusOK
}

// look compares every collection with the model and takes over what it sees. It
// returns false if a collection could not be read.
func (w *worker) look(ctx context.Context) bool {
	seen := make([]state, len(w.collections))
	for i, c := range w.collections {
		s, ok := w.read(ctx, c.name)
		if !ok {
			return false
		}
		seen[i] = s
	}
	mustBeWiped, cannotBeWiped := false, false
	for i, c := range w.collections {
		matches := slices.DeleteFunc(slices.Clone(c.possible), func(p state) bool { return !p.shows(seen[i]) })
		if len(matches) == 0 {
			w.errorf("collection %s is in no state that it may be in\n%s", c.name, difference(c.possible, seen[i]))
			return false
		}
		wiped := func(s state) bool { return s.wiped }
		mustBeWiped = mustBeWiped || !slices.ContainsFunc(matches, func(s state) bool { return !s.wiped })
		cannotBeWiped = cannotBeWiped || len(c.possible) > 1 && !slices.ContainsFunc(matches, wiped) && slices.ContainsFunc(c.possible, wiped)
		c.possible = []state{seen[i]}
	}
	if mustBeWiped && cannotBeWiped {
		w.errorf("a deletion of everything is half done")
	}
	w.unsure = false
	return true
}

// read returns a collection as the server shows it.
func (w *worker) read(ctx context.Context, name string) (state, bool) {
	res, err := w.client.Do(ctx, syncclient.Request{Method: http.MethodGet, Target: "/storage/" + name + "?full=1"})
	if err != nil {
		return state{}, false
	}
	if res.Status != http.StatusOK {
		if res.Status < 500 || w.noFailures && res.Status == http.StatusInternalServerError {
			w.errorf("GET %s: %d %s", name, res.Status, res.Body)
		}
		return state{}, false
	}
	s, err := parseCollection(res)
	if err != nil {
		w.errorf("GET %s: %v", name, err)
		return state{}, false
	}
	return s, true
}

// shown is a record as an answer has it.
type shown struct {
	ID        string      `json:"id"`
	Modified  json.Number `json:"modified"`
	Payload   string      `json:"payload"`
	SortIndex json.Number `json:"sortindex"`
}

func parseCollection(res *syncclient.Response) (state, error) {
	var list []shown
	d := json.NewDecoder(strings.NewReader(res.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return state{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return state{}, errors.New("the answer goes on behind its list")
	}
	s := state{Modified: res.Header.Get("X-Last-Modified"), Items: map[string]item{}}
	s.Exists = s.Modified != "0.00"
	for _, r := range list {
		if _, twice := s.Items[r.ID]; twice {
			return s, fmt.Errorf("record %s comes twice", r.ID)
		}
		s.Items[r.ID] = item{Payload: r.Payload, SortIndex: r.SortIndex.String(), Modified: r.Modified.String()}
	}
	if n := res.Header.Get("X-Weave-Records"); n != strconv.Itoa(len(list)) {
		return s, fmt.Errorf("X-Weave-Records is %s for %d records", n, len(list))
	}
	return s, nil
}

// step does one operation at random.
func (w *worker) step(ctx context.Context) {
	c := w.collections[w.rng.IntN(len(w.collections))]
	switch n := w.rng.IntN(100); {
	case n < 35:
		w.put(ctx, c)
	case n < 50:
		w.post(ctx, c)
	case n < 75:
		w.stage(ctx, c)
	case n < 85:
		w.deleteRecord(ctx, c)
	case n < 89:
		w.deleteSome(ctx, c)
	case n < 91:
		w.deleteCollection(ctx, c)
	case n < 92 && w.wipes:
		w.deleteAll(ctx)
	case n < 96:
		w.readPages(ctx, c)
	default:
		w.readOne(ctx, c)
	}
}

// sizes of payloads, nothing among them.
var sizes = []int{0, 1, 30, 300, 300, 3_000, 3_000, 30_000, 200_000}

// payload returns a text that no other record has, unless it is shorter than that.
func (w *worker) payload() *string {
	w.payloads++
	size := sizes[w.rng.IntN(len(sizes))]
	text := fmt.Sprintf("%s-%d-", w.name, w.payloads)
	text = strings.Repeat(text, size/len(text)+1)[:size]
	return &text
}

// patch returns a change of a record.
func (w *worker) patch() patch {
	p := patch{id: "r" + strconv.Itoa(w.rng.IntN(12))}
	if w.rng.IntN(10) < 8 {
		p.payload = w.payload()
	}
	if w.rng.IntN(10) < 3 {
		s := strconv.Itoa(w.rng.IntN(2000) - 1000)
		p.sortIndex = &s
	}
	return p
}

// patches returns changes of different records.
func (w *worker) patches() []patch {
	var ps []patch
	for range 1 + w.rng.IntN(6) {
		p := w.patch()
		if !slices.ContainsFunc(ps, func(q patch) bool { return q.id == p.id }) {
			ps = append(ps, p)
		}
	}
	return ps
}

// write makes a request that changes the collections cs, each as change says, at
// one time. It returns the answer if the request was acknowledged.
func (w *worker) write(ctx context.Context, rq syncclient.Request, cs []*collection, change func(s state, modified string) state) *syncclient.Response {
	before := w.user.now()
	res, err := w.client.Do(ctx, rq)
	apply := func(modified string, keep bool) {
		for _, c := range cs {
			old := c.possible
			c.possible = nil
			if keep {
				c.possible = old
			}
			for _, s := range old {
				c.possible = append(c.possible, change(s, modified))
			}
		}
	}
	switch {
	case err != nil || res.Status >= 500:
		if err == nil && w.noFailures && res.Status == http.StatusInternalServerError {
			w.errorf("%s %s: %d %s", rq.Method, rq.Target, res.Status, res.Body)
		}
		apply("", true)
		w.unsure = true
		w.unknown.Add(1)
		return nil
	case res.Status != http.StatusOK:
		w.errorf("%s %s: %d %s", rq.Method, rq.Target, res.Status, res.Body)
		return nil
	}
	w.acked.Add(1)
	modified := res.Header.Get("X-Last-Modified")
	if t, err := hundredths(modified); err != nil {
		w.errorf("%s %s: %v", rq.Method, rq.Target, err)
	} else if slices.ContainsFunc(cs, func(c *collection) bool { return c.possible[0].Exists }) {
		if t <= before {
			w.errorf("%s %s: timestamp %s is not above %d", rq.Method, rq.Target, modified, before)
		}
		w.user.saw(t)
	}
	apply(modified, false)
	return res
}

func (w *worker) put(ctx context.Context, c *collection) {
	p := w.patch()
	w.write(ctx, syncclient.Request{Method: http.MethodPut, Target: "/storage/" + c.name + "/" + p.id, Body: p.json()},
		[]*collection{c}, func(s state, modified string) state { return s.with([]patch{p}, modified) })
}

func (w *worker) post(ctx context.Context, c *collection) {
	ps := w.patches()
	res := w.write(ctx, syncclient.Request{Method: http.MethodPost, Target: "/storage/" + c.name, Body: jsonList(ps)},
		[]*collection{c}, func(s state, modified string) state { return s.with(ps, modified) })
	w.allAccepted(res, ps)
}

// allAccepted checks that an answer to a POST has no record among the failed.
func (w *worker) allAccepted(res *syncclient.Response, ps []patch) {
	if res == nil {
		return
	}
	var answer struct {
		Success []string
		Failed  map[string]string
	}
	if err := res.JSON(&answer); err != nil || len(answer.Failed) > 0 || len(answer.Success) != len(ps) {
		w.errorf("POST of %d records: %v %.300s", len(ps), err, res.Body)
	}
}

// stage goes one step on with the batch of a collection.
func (w *worker) stage(ctx context.Context, c *collection) {
	b, ps := c.batch, w.patches()
	if b != nil && w.rng.IntN(3) == 0 {
		w.commit(ctx, c, ps)
		return
	}
	target := "/storage/" + c.name + "?batch=true"
	if b != nil {
		target = "/storage/" + c.name + "?batch=" + b.id
	} else {
		b = &batch{staged: [][]patch{nil}}
	}
	var with [][]patch
	for _, staged := range b.staged {
		with = append(with, merge(staged, ps))
	}
	res, err := w.client.Do(ctx, syncclient.Request{Method: http.MethodPost, Target: target, Body: jsonList(ps)})
	switch {
	case err != nil || res.Status >= 500:
		w.unknown.Add(1)
		b.staged = append(b.staged, with...)
		w.unsure = true
	case res.Status != http.StatusAccepted:
		w.errorf("POST %s: %d %s", target, res.Status, res.Body)
	default:
		var answer struct{ Batch string }
		if err := res.JSON(&answer); err != nil || answer.Batch == "" || b.id != "" && b.id != answer.Batch {
			w.errorf("POST %s: %v %.300s", target, err, res.Body)
		}
		w.allAccepted(res, ps)
		w.acked.Add(1)
		*b = batch{answer.Batch, with}
		c.batch = b
	}
}

// commit publishes the batch of a collection, with more patches over it.
func (w *worker) commit(ctx context.Context, c *collection, ps []patch) {
	b := c.batch
	c.batch = nil
	rq := syncclient.Request{Method: http.MethodPost, Target: "/storage/" + c.name + "?commit=true&batch=" + b.id, Body: jsonList(ps)}
	// Every content that may be staged leads to a state of its own.
	before := slices.Clone(c.possible)
	res := w.write(ctx, rq, []*collection{c}, func(s state, modified string) state {
		return s.with(merge(b.staged[0], ps), modified)
	})
	modified := ""
	if res != nil {
		modified = res.Header.Get("X-Last-Modified")
		w.allAccepted(res, ps)
	}
	for _, staged := range b.staged[1:] {
		for _, s := range before {
			c.possible = append(c.possible, s.with(merge(staged, ps), modified))
		}
	}
	w.unsure = w.unsure || len(c.possible) > 1
}

func (w *worker) deleteRecord(ctx context.Context, c *collection) {
	ids := knownIDs(c)
	if len(ids) == 0 {
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	w.write(ctx, syncclient.Request{Method: http.MethodDelete, Target: "/storage/" + c.name + "/" + id},
		[]*collection{c}, func(s state, modified string) state { return s.without([]string{id}, modified) })
}

func (w *worker) deleteSome(ctx context.Context, c *collection) {
	ids := knownIDs(c)
	if len(ids) == 0 {
		return
	}
	w.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = ids[:1+w.rng.IntN(len(ids))]
	w.write(ctx, syncclient.Request{Method: http.MethodDelete, Target: "/storage/" + c.name + "?ids=" + strings.Join(ids, ",")},
		[]*collection{c}, func(s state, modified string) state { return s.without(ids, modified) })
}

func knownIDs(c *collection) []string {
	var ids []string
	for id := range c.possible[0].Items {
		ids = append(ids, id)
	}
	slices.Sort(ids) // the order of a map would make the seed useless
	return ids
}

func (w *worker) deleteCollection(ctx context.Context, c *collection) {
	c.batch = nil
	w.write(ctx, syncclient.Request{Method: http.MethodDelete, Target: "/storage/" + c.name},
		[]*collection{c}, func(state, string) state { return state{} })
}

func (w *worker) deleteAll(ctx context.Context) {
	for _, c := range w.collections {
		c.batch = nil
	}
	w.write(ctx, syncclient.Request{Method: http.MethodDelete, Target: "/storage"},
		w.collections, func(_ state, modified string) state { return state{wiped: modified == ""} })
}
