package spandbtest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/spansql"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// object is a thing of the schema: a table, a change stream, a role or a grant.
type object struct {
	kind, name string // name in lower case; a grant's is its text
	stmt       spansql.DDLStmt
}

// UpdateDatabaseDdl implements databasepb.DatabaseAdminServer. As with Spanner, what
// comes before a statement that fails stays.
func (s *Server) UpdateDatabaseDdl(_ context.Context, req *databasepb.UpdateDatabaseDdlRequest) (*longrunningpb.Operation, error) {
	db, err := s.database(req.GetDatabase())
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, text := range req.GetStatements() {
		stmt, err := spansql.ParseDDLStmt(text)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "Syntax error: %v", err)
		}
		if err := db.define(stmt); err != nil {
			return nil, err
		}
	}
	db.commitTime() // a schema change has a timestamp like a commit
	done, err := anypb.New(&emptypb.Empty{})
	if err != nil {
		return nil, err
	}
	return &longrunningpb.Operation{
		Name: fmt.Sprintf("%s/operations/_auto_%d", db.name, db.nextID()), Done: true,
		Result: &longrunningpb.Operation_Response{Response: done},
	}, nil
}

// GetDatabaseDdl implements databasepb.DatabaseAdminServer.
func (s *Server) GetDatabaseDdl(_ context.Context, req *databasepb.GetDatabaseDdlRequest) (*databasepb.GetDatabaseDdlResponse, error) {
	db, err := s.database(req.GetDatabase())
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	resp := &databasepb.GetDatabaseDdlResponse{}
	for _, o := range db.schema {
		resp.Statements = append(resp.Statements, o.stmt.(interface{ SQL() string }).SQL())
	}
	return resp, nil
}

// GetDatabase implements databasepb.DatabaseAdminServer.
func (s *Server) GetDatabase(_ context.Context, req *databasepb.GetDatabaseRequest) (*databasepb.Database, error) {
	if _, err := s.database(req.GetName()); err != nil {
		return nil, err
	}
	return &databasepb.Database{Name: req.GetName(), State: databasepb.Database_READY}, nil
}

func (db *database) object(kind string, name spansql.ID) int {
	return slices.IndexFunc(db.schema, func(o object) bool { return o.kind == kind && strings.EqualFold(o.name, string(name)) })
}

func (db *database) add(kind string, name spansql.ID, stmt spansql.DDLStmt) error {
	for _, k := range []string{"table", "change stream"} {
		if k != kind && (kind == "table" || kind == "change stream") && db.object(k, name) >= 0 {
			return duplicate(name)
		}
	}
	if db.object(kind, name) >= 0 {
		return duplicate(name)
	}
	db.schema = append(db.schema, object{kind: kind, name: strings.ToLower(string(name)), stmt: stmt})
	return nil
}

func duplicate(name spansql.ID) error {
	return status.Errorf(codes.FailedPrecondition, "Duplicate name in schema: %s.", name)
}

func (db *database) drop(kind string, name spansql.ID) error {
	i := db.object(kind, name)
	if i < 0 {
		return status.Errorf(codes.NotFound, "%s not found: %s", kind, name)
	}
	db.schema = slices.Delete(db.schema, i, i+1)
	return nil
}

// define applies one statement.
func (db *database) define(stmt spansql.DDLStmt) error {
	switch stmt := stmt.(type) {
	case *spansql.CreateTable:
		return db.createTable(stmt)
	case *spansql.AlterTable:
		return db.alterTable(stmt)
	case *spansql.DropTable:
		return db.dropTable(stmt)
	case *spansql.CreateChangeStream:
		if err := db.checkWatch(stmt.Watch); err != nil {
			return err
		}
		return db.add("change stream", stmt.Name, stmt)
	case *spansql.AlterChangeStream:
		return db.alterChangeStream(stmt)
	case *spansql.DropChangeStream:
		return db.drop("change stream", stmt.Name)
	case *spansql.CreateRole:
		db.roles[strings.ToLower(string(stmt.Name))] = true
		return db.add("role", stmt.Name, stmt)
	case *spansql.DropRole:
		delete(db.roles, strings.ToLower(string(stmt.Name)))
		return db.drop("role", stmt.Name)
	case *spansql.GrantRole:
		return db.grant(stmt)
	}
	return status.Errorf(codes.Unimplemented, "statement %T", stmt)
}

func (db *database) createTable(def *spansql.CreateTable) error {
	if def.IfNotExists {
		if _, exists := db.tables[strings.ToLower(string(def.Name))]; exists {
			return nil
		}
		def.IfNotExists = false // the schema is shown without it
	}
	if def.Interleave != nil || len(def.Constraints) > 0 {
		return status.Error(codes.Unimplemented, "only plain tables are supported")
	}
	t := &table{def: def}
	for _, c := range def.Columns {
		if err := t.addColumn(c); err != nil {
			return err
		}
	}
	for _, part := range def.PrimaryKey {
		i, err := t.columnIndex(string(part.Column))
		if err != nil {
			return err
		}
		if part.Desc {
			return status.Error(codes.Unimplemented, "descending keys are not supported")
		}
		t.key = append(t.key, i)
	}
	if err := t.checkPolicy(def.RowDeletionPolicy); err != nil {
		return err
	}
	if err := db.add("table", def.Name, def); err != nil {
		return err
	}
	db.tables[strings.ToLower(string(def.Name))] = t
	return nil
}

