package bso

import (
	"encoding/base64"
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func ptr[T any](v T) *T { return &v }

func numberedIDs(n int) string {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("id%03d", i))
	}
	return strings.Join(ids, ",")
}

func TestParseQuery(t *testing.T) {
	newest := Cursor{Modified: 500, ID: "a b/c"}
	byIndex := Cursor{Sort: Index, ID: "x"}
	for raw, want := range map[string]Query{
		"":                                      {},
		"unknown=1&=&&a=%zz&%&full":             {Full: true},
		"full=":                                 {Full: true},
		"full=0":                                {Full: true},
		"f%75ll=false":                          {Full: true},
		"ids=a,b":                               {IDs: []string{"a", "b"}},
		"ids=%20a%2Cb%2c,%2C%20c+d%20":          {IDs: []string{"a", "b", "c d"}},
		"ids=100%,{a}%2525":                     {IDs: []string{"100%", "{a}%25"}},
		"ids=":                                  {},
		"ids=a;b":                               {IDs: []string{"a;b"}},
		"newer=1.5&older=2":                     {Newer: ptr(Timestamp(150)), Older: ptr(Timestamp(200))},
		"newer=1&newer=x":                       {Newer: ptr(Timestamp(100))},
		"limit=0":                               {Limit: ptr(uint32(0))},
		"limit=4294967295&sort=oldest":          {Limit: ptr(uint32(math.MaxUint32)), Sort: Oldest},
		"sort=newest":                           {},
		"sort=index&offset=" + byIndex.String(): {Sort: Index, After: &byIndex},
		"offset=" + newest.String():             {After: &newest},
		"newer=5&older=5&sort=newest&offset=" + newest.String(): {Newer: ptr(Timestamp(500)), Older: ptr(Timestamp(500)), After: &newest},
	} {
		got, err := ParseQuery(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", raw, diff)
		}
	}
	if q, err := ParseQuery("ids=" + numberedIDs(100)); err != nil || len(q.IDs) != 100 {
		t.Errorf("100 ids: %d, %v", len(q.IDs), err)
	}
}

func TestParseQueryRefuses(t *testing.T) {
	at5 := Cursor{Modified: 500, ID: "a"}.String()
	for _, raw := range []string{
		"newer=", "newer=abc", "newer=-1", "older=nan", "older=", "newer=+5", "newer=x&newer=1", "limit=-1", "limit=", "limit=a", "limit=1.5", "limit=4294967296", "limit=%2B1",
		"sort=", "sort=Newest", "sort=other", "ids=a%0Ab", "ids=%C3%A9", "ids=" + strings.Repeat("a", 65), "ids=" + numberedIDs(101),
		"offset=", "offset=0", "offset=12", "offset=1234:5", "offset=" + at5 + "A", "offset=" + at5 + "=", "sort=oldest&offset=" + at5, "sort=index&offset=" + at5,
		"newer=5.01&offset=" + at5, "older=4.99&offset=" + at5,
	} {
		_, err := ParseQuery(raw)
		wantError(t, raw, err, 400, CodeOther)
	}
}

func TestParseDeletion(t *testing.T) {
	for raw, want := range map[string][]string{"": nil, "full=1": nil, "ids=a": {"a"}, "ids=a%2C+b,,": {"a", "b"}, "ids=b&ids=": {"b"}} {
		got, err := ParseDeletion(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", raw, diff)
		}
	}
	for _, raw := range []string{"ids", "ids=", "ids=,", "ids=%20", "ids=&ids=a", "ids=%00", "ids=" + numberedIDs(101)} {
		ids, err := ParseDeletion(raw)
		wantError(t, raw, err, 400, CodeOther)
		if len(ids) != 0 {
			t.Errorf("%s: got %v beside the error", raw, ids)
		}
	}
}

