package pebble

import (
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// roomKept is how much of the disk commits leave free, for flushes and
// compactions of what was committed before.
const roomKept = 128 << 20

// roomStep is after how many written bytes the free space is asked for again.
const roomStep = 16 << 20

// room refuses commits while the disk is nearly full. Running into the end of the
// disk would freeze the folder; this way reads go on, and so do commits as soon
// as there is space again.
type room struct {
	disk vfs.FS
	dir  string

	mu sync.Mutex
	// left is how many bytes may be written before the disk is asked again.
	left int64
}

// reserve reports an error if there is not enough space for n more bytes. They
// are written twice at least, to the log and to a table.
func (r *room) reserve(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	need := 2 * int64(n)
	if need > r.left {
		usage, err := r.disk.GetDiskUsage(r.dir)
		if err != nil {
			return nil // unknown: the write itself will tell
		}
		free := int64(min(usage.AvailBytes, 1<<62)) - roomKept
		if need > free {
			r.left = 0
			return fmt.Errorf("disk of folder %s is full: %d bytes available, %d of them kept for maintenance", r.dir, usage.AvailBytes, roomKept)
		}
		r.left = min(free, need+roomStep)
	}
	r.left -= need
	return nil
}
