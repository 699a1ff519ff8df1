package main

import (
	"os"
	"runtime/debug"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

const (
	// gcPercent lets Go's memory grow fivefold before it is collected: the live part
	// is a few MB, and collecting it each time that it has doubled would take more time
	// than small requests do. Near the limit, which large requests reach, it is
	// collected as often as that takes.
	gcPercent = 400
	// localMemory is the limit where the rows are on this machine, beside what the
	// engine has for itself.
	localMemory = 64 << 20
	// clusterMemory is the limit of a process that waits for other machines, with many
	// messages or requests in hand.
	clusterMemory = 512 << 20
)

// limitMemory bounds Go's memory, unless the environment does.
func limitMemory(bytes int64) {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercent)
		debug.SetMemoryLimit(bytes)
	}
}

// memoryFor is the limit for a process with this engine.
func memoryFor(e *config.Engine) int64 {
	switch {
	case e.Kind != config.EnginePebble:
		return clusterMemory
	case engineInGo:
		return localMemory + int64(e.CacheBytes) + 4*int64(e.MemTable) // three, and what lies between all that
	}
	return localMemory
}