func TestParseBatch(t *testing.T) {
	id, err := NewBatchID(strings.NewReader("\xff\xef0123456789abcd"))
	if err != nil || id != "_-8wMTIzNDU2Nzg5YWJjZA" {
		t.Fatal(id, err)
	}
	for raw, want := range map[string]struct {
		batch Batch
		plain bool
	}{
		"":                               {Batch{}, true},
		"other=1":                        {Batch{}, true},
		"batch=true":                     {Batch{Start: true}, false},
		"batch=TRUE":                     {Batch{Start: true}, false},
		"batch=":                         {Batch{Start: true}, false},
		"batch":                          {Batch{Start: true}, false},
		"batch=true&commit=True":         {Batch{Start: true, Commit: true}, true},
		"commit=true&batch=" + id:        {Batch{ID: id, Commit: true}, false},
		"batch=" + id:                    {Batch{ID: id}, false},
		"batch=" + id + "&batch=sammich": {Batch{ID: id}, false},
	} {
		got, err := ParseBatch(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if got != want.batch || got.Plain() != want.plain {
			t.Errorf("%s: got %+v, plain %v", raw, got, got.Plain())
		}
	}
	for raw, metric := range map[string]string{
		"commit=true": "missing_id", "batch=sammich": "invalid_id", "batch=false": "invalid_id", "batch=" + id + "A": "invalid_id", "batch=" + id[1:] + "%3D": "invalid_id",
		"batch=true&commit=": "invalid_id", "batch=true&commit=false": "invalid_id", "batch=" + id + "&commit=1": "invalid_id",
	} {
		_, err := ParseBatch(raw)
		wantError(t, raw, err, 400, CodeOther)
		if e, ok := err.(*Error); ok && e.Metric != "request.validate.batch."+metric {
			t.Errorf("%s: counted as %s", raw, e.Metric)
		}
	}
	if _, err := NewBatchID(strings.NewReader("short")); err == nil {
		t.Error("a batch id came out of too little randomness")
	}
}

func TestCursorSurvivesItsTokenAndNeedsNoEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Cursor{Sort: rapid.SampledFrom([]Sort{Newest, Oldest, Index}).Draw(t, "sort"), ID: rapid.StringMatching(`[ -~]{1,64}`).Draw(t, "id")}
		if c.Sort != Index {
			c.Modified = Timestamp(rapid.Int64Range(0, int64(MaxTimestamp)).Draw(t, "modified"))
		} else if rapid.Bool().Draw(t, "set") {
			c.SortIndex = ptr(rapid.Int32Range(-maxInteger, maxInteger).Draw(t, "sortindex"))
		}
		token := c.String()
		if url.QueryEscape(token) != token {
			t.Errorf("%s needs encoding", token)
		}
		got, err := ParseCursor(token)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestParseCursorRefuses(t *testing.T) {
	encode := base64.RawURLEncoding.EncodeToString
	ok := "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x05a"
	if _, err := ParseCursor(encode([]byte(ok))); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]string{
		"empty": "", "number": "100", "colon": "123:4", "padded": encode([]byte(ok)) + "=", "newline": encode([]byte(ok)) + "\n", "loose bits": encode([]byte(ok))[:14] + "B",
		"version": encode([]byte("\x02" + ok[1:])), "sort": encode([]byte("\x01\x03" + ok[2:])), "no id": encode([]byte(ok[:10])), "short": encode([]byte(ok[:9])),
		"long id": encode([]byte(ok + strings.Repeat("a", 64))), "bad id": encode([]byte(ok + "\n")),
		"negative time": encode([]byte("\x01\x00\xff" + ok[3:])), "late time": encode([]byte("\x01\x00\x7f" + ok[3:])), "sortindex": encode([]byte("\x01\x02\x7f" + ok[3:])),
	} {
		_, err := ParseCursor(s)
		wantError(t, name, err, 400, CodeOther)
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add(Cursor{Modified: 500, ID: "a"}.String())
	f.Add(Cursor{Sort: Index, ID: "a"}.String())
	f.Add(Cursor{Sort: Index, SortIndex: ptr(int32(-5)), ID: "a"}.String())
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := ParseCursor(s); err == nil && c.String() != s {
			t.Errorf("%q is another spelling of %q", s, c)
		}
	})
}

func FuzzParseQuery(f *testing.F) {
	f.Add("ids=a%2Cb&newer=1.5&older=9&limit=5&sort=oldest&full&offset=" + Cursor{Sort: Oldest, Modified: 500, ID: "a"}.String())
	f.Add("batch=true&commit=true&ids=%zz+")
	f.Fuzz(func(t *testing.T, raw string) {
		if q, err := ParseQuery(raw); err == nil {
			if len(q.IDs) > MaxIDs || q.After != nil && q.After.Sort != q.Sort {
				t.Errorf("%q: %+v", raw, q)
			}
		}
		if ids, err := ParseDeletion(raw); err == nil && len(ids) == 0 && parseParams(raw).ids != nil {
			t.Errorf("%q would delete the whole collection", raw)
		}
		if b, err := ParseBatch(raw); err == nil && (b.Start && b.ID != "" || b.Commit && !b.Start && b.ID == "") {
			t.Errorf("%q: %+v", raw, b)
		}
		// Where the standard library can read the query, it must read the same.
		values, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		if got := parseParams(raw).ids; (got != nil) != values.Has("ids") || got != nil && *got != values.Get("ids") {
			t.Errorf("%q: ids differ from %q", raw, values["ids"])
		}
	})
}
