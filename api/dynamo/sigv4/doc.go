// Package sigv4 checks who sent a request: AWS Signature Version 4, in an
// Authorization header or in the query of a presigned URL.
//
// The client derives a key from its secret and a scope (date, region, service) and
// signs with it a canonical form of the request: method, path, query, the headers
// that it names, and the hash of the body as it is sent, that is, compressed if it
// is compressed. [Verifier.Verify] does the same and compares. Each check has its own
// exception and text, and the first that fails is the answer: clients test for them,
// so their order is part of the protocol.
//
// A body may also be signed in pieces, with STREAMING-AWS4-HMAC-SHA256-PAYLOAD in
// place of its hash: then it is framed, and each piece has a signature that continues
// the one before. [Streaming] and [Payload] are for who reads such a body.
//
// Nothing here reads the network or a store; secrets come from a [Lookup].
package sigv4
