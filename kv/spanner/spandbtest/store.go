package spandbtest

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"cloud.google.com/go/spanner/spansql"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-dev/holdfast/clock"
)

// database is one database. All of its state is under one mutex.
type database struct {
	name   string
	server *Server

	mu           sync.Mutex
	last         int64 // the largest timestamp given out, in Unix microseconds
	ids          int64
	schema       []object
	tables       map[string]*table // by their names in lower case
	roles        map[string]bool
	transactions map[string]*transaction
	results      results
}

// table is one table. Its rows are in the order of their keys and are never
// changed in place, so that a copy of the slice is a snapshot.
type table struct {
	def     *spansql.CreateTable
	columns []column
	key     []int // the columns of the primary key
	rows    []*row
	log     []change // all changes, by time
}

type column struct {
	name     string
	typ      spansql.Type
	notNull  bool
	commitTS bool
}

type row struct {
	key  string // encoded, see encodeKey
	vals []any
}

type change struct {
	at  int64
	key string
}

// transaction is one that has begun. It is kept for ever, so that a Commit that is
// repeated gets the same answer.
type transaction struct {
	id        string
	readAt    int64
	snapshot  map[*table][]*row // of a read-only transaction
	reads     []read            // of a read-write one
	aborted   bool
	committed *spannerpb.CommitResponse
}

// read is what a read-write transaction depends on: the rows in a span of keys
// as they were at a time.
type read struct {
	table *table
	span  span
	at    int64
}

// span is a range of encoded keys, lo <= key < hi; hi "" means no bound.
type span struct{ lo, hi string }

func (s span) contains(key string) bool { return key >= s.lo && (s.hi == "" || key < s.hi) }

// Commit is a transaction that changed rows.
type Commit struct {
	Database  string
	Timestamp time.Time // in whole microseconds
	// TransactionID is unique in the database.
	TransactionID string
	Tag           string
	// System says that Spanner itself removed rows, by a row deletion policy.
	System  bool
	Changes []Change
}

// Change is what a commit did to one row. Values have the encoding of the wire:
// INT64 as decimal strings, BYTES in base64, TIMESTAMP in RFC 3339.
type Change struct {
	Table string
	// Columns are those of the table, in order.
	Columns []Column
	// Type is "INSERT", "UPDATE" or "DELETE".
	Type string
	// Keys has the columns of the primary key, Old and New all others; Old is nil
	// for an insert, New for a delete.
	Keys, Old, New map[string]*structpb.Value
}

// Column is a column of a changed row.
type Column struct {
	Name       string
	Type       string // a type code, such as "BYTES"
	PrimaryKey bool
	Ordinal    int // from 1
}

// CreateDatabaseNamed creates an empty database.
func (s *Server) CreateDatabaseNamed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.databases[name] = &database{
		name: name, server: s, tables: map[string]*table{}, roles: map[string]bool{}, transactions: map[string]*transaction{},
	}
}

func (db *database) nextID() int64 {
	db.ids++
	return db.ids
}

func fromMicro(us int64) time.Time { return time.UnixMicro(us).UTC() }

// clockNow returns the server's time.
func (db *database) clockNow() time.Time {
	db.server.mu.Lock()
	defer db.server.mu.Unlock()
	if db.server.clock == nil {
		return clock.System{}.Now()
	}
	return db.server.clock.Now()
}

// commitTime returns a timestamp above all that were given out.
func (db *database) commitTime() int64 {
	db.last = max(db.last+1, db.clockNow().UnixMicro())
	return db.last
}

// readTime returns a timestamp that all later commits are above.
func (db *database) readTime() int64 {
	db.last = max(db.last, db.clockNow().UnixMicro())
	return db.last
}

// table finds a table, whatever the case of the letters, as Spanner does.
func (db *database) table(name string) (*table, error) {
	if t, ok := db.tables[strings.ToLower(name)]; ok {
		return t, nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "Table not found: %s", name)
}

func (t *table) name() string { return string(t.def.Name) }

func (t *table) columnIndex(name string) (int, error) {
	i := slices.IndexFunc(t.columns, func(c column) bool { return strings.EqualFold(c.name, name) })
	if i < 0 {
		return 0, status.Errorf(codes.InvalidArgument, "Column not found in table %s: %s", t.name(), name)
	}
	return i, nil
}

func (t *table) isKey(column int) bool { return slices.Contains(t.key, column) }

func find(rows []*row, key string) (int, bool) {
	i := sort.Search(len(rows), func(i int) bool { return rows[i].key >= key })
	return i, i < len(rows) && rows[i].key == key
}

// within returns the part of rows that is in a span.
func within(rows []*row, s span) []*row {
	first, _ := find(rows, s.lo)
	end := len(rows)
	if s.hi != "" {
		end, _ = find(rows, s.hi)
	}
	return rows[first:max(first, end)]
}

func (db *database) begin(opts *spannerpb.TransactionOptions) (*transaction, error) {
	t := &transaction{id: fmt.Sprintf("txn-%d", db.nextID())}
	switch mode := opts.GetMode().(type) {
	case *spannerpb.TransactionOptions_ReadWrite_:
	case *spannerpb.TransactionOptions_ReadOnly_:
		if !mode.ReadOnly.GetStrong() {
			return nil, status.Error(codes.Unimplemented, "only strong reads are supported")
		}
		t.readAt, t.snapshot = db.readTime(), map[*table][]*row{}
		for _, table := range db.tables {
			t.snapshot[table] = slices.Clone(table.rows)
		}
	default:
		return nil, status.Errorf(codes.Unimplemented, "transaction mode %T", mode)
	}
	db.transactions[t.id] = t
	return t, nil
}

