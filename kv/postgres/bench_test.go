package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

// The benchmarks measure the engine ("engine") against the plainest statement that
// does about the same without any promise ("bare"), both on a server on this
// machine that syncs its log to disk:
//
//	go test -run - -bench . -cpu 2 ./kv/postgres

const benchRows = 100_000

func benchKey(i uint64) []byte { return fmt.Appendf(nil, "user-%012d", i) }

func benchValue(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func benchEngine(b *testing.B) *postgres.Engine {
	b.Helper()
	e, _ := openShared(b, postgres.Options{PoolSize: 64})
	create(b, e, "s", kv.SpaceOptions{})
	return e
}

// benchPool is a pool of connections beside an engine's, with a table of its own.
func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	config, err := pgxpool.ParseConfig(pgtest.Shared(b).URL())
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	if _, err := pool.Exec(b.Context(), "drop table if exists bare; create table bare (key bytea primary key, value bytea)"); err != nil {
		b.Fatal(err)
	}
	return pool
}

// fill writes benchRows rows of 1 KB.
func fill(b *testing.B, e *postgres.Engine) {
	b.Helper()
	value := benchValue(1000)
	for i := uint64(0); i < benchRows; {
		var writes []kv.Write
		for range 1000 {
			writes = append(writes, kv.Write{Space: "s", Key: benchKey(i), Value: value})
			i++
		}
		commit(b, e, writes...)
	}
}

// parallelism is how many goroutines a benchmark with 64 writers needs for each
// processor of -cpu 2.
const parallelism = 32

func BenchmarkCommit(b *testing.B) {
	value := benchValue(1000)
	b.Run("engine", func(b *testing.B) {
		e := benchEngine(b)
		var n atomic.Uint64
		b.SetParallelism(parallelism)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				k := benchKey(n.Add(1))
				_, err := e.Commit(context.Background(), &kv.Txn{
					Checks: []kv.Check{{Space: "s", Key: k}},
					Writes: []kv.Write{{Space: "s", Key: k, Value: value}},
				})
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	b.Run("bare", func(b *testing.B) {
		pool := benchPool(b)
		var n atomic.Uint64
		b.SetParallelism(parallelism)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := pool.Exec(context.Background(), "insert into bare values ($1, $2)", benchKey(n.Add(1)), value); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkCommitSpaces writes to five spaces, one of them with a feed, as a request
// of a protocol does.
func BenchmarkCommitSpaces(b *testing.B) {
	e := benchEngine(b)
	create(b, e, "fed", feedOptions())
	for i := range 4 {
		create(b, e, fmt.Sprint("s", i), kv.SpaceOptions{})
	}
	value := benchValue(300)
	var n atomic.Uint64
	b.SetParallelism(parallelism)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			k := benchKey(n.Add(1))
			t := &kv.Txn{Writes: []kv.Write{{Space: "fed", Key: k, Value: value, Feed: value}}}
			for i := range 4 {
				t.Checks = append(t.Checks, kv.Check{Space: fmt.Sprint("s", i), Key: k})
				t.Writes = append(t.Writes, kv.Write{Space: fmt.Sprint("s", i), Key: k, Value: value})
			}
			if _, err := e.Commit(context.Background(), t); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	e := benchEngine(b)
	fill(b, e)
	b.Run("engine", func(b *testing.B) {
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				refs := []kv.Ref{{Space: "s", Key: benchKey(rand.Uint64N(benchRows))}}
				if rows, err := e.Get(context.Background(), refs); err != nil || !rows[0].Exists() {
					b.Error(rows, err)
					return
				}
			}
		})
	})
	b.Run("bare", func(b *testing.B) {
		pool := benchPool(b)
		if _, err := pool.Exec(b.Context(), fmt.Sprintf("insert into bare select convert_to('user-' || lpad(i::text, 12, '0'), 'UTF8'), decode(repeat('5a', 1000), 'hex') from generate_series(0, %d) i", benchRows-1)); err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			var value []byte
			for pb.Next() {
				if err := pool.QueryRow(context.Background(), "select value from bare where key = $1", benchKey(rand.Uint64N(benchRows))).Scan(&value); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func BenchmarkScan1000(b *testing.B) {
	e := benchEngine(b)
	fill(b, e)
	const rows = 1000
	for _, reverse := range []bool{false, true} {
		b.Run(map[bool]string{false: "forward", true: "reverse"}[reverse], func(b *testing.B) {
			for b.Loop() {
				seen := 0
				start := rand.Uint64N(benchRows - rows)
				r := kv.Range{Start: benchKey(start), End: benchKey(start + rows), Reverse: reverse}
				err := e.Scan(context.Background(), "s", r, func(kv.Row) bool { seen++; return true })
				if err != nil || seen != rows {
					b.Fatal(seen, err)
				}
			}
		})
	}
}

// BenchmarkUpload commits 100 rows of 20 KB at once from 4 goroutines, as a client
// does that sends 2 MB requests.
func BenchmarkUpload(b *testing.B) {
	const rows, size = 100, 20_000
	value := benchValue(size)
	e := benchEngine(b)
	var n atomic.Uint64
	b.SetBytes(rows * size)
	b.SetParallelism(2)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			t := &kv.Txn{}
			for range rows {
				t.Writes = append(t.Writes, kv.Write{Space: "s", Key: benchKey(rand.Uint64() + n.Add(1)), Value: value})
			}
			if _, err := e.Commit(context.Background(), t); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
