package tokenserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
	"github.com/holdfast-dev/holdfast/metrics"
)

// DefaultReleaseRate is the part of a node's capacity that becomes available at a
// time.
const DefaultReleaseRate = 0.1

// Policy says who is placed where.
type Policy struct {
	// ReleaseRate is the part of its capacity that a node makes available once it
	// has used up what was available, 0 … 1. 0 means DefaultReleaseRate.
	ReleaseRate float64
	// FixedNode is the id of the node that takes all users, whatever its load. 0:
	// the least loaded node with room does.
	FixedNode int64
	// RefuseNewUsers turns away accounts that have no user yet.
	RefuseNewUsers bool
}

// StoreOptions are what a Store needs beside the engine.
type StoreOptions struct {
	Clock  clock.Clock // required
	Policy Policy
	// Metrics measures the engine's part of requests; nil measures nothing.
	Metrics *metrics.Registry
}

// Store keeps accounts, users and nodes. It is safe for concurrent use, by many
// processes too.
//
// All methods return the errors of the engine beside their own. After
// kv.ErrUnknownOutcome the same call can be made again: what it asked for is done
// once, whichever of the two did it.
type Store struct {
	db      *kv.DB
	clock   clock.Clock
	policy  Policy
	metrics storeMetrics
}

type storeMetrics struct {
	getUsers, allocateUser, postUser, putUser, retireUser *metrics.Timer
}

// NewStore returns a Store on db.
func NewStore(db *kv.DB, o StoreOptions) (*Store, error) {
	if o.Clock == nil {
		return nil, errors.New("tokenserver: a store needs a clock")
	}
	if o.Policy.ReleaseRate == 0 {
		o.Policy.ReleaseRate = DefaultReleaseRate
	}
	if !(o.Policy.ReleaseRate > 0 && o.Policy.ReleaseRate <= 1) {
		return nil, fmt.Errorf("tokenserver: capacity release rate %v is not between 0 and 1", o.Policy.ReleaseRate)
	}
	return &Store{db: db, clock: o.Clock, policy: o.Policy, metrics: storeMetrics{
		getUsers:     o.Metrics.Timer("storage.get_users"),
		allocateUser: o.Metrics.Timer("storage.allocate_user"),
		postUser:     o.Metrics.Timer("storage.post_user"),
		putUser:      o.Metrics.Timer("storage.put_user"),
		retireUser:   o.Metrics.Timer("storage.retire_user"),
	}}, nil
}

// Spaces returns the spaces that a Store needs.
func Spaces() []kv.SpaceInfo {
	return []kv.SpaceInfo{{Name: servicesSpace}, {Name: usersSpace}, {Name: uidsSpace}}
}

// CreateSpaces creates the spaces that do not exist yet. Everything else needs
// them.
func (s *Store) CreateSpaces(ctx context.Context) error {
	if err := s.db.EnsureSpaces(ctx, Spaces()...); err != nil {
		return fmt.Errorf("tokenserver: %w", err)
	}
	return nil
}

// Assign finds the storage of the account that the claims are about, and gives it
// one if it has none or if the claims tell of new keys. Claims that are newer than
// what is known replace it.
//
// The errors are *ClaimsError, ErrNewUsersDisabled and ErrNoNode, after which
// nothing has changed, and those of the engine.
func (s *Store) Assign(ctx context.Context, c Claims) (Assignment, error) {
	began := s.clock.Now()
	pl, err := s.look(ctx, &c)
	s.metrics.getUsers.Observe(s.clock.Now().Sub(began))
	if err != nil {
		return Assignment{}, fmt.Errorf("tokenserver: assign a storage: %w", err)
	}
	if !pl.changed && !pl.placed {
		return pl.assignment(), nil
	}
	began = s.clock.Now()
	_, err = s.db.Update(ctx, func(tx *kv.Tx) error {
		pl, err = s.carryOut(tx, &c)
		return err
	})
	if err != nil {
		return Assignment{}, fmt.Errorf("tokenserver: assign a storage: %w", err)
	}
	s.timer(pl).Observe(s.clock.Now().Sub(began))
	return pl.assignment(), nil
}

// timer is the one for the most that a request did.
func (s *Store) timer(pl *plan) *metrics.Timer {
	switch {
	case pl.placed:
		return s.metrics.allocateUser
	case pl.current > 0:
		return s.metrics.postUser
	}
	return s.metrics.putUser
}

// look plans on one consistent read.
func (s *Store) look(ctx context.Context, c *Claims) (*plan, error) {
	refs := []kv.Ref{serviceRef(), userRef(c.Email)}
	rows, err := s.db.Get(ctx, refs...)
	if err != nil {
		return nil, err
	}
	svc, list := newService(), &userList{}
	if err := decode(rows[0], refs[0], svc); err != nil {
		return nil, err
	}
	if err := decode(rows[1], refs[1], list); err != nil {
		return nil, err
	}
	return newPlan(s.policy, s.clock.Now(), svc, list, c)
}

