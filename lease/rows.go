package lease

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// space has all rows of this package.
const space = "leases"

func leaseKey(name string) []byte { return append([]byte{'l'}, name...) }
func sessionKey(id string) []byte { return append([]byte{'s'}, id...) }

// leaseRow is the row of a lease.
type leaseRow struct {
	// Owner is the session that has the lease, "" if nobody has.
	Owner string
	Epoch uint64
	// Clean says how the last epoch that is over has ended: the one before this, or,
	// without an owner, this one.
	Clean bool
}

// sessionRow is the row of a session.
type sessionRow struct {
	// Duration is how long the session lives after each renewal.
	Duration time.Duration
	// Beat is the number of the renewal.
	Beat uint64
	// Roles are those that the process competes in, sorted.
	Roles []string

	version kv.Version
}

func write(k []byte, v any) (kv.Write, error) {
	b, err := json.Marshal(v)
	return kv.Write{Space: space, Key: k, Value: b}, err
}

func decode(row kv.Row, v any) error {
	if err := json.Unmarshal(row.Value, v); err != nil {
		return fmt.Errorf("%w: row %q of leases: %v", kv.ErrCorrupt, row.Key, err)
	}
	return nil
}

// decodeLease returns what a lease's row says. A lease that nobody has had is free and
// clean.
func decodeLease(row kv.Row) (leaseRow, error) {
	if !row.Exists() {
		return leaseRow{Clean: true}, nil
	}
	var l leaseRow
	return l, decode(row, &l)
}

// table is what the rows said when they were read.
type table struct {
	leases   map[string]leaseRow
	sessions map[string]sessionRow
}
