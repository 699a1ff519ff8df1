package spanner

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// versionOf returns the version that rows committed at a time have: its
// milliseconds, and the microseconds within as the counter.
func versionOf(committed time.Time) kv.Version {
	return kv.VersionAt(committed) + kv.Version(committed.UnixMicro()%1000)
}

// committedAt checks a stored commit timestamp. Spanner's have whole microseconds;
// with finer ones two versions could be the same.
func committedAt(t time.Time) (time.Time, error) {
	if t.Nanosecond()%1000 != 0 || versionOf(t) == 0 {
		return time.Time{}, fmt.Errorf("%w: commit timestamp %v", kv.ErrCorrupt, t)
	}
	return t, nil
}
