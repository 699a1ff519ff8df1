package bigtable

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// Options of an item.
const (
	itemLink   = 1
	itemExpiry = 2
)

// encodeItem returns the cell d:i of a row: format 1 (1), options 1, [expiry in
// Unix microseconds 8], [length of the link, link], value.
func encodeItem(w *kv.Write) []byte {
	b := make([]byte, 2, 2+8+binary.MaxVarintLen16+len(w.Link)+len(w.Value))
	b[0] = 1
	if !w.ExpiresAt.IsZero() {
		b[1] |= itemExpiry
		b = binary.BigEndian.AppendUint64(b, uint64(w.ExpiresAt.UnixMicro()))
	}
	if w.Link != "" {
		b[1] |= itemLink
		b = append(binary.AppendUvarint(b, uint64(len(w.Link))), w.Link...)
	}
	return append(b, w.Value...)
}

// decodeItem fills in value, link and expiry of row. The value shares b.
func decodeItem(b []byte, row *kv.Row) error {
	bad := fmt.Errorf("%w: item of %d bytes", kv.ErrCorrupt, len(b))
	if len(b) < 2 || b[0] != 1 || b[1] > itemLink|itemExpiry {
		return bad
	}
	options, b := b[1], b[2:]
	if options&itemExpiry != 0 {
		if len(b) < 8 {
			return bad
		}
		row.ExpiresAt = time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC()
		b = b[8:]
	}
	if options&itemLink != 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return bad
		}
		row.Link, b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	row.Value = b[:len(b):len(b)]
	return nil
}
