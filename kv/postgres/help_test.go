package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

func testStart() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func open(tb testing.TB, o postgres.Options) *postgres.Engine {
	tb.Helper()
	e, err := postgres.Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = e.Close() })
	return e
}

// openShared opens an engine in a schema of its own on the shared server.
func openShared(tb testing.TB, o postgres.Options) (*postgres.Engine, postgres.Options) {
	tb.Helper()
	if o.URL == "" {
		o.URL = pgtest.Shared(tb).URL()
	}
	if o.Schema == "" {
		o.Schema = pgtest.NewSchema()
	}
	return open(tb, o), o
}

func feedOptions() kv.SpaceOptions {
	return kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour}
}

func create(tb testing.TB, e *postgres.Engine, name string, o kv.SpaceOptions) {
	tb.Helper()
	if err := e.CreateSpace(tb.Context(), name, o); err != nil {
		tb.Fatal(err)
	}
}

func put(space, key, value string) kv.Write {
	return kv.Write{Space: space, Key: []byte(key), Value: []byte(value)}
}

func fed(w kv.Write, entry string) kv.Write {
	w.Feed = []byte(entry)
	return w
}

func commit(tb testing.TB, e *postgres.Engine, writes ...kv.Write) kv.Version {
	tb.Helper()
	v, err := e.Commit(tb.Context(), &kv.Txn{Writes: writes})
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func get(tb testing.TB, e *postgres.Engine, space, key string) kv.Row {
	tb.Helper()
	rows, err := e.Get(tb.Context(), []kv.Ref{{Space: space, Key: []byte(key)}})
	if err != nil {
		tb.Fatal(err)
	}
	return rows[0]
}

// entries reads a feed of one shard from the beginning.
func entries(tb testing.TB, e *postgres.Engine, space string) []string {
	tb.Helper()
	all, err := e.ReadFeed(tb.Context(), space, 0, "", 1000)
	if err != nil {
		tb.Fatal(err)
	}
	var data []string
	for _, entry := range all {
		data = append(data, string(entry.Data))
	}
	return data
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			tb.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// session is a connection beside the engine's.
type session struct {
	tb   testing.TB
	conn *pgx.Conn
}

func connect(tb testing.TB, url string) session {
	tb.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	return connectConfig(tb, config)
}

func connectConfig(tb testing.TB, config *pgx.ConnConfig) session {
	tb.Helper()
	conn, err := pgx.ConnectConfig(tb.Context(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return session{tb, conn}
}

func (s session) exec(sql string, args ...any) {
	s.tb.Helper()
	if _, err := s.conn.Exec(s.tb.Context(), sql, args...); err != nil {
		s.tb.Fatal(err)
	}
}

func (s session) number(sql string, args ...any) (n int64) {
	s.tb.Helper()
	if err := s.conn.QueryRow(s.tb.Context(), sql, args...).Scan(&n); err != nil {
		s.tb.Fatal(err)
	}
	return n
}

// waiting counts the sessions that wait for a lock while they work on a schema.
func (s session) waiting(schema string) int64 {
	s.tb.Helper()
	return s.number("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%'||$1||'%'", `"`+schema+`"`)
}

func wantErr(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Fatalf("error = %v, want %v", err, want)
	}
}

func manual() *clock.Manual { return clock.NewManual(testStart()) }

// testRest is longer than a standby is left alone.
const testRest = time.Minute
