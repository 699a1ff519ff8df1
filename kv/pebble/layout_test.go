package pebble

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

func FuzzDecodeRow(f *testing.F) {
	f.Add(appendRow(nil, &kv.Write{Value: []byte("v"), Link: "gs://b/o", ExpiresAt: testStart()}, 7))
	f.Add([]byte{rowHasLink, 0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h header
		if err := h.decode(b); err != nil {
			return
		}
		row := h.row(nil, testStart())
		again := appendRow(nil, &kv.Write{Value: row.Value, Link: row.Link, ExpiresAt: row.ExpiresAt}, row.Version)
		var h2 header
		if err := h2.decode(again); err != nil || h2.version != h.version || string(h2.value) != string(h.value) || string(h2.link) != string(h.link) {
			t.Errorf("%x is read as %+v, then as %+v", b, h, h2)
		}
	})
}

func FuzzDecodeFeedEntry(f *testing.F) {
	f.Add(appendFeedEntry(nil, &kv.Write{Key: []byte("k"), Feed: []byte("data")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, data, err := decodeFeedEntry(b)
		if err == nil && (len(k) == 0 || len(k)+len(data) >= len(b)) {
			t.Errorf("%x: key %x, data %x", b, k, data)
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add(string(feedPlace{version: 1, index: 2}.position()))
	f.Add("+000000000000001-0000002")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePosition(kv.Position(s))
		if err == nil && s != "" && string(p.position()) != s {
			t.Errorf("%q is read as %q", s, p.position())
		}
	})
}

func FuzzDecodeSpace(f *testing.F) {
	f.Add(encodeSpace(1, kv.SpaceOptions{Links: true, FeedShards: 2, FeedRetention: time.Hour}))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, o, err := decodeSpace(b)
		if err != nil {
			return
		}
		id2, o2, err := decodeSpace(encodeSpace(id, o))
		if err != nil || id2 != id || o2 != o {
			t.Errorf("%x: %d %v, %v", b, id, o, err)
		}
	})
}
