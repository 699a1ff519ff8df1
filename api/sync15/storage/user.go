package storage

import (
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

// Kinds of users, the first part of their keys, so that the two ways to identify
// a storage never meet.
const (
	userByAccount = 1
	userByNumber  = 2
)

func (u User) byAccount() bool { return u.FxaUID != "" && u.FxaKID != "" }

func (u User) appendKey(dst []byte) []byte {
	if u.byAccount() {
		dst = key.AppendUint(dst, userByAccount)
		dst = key.AppendString(dst, u.FxaUID)
		return key.AppendString(dst, u.FxaKID)
	}
	return key.AppendUint(key.AppendUint(dst, userByNumber), u.UID)
}

func readUser(r *key.Reader) User {
	if r.Uint() == userByAccount {
		return User{FxaUID: r.String(), FxaKID: r.String()}
	}
	return User{UID: r.Uint()}
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
	user       User
	collection uint32
	life       uint64
}

func (p place) appendKey(dst []byte) []byte {
	dst = p.user.appendKey(dst)
	dst = key.AppendUint(dst, uint64(p.collection))
	return key.AppendUint(dst, p.life)
}

// prefix returns the common prefix of the collection's keys in bsos,
// sync_bso_order, sync_batches and batch_bsos.
func (p place) prefix() []byte { return p.appendKey(make([]byte, 0, 128)) }

func (p place) recordKey(id string) []byte {
	return key.AppendString(p.appendKey(make([]byte, 0, 192)), id)
}

func (p place) orderKey(modified Timestamp, id string) []byte {
	k := key.AppendUint(p.appendKey(make([]byte, 0, 192)), uint64(modified))
	return key.AppendString(k, id)
}

func (p place) batchKey(batch string) []byte {
	return key.AppendString(p.appendKey(make([]byte, 0, 192)), batch)
}

func (p place) stagedKey(batch, id string) []byte {
	return key.AppendString(p.batchKey(batch), id)
}

func readPlace(r *key.Reader) place {
	return place{user: readUser(r), collection: uint32(r.Uint()), life: r.Uint()}
}

// readOrder reads what follows the place in a key of sync_bso_order.
func readOrder(rest []byte) (Timestamp, string, error) {
	r := key.NewReader(rest)
	modified, id := Timestamp(r.Uint()), r.String()
	return modified, id, r.Done()
}
