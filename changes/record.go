package changes

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/kv"
)

// QueueName is the queue that link changes are sent to.
const QueueName = "payload_link_changes"

// What readers of records know by name.
const (
	// StagedTable holds the rows of batches that are not committed yet.
	StagedTable = "batch_bsos"
	// BatchCommitTag is the tag of the transaction that commits a batch.
	BatchCommitTag = "batch_commit"
	// ExpiryTag is the tag of transactions that remove expired rows. Records of
	// these transactions are marked as the system's own.
	ExpiryTag = "RowDeletionPolicy"
)

// ErrMalformed reports a message that is not a change record.
var ErrMalformed = errors.New("malformed change record")

// ModType says what happened to the rows of a record.
type ModType string

// The types of modification.
const (
	Insert ModType = "INSERT"
	Update ModType = "UPDATE"
	Delete ModType = "DELETE"
)

// Record is what one transaction did to the links of one table, in one way.
type Record struct {
	// CommitTimestamp is the time of the commit, RFC 3339 if the producer knew
	// better than to send something else. Empty if unknown.
	CommitTimestamp string
	ModType         ModType
	TableName       string
	// TransactionTag is the tag of the transaction, empty if it had none.
	TransactionTag string
	// Untagged reports that the message had no field for the tag at all, so
	// that nothing is known about it. Older producers leave it out. Encode
	// ignores it.
	Untagged bool
	// System marks transactions that no user started.
	System bool
	Mods   []Mod
}

// Mod is the change of one row's link.
type Mod struct {
	// Keys is the row's key, as the text of a JSON object.
	Keys string
	// Old and New are the links before and after, empty if there was none.
	Old, New string
}

// IsHandover reports whether the old link of m went to another row in the same
// transaction: the commit of a batch removed a staged row. Its object must not
// be deleted.
func (r *Record) IsHandover(m Mod) bool {
	return m.Old != "" && m.New == "" && r.TableName == StagedTable && r.TransactionTag == BatchCommitTag
}

// HasLink reports whether text, one side of a mod, names a link, of whatever type.
// What does not parse counts as one, so that somebody looks at it; JSON that is
// not an object has none.
func HasLink(text string) bool {
	if text == "" {
		return false
	}
	v := jsontext.Value(text)
	if !v.IsValid(lenient) {
		return true
	}
	fields, err := object(v)
	if err != nil {
		return false
	}
	switch link := fields["payload_link"]; link.Kind() {
	case 0, 'n':
		return false
	default:
		return string(link) != `""`
	}
}

// head begins each message of Encode, and unstamped each one without a time.
const (
	head      = `{"commitTimestamp":`
	unstamped = head + `""`
)

// Encode renders r as a message. The error is ErrMalformed if a text of r is not
// UTF-8, which JSON cannot carry.
func Encode(r *Record) ([]byte, error) {
	raw := Raw{
		CommitTimestamp: r.CommitTimestamp, ModType: r.ModType, TableName: r.TableName,
		TransactionTag: r.TransactionTag, System: r.System, Mods: make([]RawMod, len(r.Mods)),
	}
	for i, m := range r.Mods {
		if !utf8.ValidString(m.Old) || !utf8.ValidString(m.New) {
			return nil, errNotUTF8
		}
		raw.Mods[i] = RawMod{Keys: m.Keys, OldValues: values(r.ModType != Insert, m.Old), NewValues: values(r.ModType != Delete, m.New)}
	}
	return EncodeRaw(&raw)
}

// Raw is a record as a message carries it: the values of its mods are texts that
// nobody has read.
type Raw struct {
	CommitTimestamp string
	ModType         ModType
	TableName       string
	TransactionTag  string
	System          bool
	Mods            []RawMod
}

// RawMod is what happened to one row. Its fields are the texts of JSON objects,
// "{}" for nothing.
type RawMod struct{ Keys, OldValues, NewValues string }

// EncodeRaw is Encode for a record whose values come from elsewhere.
func EncodeRaw(r *Raw) ([]byte, error) {
	if !r.valid() {
		return nil, errNotUTF8
	}
	b := append(make([]byte, 0, 256*(1+len(r.Mods))), head...)
	b = quote(b, r.CommitTimestamp)
	b = quote(append(b, `,"modType":`...), string(r.ModType))
	b = quote(append(b, `,"tableName":`...), r.TableName)
	b = quote(append(b, `,"transactionTag":`...), r.TransactionTag)
	b = strconv.AppendBool(append(b, `,"isSystemTransaction":`...), r.System)
	b = append(b, `,"mods":[`...)
	for i, m := range r.Mods {
		if i > 0 {
			b = append(b, ',')
		}
		b = quote(append(b, `{"keys":`...), m.Keys)
		b = quote(append(b, `,"oldValues":`...), m.OldValues)
		b = quote(append(b, `,"newValues":`...), m.NewValues)
		b = append(b, '}')
	}
	return append(b, `]}`...), nil
}

