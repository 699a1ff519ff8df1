// Package spanner is the engine on Cloud Spanner: a kv.Engine in one database, open
// in any number of processes, on cloud.google.com/go/spanner.
//
// # Layout
//
// Each space has a table of its own, whose name is the space's wherever Spanner
// allows it, see TableName, so that a change stream speaks of tables bsos and
// batch_bsos:
//
//	key           BYTES(MAX)    the primary key
//	value         BYTES(MAX)
//	payload_link  STRING(2048)  NULL if the row has no link
//	expires_at    TIMESTAMP     NULL if the row does not expire
//	committed_at  TIMESTAMP     the commit that wrote the row: its version
//
// A space with a feed has a second table, holdfast_feed_of_…, keyed by shard,
// committed_at and the row's key. The tables
// holdfast_spaces (which spaces there are, with their options), holdfast_schema
// (the version of all this) and holdfast_feed_marks (the last entry that was removed
// from a shard) are the engine's own. Over the spaces that hold links there is the
// change stream payload_link_changes, and a role that may read it. Schema prints
// the statements, Admin compares and applies them; the engine itself changes the
// schema only with Options.AutoSchema.
//
// # Versions
//
// A version is the commit timestamp, in microseconds. Spanner gives the promise of
// the contract: transactions that write the same row, or read what another wrote,
// have strictly rising timestamps, whatever the clocks of their clients show. That
// holds over deletions without a trace of the deleted row, and also if Spanner
// itself removes a row, because a removal is a commit like any other. Nothing has
// to be read to write blindly, and no clock in a client can do harm. Options.Clock
// only says what has expired and how old an entry may be that a feed still shows.
//
// # Commits
//
// One read-write transaction: a statement that reads the versions of all checked
// rows, with whose answer the transaction begins, and a Commit with all writes as
// mutations. That is two calls. Without checks they are BeginTransaction and Commit:
// a single call would have to be at-least-once, and a write repeated after another's
// would undo that one. Checks without writes are one read. Transactions that Spanner
// aborts run again until the context ends. A check that fails is given up with a
// rollback that nobody waits for.
//
// The client repeats a Commit that was not answered, with the same transaction, and
// Spanner repeats its answer. What the engine must know besides is whether a Commit
// remained without an answer: it watches the requests below the client's retries,
// does not let the client run such a transaction again, and calls the outcome
// unknown.
//
// # Reads
//
// All reads are strong. Get is one statement over all tables, or a read-only
// transaction if the keys exceed one request. Scan reads pages of 1,000 rows as they
// stream in; each page has its own time.
//
// # Feeds
//
// A strong read sees all commits up to its time, and later ones have later
// timestamps, so a position passes nothing that is still to appear. Whoever reads a
// shard also removes what is older than the retention by Spanner's time, and moves
// the shard's mark. A feed that nobody reads grows.
//
// # Row deletion policy
//
// Tables have a policy that removes rows a day after their expiry. It is there in
// case nothing else removes them, and it knows nothing of what depends on a row:
// sums, index entries, or link changes other than those in the change stream. While
// the program's own sweeper works, Spanner never finds such a row.
//
// # Tests
//
// Package spandbtest stands in for the service; what it cannot show is listed there.
// TestRealDatabase runs the suite on a real one, or an emulator, that the
// environment variable HOLDFAST_TEST_SPANNER_DATABASE names.
package spanner