// rows returns what a transaction sees of a table.
func (t *transaction) rows(table *table) []*row {
	if t.snapshot != nil {
		return t.snapshot[table]
	}
	return table.rows
}

// validate reports whether everything that t has read is as it was.
func (db *database) validate(t *transaction) bool {
	for _, r := range t.reads {
		if db.tables[strings.ToLower(r.table.name())] != r.table {
			return false
		}
		for i := len(r.table.log) - 1; i >= 0 && r.table.log[i].at > r.at; i-- {
			if r.span.contains(r.table.log[i].key) {
				return false
			}
		}
	}
	return true
}

// replaced is a row before and after a commit; either may be nil.
type replaced struct {
	table    *table
	key      string
	old, new *row
}

// commit applies mutations, all or none.
func (db *database) commit(t *transaction, mutations []*spannerpb.Mutation, described bool) (*Commit, error) {
	if !db.validate(t) {
		return nil, Aborted()
	}
	at := db.commitTime()
	pending := pendingRows{at: at, index: map[string]int{}}
	for _, m := range mutations {
		if err := db.mutate(&pending, m); err != nil {
			return nil, err
		}
	}
	return db.apply(t.id, &pending, described), nil
}

// apply makes changes visible, and lists them if described says so.
func (db *database) apply(id string, p *pendingRows, described bool) *Commit {
	c := &Commit{Database: db.name, Timestamp: fromMicro(p.at), TransactionID: id}
	for _, r := range p.rows {
		if r.old == nil && r.new == nil {
			continue
		}
		i, exists := find(r.table.rows, r.key)
		switch {
		case r.new == nil:
			r.table.rows = slices.Delete(r.table.rows, i, i+1)
		case exists:
			r.table.rows[i] = r.new
		default:
			r.table.rows = slices.Insert(r.table.rows, i, r.new)
		}
		r.table.log = append(r.table.log, change{at: p.at, key: r.key})
		if described {
			c.Changes = append(c.Changes, r.describe())
		}
	}
	return c
}

// pendingRows are the changes of a commit so far, in the order of the first
// mutation of each row.
type pendingRows struct {
	at    int64
	rows  []*replaced
	index map[string]int
}

func (p *pendingRows) row(t *table, key string) *replaced {
	id := t.name() + "\x00" + key
	i, ok := p.index[id]
	if !ok {
		r := &replaced{table: t, key: key}
		if j, exists := find(t.rows, key); exists {
			r.old, r.new = t.rows[j], t.rows[j]
		}
		i, p.index[id] = len(p.rows), len(p.rows)
		p.rows = append(p.rows, r)
	}
	return p.rows[i]
}

func (r *replaced) describe() Change {
	c := Change{Table: r.table.name(), Type: "UPDATE", Keys: map[string]*structpb.Value{}}
	values := func(row *row) map[string]*structpb.Value {
		m := map[string]*structpb.Value{}
		for i, col := range r.table.columns {
			if !r.table.isKey(i) {
				m[col.name] = encodeValue(row.vals[i])
			}
		}
		return m
	}
	some := r.new
	switch {
	case r.old == nil:
		c.Type, c.New = "INSERT", values(r.new)
	case r.new == nil:
		c.Type, c.Old, some = "DELETE", values(r.old), r.old
	default:
		c.Old, c.New = values(r.old), values(r.new)
	}
	for i, col := range r.table.columns {
		c.Columns = append(c.Columns, Column{Name: col.name, Type: typeCode(col.typ).String(), PrimaryKey: r.table.isKey(i), Ordinal: i + 1})
		if r.table.isKey(i) {
			c.Keys[col.name] = encodeValue(some.vals[i])
		}
	}
	return c
}

// tell gives a commit to the hooks. The database is locked, so they see commits in
// order.
func (db *database) tell(hooks []func(Commit), c *Commit) {
	if len(c.Changes) == 0 {
		return
	}
	for _, fn := range hooks {
		fn(*c)
	}
}

// DeleteExpired does what row deletion policies ask for at the server's time, one
// commit a table, and returns how many rows went.
func (s *Server) DeleteExpired(databaseName string) int {
	db, err := s.database(databaseName)
	if err != nil {
		return 0
	}
	s.mu.Lock()
	hooks := s.onCommit
	s.mu.Unlock()
	db.mu.Lock()
	defer db.mu.Unlock()
	gone := 0
	for _, t := range db.tables {
		policy := t.def.RowDeletionPolicy
		if policy == nil {
			continue
		}
		column, err := t.columnIndex(string(policy.Column))
		if err != nil {
			continue
		}
		p := pendingRows{at: db.commitTime(), index: map[string]int{}}
		oldest := fromMicro(p.at).Add(-time.Duration(policy.NumDays) * 24 * time.Hour)
		for _, r := range t.rows {
			if at, ok := r.vals[column].(time.Time); ok && at.Before(oldest) {
				p.row(t, r.key).new = nil
			}
		}
		gone += len(p.rows)
		c := db.apply(fmt.Sprintf("txn-%d", db.nextID()), &p, len(hooks) > 0)
		c.Tag, c.System = "RowDeletionPolicy", true
		db.tell(hooks, c)
	}
	return gone
}
