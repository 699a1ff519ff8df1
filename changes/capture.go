package changes

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/queue"
)

// Field is a part of a row's key under its name.
type Field struct{ Name, Value string }

// Table tells Capture how the rows of a space appear in records.
type Table struct {
	// Name is the record's tableName. Only rows of batches in progress may use
	// StagedTable.
	Name string
	// Keys returns the parts of the primary key of a row with a link, given its
	// key and value. Numbers are given as text.
	Keys func(key, value []byte) ([]Field, error)
	// Permanent returns the space and the key of the row that takes over the
	// link of a staged row when its batch is committed. Required for
	// StagedTable, nil for all others.
	Permanent func(key []byte) (space string, permanent []byte, err error)
}

// Tables returns the table of a space whose rows may hold links, and false for
// other spaces. It is called for each write of each transaction, by many
// goroutines at once.
type Tables func(space string) (Table, bool)

// Queue is what Capture needs of a *queue.Queue.
type Queue interface {
	Send(tx *kv.Tx, messages ...queue.Outgoing) error
}

// maxMessageBytes ends a message and begins another one for the same record.
// Some six hundred changes are few enough to be worked off within one lease.
const maxMessageBytes = 256 << 10

// Capture sends the link changes of each transaction to a queue, in the same
// transaction. It is safe for concurrent use.
type Capture struct {
	queue  Queue
	tables Tables
	random io.Reader
	// releasesOnly: a change stream of the engine reports everything but the
	// releases that it cannot express.
	releasesOnly bool
}

// NewCapture returns a Capture for the spaces that tables knows. The keys of
// messages come from random, which must be safe for concurrent use.
func NewCapture(queue Queue, tables Tables, random io.Reader) *Capture {
	return &Capture{queue: queue, tables: tables, random: random}
}

// NewReleases returns a Capture for an engine whose own change stream reports the
// rows written. It sends only what no stream can tell: that a staged link did not
// reach its permanent row when its batch was committed.
func NewReleases(queue Queue, tables Tables, random io.Reader) *Capture {
	return &Capture{queue: queue, tables: tables, random: random, releasesOnly: true}
}

// Hook is a kv.Hook. It compares what the transaction writes with what it
// replaces, and sends nothing if no link changed. It must come before hooks that
// look at the rows of the queue.
func (c *Capture) Hook(tx *kv.Tx) error {
	cs, held, err := c.changes(tx)
	if err != nil || len(cs) == 0 {
		return err
	}
	releases, err := c.lostHandovers(tx, cs, held)
	if err != nil {
		return fmt.Errorf("capture link changes: %w", err)
	}
	if c.releasesOnly {
		cs = nil
	}
	records, err := assemble(tx.Tag(), append(cs, releases...), held)
	if err != nil {
		return fmt.Errorf("capture link changes: %w", err)
	}
	var messages []queue.Outgoing
	for i := range records {
		if messages, err = c.pack(messages, &records[i]); err != nil {
			return fmt.Errorf("capture link changes: %w", err)
		}
	}
	if len(messages) == 0 {
		return nil
	}
	if err := c.queue.Send(tx, messages...); err != nil {
		return fmt.Errorf("send link changes: %w", err)
	}
	return nil
}

// change is a row whose link a transaction changes.
type change struct {
	table Table
	key   []byte
	// value is that of the row with the link: the new one, or the old one if the
	// link goes.
	value    []byte
	typ      ModType
	old, new string
}

// changes returns the rows whose link changes, in the order in which the
// transaction wrote them first, and the set of links that the rows written hold
// afterwards.
func (c *Capture) changes(tx *kv.Tx) ([]change, map[string]bool, error) {
	written, err := tx.Changes(func(space string) bool {
		_, ok := c.tables(space)
		return ok
	})
	if err != nil {
		return nil, nil, fmt.Errorf("capture link changes: %w", err)
	}
	var cs []change
	held := map[string]bool{}
	for row, w := range written {
		if w.Link != "" {
			held[w.Link] = true
		}
		if row.Link == w.Link {
			continue
		}
		table, _ := c.tables(w.Space)
		ch := change{table: table, key: w.Key, value: w.Value, typ: Update, old: row.Link, new: w.Link}
		if w.Link == "" {
			ch.value = row.Value
		}
		switch {
		case w.Delete:
			ch.typ = Delete
		case !row.Exists():
			ch.typ = Insert
		}
		cs = append(cs, ch)
	}
	return cs, held, nil
}

