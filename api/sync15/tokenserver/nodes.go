package tokenserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"github.com/holdfast-dev/holdfast/kv"
)

var (
	// ErrNoNode: no node can take another user.
	ErrNoNode = errors.New("no storage node has room")
	// ErrNodeNotFound: there is no node with this id.
	ErrNodeNotFound = errors.New("no such node")
	// ErrNodeExists: there is a node with this URL already.
	ErrNodeExists = errors.New("node exists")
	// ErrInvalidNode: a node cannot be like that.
	ErrInvalidNode = errors.New("invalid node")
)

// Node is a host of storages.
type Node struct {
	ID int64 `json:"id"`
	// URL is http or https and never ends in a slash.
	URL string `json:"node"`
	// Available is how many users can be placed before the node has to wait for
	// its turn again. It keeps new nodes from being flooded.
	Available int64 `json:"available"`
	// Load is how many users have been placed.
	Load int64 `json:"current_load"`
	// Capacity is how many users can be placed in all.
	Capacity int64 `json:"capacity"`
	// Downed and Backoff nodes get no new users. Those that they have stay.
	// Unlike a downed node, one in backoff still gets its turns.
	Downed  bool `json:"downed"`
	Backoff bool `json:"backoff"`
}

// NodeChange says what to change about a node; nil leaves a field as it is.
type NodeChange struct {
	Available *int64 `json:"available,omitempty"`
	Load      *int64 `json:"current_load,omitempty"`
	Capacity  *int64 `json:"capacity,omitempty"`
	Downed    *bool  `json:"downed,omitempty"`
	Backoff   *bool  `json:"backoff,omitempty"`
}

// find returns the node, nil if there is none.
func (s *service) find(id int64) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].ID == id {
			return &s.Nodes[i]
		}
	}
	return nil
}

// takePlace chooses the node for another user and counts the user there.
func (s *service) takePlace(fixed int64, releaseRate float64) (*Node, error) {
	if fixed != 0 {
		n := s.find(fixed)
		if n == nil {
			return nil, fmt.Errorf("node %d: %w", fixed, ErrNoNode)
		}
		n.Load++
		return n, nil
	}
	n := s.leastLoaded()
	if n == nil {
		// A released node has a place, so that releasing once is enough: if nobody
		// can be chosen after it, a second round would find nothing to release.
		s.release(releaseRate)
		n = s.leastLoaded()
	}
	if n == nil {
		return nil, ErrNoNode
	}
	n.Available--
	n.Load++
	return n, nil
}

// leastLoaded compares loads on the scale of logarithms, so that a large node
// fills ahead of a small one. Nodes are ordered by id: the first of equals wins.
func (s *service) leastLoaded() *Node {
	var best *Node
	var least float64
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Available <= 0 || n.Capacity <= n.Load || n.Downed || n.Backoff {
			continue
		}
		load := math.Inf(-1)
		if n.Load > 0 {
			load = math.Log(float64(n.Load)) / math.Log(float64(n.Capacity))
		}
		if best == nil || load < least {
			best, least = n, load
		}
	}
	return best
}

// release gives a part of their capacity to all nodes that have used up theirs, at
// least one place each.
func (s *service) release(rate float64) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Available > 0 || n.Capacity <= n.Load || n.Downed {
			continue
		}
		n.Available = min(max(int64(math.Round(float64(n.Capacity)*rate)), 1), n.Capacity-n.Load)
	}
}

// checkNode returns the URL in its only form.
func checkNode(n Node) (string, error) {
	u, err := url.Parse(n.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", fmt.Errorf("%w: its URL must be http or https and name a host", ErrInvalidNode)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%w: its URL must have no user, query or fragment", ErrInvalidNode)
	case n.Available < 0 || n.Load < 0 || n.Capacity < 0:
		return "", fmt.Errorf("%w: negative number of users", ErrInvalidNode)
	}
	return strings.TrimRight(n.URL, "/"), nil
}

// Nodes lists the nodes in the order of their ids.
func (s *Store) Nodes(ctx context.Context) ([]Node, error) {
	ref := serviceRef()
	row, err := s.db.GetOne(ctx, ref.Space, ref.Key)
	if err != nil {
		return nil, fmt.Errorf("tokenserver: list nodes: %w", err)
	}
	var svc service
	if err := decode(row, ref, &svc); err != nil {
		return nil, err
	}
	return svc.Nodes, nil
}

