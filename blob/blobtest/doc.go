// Package blobtest proves drivers of package blob and helps to test what stands
// on it.
//
//   - [Run] is the conformance suite. A driver is finished when it passes, with
//     no exceptions.
//   - [Memory] is the model: a driver simple enough to be believed. It passes
//     the same suite, and Run compares drivers with it under random operations.
//   - [Faults] is a driver around a driver that fails, hangs and traces as told;
//     [EachFault] repeats a scenario with a fault at each of its calls in turn.
//
// All of it is for tests only.
package blobtest
