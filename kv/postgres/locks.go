package postgres

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
)

const (
	// regions is how many parts the keys of all spaces are cut into.
	regions = 64
	// regionBytes is how much of a key decides its region: few enough that the
	// rows that belong together share it, like those of one user.
	regionBytes = 12
	// mostKeyLocks is how many rows a commit may lock by their keys. PostgreSQL
	// has room for 6400 locks by default.
	mostKeyLocks = 128
)

// Further locks of a schema, behind those of its regions.
const (
	catalogLock = regions + iota
	sweepLock
)

// rowID identifies a row among locks and tombstones. Two rows that share one only
// wait for each other, and keep each other's versions rising.
func rowID(space int64, key []byte) int64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(space)))
	_, _ = h.Write(key)
	return int64(h.Sum64())
}

// lockBase is the lock of the first region of a schema, and is mixed into all
// locks: those of a database share their numbers.
func lockBase(schema string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("holdfast " + schema))
	return int64(h.Sum64())
}

func regionOf(key []byte) int64 {
	h := fnv.New64a()
	_, _ = h.Write(key[:min(regionBytes, len(key))])
	return int64(h.Sum64() % regions)
}

// lock is an advisory lock of a commit.
type lock struct {
	id        int64
	exclusive bool
}

// locksFor returns the locks for rows, the regions before the keys, each once and
// in ascending order: commits cannot wait for each other in a circle.
func locksFor(base int64, rows []touched) []lock {
	byKey := len(rows) <= mostKeyLocks
	var coarse, fine []lock
	for i := range rows {
		r := &rows[i]
		coarse = append(coarse, lock{base + regionOf(r.key), !byKey})
		if byKey {
			fine = append(fine, lock{base ^ r.id, r.write != nil})
		}
	}
	return append(sortLocks(coarse), sortLocks(fine)...)
}

// sortLocks leaves each lock once: exclusive, if anybody needs it so.
func sortLocks(all []lock) []lock {
	slices.SortFunc(all, func(a, b lock) int { return cmp.Compare(a.id, b.id) })
	n := 0
	for _, l := range all {
		if n > 0 && all[n-1].id == l.id {
			all[n-1].exclusive = all[n-1].exclusive || l.exclusive
			continue
		}
		all[n] = l
		n++
	}
	return all[:n]
}
