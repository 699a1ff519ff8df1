// Package queue keeps queues of messages in a kv engine. Sending and
// acknowledging are part of the caller's own transaction, together with
// whatever else it changes; delivering is not, and costs no write.
//
// The model in a few lines:
//
//   - A message has a key, a payload and a time from which it may be delivered.
//     It exists from the commit that sends it to the commit that acknowledges
//     it, and is delivered until then: at least once, in the order of due times,
//     then keys, as far as nothing stands in the way.
//   - A delivery takes a lease. While it lives nobody else gets the message.
//     Leases live in memory and are renewed by a token. They make duplicates
//     rare; they exclude nobody.
//   - Acknowledging goes by key, whoever holds the lease, and happens at most
//     once. In one transaction with its effects that is exactly-once processing.
//   - A lease that ends without acknowledgement is lost: the message becomes due
//     again after a growing delay, or goes to the dead letters if its queue
//     bounds the attempts.
//
// A Service owns all queues of an engine. One process at a time may run a Service
// on an engine, because that process's memory says who holds what. Its doors
// and workers share it. Service.Run does all that happens in the background;
// without it messages can be sent and acknowledged but are not delivered.
//
// # After a stop
//
// A Service whose Run ended in order makes each leased message due at the end of
// its lease. After any other stop the leases are unknown: messages that were due
// before the new start are held back for the length of one lease, unless
// Settings.LocalReceivers says that whoever held a lease died with the process.
// In both cases a token of the earlier run can be renewed while it lives.
//
// # Rows
//
// Every key begins with the number of its queue. Numbers are never used twice, so
// a queue that was dropped and created again shares nothing with the old one.
//
//	space           key                            value
//	queue_catalog   "q", name                      number and Settings of a queue
//	                "n"                            the last number given out
//	                "r"                            the last run: its number, whether it ended in order
//	                "d", number                    a queue was dropped and its rows go
//	                "c", number                    how many dead letters a queue has
//	queue_message   number, key                    the message
//	queue_ready     number, due, key               length of the payload, whether due was moved
//	queue_moved     number, delivery time, key     nothing; only for messages whose due was moved
//	queue_dead      number, key, version           the message and when it died
//
// queue_ready is what deliveries are found by. queue_moved has the failing
// minority, so that both together yield the oldest messages first.
package queue
