package publish

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/changes"
)

func TestFilter(t *testing.T) {
	const a, b, null = `{"payload_link":"gs://B/a"}`, `{"payload_link":"gs://B/b"}`, `{"payload_link":null}`
	mod := func(old, new string) []changes.RawMod { return []changes.RawMod{{OldValues: old, NewValues: new}} }
	for _, c := range []struct {
		name string
		mods []changes.RawMod
		keep bool
	}{
		{"insert", mod("{}", a), true},
		{"insert, old side absent", mod("", a), true},
		{"insert of an inline record: null", mod("{}", null), false},
		{"insert of an inline record: empty", mod("{}", `{"payload_link":""}`), false},
		{"insert of an inline record: absent", mod("{}", `{"sortindex":"1"}`), false},
		{"delete", mod(a, "{}"), true},
		{"delete of an inline record", mod(null, "{}"), false},
		{"replace", mod(a, b), true},
		{"rewrite", mod(a, a), true},
		{"link cleared", mod(a, null), true},
		{"never a link", mod(null, null), false},
		{"malformed old side", mod("{oops", ""), true},
		{"malformed new side", mod("{}", "{oops"), true},
		{"more than one value", mod("{}{}", "{}"), true},
		{"not objects", mod("[]", "[]"), false},
		{"null as text", mod("null", "null"), false},
		{"a list with a link", mod(`["payload_link"]`, ""), false},
		{"link of a wrong type", mod(`{"payload_link":7}`, "{}"), true},
		{"link that is false", mod(`{"payload_link":false}`, "{}"), true},
		{"link that is an object", mod(`{"payload_link":{}}`, "{}"), true},
		{"a space", mod(" ", ""), true},
		{"a field of that name further in", mod(`{"x":{"payload_link":"gs://B/a"}}`, "{}"), false},
		{"another case", mod(`{"Payload_Link":"gs://B/a"}`, "{}"), false},
		{"last of two fields", mod(`{"payload_link":"gs://B/a","payload_link":null}`, "{}"), false},
		{"one mod inert, one live", append(mod(null, null), mod("", a)...), true},
		{"both sides empty", mod("", ""), false},
		{"no mods", nil, false},
	} {
		for _, head := range []changes.Raw{{}, {TableName: "batch_bsos", ModType: "DELETE", TransactionTag: "batch_commit"}, {TableName: "x", System: true}} {
			head.Mods = c.mods
			if got := Keep(&head); got != c.keep {
				t.Errorf("%s: keep %v, want %v", c.name, got, c.keep)
			}
		}
	}
}

func TestRecordsAreEncodedWhole(t *testing.T) {
	r := &changes.Raw{
		CommitTimestamp: "2026-08-20T10:00:00.123456789Z", ModType: "UPDATE", TableName: "bsos", TransactionTag: "x", System: true,
		Mods: []changes.RawMod{
			{Keys: `{"collection_id":"7"}`, OldValues: "", NewValues: `{ "payload_link" : "gs://B/a" }`},
			{Keys: "", OldValues: "{oops", NewValues: "null"},
		},
	}
	got, err := appendMessages(nil, r, MaxMessageSize)
	if err != nil || len(got) != 1 {
		t.Fatalf("%q, %v", got, err)
	}
	want := `{"commitTimestamp":"2026-08-20T10:00:00.123456789Z","modType":"UPDATE","tableName":"bsos","transactionTag":"x","isSystemTransaction":true,` +
		`"mods":[{"keys":"{\"collection_id\":\"7\"}","oldValues":"{}","newValues":"{ \"payload_link\" : \"gs://B/a\" }"},` +
		`{"keys":"{}","oldValues":"{oops","newValues":"null"}]}`
	if string(got[0]) != want {
		t.Errorf("got  %s\nwant %s", got[0], want)
	}
}

func TestLargeRecordsAreSplit(t *testing.T) {
	r := &changes.Raw{ModType: "DELETE", TableName: "batch_bsos", TransactionTag: "batch_commit"}
	for i := range 10_000 {
		r.Mods = append(r.Mods, changes.RawMod{
			Keys: fmt.Sprintf(`{"i":"%d"}`, i), OldValues: `{"payload_link":"gs://B/` + strings.Repeat("x", 1500) + fmt.Sprint(i) + `"}`,
		})
	}
	messages, err := appendMessages(nil, r, MaxMessageSize)
	if err != nil || len(messages) != 2 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	i := 0
	for _, m := range messages {
		if len(m) > MaxMessageSize {
			t.Errorf("a message of %d bytes", len(m))
		}
		got, err := changes.Decode(m)
		if err != nil || got.TableName != r.TableName || got.TransactionTag != r.TransactionTag || got.ModType != r.ModType || got.Untagged {
			t.Errorf("head %+v, %v", got.TableName, err)
		}
		for _, mod := range got.Mods {
			if mod.Keys != fmt.Sprintf(`{"i":"%d"}`, i) || !strings.HasSuffix(mod.Old, fmt.Sprint("x", i)) {
				t.Fatalf("mod %d is %+v", i, mod)
			}
			i++
		}
	}
	if i != len(r.Mods) {
		t.Errorf("%d mods of %d", i, len(r.Mods))
	}
}

func TestOneChangeTooLargeIsAnError(t *testing.T) {
	r := &changes.Raw{TableName: "bsos", Mods: []changes.RawMod{{NewValues: `{"payload_link":"` + strings.Repeat("x", 100) + `"}`}}}
	if got, err := appendMessages(nil, r, 100); err == nil {
		t.Errorf("%d messages", len(got))
	}
}
