// Package expiry removes rows whose time has come.
//
// Engines hide a row as soon as it has expired; this package gets rid of it. It
// keeps one space of its own:
//
//	space                   key                           value           holds
//	__extenddb_ttl_index__  shard, time, scope, table,    name of the     one entry for each row with
//	                        key of the row (see EntryKey) row's space     an expiry, in registered spaces
//
// Index.Hook keeps an entry in the commit that gives its row the expiry, and takes
// it away in the commit that changes the expiry or removes the row, so an entry
// exists if and only if the stored row has that expiry. Sweeper follows the
// entries in the order of time.
package expiry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// IndexSpace is the space of the entries.
const IndexSpace = "__extenddb_ttl_index__"

// Shards is the number of ranges of the index. They spread the writes of entries
// with similar times and are swept in parallel.
const Shards = 16

// Space tells how the rows of a space are indexed and removed.
type Space struct {
	// Scope and Table stand in the keys of the entries: the account and the
	// name of a table, for example. At most 255 bytes each.
	Scope, Table string

	// Remove removes an expired row, in the transaction tx, together with all
	// that must go or change with it. If that is more than fits into one
	// transaction, it does a part, leaves the row in place and returns true: it
	// is called again in a new transaction, at once, after a restart, or by
	// another process. Like all functions in a transaction it may run several
	// times.
	//
	// The transaction's tag is changes.ExpiryTag; Remove may set another one.
	// Nil deletes the row and nothing else.
	Remove func(tx *kv.Tx, space string, row kv.Row) (more bool, err error)

	// Rows is how many rows one transaction removes at most. 0 leaves it to the
	// sweeper; 1 is right if Remove does much for one row.
	Rows int
}

// Spaces returns what is known of a space, and false if its rows do not expire by
// this package. It is called for each write of each transaction, by many
// goroutines at once.
type Spaces func(space string) (Space, bool)

// Index keeps the entries of the rows in the spaces that it knows.
type Index struct{ spaces Spaces }

// NewIndex returns an index of the given spaces.
func NewIndex(spaces Spaces) *Index { return &Index{spaces: spaces} }

// OwnSpaces returns the spaces that the index needs.
func OwnSpaces() []kv.SpaceInfo { return []kv.SpaceInfo{{Name: IndexSpace}} }

// Create creates the space of the index. It may be repeated.
func Create(ctx context.Context, db *kv.DB) error { return db.EnsureSpaces(ctx, OwnSpaces()...) }

// Hook is a kv.Hook. It must come after hooks that write rows that expire.
func (x *Index) Hook(tx *kv.Tx) error {
	written, err := tx.Changes(func(space string) bool {
		_, ok := x.spaces(space)
		return ok
	})
	if err != nil {
		return fmt.Errorf("index expiry: %w", err)
	}
	for row, w := range written {
		was, is := seconds(row.ExpiresAt), seconds(w.ExpiresAt)
		if was == is {
			continue
		}
		s, _ := x.spaces(w.Space)
		if was != 0 {
			tx.Delete(IndexSpace, EntryKey(s, was, w.Key))
		}
		if is != 0 {
			tx.Put(kv.Write{Space: IndexSpace, Key: EntryKey(s, is, w.Key), Value: []byte(w.Space)})
		}
	}
	return nil
}

// Covers reports whether the rows of a space have entries.
func (x *Index) Covers(space string) bool {
	_, ok := x.spaces(space)
	return ok
}

// Key returns the key of the entry of a row, and false if it must have none: the
// row does not exist, does not expire, or lies in a space that is not known.
func (x *Index) Key(space string, row kv.Row) ([]byte, bool) {
	s, ok := x.spaces(space)
	sec := seconds(row.ExpiresAt)
	if !ok || sec == 0 {
		return nil, false
	}
	return EntryKey(s, sec, row.Key), true
}

// EntryKey returns the key of an entry:
//
//	offset  length
//	0       1       shard: FNV-1a-64 of the row's key, modulo Shards
//	1       8       time in Unix seconds, unsigned, big-endian
//	9       1       length a of the scope
//	10      a       scope
//	10+a    1       length n of the table
//	11+a    n       table
//	11+a+n          the row's key
//
// Scope and table are cut at 255 bytes. Together with them a row's key must fit
// into kv.MaxKeySize, or its commit is refused.
func EntryKey(s Space, unixSeconds uint64, rowKey []byte) []byte {
	scope, table := s.Scope[:min(len(s.Scope), 255)], s.Table[:min(len(s.Table), 255)]
	h := fnv.New64a()
	h.Write(rowKey) // never fails
	k := make([]byte, 0, 11+len(scope)+len(table)+len(rowKey))
	k = append(k, byte(h.Sum64()%Shards))
	k = binary.BigEndian.AppendUint64(k, unixSeconds)
	k = append(append(k, byte(len(scope))), scope...)
	k = append(append(k, byte(len(table))), table...)
	return append(k, rowKey...)
}

// errEntry reports a key that EntryKey does not make.
var errEntry = errors.New("malformed expiry entry")

// An Entry is a row of the index, taken apart.
type Entry struct {
	// Key is the entry's own key.
	Key []byte
	// Seconds is when the row expires, in Unix seconds, rounded up.
	Seconds uint64
	// Space and RowKey name the row.
	Space  string
	RowKey []byte
}

// ParseEntry takes a row of the index apart. The entry's slices are those of row.
func ParseEntry(row kv.Row) (Entry, error) {
	k := row.Key
	if len(k) < 11 || len(row.Value) == 0 {
		return Entry{}, errEntry
	}
	table := 10 + int(k[9])
	if len(k) <= table {
		return Entry{}, errEntry
	}
	base := table + 1 + int(k[table])
	if len(k) <= base {
		return Entry{}, errEntry
	}
	return Entry{Key: k, Seconds: binary.BigEndian.Uint64(k[1:9]), Space: string(row.Value), RowKey: k[base:]}, nil
}

// seconds rounds an expiry time up to Unix seconds, so that an entry never comes
// before its row has expired; 0 for rows that do not expire. Engines keep whole
// microseconds.
func seconds(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	// An expiry at the epoch itself needs an entry too: it shares the one of
	// the first second.
	return max(1, uint64((t.UnixMicro()+999_999)/1_000_000))
}
