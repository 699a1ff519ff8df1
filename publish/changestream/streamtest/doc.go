// Package streamtest is a server of Cloud Spanner's protocol that has one change
// stream and nothing else, for tests of its readers with the official clients.
//
// A test commits changes, splits and merges partitions, and breaks or slows down
// streams. The server checks what Cloud Spanner checks: the transaction that a
// stream may be read in, the range of times, tokens, the database role. Each part
// of an answer has a resume token of its own, and any of them may come back.
package streamtest
