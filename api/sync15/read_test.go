package sync15

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
)

// fill stores n records in groups that share a timestamp, and returns the time of
// each group.
func (w *world) fill(collection string, n, group int) []string {
	w.Helper()
	var times []string
	for from := 0; from < n; from += group {
		var items []string
		for i := from; i < min(from+group, n); i++ {
			sort := ""
			if i%3 > 0 {
				sort = fmt.Sprintf(`,"sortindex":%d`, i%5)
			}
			items = append(items, fmt.Sprintf(`{"id":"r%03d","payload":"p%d"%s}`, i, i, sort))
		}
		r := w.do("POST", "storage/"+collection, "["+strings.Join(items, ",")+"]").want(200)
		times = append(times, r.outcome().Modified.String())
		w.clock.Advance(time.Second)
	}
	return times
}

// pages follows the offsets of a query, each page with another limit, the last one
// with none.
func (w *world) pages(query string, limits ...int) []string {
	w.Helper()
	var all []string
	offset := ""
	for page := 0; ; page++ {
		target := "storage/col?" + query
		last := page >= len(limits)
		if !last {
			target += fmt.Sprintf("&limit=%d", limits[page])
		}
		if offset != "" {
			target += "&offset=" + offset
		}
		r := w.do("GET", target, "").want(200)
		ids := r.ids()
		all = append(all, ids...)
		r.has("X-Weave-Records", fmt.Sprint(len(ids)))
		offset = r.header.Get("X-Weave-Next-Offset")
		switch {
		case offset == "":
			r.has("X-Weave-Next-Offset", "")
			return all
		case last:
			w.Fatalf("%s: an offset although there was no limit", target)
		case len(ids) != limits[page]:
			w.Fatalf("%s: %d ids and more to come", target, len(ids))
		case url.QueryEscape(offset) != offset || strings.ContainsAny(offset, ".~"):
			w.Fatalf("offset %q is not plain", offset)
		}
	}
}

func TestPagesAreThePartsOfOneOrderedListWhateverTheirLimits(t *testing.T) {
	w := newWorld(t, setup{})
	times := w.fill("col", 12, 4)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, query := range []string{
		"", "sort=newest", "sort=oldest", "sort=index", "newer=" + times[0] + "&sort=oldest", "older=" + times[2] + "&sort=newest",
		"newer=" + times[0] + "&older=" + times[2], "ids=r001,r003,r004,r011,nobody,r003&sort=index", "ids=r001,%20r010%2Cr011,,&sort=oldest",
		"newer=" + times[0] + "&sort=index",
	} {
		whole := w.do("GET", "storage/col?"+query, "").want(200).has("X-Weave-Next-Offset", "").ids()
		if sorted := slices.Sorted(slices.Values(whole)); len(slices.Compact(sorted)) != len(whole) {
			t.Fatalf("%s: repeats in %q", query, whole)
		}
		for size := 1; size <= 13; size++ {
			if got := w.pages(query, slices.Repeat([]int{size}, 13)...); !slices.Equal(got, whole) {
				t.Errorf("%s in pages of %d: %q, want %q", query, size, got, whole)
			}
		}
		for range 10 {
			var limits []int
			for range rng.IntN(6) {
				limits = append(limits, 1+rng.IntN(5))
			}
			if got := w.pages(query, limits...); !slices.Equal(got, whole) {
				t.Errorf("%s in pages of %v: %q, want %q", query, limits, got, whole)
			}
		}
	}
}

func TestOrdersAndTheirTies(t *testing.T) {
	w := newWorld(t, setup{})
	w.do("POST", "storage/col", `[{"id":"b","sortindex":1},{"id":"a","sortindex":1},{"id":"c"}]`).want(200)
	w.clock.Advance(time.Second)
	w.do("POST", "storage/col", `[{"id":"e","sortindex":-1},{"id":"d","sortindex":5},{"id":"f"}]`).want(200)
	for sort, want := range map[string]string{
		"":             `["f","e","d","c","b","a"]`,
		"?sort=newest": `["f","e","d","c","b","a"]`,
		"?sort=oldest": `["a","b","c","d","e","f"]`,
		"?sort=index":  `["d","a","b","e","c","f"]`,
	} {
		w.do("GET", "storage/col"+sort, "").says(200, want)
	}
}

