// Package gcstest is a server that behaves like Google Cloud Storage, for tests.
//
// It is fake-gcs-server behind a handler that makes up for what that lacks, each of
// which the service has and package gcs builds on:
//
//   - metagenerations: a patch changes them, answers show them;
//   - preconditions (ifGenerationMatch, ifMetagenerationMatch) of patch, delete and
//     rewrite;
//   - a custom time cannot be moved backwards or unset;
//   - a rewrite takes the custom time of the request;
//   - a patch is atomic against other requests and answers with the object;
//   - an object without custom time has none in answers;
//   - a bucket has lifecycle rules, soft deletion and retention.
package gcstest
