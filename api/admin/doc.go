// Package admin is the operator's door: is the process alive, can it serve, what
// does it count, and whatever else an operator may see or change.
//
//	GET /healthz   200 as long as the process answers
//	GET /readyz    200 if every check passes, else 503; the checks by name
//	GET /metrics   for Prometheus
//	GET /version   what is running
//
// These four are open. Everything added by Handle needs the token:
//
//	Authorization: Bearer TOKEN
//
// Answers are JSON, except that of /metrics; errors are {"error":"..."} and say
// what to do.
//
// A browser on the operator's machine can reach this door, so a web page must not
// be able to use it. There is no CORS, so a page of another origin can neither
// read an answer nor send the token's header. And the request must be addressed
// to localhost, to an IP address or to a configured name: a page that lets its
// own name point here (DNS rebinding) is of the same origin, but still asks for
// its own name.
package admin
