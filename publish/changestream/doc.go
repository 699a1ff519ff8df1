// Package changestream is the publish.Source that reads a change stream of
// Cloud Spanner, and the publish.Positions in a table of Cloud Spanner.
//
// A stream is read by its table function READ_<name>, one query for each
// partition, with the database role that was given or not at all. The records'
// fields are found by their names; the rows' values stay texts, as the stream
// has them. Open refuses a stream whose options would keep changes from it.
//
// The client library shows rows only as resume tokens change. Cloud Spanner sends
// one with each batch of records; its emulator repeats one token, so that there
// records appear when a partition ends, every 20 to 40 seconds.
package changestream
