// Package kvtest proves engines and helps to test what stands on them. It is for
// tests only. Model is an engine in memory, written to be read: the oracle that
// drivers are compared with, and a fast engine for the tests of layers.
package kvtest
