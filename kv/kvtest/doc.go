// Package kvtest proves engines and helps to test what stands on them. It is for
// tests only.
//
//   - Run is the conformance suite. A driver is finished when it passes. Besides
//     one case for each claim of the contract it does random operations in step
//     with Model, and looks for an order of concurrent transactions.
//   - Model is an engine in memory, written to be read: the oracle that drivers
//     are compared with, and a fast engine for the tests of layers.
//   - Faults is an engine that fails, delays, loses answers and crashes on
//     demand. EachCall runs a scenario once for each call that can fail.
//   - NewTrace reports one line for each call, for golden files that pin an order.
package kvtest
