// Package wire is the HTTP envelope of the DynamoDB JSON protocol: everything of a
// request and an answer that is the same for all operations.
//
// [Handler] reads a request, makes the checks of the envelope in the order in which
// clients can tell them apart (size, method, content type, JSON syntax, target, who
// sent it, a JSON object), hands it to the [Call] of its operation, and renders what
// comes back, a body or an error. A body is at most 16 MiB, packed or not, and what
// all requests together hold is bounded.
//
// A Call reads its body with [Decode], which fills a Go structure and refuses JSON of
// a wrong type, and checks the limits of single members with a [Check], which reports
// them all together. What is an attribute value stays raw JSON here.
package wire
