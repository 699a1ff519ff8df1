// Package postgres is the engine on PostgreSQL 14 or later. Any number of
// processes may have it open at once.
//
// # Tables
//
// All of it is in one schema, see Options.Schema:
//
//	migrations    what was done to the schema; a newer one than this package knows is refused
//	engine        one row: the floor (below), and what positions in feeds need
//	spaces        the spaces, each with a number that is never used twice
//	NAME_N        the rows of space NAME with number N
//	NAME_N_feed   the entries of its feed
//	tombstones    versions of rows deleted lately
//	trimmed       how far feeds were trimmed
//
// Spaces are created and dropped by functions, and rows are written by one only:
// commit. Who changes rows by other means breaks what the engine promises; reading
// them is fine. Each space has functions of its own for the statements on its
// tables, because the plan of a statement in a function is kept with a connection.
//
// # Commits
//
// A commit is one call of the function commit, in a transaction of its own: one
// round trip, committed or rolled back when the answer comes. It locks the keys
// checked (shared) and written (exclusively) with advisory locks, always in the
// same order, and holds them until the transaction is visible to others. Only then
// it reads versions, compares, and writes. This is two-phase locking: commits are
// serializable although the transaction is READ COMMITTED, whose statements each
// see what was committed before they began. A read is one statement, which sees
// all of a commit or nothing.
//
// Locks live in shared memory of limited size, so a commit of many keys locks
// regions instead. A key's region follows from its first bytes. Small commits hold
// the regions of their keys shared, which excludes nobody but large commits there.
//
// What is visible is on disk, because PostgreSQL shows a transaction to others only
// after it has flushed it; commit turns synchronous_commit on where it is off.
//
// # Versions
//
// A version is the time of the commit's clock, or the first one above all versions
// that the rows checked and written have, the tombstones of rows written, and the
// floor. A sweep removes tombstones older than a minute, and raises the floor above
// them in the same transaction.
//
// # Feeds
//
// Entries are ordered by the number of their transaction. A commit gets its number
// when it has its locks, so the entries of a key are in the order of its commits.
// Readers stop below the first transaction that is still running, and so pass
// nothing that appears later. Transactions that are not commits do not stop them.
//
// # Standbys
//
// All reads are of the primary, except for long scans, if there is a standby for
// them, see Options.ReadURL. After a failover no feed loses its order: positions
// begin with the timeline of the server.
//
// # Poolers
//
// Statements keep nothing in a session, so a pooler like PgBouncer may give each
// transaction another connection. Only Listen needs a direct connection, see
// Options.ListenURL.
package postgres
