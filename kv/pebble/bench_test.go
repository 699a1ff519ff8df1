package pebble

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-dev/holdfast/kv"
)

// The benchmarks measure the engine ("engine") against Pebble itself under the
// same options ("bare"), both with a synced log on a real disk:
//
//	go test -run - -bench . -cpu 2 ./kv/pebble

const benchRows = 100_000

func benchKey(i uint64) []byte { return fmt.Appendf(nil, "user-%012d", i) }

func benchValue(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func benchEngine(b *testing.B) *Engine {
	b.Helper()
	ctx := context.Background()
	e, err := Open(ctx, b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	if err := e.CreateSpace(ctx, "s", kv.SpaceOptions{}); err != nil {
		b.Fatal(err)
	}
	return e
}

// fill writes benchRows rows of 1 KB and brings them to disk.
func fill(b *testing.B, e *Engine) {
	b.Helper()
	value := benchValue(1000)
	for i := uint64(0); i < benchRows; {
		t := &kv.Txn{}
		for range 1000 {
			t.Writes = append(t.Writes, kv.Write{Space: "s", Key: benchKey(i), Value: value})
			i++
		}
		if _, err := e.Commit(context.Background(), t); err != nil {
			b.Fatal(err)
		}
	}
	if err := e.db.Flush(); err != nil {
		b.Fatal(err)
	}
}

// parallelism is how many goroutines a benchmark with 64 writers needs for each
// processor of -cpu 2.
const parallelism = 32

func BenchmarkCommit(b *testing.B) {
	value := benchValue(1000)
	ctx := context.Background()
	b.Run("engine", func(b *testing.B) {
		e := benchEngine(b)
		var n atomic.Uint64
		b.SetParallelism(parallelism)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				k := benchKey(n.Add(1))
				_, err := e.Commit(ctx, &kv.Txn{
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
		e := benchEngine(b)
		var n atomic.Uint64
		b.SetParallelism(parallelism)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				batch := e.db.NewBatch()
				_ = batch.Set(benchKey(n.Add(1)), value, nil)
				if err := e.db.Apply(batch, pebbledb.Sync); err != nil {
					b.Error(err)
					return
				}
				_ = batch.Close()
			}
		})
	})
}

func BenchmarkGet(b *testing.B) {
	ctx := context.Background()
	e := benchEngine(b)
	fill(b, e)
	s, _ := e.space("s")
	b.Run("engine", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				refs := []kv.Ref{{Space: "s", Key: benchKey(rand.Uint64N(benchRows))}}
				if rows, err := e.Get(ctx, refs); err != nil || !rows[0].Exists() {
					b.Error(rows, err)
					return
				}
			}
		})
	})
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				key := append(append(make([]byte, 0, 64), s.rows...), benchKey(rand.Uint64N(benchRows))...)
				v, closer, err := e.db.Get(key)
				if err != nil {
					b.Error(err)
					return
				}
				_ = append([]byte(nil), v...)
				_ = closer.Close()
			}
		})
	})
}

// BenchmarkGetMany reads several rows at once, whose keys are neighbours or lie
// apart, and as many that do not exist.
func BenchmarkGetMany(b *testing.B) {
	ctx := context.Background()
	e := benchEngine(b)
	fill(b, e)
	for _, n := range []int{2, 5, 100} {
		for name, key := range map[string]func(first, i uint64) []byte{
			"neighbours": func(first, i uint64) []byte { return benchKey(first + i) },
			"apart":      func(first, i uint64) []byte { return benchKey((first + i*benchRows/100) % benchRows) },
			"absent":     func(first, i uint64) []byte { return append(benchKey((first+i*benchRows/100)%benchRows), '-') },
		} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				refs := make([]kv.Ref, n)
				for b.Loop() {
					first := rand.Uint64N(benchRows - 100)
					for i := range refs {
						refs[i] = kv.Ref{Space: "s", Key: key(first, uint64(i))}
					}
					if _, err := e.Get(ctx, refs); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkScan1000(b *testing.B) {
	ctx := context.Background()
	e := benchEngine(b)
	fill(b, e)
	s, _ := e.space("s")
	const rows = 1000
	for _, reverse := range []bool{false, true} {
		name := "forward"
		if reverse {
			name = "reverse"
		}
		b.Run(name+"/engine", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				seen := 0
				start := rand.Uint64N(benchRows - rows)
				r := kv.Range{Start: benchKey(start), End: benchKey(start + rows), Reverse: reverse}
				err := e.Scan(ctx, "s", r, func(kv.Row) bool { seen++; return true })
				if err != nil || seen != rows {
					b.Fatal(seen, err)
				}
			}
		})
		b.Run(name+"/bare", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				seen := 0
				start := rand.Uint64N(benchRows - rows)
				lower, upper := s.bounds(kv.Range{Start: benchKey(start), End: benchKey(start + rows)})
				it, err := e.db.NewIter(&pebbledb.IterOptions{LowerBound: lower, UpperBound: upper})
				if err != nil {
					b.Fatal(err)
				}
				first, next := it.First, it.Next
				if reverse {
					first, next = it.Last, it.Prev
				}
				for ok := first(); ok; ok = next() {
					if v, err := it.ValueAndErr(); err != nil || len(v) < 1000 {
						b.Fatal(len(v), err)
					}
					seen++
				}
				if err := it.Close(); err != nil || seen != rows {
					b.Fatal(seen, err)
				}
			}
		})
	}
}

// BenchmarkUpload commits 100 rows of 20 KB at once from 4 goroutines, as a
// client does that sends 2 MB requests. Run it for some seconds, so that flushes
// and compactions take part.
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
