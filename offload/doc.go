// Package offload keeps payloads in an object store and only their links in rows.
//
// The two writes can disagree, so they have an order:
//
//	write   Upload the objects, unfinalized; commit rows with their links; Settle
//	read    read rows; end the transaction; Resolve their links
//
// An object is there before a row points at it, and is made permanent only later,
// by the change record of the row. Settle removes what was uploaded for a commit
// that certainly did not happen. After a commit with an unknown outcome it removes
// nothing: the row may be there. Such an object is finalized by the row's change
// record, or removed by the store's lifecycle, and so is one whose process died
// between upload and commit.
//
// Nothing here can remove a finalized object.
package offload
