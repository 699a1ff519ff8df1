package sync15

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func TestEverySuccessCarriesTheTimestampsOfItsCase(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("other", "a", "x")
	w.clock.Advance(time.Second)
	first := w.put("col", "a", "x")
	w.clock.Advance(time.Second)
	second := w.put("col", "b", "x")
	w.clock.Advance(time.Second)
	now := stamp(3 * time.Second)
	batch := w.batch("col", `[]`)
	for _, c := range []struct {
		method, target, body string
		status               int
		modified             string
		records              string
	}{
		{"GET", "info/collections", "", 200, second, "2"},
		{"GET", "info/collection_counts", "", 200, second, "2"},
		{"GET", "info/collection_usage", "", 200, second, "2"},
		{"GET", "info/quota", "", 200, second, ""},
		{"GET", "info/configuration", "", 200, "0.00", ""},
		{"GET", "storage/col", "", 200, second, "2"},
		{"GET", "storage/col?full=1", "", 200, second, "2"},
		{"GET", "storage/col?ids=a", "", 200, second, "1"},
		{"GET", "storage/col?limit=1", "", 200, second, "1"},
		{"GET", "storage/col?limit=0", "", 200, second, "0"},
		{"GET", "storage/none", "", 200, "0.00", "0"},
		{"GET", "storage/col/a", "", 200, first, ""},
		{"POST", "storage/col?batch=true", `[{"id":"c"}]`, 202, second, ""},
		{"POST", "storage/none?batch=true", `[{"id":"c"}]`, 202, "0.00", ""},
		{"POST", "storage/col?batch=" + batch, `[{"id":"c"}]`, 202, second, ""},
	} {
		r := w.do(c.method, c.target, c.body).want(c.status).has("X-Last-Modified", c.modified).has("X-Weave-Records", c.records)
		r.has("X-Weave-Timestamp", now).has("Content-Type", "application/json").has("X-Weave-Quota-Remaining", "").has("Retry-After", "")
	}
	// Writes: T is in the body, in X-Last-Modified and in X-Weave-Timestamp.
	last := ""
	for _, c := range []struct{ method, target, body, pattern string }{
		{"PUT", "storage/col/a", `{"payload":"y"}`, `^([0-9]+\.[0-9]{2})$`},
		{"POST", "storage/col", `[{"id":"d"}]`, `"modified":([0-9]+\.[0-9]{2}),`},
		{"POST", "storage/col?batch=true&commit=true", `[{"id":"d"}]`, `"modified":([0-9]+\.[0-9]{2}),`},
		{"POST", "storage/col?batch=" + batch + "&commit=true", `[{"id":"e"}]`, `"modified":([0-9]+\.[0-9]{2}),`},
		{"DELETE", "storage/col?ids=a,b", "", `^{"modified":([0-9]+\.[0-9]{2})}$`},
		{"DELETE", "storage/col/d", "", `^{"modified":([0-9]+\.[0-9]{2})}$`},
		{"DELETE", "storage/col", "", `^{"modified":([0-9]+\.[0-9]{2})}$`},
		{"DELETE", "storage", "", ""},
	} {
		r := w.do(c.method, c.target, c.body).want(200).has("Content-Type", "application/json")
		modified := r.header.Get("X-Last-Modified")
		r.has("X-Weave-Timestamp", modified)
		if c.pattern != "" {
			if m := regexp.MustCompile(c.pattern).FindStringSubmatch(r.body); m == nil || m[1] != modified {
				t.Errorf("%s %s: body %s, X-Last-Modified %s", c.method, c.target, r.body, modified)
			}
		}
		if modified <= last {
			t.Errorf("%s %s: %s after %s", c.method, c.target, modified, last)
		}
		last = modified
	}
}

