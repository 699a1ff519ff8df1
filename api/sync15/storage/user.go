package storage

import (
	"crypto/sha256"
	"strconv"

	"github.com/holdfast-dev/holdfast/kv/key"
)

// User identifies a storage.
type User struct {
	// UID is the number in the URL.
	UID uint64
	// FxaUID and FxaKID identify the storage when both are given: a new key id,
	// after a password reset, means a new and empty storage. They are opaque.
	FxaUID, FxaKID string
}

// Kinds of users, hashed with their names, so that the two ways to identify a
// storage never meet.
const (
	userByAccount = 1
	userByNumber  = 2
)

func (u User) byAccount() bool { return u.FxaUID != "" && u.FxaKID != "" }

// storageID is the first part of all keys of a user: a hash, because what
// identifies an account is long and would be most of every key.
type storageID [16]byte

func (u User) id() storageID {
	b := make([]byte, 0, 128)
	if u.byAccount() {
		b = key.AppendUint(b, userByAccount)
		b = key.AppendString(key.AppendString(b, u.FxaUID), u.FxaKID)
	} else {
		b = key.AppendUint(key.AppendUint(b, userByNumber), u.UID)
	}
	sum := sha256.Sum256(b)
	return storageID(sum[:])
}

// ObjectPrefix returns the first segment of the names of the user's objects.
func (u User) ObjectPrefix() string {
	if u.FxaUID != "" {
		return u.FxaUID
	}
	return "uid-" + strconv.FormatUint(u.UID, 10)
}

// place is a collection in one of its lives.
type place struct {
	storage    storageID
	collection uint32
	life       uint64
}

// place returns where the rows of the collection's present life are.
func (c *collection) place(u User) place { return place{u.id(), c.id, c.life} }

func (p place) appendKey(dst []byte) []byte {
	dst = append(dst, p.storage[:]...)
	dst = key.AppendUint(dst, uint64(p.collection))
	return key.AppendUint(dst, p.life)
}

// prefix returns the common prefix of the collection's keys in bsos,
// sync_bso_order, sync_batches and batch_bsos.
func (p place) prefix() []byte { return p.appendKey(make([]byte, 0, 48)) }

func (p place) recordKey(id string) []byte {
	return key.AppendString(p.appendKey(make([]byte, 0, 80)), id)
}

func (p place) orderKey(modified Timestamp, id string) []byte {
	k := key.AppendUint(p.appendKey(make([]byte, 0, 80)), uint64(modified))
	return key.AppendString(k, id)
}

func (p place) batchKey(batch string) []byte {
	return key.AppendString(p.appendKey(make([]byte, 0, 80)), batch)
}

func (p place) stagedKey(batch, id string) []byte {
	return key.AppendString(p.batchKey(batch), id)
}

// readPlace reads the place at the beginning of a key and returns a reader of the
// rest.
func readPlace(k []byte) (place, *key.Reader, error) {
	var p place
	if len(k) < len(p.storage) {
		return place{}, nil, key.ErrMalformed
	}
	r := key.NewReader(k[copy(p.storage[:], k):])
	p.collection, p.life = uint32(r.Uint()), r.Uint()
	return p, r, r.Err()
}

// readOrder reads what follows the place in a key of sync_bso_order.
func readOrder(rest []byte) (Timestamp, string, error) {
	r := key.NewReader(rest)
	modified, id := Timestamp(r.Uint()), r.String()
	return modified, id, r.Done()
}
