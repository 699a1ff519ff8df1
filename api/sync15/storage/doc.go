// Package storage keeps the collections of Sync users in rows of the engine. It
// knows what the protocol means by a storage, a collection, a record and a
// batch, and nothing of HTTP or of the object store.
//
// Rows:
//
//	space             key                                        value                        link
//	sync_heads        user                                       head: clock, collections     -
//	bsos              user, collection, life, record             modified, sortindex, payload payload
//	sync_bso_order    user, collection, life, modified, record   payload size                 -
//	sync_batches      user, collection, life, batch              records and bytes staged     -
//	batch_bsos        user, collection, life, batch, record      the fields given             payload
//	sync_collections  name, or id                                id, or name                  -
//
// The user in a key is a hash of what identifies the storage, 16 bytes. The head
// says in clear whose it is, and so does the value of every row with a link.
//
// The head is the guard row of everything that a user has: every request that
// changes something checks and writes it (appending to a batch only checks it),
// so the writes of a user are serial, timestamps rise strictly, and "no record
// appears in this collection" can be relied on. It lists the user's collections
// with their timestamps, counts and sizes.
//
// A collection has a life: a number given when it is created and never given
// again to the same user. Deleting a collection takes it out of the head, at
// once and for any number of records; what it held stays behind under its old
// life, out of reach, until the purge, a queue message sent by the deleting
// commit, has removed it in small commits.
//
// Invariants:
//   - a record has either an inline payload or a link, never both;
//   - sync_bso_order has exactly one row per row of bsos, with the same expiry;
//   - count, bytes and expiring of a collection in the head are those of its rows
//     in bsos, expired ones that have not been removed included.
package storage