func (t *table) addColumn(c spansql.ColumnDef) error {
	if typeCode(c.Type) == 0 || c.Type.Array || c.Default != nil || c.Generated != nil {
		return status.Errorf(codes.Unimplemented, "column %s", c.SQL())
	}
	allow := c.Options.AllowCommitTimestamp
	t.columns = append(t.columns, column{name: string(c.Name), typ: c.Type, notNull: c.NotNull, commitTS: allow != nil && *allow})
	return nil
}

func (t *table) checkPolicy(p *spansql.RowDeletionPolicy) error {
	if p == nil {
		return nil
	}
	i, err := t.columnIndex(string(p.Column))
	if err == nil && t.columns[i].typ.Base != timestampType {
		err = status.Errorf(codes.InvalidArgument, "column %s of a row deletion policy must be a TIMESTAMP", p.Column)
	}
	return err
}

func (db *database) alterTable(stmt *spansql.AlterTable) error {
	t, err := db.table(string(stmt.Name))
	if err != nil {
		return err
	}
	switch a := stmt.Alteration.(type) {
	case spansql.AddColumn:
		if _, err := t.columnIndex(string(a.Def.Name)); err == nil {
			return duplicate(a.Def.Name)
		}
		if a.Def.NotNull && len(t.rows) > 0 {
			return status.Errorf(codes.FailedPrecondition, "Cannot add NOT NULL column %s to existing table %s.", a.Def.Name, t.name())
		}
		if err := t.addColumn(a.Def); err != nil {
			return err
		}
		t.def.Columns = append(t.def.Columns, a.Def)
		for i, r := range t.rows {
			t.rows[i] = &row{key: r.key, vals: append(slices.Clone(r.vals), nil)}
		}
		return nil
	case spansql.AddRowDeletionPolicy:
		if t.def.RowDeletionPolicy != nil {
			return status.Errorf(codes.FailedPrecondition, "table %s has a row deletion policy", t.name())
		}
		return t.setPolicy(&a.RowDeletionPolicy)
	case spansql.ReplaceRowDeletionPolicy:
		return t.setPolicy(&a.RowDeletionPolicy)
	case spansql.DropRowDeletionPolicy:
		return t.setPolicy(nil)
	}
	return status.Errorf(codes.Unimplemented, "alteration %T", stmt.Alteration)
}

func (t *table) setPolicy(p *spansql.RowDeletionPolicy) error {
	if err := t.checkPolicy(p); err != nil {
		return err
	}
	t.def.RowDeletionPolicy = p
	return nil
}

func (db *database) dropTable(stmt *spansql.DropTable) error {
	name := strings.ToLower(string(stmt.Name))
	if _, exists := db.tables[name]; !exists && stmt.IfExists {
		return nil
	}
	for _, o := range db.schema {
		stream, ok := o.stmt.(*spansql.CreateChangeStream)
		if ok && slices.ContainsFunc(stream.Watch, func(w spansql.WatchDef) bool { return strings.EqualFold(string(w.Table), name) }) {
			return status.Errorf(codes.FailedPrecondition, "Cannot drop table %s, which change stream %s watches.", stmt.Name, stream.Name)
		}
	}
	if err := db.drop("table", stmt.Name); err != nil {
		return err
	}
	delete(db.tables, name)
	return nil
}

// checkWatch wants the tables and columns that a change stream watches to exist.
func (db *database) checkWatch(watch []spansql.WatchDef) error {
	for _, w := range watch {
		t, err := db.table(string(w.Table))
		if err != nil {
			return err
		}
		for _, c := range w.Columns {
			if _, err := t.columnIndex(string(c)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (db *database) alterChangeStream(stmt *spansql.AlterChangeStream) error {
	i := db.object("change stream", stmt.Name)
	if i < 0 {
		return status.Errorf(codes.NotFound, "Change Stream not found: %s", stmt.Name)
	}
	stream := db.schema[i].stmt.(*spansql.CreateChangeStream)
	switch a := stmt.Alteration.(type) {
	case spansql.AlterWatch:
		if err := db.checkWatch(a.Watch); err != nil {
			return err
		}
		stream.Watch, stream.WatchAllTables = a.Watch, a.WatchAllTables
	case spansql.DropChangeStreamWatch:
		stream.Watch, stream.WatchAllTables = nil, false
	case spansql.AlterChangeStreamOptions:
		if a.Options.RetentionPeriod != nil {
			stream.Options.RetentionPeriod = a.Options.RetentionPeriod
		}
		if a.Options.ValueCaptureType != nil {
			stream.Options.ValueCaptureType = a.Options.ValueCaptureType
		}
	}
	return nil
}

// grant wants what is granted, and to whom, to exist. Granting twice changes
// nothing.
func (db *database) grant(stmt *spansql.GrantRole) error {
	for _, role := range stmt.ToRoleNames {
		if !db.roles[strings.ToLower(string(role))] {
			return status.Errorf(codes.NotFound, "Role not found: %s", role)
		}
	}
	for _, name := range stmt.ChangeStreamNames {
		if db.object("change stream", name) < 0 {
			return status.Errorf(codes.NotFound, "Change Stream not found: %s", name)
		}
	}
	for _, name := range stmt.TvfNames {
		stream, ok := strings.CutPrefix(string(name), "READ_")
		if !ok || db.object("change stream", spansql.ID(stream)) < 0 {
			return status.Errorf(codes.NotFound, "Table function not found: %s", name)
		}
	}
	if text := spansql.ID(stmt.SQL()); db.object("grant", text) < 0 {
		return db.add("grant", text, stmt)
	}
	return nil
}
