package changes

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

func TestEncodeIsExact(t *testing.T) {
	r := Record{
		CommitTimestamp: "2026-08-20T10:00:00.123456789Z", ModType: Update, TableName: "bsos",
		Mods: []Mod{{
			Keys: `{"fxa_uid":"u1","fxa_kid":"k1","collection_id":"7","bso_id":"abc"}`,
			Old:  "gs://bucket/u1/bookmarks/abc/uuid-1", New: "gs://bucket/u1/bookmarks/abc/uuid-2",
		}},
	}
	want := `{"commitTimestamp":"2026-08-20T10:00:00.123456789Z","modType":"UPDATE","tableName":"bsos",` +
		`"transactionTag":"","isSystemTransaction":false,` +
		`"mods":[{"keys":"{\"fxa_uid\":\"u1\",\"fxa_kid\":\"k1\",\"collection_id\":\"7\",\"bso_id\":\"abc\"}",` +
		`"oldValues":"{\"payload_link\":\"gs://bucket/u1/bookmarks/abc/uuid-1\"}",` +
		`"newValues":"{\"payload_link\":\"gs://bucket/u1/bookmarks/abc/uuid-2\"}"}]}`
	encoded(t, r, want)

	mods := func(typ ModType, m Mod) Record { return Record{ModType: typ, TableName: "t", Mods: []Mod{m}} }
	sides := func(old, new string) string {
		return `"mods":[{"keys":"{}","oldValues":` + old + `,"newValues":` + new + `}]}`
	}
	contains(t, mods(Insert, Mod{Keys: "{}", New: "gs://B/a"}), sides(`"{}"`, `"{\"payload_link\":\"gs://B/a\"}"`))
	contains(t, mods(Delete, Mod{Keys: "{}", Old: "gs://B/a"}), sides(`"{\"payload_link\":\"gs://B/a\"}"`, `"{}"`))
	contains(t, mods(Update, Mod{Keys: "{}", Old: "gs://B/a"}), sides(`"{\"payload_link\":\"gs://B/a\"}"`, `"{\"payload_link\":null}"`))
	contains(t, mods(Update, Mod{Keys: "{}", New: "gs://B/a"}), sides(`"{\"payload_link\":null}"`, `"{\"payload_link\":\"gs://B/a\"}"`))
	contains(t, Record{TransactionTag: ExpiryTag, System: true}, `"transactionTag":"RowDeletionPolicy","isSystemTransaction":true,"mods":[]}`)
}

func encoded(t *testing.T, r Record, want string) {
	t.Helper()
	got, err := Encode(&r)
	if err != nil || string(got) != want {
		t.Errorf("Encode: %v\n got %s\nwant %s", err, got, want)
	}
}

func contains(t *testing.T, r Record, want string) {
	t.Helper()
	got, err := Encode(&r)
	if err != nil || !strings.Contains(string(got), want) {
		t.Errorf("Encode: %v\n got %s\nwant it to contain %s", err, got, want)
	}
}

func TestEncodeRefusesTextThatIsNotUTF8(t *testing.T) {
	// A replaced byte would name another object.
	for _, r := range []Record{
		{Mods: []Mod{{New: "gs://B/\xff"}}},
		{Mods: []Mod{{}, {Old: "gs://B/\xff"}}},
		{Mods: []Mod{{Keys: "\xff"}}},
		{TransactionTag: "\xff"},
	} {
		if _, err := Encode(&r); !errors.Is(err, ErrMalformed) {
			t.Errorf("Encode(%+v): %v, want ErrMalformed", r, err)
		}
	}
}

func TestStampFillsTheMissingTimeOnly(t *testing.T) {
	v := kv.VersionAt(time.Date(2026, 8, 20, 10, 0, 0, 123_000_000, time.UTC)) + 7
	fresh, err := Encode(&Record{TableName: "t", ModType: Insert, Mods: []Mod{{Keys: "{}", New: "gs://B/a"}}})
	if err != nil {
		t.Fatal(err)
	}
	before := string(fresh)
	r, err := Decode(Stamp(fresh, v))
	if err != nil || r.CommitTimestamp != "2026-08-20T10:00:00.123000000Z" || len(r.Mods) != 1 {
		t.Errorf("stamped: %+v, %v", r, err)
	}
	if string(fresh) != before {
		t.Error("Stamp changed its argument")
	}
	for _, m := range []string{`{"commitTimestamp":"x","mods":[]}`, `{"mods":[]}`, `[]`, ``} {
		if got := Stamp([]byte(m), v); string(got) != m {
			t.Errorf("Stamp(%s) = %s", m, got)
		}
	}
	if got := Stamp(fresh, 0); string(got) != before {
		t.Errorf("stamped with no version: %s", got)
	}
}

