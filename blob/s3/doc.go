// Package s3 keeps objects in a bucket of Amazon S3, Cloudflare R2, MinIO, or
// another store with that interface and conditional writes.
//
// # Layout
//
//	<name>                             the content as it is
//	.holdfast/s/<name>!<incarnation>   a mark: "finalized" or "removed"
//	.holdfast/h/<hash>!<incarnation>   the same for names too long for that; never deleted
//	.holdfast/n/<rest>                 the content of the name .holdfast/<rest>
//	.holdfast/probe                    shows that the store can do what we need
//
// The content of an object is under its own name, with a random incarnation, the
// custom time and, if it was small, the CRC32C in its metadata. It is written in one
// request that demands that the name is free (If-None-Match: *).
//
// # States
//
// Metadata of these stores cannot be changed, only replaced together with the
// object, for which not all of them have conditions; and not all have tags, none
// with conditions. So the state is a second object, the mark, in a key of its own for
// each incarnation of a name:
//
//	no mark ──────> finalized ──────> removed
//	   └───────────────────────────────^
//
// Each arrow is one conditional write of the mark (If-None-Match: *, or If-Match), so
// that of a Finalize and a Discard, or of many Deletes, one wins. An object exists if
// its content does and its mark is not "removed"; it is finalized if its mark says so.
//
// Who removes writes the mark, then deletes the content. The mark stays behind for a
// day, so that a Finalize or a Delete that looked before and writes after the removal
// finds it and gives way; a List that comes by later deletes it. Between the two, or
// after a crash in between, the object counts as removed; the next Put, Delete or List
// of the name deletes the content.
//
// # Limits
//
// A name can be used again after a removal, as the contract says. But where the store
// ignores If-Match on DELETE (R2 and MinIO may; Check tells), a request to delete
// content that was held up in the network for longer than the removal took may hit the
// new object. Even S3 cannot tell two objects with the same content apart by their
// ETag. Names with a random part, as Holdfast makes them, are never used twice.
//
// An object is one request, so its size is at most 5 GiB, what the stores allow. No
// multipart uploads are made, because not all stores know conditions on their
// completion; so none are left behind. Content longer than Options.Buffer is
// streamed, is not repeated by itself after a failure, and has no checksum of its own.
//
// S3 and R2 keep all names literally. MinIO refuses names with empty, "." or ".."
// segments; a Put of them fails there. A name that begins with ".holdfast/" may be two
// bytes shorter than others.
//
// # Requests
//
//	Put         1 (2 if streamed)
//	Finalize    2: look, mark
//	Get, Stat   2: the content and the mark
//	Delete      4: look, its mark, mark, delete
//	Copy        those of a Get and a Put: the content passes through Holdfast
//	List        2 per 1,000 objects and marks, and 2 per object that is not finalized
//
// and one more where the answer is that there is no such object: a bucket that is
// gone must not pass for an object that is gone.
//
// # Lifecycle
//
// A blob.Lifecycle removes what was never finalized, and its Lists delete old marks. The
// bucket must have no rule that deletes objects by age.
package s3
