// Package changes records what commits do to links.
//
// A row may own one object, by its link. Whoever commits a change of links puts
// an object into service, or takes one out of it; somebody has to make the first
// permanent and to delete the second. Package changes writes down, in the very
// commit that changes a link, which link a row held before and which one it holds
// now: no change without its record, no record without its change. Package
// reconcile acts on the records, later and repeatably.
//
//   - Record is one record, and Encode and Decode are its wire form: JSON as
//     Mozilla's sync storage pipeline exchanges it, so that either side can read
//     the other's messages.
//   - Capture is the hook for kv.DB.WithHooks that compares the rows which a
//     transaction replaces with those it writes and sends records to a queue.
//
// # Links that move
//
// A record that names a link as old authorizes the deletion of its object. A
// link that moves from one row to another in one commit must therefore not be
// named as old: Capture leaves it out. One move is reported all the same, for
// readers expect it: the commit of a batch, tagged BatchCommitTag, moves links
// from rows of StagedTable to the permanent rows and removes the staged ones.
// Readers take such a removal for a hand-over and never delete. So when a staged
// link did not reach its permanent row after all, Capture adds an ordinary change
// of the permanent row that releases it.
//
// Everything else that a commit takes out of service is released: the links that
// some row held before the commit and that no row of the commit holds after it.
package changes