// carryOut plans in a transaction and writes what changes.
func (s *Store) carryOut(tx *kv.Tx, c *Claims) (*plan, error) {
	if _, err := tx.GetAll(serviceRef(), userRef(c.Email)); err != nil {
		return nil, err // one call to the engine for all that follows
	}
	svc, err := loadService(tx)
	if err != nil {
		return nil, err
	}
	list := &userList{}
	if _, err := load(tx, userRef(c.Email), list); err != nil {
		return nil, err
	}
	pl, err := newPlan(s.policy, s.clock.Now(), svc, list, c)
	if err != nil {
		return nil, err
	}
	if err := giveUIDs(tx, pl.users, c.Email); err != nil {
		return nil, err
	}
	if pl.placed {
		if err := put(tx, serviceRef(), svc); err != nil {
			return nil, err
		}
	}
	if pl.changed {
		return pl, put(tx, userRef(c.Email), userList{Users: pl.users})
	}
	return pl, nil
}

// giveUIDs gives a uid to each user without one.
func giveUIDs(tx *kv.Tx, users []User, email string) error {
	var last lastUID
	for i := range users {
		if users[i].UID != 0 {
			continue
		}
		if _, err := load(tx, uidRef(0), &last); err != nil {
			return err
		}
		if last.UID >= maxUID {
			return errNoUIDLeft
		}
		last.UID++
		users[i].UID = last.UID
		if err := put(tx, uidRef(last.UID), uidOwner{Service: serviceID, Email: email}); err != nil {
			return err
		}
		if err := put(tx, uidRef(0), last); err != nil {
			return err
		}
	}
	return nil
}

// Account returns what is known of an account; no users, if nothing is.
func (s *Store) Account(ctx context.Context, email string) (Account, error) {
	ref := userRef(email)
	row, err := s.db.GetOne(ctx, ref.Space, ref.Key)
	if err != nil {
		return Account{}, fmt.Errorf("tokenserver: read an account: %w", err)
	}
	return account(row, ref, email)
}

func account(row kv.Row, ref kv.Ref, email string) (Account, error) {
	var list userList
	if err := decode(row, ref, &list); err != nil {
		return Account{}, err
	}
	list.sort()
	return Account{Service: serviceName, Email: email, Users: list.Users}, nil
}

// AccountOf returns the account that the user with this uid belongs to; no users,
// if there is none.
func (s *Store) AccountOf(ctx context.Context, uid uint64) (Account, error) {
	ref := uidRef(uid)
	row, err := s.db.GetOne(ctx, ref.Space, ref.Key)
	if err != nil {
		return Account{}, fmt.Errorf("tokenserver: read uid %d: %w", uid, err)
	}
	if !row.Exists() || uid == 0 {
		return Account{Service: serviceName}, nil
	}
	var owner uidOwner
	if err := decode(row, ref, &owner); err != nil {
		return Account{}, err
	}
	return s.Account(ctx, owner.Email)
}

// Accounts lists up to limit accounts in the order of their email addresses, those
// after the given address; "" begins with the first. There may be more if it
// returns limit accounts.
func (s *Store) Accounts(ctx context.Context, after string, limit int) ([]Account, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("tokenserver: list accounts: %w: limit %d", kv.ErrInvalid, limit)
	}
	r := kv.Prefix(usersOfService())
	if after != "" {
		r.Start = append(userRef(after).Key, 0) // the first key behind it
	}
	r.Limit = limit
	var accounts []Account
	var bad error
	err := s.db.Scan(ctx, usersSpace, r, func(row kv.Row) bool {
		rd := key.NewReader(row.Key)
		rd.Uint()
		email := rd.String()
		if rd.Done() != nil {
			bad = fmt.Errorf("tokenserver: key %q of %s: %w", row.Key, usersSpace, kv.ErrCorrupt)
			return false
		}
		var a Account
		a, bad = account(row, userRef(email), email)
		accounts = append(accounts, a)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("tokenserver: list accounts: %w", err)
	}
	return accounts, nil
}

// Retire ends an account: no request with a smaller generation than the largest
// int64 gets a token for it any more. It reports whether there was anything to
// end.
func (s *Store) Retire(ctx context.Context, email string) (bool, error) {
	began := s.clock.Now()
	at := began.UnixMilli()
	done, err := s.changeCurrent(ctx, email, func(u *User) bool {
		u.Generation, u.ReplacedAt = retired, &at
		return true
	})
	if err != nil {
		return false, fmt.Errorf("tokenserver: retire an account: %w", err)
	}
	s.metrics.retireUser.Observe(s.clock.Now().Sub(began))
	return done, nil
}

// PasswordChanged shuts out clients that signed in before the password was changed
// at a time. It reports whether that was news.
func (s *Store) PasswordChanged(ctx context.Context, email string, at time.Time) (bool, error) {
	if at.UnixMilli() <= 0 {
		return false, nil
	}
	// One less, so that who signs in with the new password at that moment passes.
	generation := at.UnixMilli() - 1
	done, err := s.changeCurrent(ctx, email, func(u *User) bool {
		if generation <= u.Generation {
			return false
		}
		u.Generation = generation
		return true
	})
	if err != nil {
		return false, fmt.Errorf("tokenserver: note a changed password: %w", err)
	}
	return done, nil
}

// changeCurrent changes the users of an account that are not replaced. change
// reports whether it did anything.
func (s *Store) changeCurrent(ctx context.Context, email string, change func(*User) bool) (bool, error) {
	var changed bool
	_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
		changed = false
		var list userList
		if _, err := load(tx, userRef(email), &list); err != nil {
			return err
		}
		for i := range list.Users {
			if u := &list.Users[i]; u.ReplacedAt == nil && change(u) {
				changed = true
			}
		}
		if !changed {
			return nil
		}
		return put(tx, userRef(email), list)
	})
	return changed, err
}
