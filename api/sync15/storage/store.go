package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Spaces of this package. Those that hold links or rows with an expiry are
// registered with the changes and expiry layers by whoever wires them.
const (
	spaceHeads       = "sync_heads"
	SpaceRecords     = "bsos"
	spaceOrder       = "sync_bso_order"
	SpaceBatches     = "sync_batches"
	SpaceStaged      = "batch_bsos"
	spaceCollections = "sync_collections"
)

// CommitTag marks the transaction that publishes a batch. It reaches the change
// records and says that the staged rows handed their links over.
const CommitTag = "batch_commit"

// BatchLifetime is how long a batch can be appended to and committed.
const BatchLifetime = 2 * time.Hour

// maxCollections bounds the collections of one user, because the head lists them
// all. Clients use about fifteen.
const maxCollections = 1000

// Errors that callers tell apart, beside those of package kv.
var (
	// ErrNotFound: the record does not exist or has expired.
	ErrNotFound = errors.New("record not found")
	// ErrNoBatch: the batch does not exist for this user and collection, was
	// committed, or has expired.
	ErrNoBatch = errors.New("no such batch")
	// ErrOverQuota: what the user has stored has reached the quota.
	ErrOverQuota = errors.New("over quota")
	// ErrTooManyCollections: the user has as many collections as one can have.
	ErrTooManyCollections = errors.New("too many collections")
	// ErrChanged: the collection changed while it was read.
	ErrChanged = errors.New("collection changed while it was read")
)

// PreconditionError says that a resource is newer than the client assumed.
type PreconditionError struct {
	// Modified is the resource's timestamp.
	Modified Timestamp
}

func (e *PreconditionError) Error() string { return "modified at " + e.Modified.String() }

func holds(pre bso.Precondition, modified Timestamp) error {
	if pre.Failed(modified) {
		return &PreconditionError{Modified: modified}
	}
	return nil
}

// Options configure a Store.
type Options struct {
	Clock clock.Clock
	// Random is where batch ids come from.
	Random io.Reader
	// QuotaBytes is the most that a user may have stored before a write; 0 means
	// no quota.
	QuotaBytes int64
	// MaxBatchRecords and MaxBatchBytes bound what a batch may hold.
	MaxBatchRecords, MaxBatchBytes int64
	// SendPurge sends a message to the purge within the transaction. Whoever
	// receives it calls Purge until that says that nothing is left.
	SendPurge func(tx *kv.Tx, message []byte) error
	// OverQuota, if not nil, is told of each write that met a full quota, and
	// answers whether to refuse it. nil refuses.
	OverQuota func(collection string) (refuse bool)
}

// Rows that publishing a batch writes at most: for each record the staged row, the
// record's, its old and its new place in the order, and its old and new entry in the
// expiry index; and besides them the head, the batch and its entry, and messages about
// links.
const (
	rowsPerRecord = 6
	rowsBesides   = 40
)

// bytesPerRow is what these rows take in the mean, beside payloads, with the longest ids.
const bytesPerRow = 128

// BatchLimits returns what a batch may hold so that one commit of an engine can publish
// it: at most the given number of records, and so many bytes of payload.
func BatchLimits(l kv.Limits, most int64) (records, bytes int64) {
	records = min(most, int64(l.CommitRows-rowsBesides)/rowsPerRecord)
	return records, int64(l.CommitBytes) - (records*rowsPerRecord+rowsBesides)*bytesPerRow
}

// Store keeps the storages of all users. It is safe for concurrent use.
type Store struct {
	db    *kv.DB
	opts  Options
	names collectionNames
}

// Spaces returns the spaces that a Store needs.
func Spaces() []kv.SpaceInfo {
	return []kv.SpaceInfo{
		{Name: spaceHeads}, {Name: spaceOrder}, {Name: SpaceBatches}, {Name: spaceCollections},
		{Name: SpaceRecords, SpaceOptions: kv.SpaceOptions{Links: true}},
		{Name: SpaceStaged, SpaceOptions: kv.SpaceOptions{Links: true}},
	}
}

// Open creates the spaces that are missing and returns a Store. db must have the
// hooks that record link changes and expiry times of this package's spaces.
func Open(ctx context.Context, db *kv.DB, opts Options) (*Store, error) {
	if err := db.EnsureSpaces(ctx, Spaces()...); err != nil {
		return nil, fmt.Errorf("open sync storage: %w", err)
	}
	return &Store{db: db, opts: opts}, nil
}

func (s *Store) head(ctx context.Context, u User) (*head, error) {
	_, h, err := s.headRow(ctx, u)
	return h, err
}

func (s *Store) headRow(ctx context.Context, u User) (kv.Row, *head, error) {
	id := u.id()
	row, err := s.db.GetOne(ctx, spaceHeads, id[:])
	if err != nil {
		return kv.Row{}, nil, err
	}
	h, err := decodeHead(row)
	return row, h, err
}

