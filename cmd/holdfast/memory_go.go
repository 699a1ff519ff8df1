//go:build !cgo

package main

// engineInGo tells that the embedded engine's cache and memtables are Go's memory.
const engineInGo = true
