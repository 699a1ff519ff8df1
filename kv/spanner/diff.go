package spanner

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cloud.google.com/go/spanner/spansql"

	"github.com/holdfast-dev/holdfast/kv"
)

// diff returns the statements that turn a schema, as the database shows it, into
// one that has all that Schema asks for. Nothing is ever taken away. What no
// statement can repair is an error.
func diff(have []string, spaces []kv.SpaceInfo) ([]string, error) {
	present, err := parseSchema(have)
	if err != nil {
		return nil, err
	}
	var missing []string
	var errs []error
	for _, text := range Schema(spaces) {
		stmt, err := spansql.ParseDDLStmt(text)
		if err != nil {
			return nil, fmt.Errorf("spanner: statement %q: %w", text, err)
		}
		var more []string
		switch want := stmt.(type) {
		case *spansql.CreateTable:
			more, err = diffTable(present.tables[strings.ToLower(string(want.Name))], want, text)
		case *spansql.CreateChangeStream:
			more, err = diffStream(present.stream, want, text)
		case *spansql.CreateRole:
			more = unless(present.role, text)
		case *spansql.GrantRole:
			more = unless(present.grants[grantKey(want)], text)
		}
		missing = append(missing, more...)
		errs = append(errs, err)
	}
	return missing, errors.Join(errs...)
}

func unless(present bool, text string) []string {
	if present {
		return nil
	}
	return []string{text}
}

// presentSchema is what of a database's schema is of interest.
type presentSchema struct {
	tables map[string]*spansql.CreateTable // by names in lower case
	stream *spansql.CreateChangeStream
	role   bool
	grants map[string]bool // those to ReaderRole, see grantKey
}

// ourStatement matches statements that must be understood.
var ourStatement = regexp.MustCompile("(?is)^\\s*CREATE\\s+(CHANGE\\s+STREAM\\s+`?" + ChangeStream + "\\b|TABLE\\s+`?" + ownPrefix + ")")

func parseSchema(have []string) (*presentSchema, error) {
	s := &presentSchema{tables: map[string]*spansql.CreateTable{}, grants: map[string]bool{}}
	for _, text := range have {
		stmt, err := spansql.ParseDDLStmt(text)
		if err != nil {
			if ourStatement.MatchString(text) {
				return nil, fmt.Errorf("spanner: the database has %.200q, which is not as holdfast makes it: %w", text, err)
			}
			continue // somebody else's
		}
		switch stmt := stmt.(type) {
		case *spansql.CreateTable:
			s.tables[strings.ToLower(string(stmt.Name))] = stmt
		case *spansql.CreateChangeStream:
			if strings.EqualFold(string(stmt.Name), ChangeStream) {
				s.stream = stmt
			}
		case *spansql.CreateRole:
			s.role = s.role || strings.EqualFold(string(stmt.Name), ReaderRole)
		case *spansql.GrantRole:
			if slices.ContainsFunc(stmt.ToRoleNames, func(id spansql.ID) bool { return strings.EqualFold(string(id), ReaderRole) }) {
				s.grants[grantKey(stmt)] = true
			}
		}
	}
	return s, nil
}

func grantKey(g *spansql.GrantRole) string {
	return strings.ToLower(fmt.Sprint(g.ChangeStreamNames, g.TvfNames))
}

func diffTable(have, want *spansql.CreateTable, text string) ([]string, error) {
	if have == nil {
		return []string{text}, nil
	}
	name := want.Name.SQL()
	if keyOf(have) != keyOf(want) {
		return nil, fmt.Errorf("spanner: table %s has primary key (%s), it must be (%s)", name, keyOf(have), keyOf(want))
	}
	var missing []string
	for _, column := range want.Columns {
		i := slices.IndexFunc(have.Columns, func(c spansql.ColumnDef) bool { return strings.EqualFold(string(c.Name), string(column.Name)) })
		switch {
		case i >= 0 && have.Columns[i].SQL() != column.SQL():
			return nil, fmt.Errorf("spanner: table %s has column %s, it must be %s", name, have.Columns[i].SQL(), column.SQL())
		case i < 0 && column.NotNull:
			return nil, fmt.Errorf("spanner: table %s has no column %s, is it another program's?", name, column.SQL())
		case i < 0:
			missing = append(missing, "ALTER TABLE "+name+" ADD COLUMN "+column.SQL())
		}
	}
	switch policy := want.RowDeletionPolicy; {
	case policy == nil:
	case have.RowDeletionPolicy == nil:
		missing = append(missing, "ALTER TABLE "+name+" ADD "+policy.SQL())
	case policy.SQL() != have.RowDeletionPolicy.SQL():
		missing = append(missing, "ALTER TABLE "+name+" REPLACE "+policy.SQL())
	}
	return missing, nil
}

func keyOf(t *spansql.CreateTable) string {
	var parts []string
	for _, p := range t.PrimaryKey {
		parts = append(parts, strings.ToLower(p.SQL()))
	}
	return strings.Join(parts, ", ")
}

// diffStream adds tables to what the stream watches and sets its options. What it
// watches besides stays.
func diffStream(have, want *spansql.CreateChangeStream, text string) ([]string, error) {
	if have == nil {
		return []string{text}, nil
	}
	var missing []string
	watch := slices.Clone(have.Watch)
	for _, w := range want.Watch {
		i := slices.IndexFunc(watch, func(h spansql.WatchDef) bool { return strings.EqualFold(string(h.Table), string(w.Table)) })
		switch {
		case i < 0:
			watch = append(watch, w)
		case !watch[i].WatchAllCols && !slices.ContainsFunc(watch[i].Columns, func(c spansql.ID) bool { return strings.EqualFold(string(c), linkColumn) }):
			watch[i].Columns = append(slices.Clone(watch[i].Columns), linkColumn)
		}
	}
	if list := sqlOf(watch); !have.WatchAllTables && list != sqlOf(have.Watch) {
		missing = append(missing, "ALTER CHANGE STREAM "+ChangeStream+" SET FOR "+list)
	}
	if value(have.Options.RetentionPeriod) != value(want.Options.RetentionPeriod) || value(have.Options.ValueCaptureType) != value(want.Options.ValueCaptureType) {
		missing = append(missing, "ALTER CHANGE STREAM "+ChangeStream+" SET "+want.Options.SQL())
	}
	return missing, nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func sqlOf(watch []spansql.WatchDef) string {
	list := make([]string, len(watch))
	for i, w := range watch {
		list[i] = w.SQL()
	}
	return strings.Join(list, ", ")
}

// dropStatements remove a space. A table that a change stream watches cannot be
// dropped, so the stream is told first.
func dropStatements(have []string, space string) ([]string, error) {
	present, err := parseSchema(have)
	if err != nil {
		return nil, err
	}
	var ddl []string
	table := TableName(space)
	if s := present.stream; s != nil {
		rest := slices.DeleteFunc(slices.Clone(s.Watch), func(w spansql.WatchDef) bool { return strings.EqualFold(string(w.Table), table) })
		switch {
		case len(rest) == len(s.Watch):
		case len(rest) == 0:
			ddl = append(ddl, "ALTER CHANGE STREAM "+ChangeStream+" DROP FOR ALL")
		default:
			ddl = append(ddl, "ALTER CHANGE STREAM "+ChangeStream+" SET FOR "+sqlOf(rest))
		}
	}
	for _, name := range []string{table, feedTableName(space)} {
		ddl = append(ddl, "DROP TABLE IF EXISTS "+spansql.ID(name).SQL())
	}
	return ddl, nil
}
