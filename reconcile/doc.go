// Package reconcile makes objects agree with rows.
//
// It takes the records of link changes that package changes writes, or that
// another pipeline with the same format delivers, and does what they ask for: an
// object that a committed row points at is finalized, one that no row points at
// any more is deleted.
//
//   - Nothing but a record authorizes a deletion. Reconciler looks at no row and
//     has no opinion of its own.
//   - Everything may be repeated and come in any order: an object's name is used
//     for one upload, so it gets into service at most once and out of it at most
//     once; Finalize never creates an object; one that is not there is a success.
//   - The work is done before its message is acknowledged, in a commit of its own.
//     A crash between the two repeats the work.
//   - A record that cannot be handled is tried again, by the source's own schedule,
//     and ends in its dead letters. It holds up no other.
//
// Reconciler handles the messages of a Source; QueueSource is the one of the
// built-in queue.
package reconcile
