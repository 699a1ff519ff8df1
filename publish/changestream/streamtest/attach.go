package streamtest

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

// linkColumn is the one column that the stream watches.
const linkColumn = "payload_link"

// Attach makes s the change stream of the rows of a database server: what is
// committed there is in the stream, and the server answers questions about it. It
// must be called before db is used.
func (s *Server) Attach(db *spandbtest.Server) {
	db.OnCommit(func(c spandbtest.Commit) {
		for _, change := range watched(c) {
			s.Commit(change)
		}
	})
	v := &service{s: s}
	db.HandleQuery(func(_ context.Context, r *sppb.ExecuteSqlRequest, out sppb.Spanner_ExecuteStreamingSqlServer) (bool, error) {
		if !strings.Contains(r.Sql, "READ_"+Stream+"(") && !strings.Contains(r.Sql, "INFORMATION_SCHEMA.CHANGE_STREAM") {
			return false, nil
		}
		return true, v.ExecuteStreamingSql(r, out)
	})
}

// watched returns what the stream has of a commit: for each table and type of
// change one record. An update that leaves the link alone is not seen.
func watched(c spandbtest.Commit) []Change {
	var all []Change
	for _, row := range c.Changes {
		old, hasLink := row.Old[linkColumn]
		now, hasNew := row.New[linkColumn]
		if !hasLink && !hasNew || row.Type == "UPDATE" && old.GetStringValue() == now.GetStringValue() {
			continue
		}
		mod := Mod{Keys: object(row.Keys), Old: "{}", New: "{}"}
		if row.Old != nil {
			mod.Old = object(map[string]*structpb.Value{linkColumn: old})
		}
		if row.New != nil {
			mod.New = object(map[string]*structpb.Value{linkColumn: now})
		}
		i := slices.IndexFunc(all, func(c Change) bool { return c.Table == row.Table && c.ModType == row.Type })
		if i < 0 {
			all = append(all, Change{Table: row.Table, ModType: row.Type, Tag: c.Tag, System: c.System})
			i = len(all) - 1
		}
		all[i].Mods = append(all[i].Mods, mod)
	}
	return all
}

// object is the JSON of columns.
func object(columns map[string]*structpb.Value) string {
	values := map[string]any{}
	for name, v := range columns {
		values[name] = v.AsInterface()
	}
	b, err := json.Marshal(values)
	if err != nil {
		panic(err) // JSON out of what was JSON
	}
	return string(b)
}