func TestOffsetsAreTheServersOwnAndFitTheRequest(t *testing.T) {
	w := newWorld(t, setup{})
	times := w.fill("col", 9, 3)
	offset := func(query string) string {
		return w.do("GET", "storage/col?limit=4&"+query, "").want(200).header.Get("X-Weave-Next-Offset")
	}
	newest, oldest, index := offset("sort=newest"), offset("sort=oldest"), offset("sort=index")
	for _, bad := range []string{
		"sort=oldest&offset=" + newest, "sort=index&offset=" + newest, "sort=newest&offset=" + oldest, "offset=" + index, "offset=" + oldest,
		"offset=", "offset=0", "offset=4", "offset=1700000000:4", "offset=" + newest[:10], "offset=" + newest + "=", "offset=" + newest + "%0A",
		"offset=-1", "offset=" + strings.Repeat("A", 300),
		"offset=" + base64.RawURLEncoding.EncodeToString([]byte("\x02\x00\x00\x00\x00\x00\x00\x00\x00\x01a")), // version
		"offset=" + base64.RawURLEncoding.EncodeToString([]byte("\x01\x00\xff\x00\x00\x00\x00\x00\x00\x01a")), // negative time
		"offset=" + base64.RawURLEncoding.EncodeToString([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01")),  // no id
		"sort=oldest&newer=" + times[2] + "&offset=" + oldest,                                                 // before newer
		"sort=newest&older=" + times[0] + "&offset=" + newest,                                                 // after older
	} {
		w.do("GET", "storage/col?"+bad, "").says(400, "0")
	}
	w.do("GET", "storage/col?offset="+newest, "").want(200)
	w.do("GET", "storage/other?offset="+newest, "").says(200, "[]")
	w.do("GET", "storage/col?sort=index&offset="+index, "").want(200)
}

func TestPagingNeitherSkipsNorRepeatsWhenRecordsGo(t *testing.T) {
	for _, sort := range []string{"newest", "oldest", "index"} {
		w := newWorld(t, setup{})
		w.fill("col", 12, 4)
		whole := w.do("GET", "storage/col?sort="+sort, "").ids()
		first := w.do("GET", "storage/col?limit=5&sort="+sort, "").want(200)
		offset := first.header.Get("X-Weave-Next-Offset")
		// The last one of the page, one before and one behind it go.
		w.do("DELETE", "storage/col?ids="+whole[4]+","+whole[1]+","+whole[7], "").want(200)
		rest := w.do("GET", "storage/col?sort="+sort+"&offset="+offset, "").want(200).ids()
		want := slices.Concat(whole[5:7], whole[8:])
		if !slices.Equal(rest, want) {
			t.Errorf("%s: %q, want %q", sort, rest, want)
		}
		w.do("GET", "storage/col?sort="+sort+"&offset="+offset, "", "X-If-Unmodified-Since: "+first.header.Get("X-Last-Modified")).want(412)
	}
}

func TestFormatsOfACollection(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"off"}})
	for _, col := range []string{"col", "off"} {
		w.put(col, "a", "line\nbreak \u2028 \"q\" \\ \t\r\x01 ü 𝄞 </script>")
		w.put(col, "b", "")
		for accept, want := range map[string]string{
			"": "json", "*/*": "json", "application/json": "json", "application/newlines": "lines",
			"application/json;q=0.9,*/*;q=0.2":                       "json",
			"application/newlines;q=0.5, application/json;q=0.4":     "lines",
			"application/json;q=0.4, application/newlines;q=0.5":     "lines",
			"application/newlines;q=0.5, */*":                        "json",
			"text/plain;q=1, application/json;q=0.9":                 "json",
			"Application/Newlines; charset=utf-8":                    "lines",
			"application/json;q=0, application/newlines;q=0.1, x/yy": "lines",
			"x/yy": "406", "text/plain": "406", "application/json;q=0": "406", "text/html, image/*": "406",
		} {
			r := w.do("GET", "storage/"+col+"?full=1&sort=oldest", "", "Accept:"+accept)
			ids := w.do("GET", "storage/"+col+"?sort=oldest", "", "Accept:"+accept)
			switch want {
			case "406":
				r.says(406, "0")
			case "json":
				r.want(200).has("Content-Type", "application/json")
				ids.says(200, `["a","b"]`)
				var records []record
				r.decode(&records)
				if len(records) != 2 || strings.Contains(r.body, "\n") {
					t.Errorf("%s: %s", accept, r.body)
				}
			case "lines":
				r.want(200).has("Content-Type", "application/newlines").has("X-Weave-Records", "2")
				ids.says(200, "\"a\"\n\"b\"\n")
				lines := strings.SplitAfter(r.body, "\n")
				if len(lines) != 3 || lines[2] != "" {
					t.Errorf("%s: %q", accept, r.body)
				}
				one := w.do("GET", "storage/"+col+"/a", "").want(200)
				if lines[0] != one.body+"\n" {
					t.Errorf("line %q, record %q", lines[0], one.body)
				}
				w.do("GET", "storage/none?full=1", "", "Accept:"+accept).says(200, "").has("Content-Type", "application/newlines")
			}
		}
		if got := w.get(col, "a"); got != "line\nbreak \u2028 \"q\" \\ \t\r\x01 ü 𝄞 </script>" {
			t.Errorf("payload came back as %q", got)
		}
		w.do("GET", "storage/"+col+"/a", "", "Accept: x/yy").want(200) // no matter for one record
	}
}

