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
// A Service is a process's part in the queues of an engine; its doors and workers
// share it. Service.Run does all that happens in the background; without it messages
// can be sent and acknowledged but are not delivered.
//
// # Several processes
//
// A queue is divided into shards; the shard of a message follows from its key. Each
// shard is owned by one process at a time, through a lease (package lease), and that
// process's memory says who holds which of its messages. It delivers them to its own
// receivers. Ownership follows demand: a process competes for shards only while
// somebody receives from the queue in it, and a few seconds longer. On an engine that
// no other process can have open it always owns all.
//
// A process that has lost a shard forgets its messages. What it had handed out stays
// with the receivers, and their acknowledgement works, as it goes by key. Attempts and
// dead letters are written under the lease's fence: a process that was paused, and goes
// on after another one took over, counts and buries nothing.
//
// The present differs between processes. Each look at the ready index therefore begins
// some seconds back, for messages of slow clocks and slow commits, and goes on for some
// seconds, for messages that were due when they were sent by a fast clock. A message
// that another process sends is found by a signal where the engine has them, otherwise
// within a second. What another process acknowledges, having received it before the
// shard changed hands, may be handed out once more from memory; acknowledging it then
// says ErrNotFound.
//
// # After a change of owner
//
// An owner that gives a shard back in order makes each leased message due at the end of
// its lease. It, or any process, can renew such a lease, or end it. After any other end
// the leases are unknown: messages that were due before the next owner began are held
// back for the length of one lease; a token of before can be renewed at the next owner
// meanwhile. A message that a paused owner had handed out may so be worked on twice if
// its receiver takes longer than that, and acknowledged only once.
//
// Settings.LocalReceivers says that whoever held a lease died with the process that
// gave it out, so that nothing need be held back. That is believed only where no other
// process can have the engine open: elsewhere a silent process may just be paused, and
// its receivers at work.
//
// # Rows
//
// Every key begins with the number of its queue. Numbers are never used twice, so
// a queue that was dropped and created again shares nothing with the old one.
//
//	space           key                            value
//	queue_catalog   "q", name                      number and Settings of a queue
//	                "n"                            the last number given out
//	                "d", number                    a queue was dropped, when, and its rows go
//	                "c", number                    how many dead letters a queue has
//	queue_message   number, key                    the message
//	queue_ready     number, shard, due, key        length of the payload, whether due was moved, or
//	                                               else whether it was due when it was sent
//	queue_moved     number, shard, delivery time,  nothing; only for messages whose due was moved
//	                key
//	queue_dead      number, key, version           the message and when it died
//
// queue_ready is what deliveries are found by. queue_moved has the failing
// minority, so that both together yield the oldest messages first.
package queue