// lostHandovers returns the releases that the records of cs do not express:
// readers will take the removal of a staged row for a hand-over, but its
// permanent row does not hold the link.
func (c *Capture) lostHandovers(tx *kv.Tx, cs []change, held map[string]bool) ([]change, error) {
	var lost []change
	var refs []kv.Ref
	for _, ch := range cs {
		if !ch.isHandover(tx.Tag()) || held[ch.old] {
			continue
		}
		if ch.table.Permanent == nil {
			return nil, errors.New("BUG: " + StagedTable + " without permanent rows")
		}
		space, key, err := ch.table.Permanent(ch.key)
		if err != nil {
			return nil, err
		}
		refs = append(refs, kv.Ref{Space: space, Key: key, IncludeExpired: true})
		lost = append(lost, ch)
	}
	rows, err := tx.GetAll(refs...)
	if err != nil {
		return nil, err
	}
	var releases []change
	for i, ref := range refs {
		if rows[i].Link == lost[i].old {
			continue // moved by an earlier transaction
		}
		table, ok := c.tables(ref.Space)
		if !ok {
			return nil, errors.New("BUG: permanent rows in a space without links")
		}
		releases = append(releases, change{table: table, key: ref.Key, value: lost[i].value, typ: Update, old: lost[i].old})
	}
	return releases, nil
}

func (ch *change) isHandover(tag string) bool {
	r := Record{TableName: ch.table.Name, TransactionTag: tag}
	return r.IsHandover(Mod{Old: ch.old, New: ch.new})
}

// assemble groups changes into records, one for each table and type, in the order
// in which they first occur. Links that other rows hold now are not named as old,
// but for hand-overs.
func assemble(tag string, cs []change, held map[string]bool) ([]Record, error) {
	var records []Record
	type group struct {
		table string
		typ   ModType
	}
	place := map[group]int{}
	for _, ch := range cs {
		m := Mod{Old: ch.old, New: ch.new}
		if held[m.Old] && !ch.isHandover(tag) {
			m.Old = ""
		}
		if m.Old == "" && m.New == "" {
			continue
		}
		fields, err := ch.table.Keys(ch.key, ch.value)
		if err != nil {
			return nil, fmt.Errorf("key of table %s: %w", ch.table.Name, err)
		}
		m.Keys = keys(fields)
		g := group{ch.table.Name, ch.typ}
		i, ok := place[g]
		if !ok {
			i = len(records)
			place[g] = i
			records = append(records, Record{
				ModType: ch.typ, TableName: ch.table.Name, TransactionTag: tag, System: tag == ExpiryTag,
			})
		}
		records[i].Mods = append(records[i].Mods, m)
	}
	return records, nil
}

// keys renders the parts of a key as a JSON object. A part that is no text is
// shown in hexadecimal: nobody acts on keys.
func keys(fields []Field) string {
	b := []byte{'{'}
	for i, f := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(quote(b, f.Name), ':')
		b = quote(b, printable(f.Value))
	}
	return string(append(b, '}'))
}

func printable(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return hex.EncodeToString([]byte(s))
}

// pack appends a record in as many messages as its size asks for.
func (c *Capture) pack(messages []queue.Outgoing, r *Record) ([]queue.Outgoing, error) {
	rest := r.Mods
	for len(rest) > 0 {
		n, size := 0, 0
		for n < len(rest) && (n == 0 || size < maxMessageBytes) {
			size += 128 + len(rest[n].Keys) + len(rest[n].Old) + len(rest[n].New)
			n++
		}
		part := *r
		part.Mods, rest = rest[:n], rest[n:]
		payload, err := Encode(&part)
		if err != nil {
			return nil, err
		}
		key := make([]byte, 16)
		if _, err := io.ReadFull(c.random, key); err != nil {
			return nil, fmt.Errorf("message key: %w", err)
		}
		messages = append(messages, queue.Outgoing{Key: key, Payload: payload})
	}
	return messages, nil
}
