// Package kv is the contract of the transactional engine: named, ordered spaces
// of versioned rows, written by minitransactions only.
//
// The model in a few lines:
//
//   - A space is an independent ordered keyspace. Keys order by their bytes.
//   - A row has a key, a value, at most one link (the URL of an object), an
//     optional time of expiry, and a version that the engine sets.
//   - A minitransaction (Txn) is a set of checks and a set of writes, all or
//     nothing. A check names the version that a row must have. Concurrent
//     minitransactions are serializable.
//   - An expired row is invisible at once, whatever has or has not removed it.
//   - A space may have a feed: entries that exist if and only if the write they
//     came with was committed.
//
// Drivers implement Engine. Everybody else holds a *DB, made from an engine by
// New: it validates every input once, so that drivers may rely on it, and it
// adds Update, the read-and-write transaction that is built from reads, checks
// and one commit.
//
// Two rules make Update serializable on every engine:
//
//  1. Every key that a transaction reads or expects is checked when it commits,
//     absent keys included. Tx does this by itself.
//  2. Engines do not detect phantoms. Who depends on no row appearing in a range
//     names a guard row: readers of the range check it, and writers that insert
//     or delete a key under it write it. Tx.Scan takes the guard and refuses to
//     work without one. Keep the range under one guard small.
package kv