func TestDecodeToleratesWhatNobodyActsOn(t *testing.T) {
	const a = "gs://B/u/c/i/a"
	full := Record{ModType: "INSERT", TableName: "bsos", Mods: []Mod{{New: a}}}
	untagged := func(r Record) Record { r.Untagged = true; return r }
	cases := []struct {
		name, message string
		want          Record
	}{
		{"complete", `{"commitTimestamp":"","modType":"INSERT","tableName":"bsos","transactionTag":"","isSystemTransaction":false,"mods":[{"keys":"{}","oldValues":"{}","newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`,
			Record{ModType: "INSERT", TableName: "bsos", Mods: []Mod{{Keys: "{}", New: a}}}},
		{"empty", `{}`, untagged(Record{})},
		{"null tag", `{"transactionTag":null}`, untagged(Record{})},
		{"tag of a wrong type", `{"transactionTag":["batch_commit"]}`, untagged(Record{})},
		{"rubbish in every other field", `{"commitTimestamp":7,"modType":[],"tableName":{},"transactionTag":"","isSystemTransaction":"x"}`, Record{}},
		{"keys as object", `{"modType":"INSERT","tableName":"bsos","transactionTag":"","mods":[{"keys":{"a":1},"newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, full},
		{"unknown fields", `{"x":1,"modType":"INSERT","tableName":"bsos","transactionTag":"","mods":[{"y":null,"newValues":"{\"z\":[],\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, full},
		{"old side null", `{"modType":"INSERT","tableName":"bsos","transactionTag":"","mods":[{"oldValues":null,"newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, full},
		{"old side empty", `{"modType":"INSERT","tableName":"bsos","transactionTag":"","mods":[{"oldValues":"","newValues":"{\"payload_link\":\"gs://B/u/c/i/a\"}"}]}`, full},
		{"names are case-sensitive", `{"MODS":[1],"TransactionTag":"batch_commit","mods":[{"NewValues":"x","newValues":"{\"Payload_Link\":\"no\"}"}]}`,
			untagged(Record{Mods: []Mod{{}}})},
		{"last of two fields", `{"transactionTag":"a","transactionTag":"b","mods":[null],"mods":[]}`, Record{TransactionTag: "b"}},
		{"spaces", " \n{ \"transactionTag\" : \"\" , \"mods\" : [ ] } ", Record{}},
		{"escapes", `{"transactionTag":"","mods":[{"newValues":"{\"payload_link\":\"gs://B/\\u00e9#?\\/x\"}"}]}`, Record{Mods: []Mod{{New: "gs://B/é#?/x"}}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Decode([]byte(c.message))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error("-want +got\n" + d)
			}
		})
	}
}

func TestDecodeRefusesWhatItCannotActOn(t *testing.T) {
	cases := []string{
		``, ` `, `null`, `[]`, `7`, `"x"`, `{"mods":[`, `{"mods":[]} x`, `{"mods":null}`, `{"mods":{}}`, `{"mods":"[]"}`,
		`{"mods":[null]}`, `{"mods":[7]}`, `{"mods":[[]]}`,
		`{"mods":[{"newValues":{}}]}`, `{"mods":[{"newValues":7}]}`, `{"mods":[{"oldValues":false}]}`,
		`{"mods":[{"newValues":"[]"}]}`, `{"mods":[{"newValues":"null"}]}`, `{"mods":[{"newValues":" "}]}`, `{"mods":[{"oldValues":"{oops"}]}`,
		`{"mods":[{"newValues":"{\"payload_link\":7}"}]}`, `{"mods":[{"newValues":"{\"payload_link\":{}}"}]}`, `{"mods":[{"newValues":"{\"payload_link\":false}"}]}`,
		"{\"mods\":[{\"newValues\":\"{\\\"payload_link\\\":\\\"gs://B/\xff\\\"}\"}]}",
		`{"mods":[{"newValues":"{\"payload_link\":\"gs://B/\ud800\"}"}]}`,
	}
	for _, c := range cases {
		if r, err := Decode([]byte(c)); !errors.Is(err, ErrMalformed) {
			t.Errorf("Decode(%s) = %+v, %v, want ErrMalformed", c, r, err)
		}
	}
}

func TestDecodeKeepsTheModsBeforeAMalformedOne(t *testing.T) {
	r, err := Decode([]byte(`{"transactionTag":"","mods":[{"newValues":"{\"payload_link\":\"gs://B/a\"}"},{"newValues":"[]"},{"newValues":"{\"payload_link\":\"gs://B/b\"}"}]}`))
	if !errors.Is(err, ErrMalformed) {
		t.Fatalf("error %v", err)
	}
	if d := cmp.Diff([]Mod{{New: "gs://B/a"}}, r.Mods); d != "" {
		t.Error("-want +got\n" + d)
	}
}

func TestHandoverIsRecognizedExactly(t *testing.T) {
	staged := Record{TableName: "batch_bsos", TransactionTag: "batch_commit"}
	cases := []struct {
		name string
		r    Record
		m    Mod
		want bool
	}{
		{"removal of a staged row", staged, Mod{Old: "A"}, true},
		{"overwrite of a staged row", staged, Mod{Old: "A", New: "B"}, false},
		{"nothing before", staged, Mod{New: "B"}, false},
		{"other table", Record{TableName: "bsos", TransactionTag: "batch_commit"}, Mod{Old: "A"}, false},
		{"other case", Record{TableName: "batch_bsos", TransactionTag: "Batch_Commit"}, Mod{Old: "A"}, false},
		{"no tag", Record{TableName: "batch_bsos"}, Mod{Old: "A"}, false},
	}
	for _, c := range cases {
		if got := c.r.IsHandover(c.m); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"commitTimestamp":"2026-08-20T10:00:00Z","modType":"UPDATE","tableName":"bsos","transactionTag":"","isSystemTransaction":false,"mods":[{"keys":"{}","oldValues":"{}","newValues":"{\"payload_link\":\"gs://B/a\"}"}]}`,
		`{"mods":[{"oldValues":null},{"newValues":"{\"payload_link\":7}"}]}`, `{"mods":null}`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		again, err := Encode(&r)
		if err != nil {
			t.Fatalf("cannot encode what was decoded: %v", err)
		}
		got, err := Decode(again)
		if err != nil {
			t.Fatalf("cannot decode %s: %v", again, err)
		}
		r.Untagged = false // Encode always writes the field
		if r.ModType == Insert || r.ModType == Delete {
			return // Encode leaves out the side that did not exist
		}
		if d := cmp.Diff(r, got); d != "" {
			t.Errorf("-first +second\n%s", d)
		}
	})
}
