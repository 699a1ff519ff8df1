package bso

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var defaults = func() CollectionLimits {
	l := DefaultLimits()
	return l.For("bookmarks")
}()

func wantError(t *testing.T, name string, err error, status, code int) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || e.Code != code {
		t.Errorf("%s: got %v, want %d/%d", name, err, status, code)
	}
}

func TestParsePutReadsAPartialUpdate(t *testing.T) {
	for body, want := range map[string]Update{
		`{}`: {ID: "x"},
		` { "payload" : "p" , "sortindex" : -999999999 , "ttl" : 999999999 } `: {ID: "x", Payload: []byte("p"), HasPayload: true, SortIndex: -999999999, HasSortIndex: true, TTL: 999999999, HasTTL: true},
		`{"payload":"","sortindex":0,"ttl":0,"id":"other"}`:                    {ID: "x", Payload: []byte{}, HasPayload: true, HasSortIndex: true, HasTTL: true},
		`{"payload":null,"sortindex":null,"ttl":null}`:                         {ID: "x"},
		`{"modified":"any","collection":[{"a":[1,{}]},null,true,-1.5e+9]}`:     {ID: "x"},
		`{"payload":"a\"\\\/\b\f\n\r\t\u0000\u00e9\ud83d\uDE00é😀z"}`:           {ID: "x", Payload: []byte("a\"\\/\b\f\n\r\t\x00é😀é😀z"), HasPayload: true},
		`{"pay\u006coad":"a"}`:                                       {ID: "x", Payload: []byte("a"), HasPayload: true},
		`{"payload":1,"payload":"a","payload":"b"}`:                  {ID: "x", Payload: []byte("b"), HasPayload: true},
		`{"payload":"a","payload":null,"ttl":-1,"ttl":1,"ttl":null}`: {ID: "x"},
		`{"sortindex":-0}`:                                           {ID: "x", HasSortIndex: true},
	} {
		got, err := ParsePut([]byte(body), JSON, "bookmarks", "x", defaults)
		if err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
}

func TestParsePutRefuses(t *testing.T) {
	metrics := map[string][]string{
		"request.validate.invalid_body_json": {
			``, ` `, `{`, `{]`, `nul`, `{"payload"}`, `{"payload":}`, `{"payload":"a",}`, `{,}`, `{"payload":"a"}}`, `{"payload":"a"} x`,
			`{"payload":"a`, `{"payload":"\`, `{"payload":"\x"}`, `{"payload":"\u12"}`, `{"payload":"\u00zz"}`, "{\"payload\":\"a\nb\"}", "{\"payload\":\"a\x00\"}",
			`{"payload":"\ud800"}`, `{"payload":"\ud800x"}`, `{"payload":"\udc00"}`, `{"payload":"\ud800\ud800"}`, `{"payload":"\ud800\n"}`, "{\"payload\":\"\xff\"}", "{\"payload\":\"\xed\xa0\x80\"}",
			`{"ttl":01}`, `{"ttl":+1}`, `{"ttl":1.}`, `{"ttl":.1}`, `{"ttl":1e}`, `{"ttl":-}`, `{"ttl":tru}`, `{"ttl":NaN}`, `{payload:"a"}`, `{'payload':"a"}`,
			`{"modified":[1,]}`, `{"modified":[1}`, `{"modified":{"a"}}`, `{"modified":{"a":1,}}`, `{"modified":` + strings.Repeat("[", 1e6) + strings.Repeat("]", 1e6) + `}`,
			"\ufeff{}", "{\"ttl\":\v1}",
		},
		"request.validate.bad_bso_body": {`[]`, `"a"`, `1`, `null`, `true`},
		"request.process.invalid_bso": {
			`{"id":""}`, `{"id":1}`, `{"id":null}`, `{"id":"a\n"}`, `{"id":"é"}`, `{"id":"` + strings.Repeat("a", 65) + `"}`,
			`{"payload":1}`, `{"payload":{}}`, `{"sortindex":"3"}`, `{"sortindex":3.0}`, `{"sortindex":3e1}`, `{"sortindex":1000000000}`, `{"sortindex":-1000000000}`,
			`{"sortindex":true}`, `{"sortindex":99999999999999999999999}`, `{"ttl":-1}`, `{"ttl":"1"}`, `{"ttl":1.5}`, `{"ttl":1000000000}`, `{"ttl":[]}`,
			`{"unknown":1}`, `{"Payload":"a"}`, `{"expiry":null}`, `{"":0}`,
		},
	}
	for metric, bodies := range metrics {
		for _, body := range bodies {
			_, err := ParsePut([]byte(body), JSON, "bookmarks", "x", defaults)
			wantError(t, body[:min(len(body), 60)], err, 400, CodeInvalid)
			var e *Error
			if errors.As(err, &e) && e.Metric != metric {
				t.Errorf("%s: counted as %s, want %s", body[:min(len(body), 60)], e.Metric, metric)
			}
		}
	}
	_, err := ParsePut([]byte(`{}`), Newlines, "bookmarks", "x", defaults)
	wantError(t, "newlines", err, 400, CodeInvalid)
}

func TestPayloadLimitIsInclusiveAndCountsUTF8Bytes(t *testing.T) {
	limits := CollectionLimits{MaxRecordPayloadBytes: 4, MaxPostBytes: 8, MaxPostRecords: 9}
	for body, want := range map[string]bool{`{"payload":"abcd"}`: true, `{"payload":"éé"}`: true, `{"payload":"\u00e9\u00e9"}`: true, `{"payload":"abcde"}`: false, `{"payload":"ééa"}`: false} {
		if _, err := ParsePut([]byte(body), JSON, "c", "x", limits); (err == nil) != want {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func update(id, payload string) Update {
	return Update{ID: id, Payload: []byte(payload), HasPayload: true}
}

func TestParsePost(t *testing.T) {
	small := CollectionLimits{MaxRecordPayloadBytes: 5, MaxPostBytes: 10, MaxPostRecords: 2}
	retryBytes := func(id string) Failure { return Failure{id, RetryBytes} }
	for _, tt := range []struct {
		name, body string
		limits     CollectionLimits
		want       Post
	}{
		{"empty list", ` [ ] `, defaults, Post{}},
		{"several", `[{"id":"a","payload":"1"}, {"payload":"2","id":"b"} ,{"id":"c"}]`, defaults, Post{Updates: []Update{update("a", "1"), update("b", "2"), {ID: "c"}}}},
		{"integer ids fail under their text", `[{"id":12},{"id":-3},{"id":"a"}]`, defaults, Post{Updates: []Update{{ID: "a"}}, Failed: []Failure{
			{"12", "invalid bso: id is not 1 to 64 printable ASCII characters"}, {"-3", "invalid bso: id is not 1 to 64 printable ASCII characters"}}}},
		{"field faults fail the record", `[{"id":"A\n"},{"id":"u","zzz":1},{"payload":1,"id":"p"},{"id":"s","sortindex":"3"},{"id":"t","ttl":-1},{"id":"ok"}]`, defaults, Post{Updates: []Update{{ID: "ok"}}, Failed: []Failure{
			{"A\n", "invalid bso: id is not 1 to 64 printable ASCII characters"}, {"u", `unknown field "zzz"`}, {"p", "invalid json: payload is not a string"},
			{"s", "invalid json: sortindex is not an integer"}, {"t", "invalid bso: ttl is negative or has more than nine digits"}}}},
		{"limits are inclusive", `[{"id":"a","payload":"12345"},{"id":"b","payload":"12345"}]`, small, Post{Updates: []Update{update("a", "12345"), update("b", "12345")}}},
		{"too large a record", `[{"id":"a","payload":"123456"},{"id":"b","payload":"1234"}]`, small, Post{Updates: []Update{update("b", "1234")}, Failed: []Failure{retryBytes("a")}}},
		{"the too large one counts", `[{"id":"a","payload":"123456"},{"id":"b","payload":"12345"},{"id":"c"}]`, small, Post{Failed: []Failure{retryBytes("a"), retryBytes("b"), retryBytes("c")}}},
		{"a value out of range counts", `[{"id":"a","payload":"12345","ttl":-1},{"id":"b","payload":"1"},{"id":"c","payload":"12345"}]`, small, Post{Updates: []Update{update("b", "1")}, Failed: []Failure{
			{"a", "invalid bso: ttl is negative or has more than nine digits"}, retryBytes("c")}}},
		{"a wrong type does not count", `[{"id":"a","payload":"12345","ttl":"1"},{"id":"b","payload":"12345"},{"id":"c","payload":"12345"}]`, small, Post{Updates: []Update{update("b", "12345"), update("c", "12345")}, Failed: []Failure{
			{"a", "invalid json: ttl is not an integer"}}}},
		{"too many", `[{"id":"a"},{"id":"x","ttl":-1},{"id":"b"},{"id":"c"},{"id":"d","payload":"123456"}]`, small, Post{Updates: []Update{{ID: "a"}, {ID: "b"}}, Failed: []Failure{
			{"x", "invalid bso: ttl is negative or has more than nine digits"}, {"c", RetryCount}, retryBytes("d")}}},
	} {
		got, err := ParsePost([]byte(tt.body), JSON, "bookmarks", tt.limits)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestParsePostRefusesTheWholeRequest(t *testing.T) {
	metrics := map[string][]string{
		"request.validate.invalid_body_json": {``, `[`, `[,]`, `[{"id":"a"},]`, `[{"id":"a"} {"id":"b"}]`, `[{"id":"a"}]]`, `[{"id":"a"}`, `]`, `[{"id":"a","modified":[}]`, "[{\"id\":\"\xff\"}]", `[nul]`},
		"request.validate.bad_bso_body":      {`{}`, `{"id":"a"}`, `"a"`, `1`, `null`, `[1]`, `["a"]`, `[null]`, `[[]]`, `[{"id":"a"},[]]`},
		"request.store.missing_bso_id":       {`[{}]`, `[{"payload":"a"}]`, `[{"id":null}]`, `[{"id":1.5}]`, `[{"id":1e3}]`, `[{"id":[]}]`, `[{"id":{}}]`, `[{"id":true}]`, `[{"id":"a","id":null}]`},
		"request.store.duplicate_bso_id":     {`[{"id":"a"},{"id":"b"},{"id":"a"}]`, `[{"id":"a","zzz":1},{"id":"\u0061"}]`, `[{"id":1},{"id":"1"}]`},
	}
	for metric, bodies := range metrics {
		for _, body := range bodies {
			_, err := ParsePost([]byte(body), JSON, "bookmarks", defaults)
			wantError(t, body, err, 400, CodeInvalid)
			var e *Error
			if errors.As(err, &e) && e.Metric != metric {
				t.Errorf("%s: counted as %s, want %s", body, e.Metric, metric)
			}
		}
	}
}

func TestParsePostReadsLines(t *testing.T) {
	for body, want := range map[string][]Update{
		"":                                   nil,
		`{"id":"a"}`:                         {{ID: "a"}},
		"{\"id\":\"a\"}\n":                   {{ID: "a"}},
		"{\"id\":\"a\"}\r\n{\"id\":\"b\"}\r": {{ID: "a"}, {ID: "b"}},
		"{\"id\":\"a\",\"payload\":\"1\\n2\\u000a3\"}\n {\"id\":\"b\"} \n": {update("a", "1\n2\n3"), {ID: "b"}},
	} {
		got, err := ParsePost([]byte(body), Newlines, "bookmarks", defaults)
		if err != nil {
			t.Errorf("%q: %v", body, err)
		}
		if diff := cmp.Diff(Post{Updates: want}, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", body, diff)
		}
	}
	for _, body := range []string{"\n", "[]", "{}", "{\"id\":\"a\"}\n\n", "\n{\"id\":\"a\"}", "{\"id\":\"a\"}\n \n{\"id\":\"b\"}", "{\"id\":\n\"a\"}",
		`{"id":"a"}{"id":"b"}`, `{"id":"a"},`, `[{"id":"a"}]`, "{\"id\":\"a\"}\n{\"id\":\"a\"}\n"} {
		_, err := ParsePost([]byte(body), Newlines, "bookmarks", defaults)
		wantError(t, fmt.Sprintf("%q", body), err, 400, CodeInvalid)
	}
}

func TestKnownBadPayloadsAreRefusedInCryptoOnly(t *testing.T) {
	bad := []string{`{"IV":"AAAAAAAAAAAAAAAAAAAAAA=="}`, `{"IV": IV": "AAAAAAAAAAAAAAAAAAAAAA=="`, `{"IV":` + "\t\n\r " + `"AAAAAAAAAAAAAAAAAAAAAA=="`}
	good := []string{`{"IV":"AAAAAAAAAAAAAAAAAAAAAB=="}`, `{"IV" :"AAAAAAAAAAAAAAAAAAAAAA=="}`, `IV":`, ``, `{"iv":"AAAAAAAAAAAAAAAAAAAAAA=="}`}
	for i, payload := range append(bad, good...) {
		quoted, err := stdjson.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, collection := range []string{"crypto", "bookmarks"} {
			_, put := ParsePut(fmt.Appendf(nil, `{"payload":%s}`, quoted), JSON, collection, "keys", defaults)
			_, post := ParsePost(fmt.Appendf(nil, `[{"id":"a"},{"id":"b","payload":%s}]`, quoted), JSON, collection, defaults)
			if want := collection == "crypto" && i < len(bad); want {
				wantError(t, payload, put, 400, CodeInvalid)
				wantError(t, payload, post, 400, CodeInvalid)
			} else if put != nil || post != nil {
				t.Errorf("%s in %s: %v, %v", payload, collection, put, post)
			}
		}
	}
}

func TestTrimKeepsWhatFitsIntoTheBatch(t *testing.T) {
	p := Post{Updates: []Update{update("a", "123"), update("b", "12345"), update("c", "1"), {ID: "d"}, {ID: "e"}}, Failed: []Failure{{"x", "r"}}}
	p.Trim(2, 100)
	want := Post{Updates: []Update{update("a", "123"), update("b", "12345")}, Failed: []Failure{{"x", "r"}, {"c", RetryCount}, {"d", RetryCount}, {"e", RetryCount}}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	p.Trim(2, 7)
	want = Post{Updates: []Update{update("a", "123")}, Failed: append(want.Failed, Failure{"b", RetryBytes})}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	if got := p.PayloadBytes(); got != 3 {
		t.Errorf("%d payload bytes are left, want 3", got)
	}
}

func TestPlainFindsTheFirstSpecialByteAtEveryOffset(t *testing.T) {
	for n := range 40 {
		for at := range n {
			for c := range 256 {
				b := bytes.Repeat([]byte("~\x80\xff!#[]\x7f"), 5)[:n]
				b[at] = byte(c)
				want := n
				if isSpecial(byte(c)) {
					want = at
				}
				if got := plain(b); got != want {
					t.Fatalf("byte %#x at %d of %d: got %d", c, at, n, got)
				}
			}
		}
	}
}

// checkAgainstStandard compares an update with what encoding/json reads.
func checkAgainstStandard(t *testing.T, raw stdjson.RawMessage, got Update) {
	t.Helper()
	var m map[string]stdjson.RawMessage
	if err := stdjson.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%s was accepted: %v", raw, err)
	}
	var want Update
	want.ID = got.ID
	read := func(name string, into any) bool {
		field, ok := m[name]
		if !ok || string(field) == "null" {
			return false
		}
		if err := stdjson.Unmarshal(field, into); err != nil {
			t.Fatalf("%s of %s: %v", name, raw, err)
		}
		return true
	}
	var payload string
	want.HasPayload = read("payload", &payload)
	if want.HasPayload {
		want.Payload = []byte(payload)
	}
	want.HasSortIndex = read("sortindex", &want.SortIndex)
	want.HasTTL = read("ttl", &want.TTL)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-standard +ours):\n%s", raw, diff)
	}
	if want.TTL < 0 || math.Abs(float64(want.SortIndex)) > maxInteger {
		t.Fatalf("%s has a value out of range", raw)
	}
}

func FuzzParsePut(f *testing.F) {
	f.Add([]byte(`{"id":"a","payload":"a\"\\\/\b\f\n\r\t\u0000\u00e9\ud83d\uDE00é😀z","sortindex":-1,"ttl":5,"modified":[{"a":[null,true,1.5e3]}]}`))
	f.Add([]byte(`{"payload":null,"payload":"x","collection":{"a":{},"b":[]}}`))
	f.Add([]byte(`{"payload":"\ud800\\"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		original := bytes.Clone(body)
		u, err := ParsePut(body, JSON, "bookmarks", "x", defaults)
		if err != nil {
			return
		}
		checkAgainstStandard(t, original, u)
	})
}

func FuzzParsePost(f *testing.F) {
	f.Add([]byte(`[{"id":"a","payload":"a\"\\","sortindex":-1,"ttl":5},{"id":7},{"id":"b","x":[[{}]]}]`), false)
	f.Add([]byte("{\"id\":\"a\"}\n{\"id\":\"b\",\"payload\":\"\\n\"}\r\n"), true)
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		original := bytes.Clone(body)
		format := JSON
		var elements []stdjson.RawMessage
		if lines {
			format = Newlines
			for line := range bytes.Lines(original) {
				elements = append(elements, line)
			}
		}
		p, err := ParsePost(body, format, "bookmarks", defaults)
		if err != nil {
			return
		}
		if !lines {
			if err := stdjson.Unmarshal(original, &elements); err != nil {
				t.Fatalf("%s was accepted: %v", original, err)
			}
		}
		if len(elements) != len(p.Updates)+len(p.Failed) {
			t.Fatalf("%d elements became %d updates and %d failures", len(elements), len(p.Updates), len(p.Failed))
		}
		updates := map[string]Update{}
		for _, u := range p.Updates {
			updates[u.ID] = u
		}
		for _, raw := range elements {
			var m map[string]stdjson.RawMessage
			var id string
			if stdjson.Unmarshal(raw, &m) != nil || stdjson.Unmarshal(m["id"], &id) != nil {
				continue
			}
			if u, ok := updates[id]; ok {
				checkAgainstStandard(t, raw, u)
				delete(updates, id)
			}
		}
		if len(updates) != 0 {
			t.Fatalf("updates of nothing: %v", updates)
		}
	})
}