func TestArgumentsThatMeanNothingAreIgnored(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "a", "x")
	for _, target := range []string{
		"info/collections?client=FxDesktop&newer=x", "info/quota?limit=-1", "info/configuration?x", "storage/col/a?full=1&sort=random&ids=",
		"storage/col?foo=bar&&=&%zz&a=b=c", "storage/col?FULL=1", "storage/col?batch=sammich",
	} {
		w.do("GET", target, "").want(200)
	}
	w.do("PUT", "storage/col/a?batch=x&commit=y&ids=", "{}").want(200)
	w.do("DELETE", "storage/col/a?ids=", "").want(200)
	w.do("DELETE", "storage?ids=", "").says(200, "{}")
}

func TestFullIsThereWithAnyValueAndIdsAreReadAsSent(t *testing.T) {
	w := newWorld(t, setup{})
	w.do("POST", "storage/col", `[{"id":"a b"},{"id":"{c}"},{"id":"d+e"},{"id":"100%"},{"id":"f"}]`).want(200)
	for _, full := range []string{"full", "full=", "full=0", "full=false", "full=1", "%66ull"} {
		if r := w.do("GET", "storage/col?"+full, "").want(200); !strings.HasPrefix(r.body, `[{"id":`) {
			t.Errorf("%s: %s", full, r.body)
		}
	}
	for ids, want := range map[string][]string{
		"{c},f":                   {"f", "{c}"},
		"%7Bc%7D%2Cf":             {"f", "{c}"},
		"a%20b,a+b":               {"a b"},
		"d%2Be":                   {"d+e"},
		"100%":                    {"100%"},
		"100%25,%20f%20,,nobody,": {"100%", "f"},
		"nobody":                  nil,
	} {
		got := slices.Sorted(slices.Values(w.do("GET", "storage/col?ids="+ids, "").want(200).ids()))
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("ids=%s: %q, want %q", ids, got, want)
		}
	}
	hundred := strings.Repeat("x,", 99) + "f"
	w.do("GET", "storage/col?ids="+hundred, "").says(200, `["f"]`)
	w.do("GET", "storage/col?ids="+hundred+",f", "").says(400, "0")
	w.do("DELETE", "storage/col?ids="+hundred+",f", "").says(400, "0")
	w.do("DELETE", "storage/col?ids="+hundred, "").want(200)
	w.do("GET", "storage/col?ids=f", "").says(200, "[]")
}

func TestInfoViews(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"off"}})
	w.do("GET", "info/collection_counts", "").says(200, "{}").has("X-Weave-Records", "0")
	w.do("GET", "info/collection_usage", "").says(200, "{}")
	w.put("col", "a", strings.Repeat("x", 1024))
	w.put("col", "b", strings.Repeat("ü", 256))
	t3 := w.put("off", "a", strings.Repeat("x", 512))
	w.do("POST", "storage/empty", "[]").want(200)
	w.batch("staged", `[{"id":"a","payload":"x"}]`)
	w.do("GET", "info/collections", "").says(200, `{"col":`+shift(t, t3, -1)+`,"off":`+t3+`,"empty":`+shift(t, t3, 1)+`}`)
	w.do("GET", "info/collection_counts", "").says(200, `{"col":2,"off":1}`).has("X-Weave-Records", "2")
	w.do("GET", "info/collection_usage", "").says(200, `{"col":1.5,"off":0.5}`)
	w.do("GET", "info/quota", "").says(200, `[2.0,null]`)
	// The size follows updates and stays the same when only the life changes.
	w.do("PUT", "storage/off/a", `{"ttl":1000}`).want(200)
	w.do("PUT", "storage/col/b", `{"payload":""}`).want(200)
	w.do("GET", "info/collection_usage", "").says(200, `{"col":1.0,"off":0.5}`)
	w.do("DELETE", "storage/col?ids=a,b", "").want(200)
	w.do("GET", "info/collection_counts", "").says(200, `{"off":1}`)
	if r := w.do("GET", "info/collections", ""); !strings.Contains(r.body, `"col":`) {
		t.Errorf("a collection without records is gone: %s", r.body)
	}
}

