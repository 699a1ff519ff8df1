// Package metrics counts what the parts of Holdfast do, and shows it to
// Prometheus and statsd.
//
// A part declares its metrics once, when it is built, on the Registry that its
// Options carry, and keeps the handles:
//
//	gets := reg.Counter("request.get_bso", "tokenserver_origin")
//	...
//	gets.Add(1, "rust")
//
// Names are dotted, as in the specifications; the tag keys belong to the
// declaration and their values to the observation, in the same order. A nil
// *Registry, and the nil handles that it gives out, work and do nothing, so
// that no part needs to ask whether it is measured.
//
// The same declaration gives two renderings:
//
//	declared                     Prometheus                           statsd
//	Counter  request.get_bso     syncstorage_request_get_bso_total    syncstorage.request.get_bso|c
//	Gauge    storage.pool.idle   syncstorage_storage_pool_idle        syncstorage.storage.pool.idle|g
//	Timer    token_verification  …_token_verification_seconds         …token_verification|ms
//
// where syncstorage is the Group that the part was given.
//
// Mistakes in declarations and observations (a name with two meanings, a wrong
// number of tag values) never panic: what was observed that way is dropped, and
// Registry.Err tells. Tests of a part, and the program after wiring, check it.
//
// An observation costs some tens of nanoseconds and no allocation. It takes no
// lock, except the first one with new tag values, and never waits for the
// network.
package metrics
