package spanner

import (
	"fmt"
	"strings"
)

// Tables and other objects that belong to no space. Names that begin with
// ownPrefix are never those of a space's rows.
const (
	ownPrefix   = "holdfast_"
	schemaTable = ownPrefix + "schema"
	spacesTable = ownPrefix + "spaces"
	marksTable  = ownPrefix + "feed_marks"
	feedPrefix  = ownPrefix + "feed_of_"
	otherPrefix = "hf_"
)

const (
	// ChangeStream is the change stream over the links of all spaces that hold
	// some.
	ChangeStream = "payload_link_changes"
	// ReaderRole is the database role that may read ChangeStream, and nothing else.
	ReaderRole = "payload_link_reader"
)

// TableName returns the table that holds the rows of a space. It has the space's
// own name if that is a legal and unmistakable one in Spanner, where names
// begin with a letter and do not differ by case. Otherwise it is
//
//	hf_<name in lower case>_<which letters are capitals, as a hexadecimal number>
//
// so that the space __extenddb_ttl_index__ is in table
// hf___extenddb_ttl_index___0, and space A in hf_a_1.
func TableName(space string) string {
	var capitals uint64 // names have at most 48 bytes
	for i := range len(space) {
		if space[i] >= 'A' && space[i] <= 'Z' {
			capitals |= 1 << i
		}
	}
	first := space[0] >= 'a' && space[0] <= 'z'
	if first && capitals == 0 && space != ChangeStream && !strings.HasPrefix(space, ownPrefix) && !strings.HasPrefix(space, otherPrefix) {
		return space
	}
	return fmt.Sprintf("%s%s_%x", otherPrefix, strings.ToLower(space), capitals)
}

// feedTableName returns the table that holds the feed of a space.
func feedTableName(space string) string { return feedPrefix + TableName(space) }
