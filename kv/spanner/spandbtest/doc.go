// Package spandbtest is a Cloud Spanner in memory, for tests: a gRPC server on
// the loopback interface that official clients talk to.
//
// It has what kv/spanner and its neighbours send: databases, DDL for tables,
// change streams, roles, grants and row deletion policies; multiplexed sessions;
// read-write transactions with inlined begin, read-only ones, and commits of
// mutations; and a small part of SQL, see query. It keeps Spanner's promises:
//
//   - Transactions are serializable. They are optimistic: what one has read is
//     validated at its commit, which otherwise ends with ABORTED.
//   - Commit timestamps rise strictly, in microseconds, over all commits and
//     strong reads, whatever the clock does.
//   - A Commit that is repeated has the outcome of the first.
//   - Rows without ORDER BY come in no useful order.
//
// And it does what a test needs: faults before and after each call, a log of
// calls, a freeze, and the changes of each commit, from which a change stream can
// be made.
//
// What it cannot show: locks and the deadlocks, waits and aborts they bring;
// time that a commit takes; limits of sizes and of mutations beyond the few that
// are checked; the right of a role to a table; query plans; schema changes that
// take minutes and abort what runs; sessions that end; splits of tables.
package spandbtest