func TestTheServersTimeIsThatAtWhichTheRequestBeganOrTheNewestItShows(t *testing.T) {
	w := newWorld(t, setup{})
	w.clock.Advance(1234567 * time.Microsecond)
	w.do("GET", "info/collections", "").has("X-Weave-Timestamp", stamp(1230*time.Millisecond))
	// A write is rounded up, so a reader who remembers 1.23 sees what comes later.
	r := w.do("PUT", "storage/col/a", "{}").says(200, stamp(1240*time.Millisecond)).has("X-Weave-Timestamp", stamp(1240*time.Millisecond))
	w.do("GET", "storage/col", "").has("X-Weave-Timestamp", r.body)
	w.do("GET", "storage/col?newer="+stamp(1230*time.Millisecond), "").says(200, `["a"]`)
	w.clock.Advance(time.Hour)
	w.do("GET", "storage/col", "").has("X-Weave-Timestamp", stamp(time.Hour+1230*time.Millisecond)).has("X-Last-Modified", r.body)
}

func TestBackoffIsAskedOfEverybodyOnlyWhenTheOperatorWantsIt(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.Backoff = 90 * time.Second }})
	w.do("PUT", "storage/col/a", "{}").want(200).has("X-Weave-Backoff", "90")
	w.do("GET", "storage/col/nobody", "").want(404).has("X-Weave-Backoff", "90")
	w.do("GET", "storage/col", "").want(200).has("X-Weave-Backoff", "90")
}

func TestTimestampsRiseWhateverTheClockDoes(t *testing.T) {
	for name, move := range map[string]func(w *world, i int){
		"stands still": func(*world, int) {},
		"goes back":    func(w *world, i int) { w.clock.Advance(-time.Duration(i%3) * time.Hour) },
		"jumps":        func(w *world, i int) { w.clock.Set(start.Add(time.Duration(i%7-3) * 5 * time.Hour)) },
		"creeps":       func(w *world, i int) { w.clock.Advance(3 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{})
			last := "0"
			for i := range 200 {
				w.do("GET", "storage/col/a", "")
				r := w.do("PUT", "storage/col/a", fmt.Sprintf(`{"payload":"%d"}`, i)).want(200)
				r.has("X-Weave-Timestamp", r.body).has("X-Last-Modified", r.body)
				if !decimals.MatchString(r.body) || r.body <= last {
					t.Fatalf("PUT %d: %s after %s", i, r.body, last)
				}
				last = r.body
				if got := w.do("GET", "storage/col/a", "").record().Modified.String(); got != r.body {
					t.Fatalf("PUT says %s, GET says %s", r.body, got)
				}
				move(w, i)
			}
			// Across collections and deletes too.
			for i, c := range []struct{ method, target, body string }{
				{"PUT", "storage/other/a", "{}"}, {"POST", "storage/third", "[]"}, {"DELETE", "storage/col/a", ""},
				{"DELETE", "storage/other", ""}, {"DELETE", "storage", ""}, {"PUT", "storage/col/a", "{}"},
			} {
				r := w.do(c.method, c.target, c.body).want(200)
				if got := r.header.Get("X-Last-Modified"); got <= last {
					t.Errorf("%s %s: %s after %s", c.method, c.target, got, last)
				} else {
					last = got
				}
				r.has("X-Weave-Timestamp", last)
				move(w, i)
			}
		})
	}
}

func TestAWriteTellsOneTimeAlthoughTheClockGoesBackDuringIt(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "a", "x")
	w.clock.Advance(time.Hour)
	w.engine.Before(func(_ context.Context, c kvtest.Call) error {
		if c.Op == kvtest.OpGet {
			w.clock.Set(start.Add(time.Minute))
		}
		return nil
	})
	r := w.do("PUT", "storage/col/a", "{}").want(200)
	r.has("X-Weave-Timestamp", r.body).has("X-Last-Modified", r.body)
}

