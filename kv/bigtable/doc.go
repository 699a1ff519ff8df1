// Package bigtable is the engine on Google Cloud Bigtable: a kv.Engine for any number
// of processes at once, on cloud.google.com/go/bigtable.
//
// Bigtable changes one row atomically, on a condition, and nothing more. All that the
// contract promises beyond that is built here, from compare-and-set on single rows.
//
// # Tables
//
//	__extenddb_catalog__   spaces, and a floor for versions
//	__extenddb_txn_log__   transactions
//	__extenddb_streams__   feeds: the heads of their shards, and entries
//	__extenddb_outbox__    hints: rows that may have entries to forward
//	h_NAME                 a space; spaces called __extenddb_NAME, and those whose names
//	                       are ids of tables (t, 32 hex digits, perhaps _g or _l and 8
//	                       more) have tables of just that name
//
// A space that is created again has a table with a number behind its name, so that a
// write which a slow process sends to the old one cannot appear in it. The table of
// a space has these families:
//
//	d:i  the row: see encodeItem
//	m:s  its state: see state. A deleted row keeps it, as a tombstone
//	o:e  feed entries that were not forwarded yet; spaces with a feed only
//
// Cells have timestamp 0, so that what is written last counts whatever the clocks
// say; but for those of o:e, whose timestamp is the version of the commit.
//
// # Commits
//
// Every change of a row compares the state that was read and sets a new one, and no
// state ever occurs twice. One row is written by one such call, without a read if
// nothing is checked. Several rows are a transaction: a record in the log; a lock
// in the state of each row that is checked or written, which has in it what will
// become of the row; then the record is set to committed, which is the moment of the
// commit; then the rows are finished, behind the back of the caller. Whoever
// meets a lock asks the record what it is worth, and finishes the row if the
// transaction is decided. A transaction past its deadline may be aborted by
// anybody, and one that has no record cannot commit any more. So a crash at any
// point leaves all or nothing, and clocks matter for nobody's safety.
//
// A commit that only checks is a snapshot and takes no locks: see Engine.Get.
//
// Versions come from a hybrid clock per process. A row's next version is above its
// present one, which the compare-and-set makes certain, so kv.Version alone tells
// the versions of a row apart, though two processes may use the same number for
// different rows. It does not tell them from a write that failed: whoever asks whether
// a write happened must look at the writer too.
//
// # Feeds
//
// An entry is committed in its row. The forwarder moves it to its shard: see forward.
// It is found by its hint, which is durable before the entry can exist.
//
// # What it costs
//
//	                                          reads  conditional writes  plain writes
//	read of one row                               1                   0             0
//	snapshot, per space                           2                   0             0
//	write of one row, not checked                 0                   1             0
//	write of one row, checked                     1                   1             0
//	 with a feed entry                            1                   1             1
//	transaction of n rows, reads per space        1                2n+2             0
//	read of a feed's shard, nothing new           2                   0             0
//
// All reads of one space in one commit are one call, though the service counts rows.
// The sweeper adds two conditional writes for each transaction, later: it marks the
// record as finished and removes it in the end. Of all processes the one that holds
// the leases makes about ten calls a second for it when nothing happens, and each
// that has written to a feed two more, to see what others write there.
//
// # The expiry index
//
// Package expiry keeps the deadlines of rows in the space __extenddb_ttl_index__, and
// deletes an entry once it is dealt with. On Bigtable the cheapest way would be
// to delete none: to give each cell the deadline as its timestamp, to let a rule
// of age collect it a week later, and to remember in a watermark per shard how far
// the sweep has got. This engine does not do that, because it cannot be done
// below the contract. An entry must never be written behind the watermark, which
// takes a writer that knows what an entry means and moves its deadline; entries that
// are dealt with would still be there for Get and Scan; and a check of version 0
// would have to fail on them. What it costs instead: for each expired row one more
// deletion, and a sweep that passes over what it has deleted. That is bounded by
// sweeping the tombstones of this space after ten minutes instead of a day; the
// markers which Bigtable itself keeps for deleted rows until its next compaction
// remain.
//
// # What it does not promise
//
// A failover to another cluster that nobody planned may lose the last writes, single
// rows out of a transaction too. Bigtable's own limits hold: 1,000 tables in an
// instance, one table per space. While a space is dropped, other processes may
// write to it until its table is gone; that goes with it.
package bigtable
