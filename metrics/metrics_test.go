package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// page returns what Prometheus would read from r, without comments.
func page(t *testing.T, r *Registry) string {
	t.Helper()
	rec := httptest.NewRecorder()
	r.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("scrape: status %d, body %s", rec.Code, rec.Body)
	}
	var out strings.Builder
	for line := range strings.Lines(rec.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func wantLines(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+page, "\n"+l+"\n") {
			t.Errorf("scrape has no line %q; related:\n%s", l, related(page, l))
		}
	}
}

func related(page, line string) string {
	name, _, _ := strings.Cut(line, "{")
	name, _, _ = strings.Cut(name, " ")
	var out strings.Builder
	for l := range strings.Lines(page) {
		if strings.HasPrefix(l, name) {
			out.WriteString("\t" + l)
		}
	}
	return out.String()
}

func noMistakes(t *testing.T, r *Registry) {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Errorf("Err: %v", err)
	}
}

func TestEachKindIsRenderedForPrometheus(t *testing.T) {
	r := New()
	sync15 := r.Group("syncstorage")
	sync15.Counter("request.get_bso", "tokenserver_origin").Add(2, "rust")
	sync15.Counter("storage.conflict")
	sync15.Gauge("storage.pool.connections.active").Set(7.5)
	sync15.Group("tokenserver").Timer("token_verification", "token_type").Observe(30*time.Millisecond, "oauth")
	queue := r.Group("holdfast.queue")
	queue.GaugeFunc("oldest_unacked_message_age", func(set func(float64, ...string)) {
		set(1, "db", "q1")
		set(2, "db", "q2")
		set(3, "db", "q2") // the last word counts
	}, "database", "queue")
	wantLines(t, page(t, r),
		`syncstorage_request_get_bso_total{tokenserver_origin="rust"} 2`,
		`syncstorage_storage_conflict_total 0`,
		`syncstorage_storage_pool_connections_active 7.5`,
		`syncstorage_tokenserver_token_verification_seconds_bucket{token_type="oauth",le="0.025"} 0`,
		`syncstorage_tokenserver_token_verification_seconds_bucket{token_type="oauth",le="0.05"} 1`,
		`syncstorage_tokenserver_token_verification_seconds_bucket{token_type="oauth",le="+Inf"} 1`,
		`syncstorage_tokenserver_token_verification_seconds_sum{token_type="oauth"} 0.03`,
		`syncstorage_tokenserver_token_verification_seconds_count{token_type="oauth"} 1`,
		`holdfast_queue_oldest_unacked_message_age{database="db",queue="q1"} 1`,
		`holdfast_queue_oldest_unacked_message_age{database="db",queue="q2"} 3`,
	)
	noMistakes(t, r)
}

func TestTimerBucketsIncludeTheirUpperEnd(t *testing.T) {
	r := New()
	timer := r.Timer("finalize_age")
	for _, d := range bounds {
		timer.Observe(d)
	}
	timer.Observe(100 * time.Hour)
	timer.Observe(-time.Second)
	got := page(t, r)
	for i, b := range bounds {
		wantLines(t, got, fmt.Sprintf(`finalize_age_seconds_bucket{le="%v"} %d`, b.Seconds(), i+1))
	}
	wantLines(t, got, fmt.Sprintf("finalize_age_seconds_count %d", len(bounds)+1))
}

func TestSameDeclarationGivesTheSameHandle(t *testing.T) {
	r := New()
	g := r.Group("a")
	if g.Counter("c", "x") != r.Counter("a.c", "x") {
		t.Error("two handles for one counter")
	}
	if g.Gauge("g") != r.Gauge("a.g") {
		t.Error("two handles for one gauge")
	}
	if g.Timer("t") != r.Timer("a.t") {
		t.Error("two handles for one timer")
	}
	noMistakes(t, r)
}

func TestMistakesAreReportedAndHarmless(t *testing.T) {
	cases := []struct {
		name string
		do   func(r *Registry)
		want string
	}{
		{"other tags", func(r *Registry) { r.Counter("a", "x"); r.Counter("a", "y").Add(1, "v") }, `a: declared with tags ["x"] and with tags ["y"]`},
		{"other kind", func(r *Registry) { r.Counter("a"); r.Gauge("a").Set(1) }, "a: declared as counter and as gauge"},
		{"same Prometheus name", func(r *Registry) { r.Timer("a.b"); r.Timer("a_b").Observe(1) }, "same Prometheus name a_b_seconds as a.b"},
		{"name of a timer's part", func(r *Registry) { r.Timer("a"); r.Gauge("a_seconds.count").Set(1) }, "same Prometheus name a_seconds_count as a"},
		{"two functions", func(r *Registry) { r.GaugeFunc("a", nothing); r.GaugeFunc("a", nothing) }, "a: two functions for one gauge"},
		{"empty name", func(r *Registry) { r.Counter("").Add(1) }, "not a dotted name"},
		{"name with a space", func(r *Registry) { r.Counter("a b").Add(1) }, "not a dotted name"},
		{"name that ends in a dot", func(r *Registry) { r.Counter("a.").Add(1) }, "not a dotted name"},
		{"too many tags", func(r *Registry) { r.Counter("a", "b", "c", "d", "e", "f") }, "5 tags, at most 4"},
		{"tag twice", func(r *Registry) { r.Counter("a", "b", "b") }, `tag key "b" twice`},
		{"tag of histograms", func(r *Registry) { r.Timer("a", "le") }, `impossible tag key "le"`},
		{"tag with a colon", func(r *Registry) { r.Timer("a", "x:y") }, `impossible tag key "x:y"`},
		{"too few values", func(r *Registry) { r.Counter("a", "x", "y").Add(1, "v") }, `a: 1 values for the tags ["x" "y"]`},
		{"too many values", func(r *Registry) { r.Timer("a").Observe(1, "v") }, `a: 1 values for the tags []`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := New()
			r.Counter("fine").Add(1)
			c.do(r)
			if err := r.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Err = %v, want it to say %q", err, c.want)
			}
			wantLines(t, page(t, r), "fine_total 1")
		})
	}
}

