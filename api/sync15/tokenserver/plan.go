package tokenserver

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

var (
	// ErrNewUsersDisabled: the account has no user, and none may be added.
	ErrNewUsersDisabled = errors.New("new users are not allowed")

	errRetiredWithoutNode = errors.New("the account is gone and its node is, too")
	errTooManyUsers       = fmt.Errorf("the account has had %d users", maxUsers)
	errNoUIDLeft          = errors.New("all uids have been given out")
)

// Assignment is where an account's storage is.
type Assignment struct {
	User User
	// Node is the URL of the user's node.
	Node string
}

// plan is what a request does to the rows: it is made from what they hold, without
// touching them.
type plan struct {
	policy  Policy
	now     int64
	service *service
	users   []User // the current one first; those without uid get one at the commit

	placed  bool // the service has changed
	changed bool // the users have changed
	current int  // which of the users it is now
	node    *Node
}

// newPlan works out a request. A new user has uid 0 until somebody gives it one.
func newPlan(p Policy, now time.Time, svc *service, list *userList, c *Claims) (*plan, error) {
	list.sort()
	pl := &plan{policy: p, now: now.UnixMilli(), service: svc, users: list.Users}
	if err := pl.find(c); err != nil {
		return nil, err
	}
	if err := c.check(&pl.users[pl.current], pl.stale); err != nil {
		return nil, err
	}
	if err := pl.bringUpToDate(c); err != nil {
		return nil, err
	}
	return pl, nil
}

// find makes sure that there is a current user and that it has a node.
func (p *plan) find(c *Claims) error {
	if len(p.users) == 0 {
		if p.policy.RefuseNewUsers {
			return ErrNewUsersDisabled
		}
		u := User{ClientState: c.ClientState, KeysChangedAt: c.KeysChangedAt}
		if c.Generation != nil {
			u.Generation = *c.Generation
		}
		return p.place(u)
	}
	u := p.users[0]
	p.replaceOlder(0, u.CreatedAt)
	p.node = p.service.find(u.NodeID)
	switch {
	case u.Generation < retired && (u.ReplacedAt != nil || p.node == nil):
		// A copy, not what the request says: that has not been checked yet.
		return p.place(u)
	case p.node == nil:
		return errRetiredWithoutNode
	}
	return nil
}

// place adds u as a user of a node chosen now.
func (p *plan) place(u User) error {
	n, err := p.service.takePlace(p.policy.FixedNode, p.policy.ReleaseRate)
	if err != nil {
		return err
	}
	p.node, p.placed = n, true
	u.NodeID = n.ID
	return p.add(u)
}

// add adds u as the current user.
func (p *plan) add(u User) error {
	if len(p.users) >= maxUsers {
		return errTooManyUsers
	}
	u.UID, u.ReplacedAt, u.CreatedAt = 0, nil, p.now
	for i := range p.users {
		// A clock that jumped back must not make u older than whom it replaces.
		u.CreatedAt = max(u.CreatedAt, p.users[i].CreatedAt)
	}
	p.users = append(p.users, u)
	p.current, p.changed = len(p.users)-1, true
	p.replaceOlder(p.current, u.CreatedAt)
	return nil
}

// replaceOlder marks all users but one as replaced. There are such only before
// the current user is added, and in rows that were not written here.
func (p *plan) replaceOlder(current int, at int64) {
	for i := range p.users {
		if i != current && p.users[i].ReplacedAt == nil {
			p.users[i].ReplacedAt = &at
			p.changed = true
		}
	}
}

// stale reports whether a client state that is not the current one was there
// before.
func (p *plan) stale(clientState string) bool {
	return slices.ContainsFunc(p.users, func(u User) bool { return u.ClientState == clientState })
}

// bringUpToDate gives the current user what the claims say, or adds a user for
// them.
func (p *plan) bringUpToDate(c *Claims) error {
	u := p.users[p.current]
	generation, keysChangedAt := c.update(&u)
	same := generation == u.Generation && equal(keysChangedAt, u.KeysChangedAt)
	u.Generation, u.KeysChangedAt = generation, keysChangedAt
	if c.ClientState != u.ClientState {
		u.ClientState = c.ClientState
		return p.add(u)
	}
	p.users[p.current] = u
	p.changed = p.changed || !same
	return nil
}

func equal(a, b *int64) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// assignment is what the request is told.
func (p *plan) assignment() Assignment {
	return Assignment{User: p.users[p.current], Node: p.node.URL}
}
