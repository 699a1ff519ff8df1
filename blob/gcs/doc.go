// Package gcs keeps objects in a bucket of Google Cloud Storage.
//
// # Objects and their states
//
// An object has the name it has in Holdfast, its content as it is, and
//
//	metadata committed     "false", then "true"
//	metadata upload        a random number, by which a retried Put knows its object
//	metadata created       when it was put, to the millisecond
//	custom time            the same to the second, then blob.FinalizedTime
//
// all of which it is born with in one request that demands that the name is free.
// Finalize is one patch of the metadata. Discard is a delete that demands the
// generation and the metageneration it has seen; a patch changes the latter, so of
// a Finalize and a Discard exactly one takes effect. The custom time of an object
// can only be moved forward, so not even a late retry unmakes a Finalize.
//
// # Objects of other writers
//
// An object is finalized if its metadata says committed=true or its custom time is
// in the year 2200 or later: older writers used the year 9999. It is reported with
// blob.FinalizedTime in either case. An object without metadata is unfinalized. One
// without custom time is reported with the moment of its creation; no rule of the
// bucket reaches it. Content stored with an encoding (gzip) is read as it is stored.
//
// # Lifecycle
//
// The bucket removes what was never finalized: LifecyclePolicy is the rule for it,
// and Check looks whether it is set. No blob.Lifecycle is needed, nor does one harm.
//
// # Requests
//
//	Put         1; one per chunk and one more if the content is longer than a chunk
//	Finalize    1
//	Get         1 of a finalized object as a whole, else 2
//	Stat        1
//	Delete      2: the look and the conditional delete
//	Copy        1; more for large objects between storage classes or locations
//	List        1 per 1,000 objects
//
// and one more where the answer is that there is no such object: a bucket that is
// gone must not pass for an object that is gone.
//
// # Rights
//
// The role Storage Object User (roles/storage.objectUser) on the bucket is enough.
// Check also needs storage.buckets.get, and says so if it is missing.
package gcs
