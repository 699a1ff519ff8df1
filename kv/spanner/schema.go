package spanner

import (
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/spanner/spansql"

	"github.com/holdfast-dev/holdfast/kv"
)

// schemaVersion is what this package reads and writes. It rises when an older
// holdfast would misread what is stored.
const schemaVersion = 1

// graceDays is how long after its expiry Spanner itself removes a row, if nothing
// else has.
const graceDays = 1

// linkColumn is the one that the change stream watches.
const linkColumn = "payload_link"

// Schema returns the statements that make, in an empty database, all that the
// engine needs for the given spaces: their tables, and if some hold links the
// change stream over these and the role that may read it. They are complete: with
// them in place the engine needs no right to change the schema.
func Schema(spaces []kv.SpaceInfo) []string {
	ddl := []string{
		createTable(schemaTable, "id", "id INT64 NOT NULL", "version INT64 NOT NULL"),
		createTable(spacesTable, "name", "name STRING(64) NOT NULL", "links BOOL NOT NULL",
			"feed_shards INT64 NOT NULL", "feed_retention_us INT64 NOT NULL"),
		createTable(marksTable, "space, shard", "space STRING(64) NOT NULL", "shard INT64 NOT NULL",
			"committed_at TIMESTAMP NOT NULL", "key BYTES(MAX) NOT NULL"),
	}
	for _, s := range spaces {
		ddl = append(ddl, spaceTables(s)...)
	}
	watched := watchedTables(spaces)
	if len(watched) == 0 {
		return ddl
	}
	return append(ddl,
		"CREATE CHANGE STREAM "+ChangeStream+"\n  FOR "+watchList(watched)+"\n  OPTIONS (retention_period = '7d', value_capture_type = 'OLD_AND_NEW_VALUES')",
		"CREATE ROLE "+ReaderRole,
		"GRANT SELECT ON CHANGE STREAM "+ChangeStream+" TO ROLE "+ReaderRole,
		"GRANT EXECUTE ON TABLE FUNCTION READ_"+ChangeStream+" TO ROLE "+ReaderRole,
	)
}

// spaceTables creates the tables of one space.
func spaceTables(s kv.SpaceInfo) []string {
	ddl := []string{createTable(TableName(s.Name), "key",
		"key BYTES(MAX) NOT NULL", "value BYTES(MAX)", linkColumn+" STRING(2048)", "expires_at TIMESTAMP",
		"committed_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true)",
	) + fmt.Sprintf(",\n  ROW DELETION POLICY (OLDER_THAN(expires_at, INTERVAL %d DAY))", graceDays)}
	if s.FeedShards > 0 {
		ddl = append(ddl, createTable(feedTableName(s.Name), "shard, committed_at, key",
			"shard INT64 NOT NULL", "committed_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true)",
			"key BYTES(MAX) NOT NULL", "data BYTES(MAX) NOT NULL"))
	}
	return ddl
}

func createTable(name, key string, columns ...string) string {
	return "CREATE TABLE IF NOT EXISTS " + spansql.ID(name).SQL() + " (\n  " + strings.Join(columns, ",\n  ") + ",\n) PRIMARY KEY (" + key + ")"
}

// watchedTables lists the tables of the spaces that hold links.
func watchedTables(spaces []kv.SpaceInfo) []string {
	var tables []string
	for _, s := range spaces {
		if s.Links {
			tables = append(tables, TableName(s.Name))
		}
	}
	slices.Sort(tables)
	return tables
}

func watchList(tables []string) string {
	list := make([]string, len(tables))
	for i, t := range tables {
		list[i] = spansql.ID(t).SQL() + "(" + linkColumn + ")"
	}
	return strings.Join(list, ", ")
}
