package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// newRand returns a source whose seed is in the output of a failed test.
func newRand(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := rand.Uint64()
	tb.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func testStart() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func openOn(tb testing.TB, disk vfs.FS, c clock.Clock) *Engine {
	tb.Helper()
	e, err := Open(tb.Context(), "/data", Options{FS: disk, Clock: c, CacheBytes: 1 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func mustCreate(tb testing.TB, e *Engine, name string, o kv.SpaceOptions) {
	tb.Helper()
	if err := e.CreateSpace(tb.Context(), name, o); err != nil {
		tb.Fatal(err)
	}
}

func mustClose(tb testing.TB, e *Engine) {
	tb.Helper()
	if err := e.Close(); err != nil {
		tb.Fatal(err)
	}
}

func put(space, key, value string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte(value)}
}

func mustCommit(tb testing.TB, e *Engine, w ...kv.Write) kv.Version {
	tb.Helper()
	v, err := e.Commit(tb.Context(), &kv.Txn{Writes: w})
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func getOne(tb testing.TB, e *Engine, space, key string) kv.Row {
	tb.Helper()
	rows, err := e.Get(tb.Context(), []kv.Ref{{Space: space, Key: []byte(key)}})
	if err != nil {
		tb.Fatal(err)
	}
	return rows[0]
}

// history is what clients of an engine know for certain. Each client owns a few
// cells, and a commit of a client writes the client's next number into all rows
// of a cell at once: two plain rows, of which every third commit deletes the
// second, and a feed entry.
type history struct {
	mu    sync.Mutex
	cells map[int]cell
}

// cell is what is known of a cell: done is the highest number whose commit
// succeeded or that somebody has read, tried the highest one begun.
type cell struct {
	done, tried int
	version     kv.Version
	// entries are the numbers whose feed entries must exist.
	entries map[int]bool
}

const (
	cellsPerClient = 3
	feedShards     = 2
)

func newHistory() *history { return &history{cells: map[int]cell{}} }

// clone is a copy of what is known now.
func (h *history) clone() *history {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := newHistory()
	for k, v := range h.cells {
		entries := map[int]bool{}
		for n := range v.entries {
			entries[n] = true
		}
		v.entries = entries
		c.cells[k] = v
	}
	return c
}

func (h *history) update(id int, f func(*cell)) cell {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.cells[id]
	if c.entries == nil {
		c.entries = map[int]bool{}
	}
	f(&c)
	h.cells[id] = c
	return c
}

func createCellSpaces(ctx context.Context, e *Engine) error {
	for _, name := range []string{"left", "right"} {
		err := e.CreateSpace(ctx, name, kv.SpaceOptions{FeedShards: feedShards, FeedRetention: 1000 * time.Hour})
		if err != nil {
			return err
		}
	}
	return nil
}

// cellTxn writes number n into a cell, checking that it has version v.
func cellTxn(id, n int, v kv.Version, padding []byte) *kv.Txn {
	key := []byte(strconv.Itoa(id))
	value := fmt.Appendf(nil, "%d ", n)
	value = append(value, padding...)
	right := kv.Write{Space: "right", Key: key, Feed: fmt.Appendf(nil, "%d", n)}
	if n%3 == 0 {
		right.Delete = true
	} else {
		right.Value = value
	}
	return &kv.Txn{
		Checks: []kv.Check{{Space: "left", Key: key, Version: v}},
		Writes: []kv.Write{{Space: "left", Key: key, Value: value}, right},
	}
}

func numberOf(row kv.Row) int {
	if !row.Exists() {
		return 0
	}
	n := 0
	_, _ = fmt.Sscanf(string(row.Value[:min(len(row.Value), 20)]), "%d ", &n)
	return n
}

// write makes one commit to a cell of the client.
func (h *history) write(ctx context.Context, e *Engine, id int, r *rand.Rand) error {
	c := h.update(id, func(c *cell) { c.tried++ })
	padding := make([]byte, []int{0, 100, 5_000, 20_000}[r.IntN(4)])
	v, err := e.Commit(ctx, cellTxn(id, c.tried, c.version, padding))
	if err != nil {
		return err
	}
	if v <= c.version {
		return fmt.Errorf("version %d after %d", v, c.version)
	}
	h.update(id, func(d *cell) {
		d.done, d.version = c.tried, v
		d.entries[c.tried] = true
	})
	return nil
}

// read reads a cell, perhaps while its owner writes it, and keeps in mind what it
// saw: what has been read must survive.
func (h *history) read(ctx context.Context, e *Engine, id int) error {
	key := []byte(strconv.Itoa(id))
	rows, err := e.Get(ctx, []kv.Ref{{Space: "left", Key: key}, {Space: "right", Key: key}})
	if err != nil {
		return err
	}
	n := numberOf(rows[0])
	if err := checkPair(n, rows[1]); err != nil {
		return err
	}
	h.update(id, func(c *cell) { c.done = max(c.done, n) })
	return nil
}

// readRight reads only the row that gets deleted: its absence is knowledge too.
func (h *history) readRight(ctx context.Context, e *Engine, id int) error {
	before := h.update(id, func(*cell) {})
	rows, err := e.Get(ctx, []kv.Ref{{Space: "right", Key: []byte(strconv.Itoa(id))}})
	if err != nil {
		return err
	}
	n := numberOf(rows[0])
	if n == 0 && before.done%3 != 0 {
		// Some deletion behind what was known has happened.
		n = before.done + 3 - before.done%3
	}
	h.update(id, func(c *cell) { c.done = max(c.done, n) })
	return nil
}

func (h *history) readFeed(ctx context.Context, e *Engine, shard int) error {
	entries, err := e.ReadFeed(ctx, "right", shard, "", 1_000_000)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		id, _ := strconv.Atoi(string(entry.Key))
		n, _ := strconv.Atoi(string(entry.Data))
		h.update(id, func(c *cell) {
			c.entries[n] = true
			c.done = max(c.done, n)
		})
	}
	return nil
}

// scan reads all left rows.
func (h *history) scan(ctx context.Context, e *Engine) error {
	return e.Scan(ctx, "left", kv.Range{}, func(row kv.Row) bool {
		id, _ := strconv.Atoi(string(row.Key))
		n := numberOf(row)
		h.update(id, func(c *cell) { c.done = max(c.done, n) })
		return true
	})
}

func checkPair(n int, right kv.Row) error {
	want := n
	if n%3 == 0 {
		want = 0
	}
	if got := numberOf(right); got != want {
		return fmt.Errorf("torn: left has %d, right %d", n, got)
	}
	return nil
}

// check compares an engine that was opened after a crash with what was known
// before it. Numbers above what was tried when the crash happened may exist only
// if tried says so.
func (h *history) check(ctx context.Context, e *Engine, tried *history) error {
	feeds := map[int]map[int]bool{}
	for shard := range feedShards {
		entries, err := e.ReadFeed(ctx, "right", shard, "", 1_000_000)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			id, _ := strconv.Atoi(string(entry.Key))
			n, _ := strconv.Atoi(string(entry.Data))
			if feeds[id] == nil {
				feeds[id] = map[int]bool{}
			}
			feeds[id][n] = true
		}
	}
	for id, c := range h.cells {
		key := []byte(strconv.Itoa(id))
		rows, err := e.Get(ctx, []kv.Ref{{Space: "left", Key: key}, {Space: "right", Key: key}})
		if err != nil {
			return err
		}
		n := numberOf(rows[0])
		if n < c.done || n > tried.cells[id].tried {
			return fmt.Errorf("cell %d has number %d, known %d, tried %d", id, n, c.done, tried.cells[id].tried)
		}
		if err := checkPair(n, rows[1]); err != nil {
			return fmt.Errorf("cell %d: %w", id, err)
		}
		for m := range c.entries {
			if !feeds[id][m] {
				return fmt.Errorf("cell %d: feed entry %d of %d is lost", id, m, n)
			}
		}
		if n > 0 && !feeds[id][n] {
			return fmt.Errorf("cell %d has number %d without its feed entry", id, n)
		}
		for m := range feeds[id] {
			if m > n {
				return fmt.Errorf("cell %d has number %d and feed entry %d", id, n, m)
			}
		}
	}
	return nil
}

// run lets clients work until they have made a number of steps or meet an error,
// which is returned unless expected says that it is fine.
func (h *history) run(ctx context.Context, e *Engine, r *rand.Rand, clients, steps int, expected func(error) bool) error {
	var wg sync.WaitGroup
	errs := make([]error, clients)
	for client := range clients {
		r := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() {
			for range steps {
				if err := h.step(ctx, e, client, clients, r); err != nil {
					if !expected(err) {
						errs[client] = err
					}
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (h *history) step(ctx context.Context, e *Engine, client, clients int, r *rand.Rand) error {
	any := r.IntN(clients)*cellsPerClient + r.IntN(cellsPerClient)
	switch r.IntN(8) {
	case 0, 1:
		return h.read(ctx, e, any)
	case 2:
		return h.readRight(ctx, e, any)
	case 3:
		return h.readFeed(ctx, e, r.IntN(feedShards))
	case 4:
		return h.scan(ctx, e)
	default:
		return h.write(ctx, e, client*cellsPerClient+r.IntN(cellsPerClient), r)
	}
}
