package bigtable

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// errCrash is what every call of a crashed engine ends with.
var errCrash = status.Error(codes.FailedPrecondition, "crashed")

// errDropped is an answer that never came.
var errDropped = status.Error(codes.Unavailable, "dropped")

// points is a hook that counts the places before and after the calls of an engine,
// from when it is armed, and does something at one of them.
type points struct {
	mu      sync.Mutex
	armed   bool
	n       int // the place
	seen    int
	crash   bool // at n, or drop one answer there
	crashed bool
	trace   []string
}

func (p *points) hook(step string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crashed {
		return errCrash
	}
	if !p.armed {
		return nil
	}
	p.trace = append(p.trace, step)
	p.seen++
	switch {
	case p.seen-1 != p.n:
		return nil
	case p.crash:
		p.crashed = true
		return errCrash
	}
	return errDropped
}

func (p *points) arm(n int, crash bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.n, p.crash = true, n, crash
}

func (p *points) fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen > p.n
}

// quiet keeps the sweeper out of a test.
func quiet(o Options) Options {
	o.SweeperCadence = 24 * time.Hour
	return o
}

// die ends an engine as a crash does: nothing that it has begun goes on.
func (e *Engine) die() {
	e.cancel()
}

// world is a store with two spaces, and an engine that looks at it from outside.
type world struct {
	*testing.T
	server *server
	clock  *clock.Manual
	other  *Engine
	db     *kv.DB
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, server: newServer(t), clock: clock.NewManual(start())}
	w.other = w.server.openWith(t, quiet(w.server.options(w.clock)), func(string) error { return nil })
	w.db = kv.New(w.other, Limits())
	w.ok(w.db.CreateSpace(t.Context(), "a", kv.SpaceOptions{FeedShards: 1, FeedRetention: 100 * time.Hour}))
	w.ok(w.db.CreateSpace(t.Context(), "b", kv.SpaceOptions{Links: true}))
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func put(space, key, value string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte(value)}
}

func fed(w kv.Write, data string) kv.Write {
	w.Feed = []byte(data)
	return w
}

func del(space, key string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Delete: true}
}

func check(space, key string, v kv.Version) kv.Check {
	return kv.Check{Space: space, Key: []byte(key), Version: v}
}

func (w *world) commit(checks []kv.Check, writes ...kv.Write) kv.Version {
	w.Helper()
	v, err := w.db.Commit(w.Context(), &kv.Txn{Checks: checks, Writes: writes})
	w.ok(err)
	return v
}

// show reads rows one by one, as a client with strong reads does.
func (w *world) show(e *Engine, places ...string) string {
	w.Helper()
	var all []string
	for _, p := range places {
		space, key, _ := strings.Cut(p, "/")
		rows, err := e.Get(w.Context(), []kv.Ref{{Space: space, Key: []byte(key)}})
		w.ok(err)
		if rows[0].Exists() {
			all = append(all, p+"="+string(rows[0].Value))
		} else {
			all = append(all, p+"=-")
		}
	}
	return strings.Join(all, " ")
}

