// Package blob is the contract for large objects: immutable bytes under a name,
// in a store that may be a folder, Google Cloud Storage or S3.
//
// # Objects and their states
//
// An object appears whole or not at all, and its bytes never change. Only its
// trust does:
//
//	             Put, Copy                Finalize
//	(no object) ───────────> unfinalized ───────────> finalized
//	                             │                        │
//	                 Discard, Delete, 30 days           Delete
//	                             └────> (no object) <─────┘
//
// An unfinalized object has Committed false and as custom time the moment of its
// creation. It is born untrusted, because the row that will point at it is not
// committed yet. Once the row is, Finalize sets Committed and moves the custom
// time to [FinalizedTime]. There is no way back.
//
// # Lifecycle
//
// An object that is still unfinalized [UnfinalizedLifetime] after its custom
// time disappears. Stores with rules of their own (GCS) do that by themselves;
// for all others a [Lifecycle] worker does it.
//
// # Names and URLs
//
// A name is 1 to [MaxNameLen] bytes of UTF-8, taken literally: "a/../b", "a//b"
// and "a%2Fb" are three ordinary names. A URL is the store's prefix followed by
// the name, without any escaping: gs://bucket/name, s3://bucket/name,
// file:///name. A URL of another store is refused with [ErrForeignURL].
//
// # Who may do what
//
// A [Store] can do everything. Callers take the narrowest of [Uploader],
// [Reader] and [Finisher] that serves them, so that code that uploads cannot
// delete what somebody has finalized.
//
// A storage technology is a [Driver]. The Store in front of it validates all
// input, so a driver never has to; package blobtest proves a driver.
package blob
