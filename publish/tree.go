package publish

import (
	"slices"
	"sync"
	"time"
)

// node is a partition in memory.
type node struct {
	Position // but for Watermark fixed while somebody reads it

	mu     sync.Mutex // guards Position.Watermark
	active bool       // somebody reads it
	done   bool       // read up to the end that was asked for
	stored Position   // what Positions has; zero if nothing
}

func (n *node) watermark() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Watermark
}

// advance moves the watermark forward.
func (n *node) advance(t time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.After(n.Watermark) {
		n.Watermark = t
	}
}

func (n *node) unfinished() bool { return n.State != Finished && !n.done }

// position returns what is to be stored.
func (n *node) position() Position {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Position
}

// tree is all partitions that matter. It belongs to one goroutine.
type tree struct {
	nodes     map[string]*node
	forgotten map[string]bool // to be removed from Positions
}

func newTree(positions []Position) *tree {
	t := &tree{nodes: map[string]*node{}, forgotten: map[string]bool{}}
	for _, p := range positions {
		t.nodes[p.Token] = &node{Position: p, stored: p}
	}
	return t
}

// add makes a partition known, if it is not.
func (t *tree) add(token string, parents []string, start time.Time) {
	if t.nodes[token] == nil {
		delete(t.forgotten, token)
		t.nodes[token] = &node{Position: Position{Token: token, Parents: parents, Start: start, Watermark: start, State: Created}}
	}
}

// search looks for the partitions that exist at the given time.
func (t *tree) search(at time.Time) { t.add(searchToken(at), nil, at) }

// finish ends a partition that was read and published to its end.
func (t *tree) finish(n *node, children []Event) {
	for _, e := range children {
		for _, c := range e.Children {
			t.add(c.Token, c.Parents, e.Time)
		}
		n.advance(e.Time)
	}
	n.State = Finished
}

// oldest returns the least watermark of what is not finished; ok is false if
// everything is.
func (t *tree) oldest() (least time.Time, ok bool) {
	for _, n := range t.nodes {
		if w := n.watermark(); n.unfinished() && (!ok || w.Before(least)) {
			least, ok = w, true
		}
	}
	return least, ok
}

// ready returns the partitions that can be read now and are not, oldest first.
// Those beyond end, if that is not zero, are left for another day.
func (t *tree) ready(end time.Time) []*node {
	oldest, _ := t.oldest()
	var ready []*node
	for _, n := range t.nodes {
		if n.active || !n.unfinished() {
			continue
		}
		if !end.IsZero() && n.Start.After(end) {
			n.done = true
			continue
		}
		if n.State == Running || t.parentsEnded(n, oldest) {
			ready = append(ready, n)
		}
	}
	slices.SortFunc(ready, func(a, b *node) int { return a.watermark().Compare(b.watermark()) })
	return ready
}

// parentsEnded reports whether everything that the parents of n had is published.
// A parent that is not known was forgotten, or nobody has announced it yet; the
// latter would be done by a partition that is still before the start of n.
func (t *tree) parentsEnded(n *node, oldest time.Time) bool {
	for _, token := range n.Parents {
		parent := t.nodes[token]
		if parent == nil && oldest.Before(n.Start) || parent != nil && parent.State != Finished {
			return false
		}
	}
	return true
}

// forget drops finished partitions that nobody needs to know any more: nobody can
// announce them again, and no child waits for them.
func (t *tree) forget() {
	waitedFor := map[string]bool{}
	for _, n := range t.nodes {
		if n.State == Created {
			for _, p := range n.Parents {
				waitedFor[p] = true
			}
		}
	}
	for again := true; again; {
		again = false
		for token, n := range t.nodes {
			known := func(token string) bool { return t.nodes[token] != nil }
			if n.State != Finished || n.active || waitedFor[token] || slices.ContainsFunc(n.Parents, known) {
				continue
			}
			delete(t.nodes, token)
			if n.stored.State != "" {
				t.forgotten[token] = true
			}
			again = true
		}
	}
}

// dirty returns the positions that are not stored as they are.
func (t *tree) dirty() []Position {
	var dirty []Position
	for _, n := range t.nodes {
		p, s := n.position(), n.stored
		if p.State != s.State || !p.Watermark.Equal(s.Watermark) || !p.Start.Equal(s.Start) {
			dirty = append(dirty, p)
		}
	}
	return dirty
}

// saved notes that positions are stored and those forgotten are not.
func (t *tree) saved(positions []Position) {
	for _, p := range positions {
		if n := t.nodes[p.Token]; n != nil {
			n.stored = p
		}
	}
	clear(t.forgotten)
}
