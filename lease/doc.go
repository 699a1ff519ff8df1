// Package lease shares work out among the processes that have one engine open, so
// that each named piece belongs to one of them at a time.
//
// A process competes in roles. A role has names, and Manager.Compete runs a function
// for each of them while this process owns it. The names of a role are spread evenly
// over the processes that compete in it; who has more than its share gives back.
//
// # Why it is safe
//
// A process has a session: a row that it renews at a third of its duration. Nobody
// compares clocks of machines. Who has observed a session's row unchanged for the
// duration that it names, by a monotonic clock of its own, deletes it, on the
// condition that it is still unchanged. What a session owned is free once its row is
// gone, which is for good, because no two sessions have the same name. So a renewal is
// one row, whatever the process owns.
//
// Each change of a lease's owner raises its epoch. A process that was stopped for a
// while does not know that it has lost its session. Two things keep it from harm:
//
//   - Lease.Valid is judged by its own clock, from before the last renewal was sent,
//     and ends before anybody else can have waited long enough. It is for what is not
//     a write: handing out a message.
//   - Lease.Fence makes a transaction check the lease's row. It is for writes: none of
//     an earlier epoch is committed after the lease has changed hands, whatever the
//     clocks say.
//
// A lease that is given back in order is free at once, and its next holder learns that
// from Lease.Clean.
//
// On an engine that no other process can have open, Options.Exclusive makes every
// session of the past void at once, and this one last without a renewal.
//
// # Rows
//
//	space    key            value
//	leases   "l", name      owner's session ("" if free), epoch, how the epoch before ended
//	         "s", session   duration, number of the renewal, the roles it competes in
package lease
