package bso

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// clientBody returns a POST as desktop sends it: each payload is JSON in a string.
func clientBody(records, payloadBytes int) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range records {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":"record-%06d","sortindex":%d,"payload":%q}`, i, i, clientPayload(payloadBytes))
	}
	b.WriteByte(']')
	return b.Bytes()
}

func clientPayload(n int) string {
	const frame = `{"ciphertext":"","IV":"p9dS0SMRjEmBeUQ2wFTzqg==","hmac":"2bcb92f4d4698c3d7b083a3c698a16ccd78bc2a8d20a96e4bb128ddceaf4e0b6"}`
	return strings.Replace(frame, `""`, `"`+strings.Repeat("QUJDRGVmZw0KVGhl", 1+(n-len(frame))/16)[:n-len(frame)]+`"`, 1)
}

var benchSizes = []struct{ records, bytes int }{{100, 200}, {100, 20_000}}

func BenchmarkParsePost(b *testing.B) {
	for _, size := range benchSizes {
		original := clientBody(size.records, size.bytes)
		body := make([]byte, len(original))
		limits := DefaultLimits()
		c := limits.For("bookmarks")
		run := func(name string, parse func() error) {
			b.Run(fmt.Sprintf("%s/%dx%d", name, size.records, size.bytes), func(b *testing.B) {
				b.SetBytes(int64(len(original)))
				b.ReportAllocs()
				for b.Loop() {
					copy(body, original) // parsing changes it
					if err := parse(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("copy", func() error { return nil })
		run("ours", func() error {
			p, err := ParsePost(body, JSON, "bookmarks", c)
			if err == nil && len(p.Updates) != size.records {
				return fmt.Errorf("%d records", len(p.Updates))
			}
			return err
		})
		type update struct {
			ID        string  `json:"id"`
			Payload   *string `json:"payload"`
			SortIndex *int    `json:"sortindex"`
			TTL       *int    `json:"ttl"`
		}
		run("json-v2", func() error { var u []update; return json.Unmarshal(body, &u) })
		run("json-v1", func() error { var u []update; return stdjson.Unmarshal(body, &u) })
	}
}

func BenchmarkAppendRecord(b *testing.B) {
	for _, n := range []int{200, 20_000} {
		r := Record{ID: "record-000001", Modified: 172345678912, Payload: []byte(clientPayload(n)), SortIndex: 7, HasSortIndex: true}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dst := make([]byte, 0, 2*n+200)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				dst = AppendRecord(dst[:0], r)
			}
		})
	}
}
