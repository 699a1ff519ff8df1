package bso

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestRecordOnTheWire(t *testing.T) {
	r := Record{ID: `a"\/~`, Modified: 172345678900, Payload: []byte("{\"a\":\"\\\n\r\t\x00\x1f\u2028é\"}")}
	want := `{"id":"a\"\\/~","modified":1723456789.00,"payload":"{\"a\":\"\\\n\r\t\u0000\u001f` + "\u2028é" + `\"}"}`
	if got := string(AppendRecord(nil, r)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r = Record{ID: "x", Modified: 5, SortIndex: -7, HasSortIndex: true}
	if got, want := string(AppendRecord([]byte("_"), r)), `_{"id":"x","modified":0.05,"sortindex":-7,"payload":""}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLists(t *testing.T) {
	records := []Record{{ID: "a", Modified: 100, Payload: []byte("x\ny")}, {ID: "b", Modified: 200}}
	const a, b = `{"id":"a","modified":1.00,"payload":"x\ny"}`, `{"id":"b","modified":2.00,"payload":""}`
	for _, tt := range []struct {
		format       Format
		records      []Record
		full, idOnly string
	}{
		{JSON, nil, "[]", "[]"},
		{JSON, records[:1], "[" + a + "]", `["a"]`},
		{JSON, records, "[" + a + "," + b + "]", `["a","b"]`},
		{Newlines, nil, "", ""},
		{Newlines, records, a + "\n" + b + "\n", "\"a\"\n\"b\"\n"},
	} {
		full, ids := List{Format: tt.format}, List{Format: tt.format}
		var gotFull, gotIDs []byte
		for _, r := range tt.records {
			gotFull = full.AppendRecord(gotFull, r)
			gotIDs = ids.AppendID(gotIDs, r.ID)
		}
		gotFull, gotIDs = full.AppendEnd(gotFull), ids.AppendEnd(gotIDs)
		if string(gotFull) != tt.full || string(gotIDs) != tt.idOnly || full.Len() != len(tt.records) {
			t.Errorf("format %d: got %s and %s, %d items", tt.format, gotFull, gotIDs, full.Len())
		}
	}
}

func TestAnswersToAPost(t *testing.T) {
	p := Post{Updates: []Update{{ID: "a"}, {ID: `"`}}, Failed: []Failure{{"c\n", RetryBytes}, {"d", RetryCount}}}
	if got, want := string(AppendPosted(nil, 172345678912, p)), `{"modified":1723456789.12,"success":["a","\""],"failed":{"c\n":"retry bytes","d":"retry bso"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(AppendStaged(nil, "xyz", p)), `{"batch":"xyz","success":["a","\""],"failed":{"c\n":"retry bytes","d":"retry bso"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(AppendPosted(nil, 0, Post{})), `{"modified":0.00,"success":[],"failed":{}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzAppendRecord(f *testing.F) {
	f.Add("id", "payload\"\\\n\x00é\u2028", int64(5), int32(-1))
	f.Add(strings.Repeat("\\", 20), strings.Repeat("abcdefgh\x1f", 20), int64(0), int32(0))
	f.Fuzz(func(t *testing.T, id, payload string, modified int64, index int32) {
		if !utf8.ValidString(id) || !utf8.ValidString(payload) || modified < 0 {
			return
		}
		r := Record{ID: id, Modified: Timestamp(modified), Payload: []byte(payload), SortIndex: index, HasSortIndex: index != 0}
		text := AppendRecord(nil, r)
		if bytes.ContainsAny(text, "\n\r") {
			t.Errorf("a line break in %q", text)
		}
		var got struct {
			ID, Payload string
			Modified    json.Number
			SortIndex   int32
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got.ID != id || got.Payload != payload || got.SortIndex != index || got.Modified.String() != r.Modified.String() {
			t.Errorf("%+v was rendered as %s", r, text)
		}
		u, err := ParsePut(fuzzBody(payload), JSON, "c", "x", CollectionLimits{MaxRecordPayloadBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(payload, string(u.Payload)); diff != "" {
			t.Error(diff)
		}
	})
}

func fuzzBody(payload string) []byte {
	return append(appendPayload([]byte(`{"payload":`), []byte(payload)), '}')
}