// update is a transaction on a user's head: fn gets it as stored and what it
// leaves is written back if it says so.
func (s *Store) update(ctx context.Context, u User, fn func(tx *kv.Tx, h *head) (dirty bool, err error)) error {
	id := u.id()
	k := id[:]
	_, err := s.db.Update(ctx, func(tx *kv.Tx) error {
		row, err := tx.Get(spaceHeads, k)
		if err != nil {
			return err
		}
		h, err := decodeHead(row)
		if err != nil {
			return err
		}
		dirty, err := fn(tx, h)
		if err != nil {
			return err
		}
		if dirty {
			h.owner = u
			tx.Put(kv.Write{Space: spaceHeads, Key: k, Value: h.encode()})
		}
		return nil
	})
	return err
}

// tick takes the next timestamp of a user. If the clock stands still or went
// back, timestamps run ahead of it rather than repeat.
func (s *Store) tick(h *head) Timestamp {
	h.last = max(bso.Ceil(s.opts.Clock.Now()), h.last+1)
	return h.last
}

// Collections with fixed ids. Other names get ids from firstOwnCollection up,
// once for the whole server.
var fixedCollections = map[string]uint32{
	"clients": 1, "crypto": 2, "forms": 3, "history": 4, "keys": 5, "meta": 6, "bookmarks": 7, "prefs": 8,
	"tabs": 9, "passwords": 10, "addons": 11, "addresses": 12, "creditcards": 13,
}

const firstOwnCollection = 101

// collectionNames remembers the ids that were given to names. They never change.
type collectionNames struct {
	ids   sync.Map // name -> uint32
	names sync.Map // uint32 -> string
}

func (n *collectionNames) learn(name string, id uint32) {
	n.ids.Store(name, id)
	n.names.Store(id, name)
}

var nextCollectionKey = []byte("next")

func collectionNameKey(name string) []byte { return append([]byte("name/"), name...) }

func collectionIDKey(id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte("id/"), id)
}

// lookup returns the id of a collection name, 0 if it has none.
func (s *Store) lookup(ctx context.Context, name string) (uint32, error) {
	if id, ok := fixedCollections[name]; ok {
		return id, nil
	}
	if id, ok := s.names.ids.Load(name); ok {
		return id.(uint32), nil
	}
	row, err := s.db.GetOne(ctx, spaceCollections, collectionNameKey(name))
	if err != nil || !row.Exists() {
		return 0, err
	}
	id, err := decodeCollectionID(row.Value)
	if err == nil {
		s.names.learn(name, id)
	}
	return id, err
}

func decodeCollectionID(b []byte) (uint32, error) {
	if len(b) != 4 {
		return 0, fmt.Errorf("%w: collection id", kv.ErrCorrupt)
	}
	return binary.BigEndian.Uint32(b), nil
}

// assign returns the id of a collection name and gives it one if it has none. It
// is a transaction of its own: an id without a collection does no harm.
func (s *Store) assign(ctx context.Context, name string) (uint32, error) {
	id, err := s.lookup(ctx, name)
	if err != nil || id != 0 {
		return id, err
	}
	_, err = s.db.Update(ctx, func(tx *kv.Tx) error {
		rows, err := tx.GetAll(
			kv.Ref{Space: spaceCollections, Key: collectionNameKey(name)},
			kv.Ref{Space: spaceCollections, Key: nextCollectionKey})
		if err != nil {
			return err
		}
		if rows[0].Exists() {
			id, err = decodeCollectionID(rows[0].Value)
			return err
		}
		id = firstOwnCollection
		if rows[1].Exists() {
			if id, err = decodeCollectionID(rows[1].Value); err != nil {
				return err
			}
		}
		tx.Put(kv.Write{Space: spaceCollections, Key: nextCollectionKey, Value: binary.BigEndian.AppendUint32(nil, id+1)})
		tx.Put(kv.Write{Space: spaceCollections, Key: collectionNameKey(name), Value: binary.BigEndian.AppendUint32(nil, id)})
		tx.Put(kv.Write{Space: spaceCollections, Key: collectionIDKey(id), Value: []byte(name)})
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("give collection an id: %w", err)
	}
	s.names.learn(name, id)
	return id, nil
}

// name returns the name of a collection id that a head lists.
func (s *Store) name(ctx context.Context, id uint32) (string, error) {
	for name, fixed := range fixedCollections {
		if fixed == id {
			return name, nil
		}
	}
	if name, ok := s.names.names.Load(id); ok {
		return name.(string), nil
	}
	row, err := s.db.GetOne(ctx, spaceCollections, collectionIDKey(id))
	if err != nil {
		return "", err
	}
	if !row.Exists() {
		return "", fmt.Errorf("%w: collection %d has no name", kv.ErrCorrupt, id)
	}
	name := string(row.Value)
	s.names.learn(name, id)
	return name, nil
}
