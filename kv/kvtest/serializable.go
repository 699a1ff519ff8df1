package kvtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/kv"
)

// observed is one transaction as its client saw it. Each key holds the list of the
// transactions that wrote it, and each writer appends itself to what it read.
type observed struct {
	id     int
	reads  map[string][]int // the list of each key that was read
	writes []string
	// unsure: the outcome was unknown, so it may or may not have happened.
	unsure bool
}

// caseSerializable runs random transactions over few keys at once and looks for an
// order in which they could have run one by one. From the lists it is known who
// wrote a key before whom, whose write a reader saw, and whose it did not see yet;
// the order exists if and only if these relations make no cycle.
func caseSerializable(f *fixture) {
	const workers, each = 6, 40
	seed := rand.Uint64()
	f.Logf("seed %d", seed)
	refs := []kv.Ref{}
	for i := range 4 {
		space := []string{"a", "b"}[i%2]
		f.space(space)
		refs = append(refs, kv.Ref{Space: space, Key: []byte(strconv.Itoa(i))})
	}
	var mu sync.Mutex
	var history []observed
	f.parallel(workers, func(worker int) error {
		rng := rand.New(rand.NewPCG(seed, uint64(worker)))
		for i := range each {
			o, err := f.observe(rng, refs, 1+worker*each+i)
			if err != nil {
				return err
			}
			mu.Lock()
			history = append(history, o)
			mu.Unlock()
		}
		return nil
	})
	final := map[string][]int{}
	rows, err := f.db.Get(f.ctx, refs...)
	f.ok(err)
	for i, r := range refs {
		final[place(r.Space, r.Key)] = parseList(rows[i].Value)
	}
	f.ok(checkSerializable(history, final))
}

// observe runs one random transaction: one Get of several keys, or an Update.
func (f *fixture) observe(rng *rand.Rand, refs []kv.Ref, id int) (observed, error) {
	some := make([]kv.Ref, 2+rng.IntN(2))
	for i, j := range rng.Perm(len(refs))[:len(some)] {
		some[i] = refs[j]
	}
	writes := rng.IntN(3)
	o := observed{id: id}
	saw := func(rows []kv.Row) {
		o.reads, o.writes = map[string][]int{}, nil
		for i, r := range some {
			o.reads[place(r.Space, r.Key)] = parseList(rows[i].Value)
		}
	}
	if writes == 0 && rng.IntN(2) == 0 {
		rows, err := f.db.Get(f.ctx, some...)
		if err == nil {
			saw(rows)
		}
		return o, err
	}
	_, err := f.db.Update(f.ctx, func(tx *kv.Tx) error {
		rows, err := tx.GetAll(some...)
		if err != nil {
			return err
		}
		saw(rows)
		pause(rng.IntN(10))
		for i, r := range some[:writes] {
			tx.Put(kv.Write{Space: r.Space, Key: r.Key, Value: fmt.Appendf(rows[i].Value[:len(rows[i].Value):len(rows[i].Value)], "%d ", id)})
			o.writes = append(o.writes, place(r.Space, r.Key))
		}
		return nil
	})
	if errors.Is(err, kv.ErrUnknownOutcome) {
		o.unsure, err = true, nil
	}
	return o, err
}

func parseList(b []byte) []int {
	var ids []int
	for _, s := range strings.Fields(string(b)) {
		id, err := strconv.Atoi(s)
		if err != nil {
			id = -1 // nobody's
		}
		ids = append(ids, id)
	}
	return ids
}

// checkSerializable checks a history against the lists that the keys hold at the
// end.
func checkSerializable(history []observed, final map[string][]int) error {
	before := map[int][]int{} // from a transaction to those that must come after it
	for _, o := range history {
		for _, key := range o.writes {
			n := 0
			for _, id := range final[key] {
				if id == o.id {
					n++
				}
			}
			if n > 1 || n == 0 && !o.unsure {
				return fmt.Errorf("write of transaction %d to %s is there %d times", o.id, key, n)
			}
		}
		for key, list := range o.reads {
			end := final[key]
			if len(list) > len(end) || !slices.Equal(list, end[:len(list)]) {
				if o.unsure {
					continue // it did not happen
				}
				return fmt.Errorf("transaction %d read %v from %s, whose writers are %v", o.id, list, key, end)
			}
			if len(list) > 0 {
				last := list[len(list)-1]
				before[last] = append(before[last], o.id)
			}
			if next := len(list); next < len(end) && end[next] != o.id {
				before[o.id] = append(before[o.id], end[next])
			}
		}
	}
	for key, ids := range final {
		for i, id := range ids[:max(len(ids)-1, 0)] {
			before[id] = append(before[id], ids[i+1])
		}
		if slices.Contains(ids, -1) {
			return fmt.Errorf("%s holds what nobody wrote", key)
		}
	}
	return findCycle(before)
}

// findCycle reports a cycle of the graph, if there is one.
func findCycle(next map[int][]int) error {
	const open, done = 1, 2
	state := map[int]int{}
	var path []int
	var visit func(id int) error
	visit = func(id int) error {
		state[id] = open
		path = append(path, id)
		for _, n := range next[id] {
			switch state[n] {
			case open:
				return fmt.Errorf("no order explains transactions %v", append(path[slices.Index(path, n):], n))
			case 0:
				if err := visit(n); err != nil {
					return err
				}
			}
		}
		state[id] = done
		path = path[:len(path)-1]
		return nil
	}
	for id := range next {
		if state[id] == 0 {
			if err := visit(id); err != nil {
				return err
			}
		}
	}
	return nil
}