func TestTimestampsInJSONAreNumbersWithTwoDecimals(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "a", "x") // on a whole second
	w.do("PUT", "storage/col/b", `{"sortindex":7}`).want(200)
	at := stamp(0)
	w.do("GET", "info/collections", "").says(200, `{"col":`+stamp(10*time.Millisecond)+`}`)
	if r := w.do("GET", "storage/col/a", ""); !strings.Contains(r.body, `"modified":`+at+`,`) || !strings.HasSuffix(at, ".00") {
		t.Errorf("record is %s", r.body)
	}
	w.do("GET", "storage/col?full=1&sort=oldest", "").says(200,
		`[{"id":"a","modified":`+at+`,"payload":"x"},{"id":"b","modified":`+stamp(10*time.Millisecond)+`,"sortindex":7,"payload":""}]`)
	r := w.do("POST", "storage/col", `[{"id":"c"},{"id":"d","ttl":"x"}]`)
	if !regexp.MustCompile(`^{"modified":[0-9]+\.[0-9][0-9],"success":\["c"\],"failed":{"d":"[^"]+"}}$`).MatchString(r.body) {
		t.Errorf("POST answers %s", r.body)
	}
}

func TestFiltersReadTimesAsDecimals(t *testing.T) {
	w := newWorld(t, setup{})
	w.put("col", "a", "x")
	at := w.put("col", "b", "x") // .01
	for query, want := range map[string]string{
		"newer=" + stamp(0):                  `["b"]`,
		"newer=" + stamp(0) + "9":            `["b"]`, // beyond two decimals: cut
		"newer=" + stamp(0) + "99999999999":  `["b"]`,
		"newer=" + at:                        `[]`,
		"older=" + at:                        `["a"]`,
		"older=" + at + "9":                  `["a"]`,
		"newer=0":                            `["b","a"]`,
		"newer=.5":                           `["b","a"]`,
		"newer=5.":                           `["b","a"]`,
		"newer=%2B5":                         `["b","a"]`,
		"older=1e99":                         `["b","a"]`,
		"newer=99999999999&older=1":          `[]`,
		"newer=" + at + "&older=" + stamp(0): `[]`,
		"newer=" + at + "&older=" + at:       `[]`,
		"newer=0&newer=x":                    `["b","a"]`, // the first counts
	} {
		for _, full := range []string{"", "&sort=newest", "&limit=5"} {
			if r := w.do("GET", "storage/col?"+query+full, ""); r.status != 200 || r.body != want {
				t.Errorf("%s%s: %d %s, want %s", query, full, r.status, r.body, want)
			}
		}
	}
	for _, bad := range []string{"-1", "", "abc", "nan", "inf", "1.2.3", "0x10", "1_0", "%201", "1,5"} {
		w.do("GET", "storage/col?newer="+bad, "").says(400, "0")
		w.do("GET", "storage/col?older="+bad, "").says(400, "0")
	}
}

func TestQuotaHintComesWhenLittleIsLeftOfAnEnforcedQuota(t *testing.T) {
	const quota = 3 << 20
	for _, enforce := range []bool{true, false} {
		w := newWorld(t, setup{quota: quota, enforce: enforce})
		hint := func(s string) string {
			if enforce {
				return s
			}
			return ""
		}
		write := func(n int) reply {
			return w.do("POST", "storage/col", fmt.Sprintf(`[{"id":"r%d","payload":%q}]`, n, strings.Repeat("x", n))).want(200)
		}
		write(2<<20).has("X-Weave-Quota-Remaining", "")          // exactly 1 MiB left
		write(1024).has("X-Weave-Quota-Remaining", hint("1023")) // less
		write(500).has("X-Weave-Quota-Remaining", hint("1022"))  // whole KiB, rounded down
		w.do("PUT", "storage/col/x", `{"payload":"y"}`).has("X-Weave-Quota-Remaining", hint("1022"))
		write(1<<20).has("X-Weave-Quota-Remaining", hint("0")) // overshoots
		w.do("GET", "storage/col", "").has("X-Weave-Quota-Remaining", "")
	}
}
