// Package e2e attacks the program as a whole: sessions of clients against the
// built binary, kills at random moments, injected faults, full disks. It has
// nothing but tests; package program runs the binary and package syncclient talks
// to it.
package e2e