func nothing(func(float64, ...string)) {}

func TestNilRegistryAndHandlesDoNothing(t *testing.T) {
	var r *Registry
	g := r.Group("x")
	g.Counter("c", "tag").Add(1, "v")
	g.Gauge("g").Set(1)
	g.Timer("t").Observe(1)
	g.GaugeFunc("f", func(func(float64, ...string)) { t.Error("called") })
	noMistakes(t, r)
	rec := httptest.NewRecorder()
	r.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	if rec.Code != 404 {
		t.Errorf("scrape of a nil registry: status %d, want 404", rec.Code)
	}
}

func TestSeriesAreBoundedWhateverUsersSend(t *testing.T) {
	r := New()
	c := r.Counter("c", "collection", "result")
	for i := range 3 * maxSeries {
		c.Add(1, fmt.Sprint(i), "ok")
		c.Add(1, "0", "ok") // known before the bound: stays itself
	}
	c.Add(5, "other", "other")
	if n := len(*c.series.Load()); n != maxSeries+1 {
		t.Errorf("%d series, want %d", n, maxSeries+1)
	}
	wantLines(t, page(t, r),
		fmt.Sprintf(`c_total{collection="0",result="ok"} %d`, 3*maxSeries+1),
		fmt.Sprintf(`c_total{collection="other",result="other"} %d`, 2*maxSeries+5))
}

func TestHostileTagValuesAreCleaned(t *testing.T) {
	r := New()
	c := r.Counter("c", "v")
	long := strings.Repeat("é", 100)
	for _, v := range []string{"a\xffb", "a|b", "a,b", "a\nb"} {
		c.Add(1, v)
	}
	c.Add(1, long)
	c.Add(1, "a_b")
	wantLines(t, page(t, r),
		`c_total{v="a_b"} 5`,
		`c_total{v="`+strings.Repeat("é", maxValueBytes/2)+`"} 1`)
	noMistakes(t, r)
}

func TestCountersIgnoreNegativeNumbers(t *testing.T) {
	r := New()
	c := r.Counter("c")
	c.Add(3)
	c.Add(-2)
	wantLines(t, page(t, r), "c_total 3")
}

func TestConcurrentUseLosesNothing(t *testing.T) {
	const goroutines, rounds = 8, 2000
	r := New()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds {
				r.Counter("c", "v").Add(1, fmt.Sprint(i%20))
				r.Timer("t").Observe(time.Duration(i) * time.Microsecond)
				r.Gauge("g", "w").Set(float64(i), fmt.Sprint(g))
				if i%500 == 0 {
					page(t, r)
				}
			}
		})
	}
	wg.Wait()
	got := page(t, r)
	for v := range 20 {
		wantLines(t, got, fmt.Sprintf(`c_total{v="%d"} %d`, v, goroutines*rounds/20))
	}
	wantLines(t, got, fmt.Sprintf("t_seconds_count %d", goroutines*rounds))
	noMistakes(t, r)
}

func TestObservationsDoNotAllocate(t *testing.T) {
	r := New()
	c, g, timer := r.Counter("c", "a", "b"), r.Gauge("g", "a"), r.Timer("t", "a")
	collection := strings.Repeat("bookmarks", 1)
	observe := func() {
		c.Add(1, collection, "ok")
		g.Set(1, collection)
		timer.Observe(time.Millisecond, collection)
	}
	if n := testing.AllocsPerRun(1000, observe); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkCounterWithoutTags(b *testing.B) {
	c := New().Counter("c")
	b.ReportAllocs()
	for b.Loop() {
		c.Add(1)
	}
}

func BenchmarkCounterWithTwoTags(b *testing.B) {
	c := New().Counter("c", "a", "b")
	b.ReportAllocs()
	for b.Loop() {
		c.Add(1, "bookmarks", "success")
	}
}

func BenchmarkTimer(b *testing.B) {
	t := New().Timer("t", "result")
	b.ReportAllocs()
	for b.Loop() {
		t.Observe(3*time.Millisecond, "success")
	}
}

func BenchmarkTimerParallel(b *testing.B) {
	t := New().Timer("t", "result")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			t.Observe(3*time.Millisecond, "success")
		}
	})
}
