// Package s3test is a server that behaves like Amazon S3, for tests.
//
// It is gofakes3 behind a handler that makes up for what that lacks, each of which the
// stores have and package s3 builds on:
//
//   - signatures are checked (version 4, of the headers);
//   - a list starts after start-after also if there is no such key, keeps to max-keys,
//     and escapes keys when asked to, so that any key can be in it;
//   - DELETE honours If-Match, as S3 does (Ignore turns that off, as R2 does);
//   - a request reads its whole body before it changes anything;
//   - a bucket has lifecycle rules.
package s3test