var errNotUTF8 = fmt.Errorf("encode change record: %w: text that is not UTF-8", ErrMalformed)

// valid reports whether JSON can carry every text of r. What JSON would have to
// replace could name another object.
func (r *Raw) valid() bool {
	ok := utf8.ValidString(r.CommitTimestamp) && utf8.ValidString(string(r.ModType)) &&
		utf8.ValidString(r.TableName) && utf8.ValidString(r.TransactionTag)
	for i := 0; ok && i < len(r.Mods); i++ {
		m := &r.Mods[i]
		ok = utf8.ValidString(m.Keys) && utf8.ValidString(m.OldValues) && utf8.ValidString(m.NewValues)
	}
	return ok
}

// quote appends s, which is UTF-8, as a JSON string.
func quote(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}

// values is the text of what a row held on one side of a change: an object
// without fields where there was no row.
func values(exists bool, link string) string {
	switch {
	case link != "":
		return string(append(quote([]byte(`{"payload_link":`), link), '}'))
	case exists:
		return `{"payload_link":null}`
	default:
		return `{}`
	}
}

// Stamp returns message with the time of version v as its commitTimestamp, if it
// came from Encode and has none. A record is written before its commit has a
// version; its reader knows it, as the version of the row that carries the
// message.
func Stamp(message []byte, v kv.Version) []byte {
	if v == 0 || !bytes.HasPrefix(message, []byte(unstamped)) {
		return message
	}
	out := append(make([]byte, 0, len(message)+32), head...)
	out = v.Time().AppendFormat(out, `"2006-01-02T15:04:05.000000000Z07:00"`)
	return append(out, message[len(unstamped):]...)
}

// Decode reads a message, of whatever producer. It asks for no more than what
// the links need: fields that nobody acts on may have any type or be missing, and
// unknown ones are ignored.
//
// The error is ErrMalformed. If a mod is at fault, the record returned beside the
// error is complete up to the mod before it.
func Decode(message []byte) (Record, error) {
	r, mods, err := decodeHead(message)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	for i, v := range mods {
		m, err := decodeMod(v)
		if err != nil {
			return r, fmt.Errorf("%w: mod %d of %d: %w", ErrMalformed, i+1, len(mods), err)
		}
		r.Mods = append(r.Mods, m)
	}
	return r, nil
}

func decodeHead(message []byte) (Record, []jsontext.Value, error) {
	fields, err := object(message)
	if err != nil {
		return Record{}, nil, err
	}
	r := Record{
		CommitTimestamp: text(fields["commitTimestamp"]),
		ModType:         ModType(text(fields["modType"])),
		TableName:       text(fields["tableName"]),
		TransactionTag:  text(fields["transactionTag"]),
		Untagged:        fields["transactionTag"].Kind() != '"',
		System:          fields["isSystemTransaction"].Kind() == 't',
	}
	list, ok := fields["mods"]
	if !ok {
		return r, nil, nil
	}
	if list.Kind() != '[' {
		return r, nil, errors.New("mods is not a list")
	}
	var mods []jsontext.Value
	return r, mods, json.Unmarshal(list, &mods, lenient)
}

func decodeMod(v jsontext.Value) (Mod, error) {
	fields, err := object(v)
	if err != nil {
		return Mod{}, err
	}
	m := Mod{Keys: text(fields["keys"])}
	// Both sides are read before anybody acts on either.
	if m.Old, err = link(fields["oldValues"]); err != nil {
		return Mod{}, fmt.Errorf("oldValues: %w", err)
	}
	if m.New, err = link(fields["newValues"]); err != nil {
		return Mod{}, fmt.Errorf("newValues: %w", err)
	}
	return m, nil
}

// link reads the link out of one side of a mod.
func link(side jsontext.Value) (string, error) {
	switch side.Kind() {
	case 0, 'n':
		return "", nil
	case '"':
	default:
		return "", errors.New("not a text")
	}
	values := text(side)
	if values == "" {
		return "", nil
	}
	fields, err := object([]byte(values))
	if err != nil {
		return "", err
	}
	v := fields["payload_link"]
	switch v.Kind() {
	case 0, 'n', '"':
		return text(v), nil
	default:
		return "", errors.New("payload_link is not a string")
	}
}

// lenient takes the last of several fields with one name, as most decoders do.
var lenient = jsontext.AllowDuplicateNames(true)

// object reads the fields of a JSON object. Their names are case-sensitive.
func object(b []byte) (map[string]jsontext.Value, error) {
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(b, &fields, lenient); err != nil {
		// The decoder's own message would quote the input.
		return nil, errors.New("not a JSON object")
	}
	if fields == nil {
		return nil, errors.New("null where an object is expected")
	}
	return fields, nil
}

// text returns the string in v, and "" if v is absent or something else.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	s, _ := jsontext.AppendUnquote(nil, v) // v was checked when its object was read
	return string(s)
}