func TestQuotaViewTellsAnEnforcedLimit(t *testing.T) {
	w := newWorld(t, setup{quota: 2048, enforce: true})
	w.put("col", "a", strings.Repeat("x", 512))
	w.do("GET", "info/quota", "").says(200, "[0.5,2.0]")
	w = newWorld(t, setup{quota: 2048})
	w.do("GET", "info/quota", "").says(200, "[0.0,null]")
}

func TestUsersSeeOnlyTheirOwn(t *testing.T) {
	w := newWorld(t, setup{})
	users := map[string]user{
		"a":             w.newUser(1, "a", "k"),
		"another key":   w.newUser(1, "a", "k2"),
		"another user":  w.newUser(1, "ak", "2"),
		"a shared key":  w.newUser(1, "b", "k"),
		"only a number": w.newUser(1, "", ""),
		"no key":        w.newUser(2, "a", ""),
		"no account":    w.newUser(3, "", "k"),
	}
	for name, u := range users {
		w.as(u, "GET", "info/collections", "").says(200, "{}")
		w.as(u, "PUT", "storage/col/a", fmt.Sprintf(`{"payload":%q}`, name)).want(200)
	}
	for name, u := range users {
		if got := w.as(u, "GET", "storage/col/a", "").want(200).record().Payload; got != name {
			t.Errorf("%s reads %q", name, got)
		}
	}
	// The number in the URL does not matter to an account.
	moved := w.newUser(99, "a", "k")
	if got := w.as(moved, "GET", "storage/col/a", "").want(200).record().Payload; got != "a" {
		t.Errorf("after a move: %q", got)
	}
	w.as(users["a"], "DELETE", "storage", "").want(200)
	w.settle()
	for name, u := range users {
		if name != "a" {
			w.as(u, "GET", "storage/col/a", "").want(200)
		}
	}
}

func TestRecordsComeInTheOrderOfTheirTimestampsForNewer(t *testing.T) {
	// What a client does that syncs: remember the time of the last answer and ask
	// for what is newer, while somebody else writes.
	w := newWorld(t, setup{})
	seen := map[string]string{}
	newer := "0"
	want := map[string]string{}
	for i := range 60 {
		id, payload := fmt.Sprintf("r%d", i%7), fmt.Sprint(i)
		if i%3 == 0 {
			w.clock.Advance(7 * time.Millisecond)
		}
		if i%5 == 0 {
			r := w.do("GET", "storage/col?full=1&newer="+newer, "").want(200)
			var records []record
			r.decode(&records)
			for _, rec := range records {
				seen[rec.ID] = rec.Payload
			}
			newer = r.header.Get("X-Weave-Timestamp")
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Fatalf("after write %d (-want +got):\n%s", i, diff)
			}
		}
		w.put("col", id, payload)
		want[id] = payload
	}
}

func TestALimitOf32BitsIsNoTrouble(t *testing.T) {
	w := newWorld(t, setup{})
	w.fill("col", 3, 1)
	for _, sort := range []bso.Sort{bso.Newest, bso.Oldest, bso.Index} {
		name := []string{"newest", "oldest", "index"}[sort]
		if got := w.do("GET", "storage/col?limit=4294967295&sort="+name, "").want(200).has("X-Weave-Next-Offset", "").ids(); len(got) != 3 {
			t.Errorf("%s: %q", name, got)
		}
		w.do("GET", "storage/col?limit=0&sort="+name, "").says(200, "[]").has("X-Weave-Next-Offset", "")
		w.do("GET", "storage/col?limit=3&sort="+name, "").want(200).has("X-Weave-Next-Offset", "")
	}
}
