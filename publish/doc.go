// Package publish carries the changes of links from a change stream to a topic.
//
// On an engine that records changes itself, nobody sends records of link changes
// in the commit; they are read from the engine's stream afterwards, filtered, and
// published for package reconcile. Publisher does that:
//
//   - A stream consists of partitions, each read on its own, which split and merge
//     as the engine moves rows about. A partition is begun when all those whose
//     rows it took over have ended and everything of theirs has been published, so
//     that the records of one row are published in the order of their commits. The
//     partitions that exist at one time are read at the same time.
//   - A partition's watermark is the time up to which everything has been published
//     and confirmed. It moves after the confirmation, never before. A publish that
//     fails is repeated for ever.
//   - Positions keep partitions and watermarks. They follow the work, by a second or
//     so; after a crash what came since then is published once more. Nothing is left
//     out, and no reader of the records minds seeing one twice.
//   - A position older than what the stream still has means that changes are lost.
//     Publisher then stops with ErrLost and goes on only when told to.
//   - One Publisher works on a store of positions at a time: the others wait until
//     its claim ends. Should two work nevertheless, records are published twice, and
//     that is all, because positions only ever move forward.
//
// A Source is a stream, a Topic where records go, Positions the memory. Packages
// below this one have those of Spanner and Pub/Sub.
package publish
