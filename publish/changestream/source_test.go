package changestream_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/publish"
	"github.com/holdfast-dev/holdfast/publish/changestream"
	"github.com/holdfast-dev/holdfast/publish/changestream/streamtest"
)

func options() changestream.Options {
	return changestream.Options{Database: streamtest.Database, Stream: streamtest.Stream, Clock: clock.System{}}
}

func open(t testing.TB, s *streamtest.Server, opts changestream.Options) *changestream.Source {
	t.Helper()
	src, err := changestream.Open(t.Context(), opts, s.Client()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

// topic keeps what is published.
type topic struct {
	mu       sync.Mutex
	messages []string
}

func (p *topic) Publish(_ context.Context, messages [][]byte) ([][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		p.messages = append(p.messages, string(m))
	}
	return nil, nil
}

func (p *topic) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.messages)
}

// links returns the new links of all messages, in order.
func (p *topic) links() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var links []string
	for _, m := range p.messages {
		r, err := changes.Decode([]byte(m))
		if err != nil {
			panic(err)
		}
		for _, mod := range r.Mods {
			links = append(links, mod.New)
		}
	}
	return links
}

// publisher runs one on src until the test ends or stop is called.
func publisher(t testing.TB, src publish.Source, to publish.Topic, file string) (stop func() error) {
	t.Helper()
	p := publish.New(src, to, publish.OpenFile(file, "stream"), publish.Options{Clock: clock.System{}, SaveEvery: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func insert(key string, n int) streamtest.Change {
	return streamtest.Change{Table: "bsos", ModType: "INSERT", Mods: []streamtest.Mod{{
		Keys: `{"fxa_uid":"` + key + `"}`, Old: "{}", New: fmt.Sprintf(`{"payload_link":"gs://B/%s/%d"}`, key, n),
	}}}
}

// R9, R10
func TestRecordsBecomeMessagesInEveryForm(t *testing.T) {
	for _, c := range []struct{ parsed, shuffled bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			s := streamtest.New(t)
			s.ParsedJSON, s.Shuffled = c.parsed, c.shuffled
			at := s.Commit(streamtest.Change{
				Table: "batch_bsos", ModType: "UPDATE", Tag: "batch_commit", System: true,
				Mods: []streamtest.Mod{
					{Keys: `{"bso_id":"x","collection_id":"7"}`, Old: `{"payload_link":"gs://B/a"}`, New: `{"payload_link":"gs://B/b"}`},
					{Keys: `{"collection_id":7}`, Old: `{"payload_link":null}`, New: ""},
					{Keys: `{}`, Old: `{oops`, New: `[]`},
				},
			})
			s.Commit(streamtest.Change{Table: "bsos", ModType: "INSERT", Mods: []streamtest.Mod{{Keys: "{}", Old: "{}", New: `{"payload_link":null}`}}})
			to := &topic{}
			publisher(t, open(t, s, options()), to, filepath.Join(t.TempDir(), "p"))
			wait(t, "a message", func() bool { return len(to.all()) > 0 })
			want := `{"commitTimestamp":"` + at.UTC().Format("2006-01-02T15:04:05.000000000Z") + `","modType":"UPDATE","tableName":"batch_bsos",` +
				`"transactionTag":"batch_commit","isSystemTransaction":true,"mods":[` +
				`{"keys":"{\"bso_id\":\"x\",\"collection_id\":\"7\"}","oldValues":"{\"payload_link\":\"gs://B/a\"}","newValues":"{\"payload_link\":\"gs://B/b\"}"},` +
				`{"keys":"{\"collection_id\":7}","oldValues":"{\"payload_link\":null}","newValues":"{}"},` +
				`{"keys":"{}","oldValues":"{oops","newValues":"[]"}]}`
			if d := cmp.Diff([]string{want}, to.all(), cmp.Transformer("spaces", func(s string) string {
				return strings.NewReplacer(`\": `, `\":`, `, \"`, `,\"`).Replace(s) // the parser may put spaces
			})); d != "" {
				t.Error("-want +got\n" + d)
			}
		})
	}
}

func TestSplitsMergesAndBrokenStreamsLoseNothing(t *testing.T) {
	s := streamtest.New(t)
	var messages atomic.Int64
	s.Fault = func(string, int) error {
		switch n := messages.Add(1); {
		case n%7 == 0:
			return status.Error(codes.Unavailable, "the client resumes by itself")
		case n%31 == 0:
			return status.Error(codes.Aborted, "the client does not")
		}
		return nil
	}
	to := &topic{}
	file := filepath.Join(t.TempDir(), "p")
	stop := publisher(t, open(t, s, options()), to, file)
	const keys = 8
	n := 0
	commit := func() {
		for range 5 {
			for k := range keys {
				s.Commit(insert(fmt.Sprint("u", k), n))
			}
			n++
		}
	}
	for range 3 {
		commit()
		s.Split(s.Living()[0], 3)
		commit()
		s.Merge(s.Living()[:2]...)
		commit()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		commit()
		s.Split(s.Living()[0], 2)
		stop = publisher(t, open(t, s, options()), to, file)
	}
	wait(t, "everything", func() bool {
		links := to.links()
		for k := range keys {
			if !slices.Contains(links, fmt.Sprintf("gs://B/u%d/%d", k, n-1)) {
				return false
			}
		}
		return true
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	for _, l := range to.links() {
		key, number, _ := strings.Cut(strings.TrimPrefix(l, "gs://B/"), "/")
		var i int
		fmt.Sscan(number, &i)
		if i > next[key] {
			t.Fatalf("%s: %d is published before %d", key, i, next[key])
		}
		if i == next[key] {
			next[key]++
		}
	}
	for k, got := range next {
		if got != n {
			t.Errorf("%s: %d of %d changes", k, got, n)
		}
	}
}

func TestQueriesAreWhatSpannerWants(t *testing.T) {
	s := streamtest.New(t)
	s.Role = "payload_link_reader"
	var mu sync.Mutex
	var seen []*sppb.ExecuteSqlRequest
	deadlines := 0
	s.Seen = func(r *sppb.ExecuteSqlRequest, ctx context.Context) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r)
		if _, ok := ctx.Deadline(); ok && r.Params.Fields["partition_token"].GetStringValue() != "" {
			deadlines++
		}
	}
	opts := options()
	opts.Role, opts.Priority = s.Role, "low"
	to := &topic{}
	publisher(t, open(t, s, opts), to, filepath.Join(t.TempDir(), "p"))
	s.Commit(insert("u", 0))
	wait(t, "a message", func() bool { return len(to.links()) > 0 })
	mu.Lock()
	defer mu.Unlock()
	if deadlines > 0 {
		t.Error("a query has a deadline")
	}
	for _, r := range seen {
		if r.RequestOptions.GetPriority() != sppb.RequestOptions_PRIORITY_LOW {
			t.Errorf("priority %v", r.RequestOptions.GetPriority())
		}
	}
	last := seen[len(seen)-1]
	if got := last.Params.Fields["heartbeat_milliseconds"].GetStringValue(); got != "1000" {
		t.Errorf("heartbeat %q", got)
	}
	if _, null := last.Params.Fields["end_timestamp"].GetKind().(*structpb.Value_NullValue); !null {
		t.Error("the end is not NULL")
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		server func(*streamtest.Server)
		opts   func(*changestream.Options)
		says   string
	}{
		{"without old values", func(s *streamtest.Server) { s.StreamOptions["value_capture_type"] = "NEW_ROW" }, nil, "value_capture_type is NEW_ROW"},
		{"without expiries", func(s *streamtest.Server) { s.StreamOptions["exclude_ttl_deletes"] = "TRUE" }, nil, "exclude_ttl_deletes"},
		{"without deletes", func(s *streamtest.Server) { s.StreamOptions["exclude_delete"] = "true" }, nil, "exclude_delete"},
		{"without inserts", func(s *streamtest.Server) { s.StreamOptions["exclude_insert"] = "true" }, nil, "exclude_insert"},
		{"without updates", func(s *streamtest.Server) { s.StreamOptions["exclude_update"] = "true" }, nil, "exclude_update"},
		{"with excluded writers", func(s *streamtest.Server) { s.StreamOptions["allow_txn_exclusion"] = "true" }, nil, "allow_txn_exclusion"},
		{"no role", func(s *streamtest.Server) { s.Role = "reader" }, nil, "no SELECT"},
		{"wrong role", func(s *streamtest.Server) { s.Role = "reader" }, func(o *changestream.Options) { o.Role = "other" }, "no SELECT"},
		{"no such stream", nil, func(o *changestream.Options) { o.Stream = "nothing" }, "no such change stream"},
		{"no such database", nil, func(o *changestream.Options) { o.Database += "2" }, "Database not found"},
		{"malformed database", nil, func(o *changestream.Options) { o.Database = "test" }, "is not a database"},
		{"malformed stream", nil, func(o *changestream.Options) { o.Stream = "x(); DROP" }, "cannot be the name"},
		{"unknown priority", nil, func(o *changestream.Options) { o.Priority = "urgent" }, "unknown priority"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, opts := streamtest.New(t), options()
			if c.server != nil {
				c.server(s)
			}
			if c.opts != nil {
				c.opts(&opts)
			}
			_, err := changestream.Open(t.Context(), opts, s.Client()...)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
	s := streamtest.New(t)
	s.StreamOptions["exclude_ttl_deletes"] = "false"
	open(t, s, options())
}

func TestOldestIsTheCreationOrTheRetention(t *testing.T) {
	s := streamtest.New(t)
	src := open(t, s, options())
	got, err := src.Oldest(t.Context())
	if err != nil || got.Before(s.Created()) || got.After(s.Created().Add(time.Millisecond)) {
		t.Errorf("oldest %v, %v, want %v", got, err, s.Created())
	}
	s.Recreate(time.Now().Add(-30 * 24 * time.Hour))
	got, err = src.Oldest(t.Context())
	if age := time.Since(got); err != nil || age > 7*24*time.Hour || age < 7*24*time.Hour-2*time.Minute {
		t.Errorf("oldest is %v old, %v", age, err)
	}
}

func TestChangesFromBeforeThePublisherArePublished(t *testing.T) {
	s := streamtest.New(t)
	s.Commit(insert("u", 0))
	s.Split(s.Living()[0], 2)
	s.Commit(insert("u", 1))
	to := &topic{}
	publisher(t, open(t, s, options()), to, filepath.Join(t.TempDir(), "p"))
	wait(t, "both", func() bool { return len(to.links()) == 2 })
}

// R6
func TestPositionOlderThanTheRetentionIsLost(t *testing.T) {
	s := streamtest.New(t)
	file, to := filepath.Join(t.TempDir(), "p"), &topic{}
	src := open(t, s, options())
	stop := publisher(t, src, to, file)
	s.Commit(insert("u", 0))
	wait(t, "a message", func() bool { return len(to.links()) == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s.Recreate(time.Now())
	p := publish.New(src, to, publish.OpenFile(file, "stream"), publish.Options{Clock: clock.System{}})
	if err := p.Run(t.Context()); !errors.Is(err, publish.ErrLost) {
		t.Errorf("Run: %v, want ErrLost", err)
	}
}

func TestRepeatedResumeTokenDelaysOnly(t *testing.T) {
	s := streamtest.New(t)
	s.OneResumeToken = true
	to := &topic{}
	publisher(t, open(t, s, options()), to, filepath.Join(t.TempDir(), "p"))
	for i := range 5 {
		s.Commit(insert("u", i))
	}
	s.Split(s.Living()[0], 2)
	wait(t, "all that came before the split", func() bool { return len(to.links()) == 5 })
}

func TestErrorsOfTheHandlerEndTheRead(t *testing.T) {
	s := streamtest.New(t)
	src, broken := open(t, s, options()), errors.New("handler")
	err := src.Read(t.Context(), publish.Query{Start: time.Now(), Heartbeat: time.Second}, func(publish.Event) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	for token, want := range map[string]error{"unknown": publish.ErrRefused, s.Living()[0]: publish.ErrOutOfRange} {
		q := publish.Query{Token: token, Start: time.Now(), Heartbeat: time.Millisecond}
		if token == "unknown" {
			q.Heartbeat = time.Second
		}
		if err := src.Read(t.Context(), q, func(publish.Event) error { return nil }); !errors.Is(err, want) {
			t.Errorf("partition %q: %v, want %v", token, err, want)
		}
	}
}
