package fs

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
)

// callers runs fn for 0 … b.N-1 in n goroutines.
func callers(b *testing.B, n int, fn func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

// benchName spreads objects like records of a few users' collections.
func benchName(users, i int) string {
	return fmt.Sprintf("user%d/bookmarks/record%d/7c9e6679-7425-40de-944b-e07fc1f90ae7", i%users, i)
}

func BenchmarkPut20KB(b *testing.B) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1280)
	for _, users := range []int{1, 100} {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("users=%d/callers=%d", users, n), func(b *testing.B) {
				s := blob.New(openTest(b, b.TempDir()), blob.Options{})
				b.SetBytes(int64(len(content)))
				callers(b, n, func(i int) error {
					return s.Put(b.Context(), benchName(users, i), bytes.NewReader(content), int64(len(content)))
				})
			})
		}
	}
}

func BenchmarkFinalize(b *testing.B) {
	for _, users := range []int{1, 100} {
		for _, n := range []int{1, 16, 32} {
			b.Run(fmt.Sprintf("users=%d/callers=%d", users, n), func(b *testing.B) {
				d := openTest(b, b.TempDir())
				s := blob.New(d, blob.Options{})
				fillUnsynced(b, d, func(i int) string { return benchName(users, i) })
				callers(b, n, func(i int) error {
					found, err := s.Finalize(b.Context(), benchName(users, i))
					if err == nil && !found {
						err = blob.ErrNotFound
					}
					return err
				})
			})
		}
	}
}

// fillUnsynced makes b.N small objects without waiting for the disk.
func fillUnsynced(b *testing.B, d *Driver, name func(int) string) {
	b.Helper()
	buf := make([]byte, headerLen)
	header{}.put(buf)
	temp := d.tmp + "/bench"
	for i := range b.N {
		f, err := d.disk.create(temp + strconv.Itoa(i))
		if err == nil {
			_, err = f.Write(buf)
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			_, err = d.place(b.Context(), name(i), f.Name())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet20KB(b *testing.B) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1280)
	s := blob.New(openTest(b, b.TempDir()), blob.Options{})
	if err := s.Put(b.Context(), "a/b/c", bytes.NewReader(content), int64(len(content))); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(content)))
	callers(b, 8, func(int) error {
		r, _, err := s.Get(b.Context(), "a/b/c")
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
		return r.Close()
	})
}
