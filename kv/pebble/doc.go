// Package pebble is the embedded engine: a kv.Engine in one folder of a local
// disk, owned by one process, on github.com/cockroachdb/pebble.
//
// # Layout
//
// The first byte of a Pebble key tells the kind of the entry. Ids of spaces are
// written by key.AppendUint, which is prefix-free, and are never used twice, so
// that nothing left over from a dropped space can come back.
//
//	'm' "format"                         the version of this layout, one byte
//	'm' "ceiling"                        no durable version is larger, 8 bytes
//	'm' "next"                           the next id of a space, 8 bytes
//	's' name                             a space: see encodeSpace
//	'r' id key                           a row: see appendRow
//	'f' id shard                         the trim mark of a shard: version and index, 12 bytes
//	'f' id shard version index           a feed entry: see appendFeedEntry
//
// All integers are big-endian. Shards are one byte, versions eight, the index of
// the write within its commit four.
//
// # Commits
//
// A commit locks its keys in the order of their hashes (shared for keys it
// only checks), compares the checks with what is stored, takes the next version
// and applies one batch with a synced write-ahead log. Pebble lets concurrent
// commits share a sync. The locks are held until the sync is done.
//
// Versions come from one hybrid clock for the whole engine: the larger of the
// wall clock and the last version plus one. So that they go on rising after a
// restart with a clock set back, the log holds a ceiling, written before the
// first version above the one before. It lies some seconds ahead, and an engine
// starts from it.
//
// # Durable reads
//
// Pebble shows a batch to readers before its sync is done. Commits are therefore
// registered as in flight, from before they can be seen until they are durable,
// and a reader that met the version of a flight, or did not find a row that a
// flight deletes, waits for it. Without flights that costs one atomic load. A
// feed is read up to the oldest version in flight, so that no position ever
// passes a commit that is still to appear.
//
// # Failure
//
// The first write that the file system refuses freezes the folder, as a crash at
// that moment would: no later change reaches the disk, commits in flight end with
// kv.ErrUnknownOutcome and every further call with an error that names the cause.
// Nothing acknowledged is lost; opening the folder again recovers it. Short of
// disk space, commits are refused before it comes to that, and go on once there
// is space again.
package pebble