func (w *world) feed(e *Engine) string {
	w.Helper()
	entries, err := e.ReadFeed(w.Context(), "a", 0, "", 1000)
	w.ok(err)
	var all []string
	for _, en := range entries {
		all = append(all, string(en.Key)+":"+string(en.Data))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// settled waits until an engine does nothing any more for the calls that it had.
func settled(e *Engine) { e.jobs.Wait() }

// unlockedAll wants that no row is locked.
func (w *world) unlockedAll(places ...string) {
	w.Helper()
	for _, p := range places {
		space, key, _ := strings.Cut(p, "/")
		s, err := w.other.space(w.Context(), space)
		w.ok(err)
		r, err := w.other.readRow(w.Context(), "test", s, key)
		w.ok(err)
		if r.state.locked {
			w.Errorf("row %s is still locked", p)
		}
	}
}

// scenario is a commit, what is there before it and after it, and the feed of space a
// that comes with it.
type scenario struct {
	name          string
	txn           func(v kv.Version) *kv.Txn
	before, after string
	feed          string
}

const places = "a/written a/deleted b/guard a/inserted"

func scenarios() []scenario {
	before := "a/written=old a/deleted=old b/guard=old a/inserted=-"
	return []scenario{
		{"transaction", func(v kv.Version) *kv.Txn {
			return &kv.Txn{
				Checks: []kv.Check{check("a", "written", v), check("b", "guard", v), check("a", "inserted", 0)},
				Writes: []kv.Write{fed(put("a", "written", "new"), "w"), fed(del("a", "deleted"), "d"), put("a", "inserted", "new")},
			}
		}, before, "a/written=new a/deleted=- b/guard=old a/inserted=new", "deleted:d written:w"},
		{"checked row", func(v kv.Version) *kv.Txn {
			return &kv.Txn{Checks: []kv.Check{check("a", "written", v)}, Writes: []kv.Write{fed(put("a", "written", "new"), "w")}}
		}, before, "a/written=new a/deleted=old b/guard=old a/inserted=-", "written:w"},
		{"blind row", func(kv.Version) *kv.Txn {
			return &kv.Txn{Writes: []kv.Write{put("a", "inserted", "new")}}
		}, before, "a/written=old a/deleted=old b/guard=old a/inserted=new", ""},
	}
}

// At every place before and after a call the coordinator crashes, or loses the
// answer. Everybody then sees all of the commit or nothing, at once and later, and
// the feed agrees.
func TestCommitIsAllOrNothingWhateverCallFails(t *testing.T) {
	slow(t)
	for _, sc := range scenarios() {
		for _, crash := range []bool{true, false} {
			old, young := 0, 0
			for n, more := 0, true; more; n++ {
				t.Run(fmt.Sprintf("%s/crash=%v/%d", sc.name, crash, n), func(t *testing.T) {
					var committed bool
					committed, more = runPoint(t, sc, n, crash)
					if committed {
						young++
					} else {
						old++
					}
				})
				if n > 200 {
					t.Fatal("no end")
				}
			}
			if old == 0 && crash || young == 0 {
				t.Errorf("%s: %d times nothing, %d times all", sc.name, old, young)
			}
		}
	}
}

func runPoint(t *testing.T, sc scenario, n int, crash bool) (committed, more bool) {
	w := newWorld(t)
	v := w.commit(nil, put("a", "written", "old"), put("a", "deleted", "old"), put("b", "guard", "old"))
	settled(w.other)
	p := &points{}
	e := w.server.openWith(t, quiet(w.server.options(w.clock)), p.hook)
	_, err := e.Get(t.Context(), []kv.Ref{{Space: "a", Key: []byte("x")}, {Space: "b", Key: []byte("x")}})
	w.ok(err)
	p.arm(n, crash)
	_, err = e.Commit(t.Context(), sc.txn(v))
	if crash && p.fired() {
		e.die()
	}
	settled(e)
	all := strings.Fields(places)
	seen := w.show(w.other, all...)
	switch {
	case seen != sc.before && seen != sc.after:
		t.Fatalf("torn: %s\n%s", seen, strings.Join(p.trace, "\n"))
	case err == nil && seen != sc.after:
		t.Errorf("acknowledged, and then %s", seen)
	case err != nil && !crash && !errors.Is(err, kv.ErrUnknownOutcome) && seen != sc.before:
		t.Errorf("refused with %v, and then %s", err, seen)
	}
	w.clock.Advance(10 * time.Second) // past the deadline and all grace
	if final := w.show(w.other, all...); final != seen {
		t.Errorf("%s was read, and later %s", seen, final)
	}
	settled(w.other)
	w.unlockedAll(all...)
	feed := ""
	if seen == sc.after {
		feed = sc.feed
	}
	w.clock.Advance(time.Minute) // hints of the dead are old now
	if got := w.feed(w.other); got != feed {
		t.Errorf("feed %q, want %q", got, feed)
	}
	if got := w.feed(w.other); got != feed {
		t.Errorf("feed read again: %q, want %q", got, feed)
	}
	w.commit(nil, put("a", "written", "x"), put("a", "deleted", "x"), put("b", "guard", "x"), put("a", "inserted", "x"))
	return seen == sc.after, p.fired()
}
