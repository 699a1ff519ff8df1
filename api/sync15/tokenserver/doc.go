// Package tokenserver trades an OAuth access token of a Firefox account for the
// address of a storage node and a Hawk credential that is good there.
//
// A [Store] remembers which accounts have which storage on which node, in rows of
// the engine; a [Server] speaks HTTP. The account service is asked through package
// oauth, and tokens are minted by package hawk.
//
// An account is known by its email address (account id @ domain). It has one user
// for each set of keys that it has had: a new set of keys (client state) means a
// new user with a new uid, that is a new and empty storage, on the same node. The
// user with the highest (generation, creation time, uid) is the current one; all
// others are replaced.
//
// Rows:
//
//	space           key                value
//	token_services  service            id, pattern, the nodes and their load, last node id
//	token_users     service id, email  all users of the account
//	token_uids      uid                service id, email
//	token_uids      0                  the last uid given out
//
// The nodes of a service share one row, and so do the users of an account. So the
// usual request, of somebody who is known and has nothing to tell, is one read of
// two rows at one instant, no range is ever read in a transaction, and whoever
// takes a place on a node has checked all nodes. A service has tens of nodes, and
// an account as many users as it has had passwords reset.
//
// Invariants:
//   - after any commit made here at most one user of an account is not replaced;
//   - a uid is given out once, and token_uids leads to the account that has it;
//   - no user is placed on a node whose load has reached its capacity, and a node's
//     load counts each placement once, however often a request is repeated;
//   - a refused request changes nothing.
package tokenserver