// AddNode adds a node and returns it. Its ID must be 0: ids are given out here and
// never again. With Available 0 the node gets its places turn by turn. The errors
// are ErrInvalidNode, ErrNodeExists, and those of the engine.
func (s *Store) AddNode(ctx context.Context, n Node) (Node, error) {
	u, err := checkNode(n)
	if err != nil {
		return Node{}, fmt.Errorf("tokenserver: add node: %w", err)
	}
	if n.ID != 0 {
		return Node{}, fmt.Errorf("tokenserver: add node: %w: it brings an id", ErrInvalidNode)
	}
	n.URL = u
	err = s.changeNodes(ctx, func(svc *service) error {
		for i := range svc.Nodes {
			if svc.Nodes[i].URL == n.URL {
				return ErrNodeExists
			}
		}
		svc.LastNodeID++
		n.ID = svc.LastNodeID
		svc.Nodes = append(svc.Nodes, n)
		return nil
	})
	if err != nil {
		return Node{}, fmt.Errorf("tokenserver: add node: %w", err)
	}
	return n, nil
}

// EnsureNode adds a node with all of its capacity available, unless there is one
// with this URL, and reports whether it did. For the start of a server.
func (s *Store) EnsureNode(ctx context.Context, url string, capacity int64) (bool, error) {
	_, err := s.AddNode(ctx, Node{URL: url, Capacity: capacity, Available: capacity})
	if errors.Is(err, ErrNodeExists) {
		return false, nil
	}
	return err == nil, err
}

// EnsureOwnNode makes sure that there is one node which stands for the server itself,
// at this URL: a node that it adds, with all of its capacity available, or the one of
// an earlier call, which moves with its users if the URL has changed. A node that was
// added under this URL by other means becomes the server's own.
func (s *Store) EnsureOwnNode(ctx context.Context, url string, capacity int64) error {
	u, err := checkNode(Node{URL: url, Capacity: capacity, Available: capacity})
	if err != nil {
		return fmt.Errorf("tokenserver: own node: %w", err)
	}
	err = s.changeNodes(ctx, func(svc *service) error {
		for i := range svc.Nodes {
			if svc.Nodes[i].URL == u {
				svc.OwnNodeID = svc.Nodes[i].ID
				return nil
			}
		}
		if own := svc.find(svc.OwnNodeID); own != nil {
			own.URL = u
			return nil
		}
		svc.LastNodeID++
		svc.OwnNodeID = svc.LastNodeID
		svc.Nodes = append(svc.Nodes, Node{ID: svc.LastNodeID, URL: u, Capacity: capacity, Available: capacity})
		return nil
	})
	if err != nil {
		return fmt.Errorf("tokenserver: own node: %w", err)
	}
	return nil
}

// UpdateNode changes a node and returns it. The errors are ErrNodeNotFound,
// ErrInvalidNode, and those of the engine.
func (s *Store) UpdateNode(ctx context.Context, id int64, c NodeChange) (Node, error) {
	var changed Node
	err := s.changeNodes(ctx, func(svc *service) error {
		n := svc.find(id)
		if n == nil {
			return ErrNodeNotFound
		}
		set(&n.Available, c.Available)
		set(&n.Load, c.Load)
		set(&n.Capacity, c.Capacity)
		set(&n.Downed, c.Downed)
		set(&n.Backoff, c.Backoff)
		changed = *n
		_, err := checkNode(*n)
		return err
	})
	if err != nil {
		return Node{}, fmt.Errorf("tokenserver: update node %d: %w", id, err)
	}
	return changed, nil
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// RemoveNode removes a node. Users that it had move to another one, with a new uid
// and an empty storage, when they next ask for a token. The errors are
// ErrNodeNotFound and those of the engine.
func (s *Store) RemoveNode(ctx context.Context, id int64) error {
	err := s.changeNodes(ctx, func(svc *service) error {
		for i := range svc.Nodes {
			if svc.Nodes[i].ID == id {
				svc.Nodes = append(svc.Nodes[:i], svc.Nodes[i+1:]...)
				return nil
			}
		}
		return ErrNodeNotFound
	})
	if err != nil {
		return fmt.Errorf("tokenserver: remove node %d: %w", id, err)
	}
	return nil
}

// changeNodes changes the row of the service.
func (s *Store) changeNodes(ctx context.Context, change func(*service) error) error {
	_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
		svc, err := loadService(tx)
		if err != nil {
			return err
		}
		if err := change(svc); err != nil {
			return err
		}
		return put(tx, serviceRef(), svc)
	})
	return err
}

// loadService returns the service, a new one if it has no row yet.
func loadService(tx *kv.Tx) (*service, error) {
	svc := newService()
	_, err := load(tx, serviceRef(), svc)
	return svc, err
}

func newService() *service { return &service{ID: serviceID, Pattern: servicePattern} }
