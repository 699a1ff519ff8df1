package pebble

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/kv"
)

// ceilingStep is how far ahead of the version that needs it the ceiling is put.
// After a crash versions run ahead of the clock by up to as much.
const ceilingStep = 10 * time.Second

// ceiling keeps the row that bounds all durable versions from above.
type ceiling struct {
	version atomic.Uint64
	mu      sync.Mutex
}

// raise makes sure that the log has a ceiling not below v in front of whatever is
// written next. It need not be synced: when a later record is durable, so is
// everything before it in the log.
func (c *ceiling) raise(db *pebbledb.DB, v kv.Version) error {
	if uint64(v) <= c.version.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if uint64(v) <= c.version.Load() {
		return nil
	}
	to := kv.VersionAt(v.Time().Add(ceilingStep))
	if err := db.Set(ceilingKey, versionBytes(to), pebbledb.NoSync); err != nil {
		return err
	}
	c.version.Store(uint64(to))
	return nil
}

func versionBytes(v kv.Version) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }
