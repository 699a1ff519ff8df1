package bigtable

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/holdfast-dev/holdfast/kv"
)

// DefaultSystemPrefix begins the names of system tables.
const DefaultSystemPrefix = "__extenddb_"

const maxTableID = 50

// The driver's own tables, behind the prefix.
const (
	catalogTable = "catalog__"
	logTable     = "txn_log__"
	streamTable  = "streams__"
	outboxTable  = "outbox__"
)

var (
	tableID    = regexp.MustCompile(`^[_a-zA-Z0-9][-_.a-zA-Z0-9]*$`)
	dataSpaces = regexp.MustCompile(`^t[0-9a-f]{32}(_[gl][0-9a-f]{8})?$`)
)

// tableName returns the table of a space. The first space of a name has the table
// that its name says. Later ones get a number behind it, because a write that a
// slow process sends to the old table must not appear in the new one.
func (e *Engine) tableName(space string, generation uint32) (string, error) {
	name := "h_" + space
	if rest, ok := strings.CutPrefix(space, DefaultSystemPrefix); ok {
		switch rest {
		case catalogTable, logTable, streamTable, outboxTable:
			return "", fmt.Errorf("%w: %s is a table of the engine itself", kv.ErrInvalid, space)
		}
		name = e.opts.SystemPrefix + rest
	} else if dataSpaces.MatchString(space) {
		name = space
	}
	suffix := ""
	if generation > 1 {
		suffix = fmt.Sprintf("-%d", generation)
	}
	if len(name)+len(suffix) > maxTableID {
		// A dot occurs in no other name.
		sum := sha256.Sum256([]byte(name))
		digest := "." + hex.EncodeToString(sum[:8])
		name = name[:maxTableID-len(digest)-len(suffix)] + digest
	}
	name += suffix
	return name, checkTableID(name)
}

func checkTableID(name string) error {
	if len(name) > maxTableID || !tableID.MatchString(name) {
		return fmt.Errorf("%w: table id of %d bytes", kv.ErrInvalid, len(name))
	}
	return nil
}

// splits are the keys at which a new table is divided at once, where the first
// byte of its keys is known to be spread.
func splits(space string) []string {
	step, count := 0x20, 7
	switch {
	case space == DefaultSystemPrefix+"ttl_index__", space == DefaultSystemPrefix+logTable:
		step, count = 1, 15
	case !dataSpaces.MatchString(space):
		return nil
	}
	var keys []string
	for i := range count {
		keys = append(keys, string([]byte{byte((i + 1) * step)}))
	}
	return keys
}
