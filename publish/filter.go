package publish

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/changes"
)

// Keep reports whether anybody needs the record r: whether one of its mods has a
// link on one of its sides. A kept record is sent whole.
func Keep(r *changes.Raw) bool {
	for i := range r.Mods {
		if changes.HasLink(r.Mods[i].OldValues) || changes.HasLink(r.Mods[i].NewValues) {
			return true
		}
	}
	return false
}

// appendMessages appends the messages that carry r: one, or several with the same
// head and a part of the mods each, if one would be larger than limit.
func appendMessages(dst [][]byte, r *changes.Raw, limit int) ([][]byte, error) {
	size := 0
	for i := range r.Mods {
		m := &r.Mods[i]
		m.Keys, m.OldValues, m.NewValues = orEmpty(m.Keys), orEmpty(m.OldValues), orEmpty(m.NewValues)
		size += len(m.Keys) + len(m.OldValues) + len(m.NewValues)
	}
	if size <= limit { // else its message is too large for certain
		message, err := changes.EncodeRaw(r)
		if err != nil {
			return dst, err
		}
		if len(message) <= limit {
			return append(dst, message), nil
		}
	}
	half := len(r.Mods) / 2
	if half == 0 {
		return dst, fmt.Errorf("publish: the change of one row in table %s needs a message of more than %d bytes", r.TableName, limit)
	}
	first, second := *r, *r
	first.Mods, second.Mods = r.Mods[:half], r.Mods[half:]
	dst, err := appendMessages(dst, &first, limit)
	if err != nil {
		return dst, err
	}
	return appendMessages(dst, &second, limit)
}

// orEmpty is the text of a JSON object for a side that the stream left out.
func orEmpty(s string) string {
	if s == "" {
		return "{}"
	}
	return s
}
