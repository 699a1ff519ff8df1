// Package sync15 is the Sync door: Firefox Sync storage 1.5 over HTTP, with the
// payloads of chosen collections offloaded to an object store.
//
// The door is thin. What requests mean and how answers are written is in package
// bso, who may ask in package hawk, what is stored in package storage, and the
// token server in package tokenserver. Here they are put in the order that the
// protocol prescribes: CORS and refused clients, route, authentication, names and
// headers, body, action, answer.
package sync15
