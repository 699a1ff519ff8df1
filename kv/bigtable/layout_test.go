package bigtable

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	bt "cloud.google.com/go/bigtable"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// What is stored must be readable for ever: these bytes do not change.
func TestLayout(t *testing.T) {
	v := version{p: 0x0011223344556677, writer: [6]byte{1, 2, 3, 4, 5, 6}}
	id := txID{0: 0xa0, 15: 0xaf}
	at := time.UnixMicro(0x0102030405060708)
	live, err := parseState(unlocked(v, flagLive, 9))
	if err != nil {
		t.Fatal(err)
	}
	s := &space{SpaceInfo: kv.SpaceInfo{Name: "n", SpaceOptions: kv.SpaceOptions{Links: true, FeedShards: 4, FeedRetention: time.Hour}}, stage: existing, generation: 3, floor: 5}
	s.stream[0] = 0xee
	for want, got := range map[string][]byte{
		"00" + "0011223344556677" + "010203040506" + "01" + "00000009":                                                                               unlocked(v, flagLive, 9),
		"01" + "0011223344556677" + "010203040506" + "01" + "00000009" + "a00000000000000000000000000000af" + "5701" + "02" + "6665" + "0100" + "76": live.lockedBy(id, intent{kind: intentWrite, feed: []byte("fe"), item: encodeItem(&kv.Write{Value: []byte("v")})}.encode(), version{}),
		"01" + "0011223344556677" + "010203040506" + "02" + "00000000" + "a00000000000000000000000000000af" + "5200":                                 state{}.lockedBy(id, intent{kind: intentRead}.encode(), v),
		"0103" + "0102030405060708" + "026c6b" + "76":                                                                                                encodeItem(&kv.Write{Value: []byte("v"), Link: "lk", ExpiresAt: at}),
		"0102" + "00000003" + "ee000000000000000000000000000000" + "0000000000000005" + "01" + "04" + "0000034630b8a000":                             s.encode(),
		"01" + "010203040506" + "0000000000000007" + "000186a0" + "0000000000000002" + "000186a0" + "0000000000000005" + "0000000000000004":          head{owner: v.writer, time: 7, trimmed: place{firstEpoch, 2}, epochs: []epoch{{firstEpoch, 5, 4}}}.encode(),
		"01" + "0000000000000007" + "0000000000000006" + "016b" + "64":                                                                               entry{time: 7, version: 6, key: "k", data: []byte("d")}.encode(),
		"02" + "010203040506" + "64":                encodeOutbox(v.writer, []byte("d")),
		"72" + "000186a0" + "0000000000000003":      []byte(entryKey(place{firstEpoch, 3})),
		"ee000000000000000000000000000000" + "0002": []byte(s.shardKey(2)),
	} {
		if hex.EncodeToString(got) != want {
			t.Errorf("got %x, want %s", got, want)
		}
	}
	if p := (place{firstEpoch, 3}).position(); p != "100000000000000000003" {
		t.Errorf("position %s", p)
	}
	if at := entryTime(v.p); uint64(at/1000) != v.p || at%1000 != 0 {
		t.Errorf("timestamp %d of %d", at, v.p)
	}
	if last := uint64(kv.VersionAt(time.Date(2093, 1, 1, 0, 0, 0, 0, time.UTC))); uint64(entryTime(last))/1000 != last || entryTime(last) < 0 {
		t.Errorf("timestamps do not reach 2093")
	}
}

// What is read back is what was written; anything else is an error and no panic.
func TestEncodingsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytesOf := func(name string, most int) []byte { return rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, name) }
		w := &kv.Write{Value: bytesOf("value", 20), Link: string(bytesOf("link", 300))}
		if rapid.Bool().Draw(t, "expires") {
			w.ExpiresAt = time.UnixMicro(rapid.Int64Range(0, 253402300799_000000).Draw(t, "at")).UTC()
		}
		var r kv.Row
		if err := decodeItem(encodeItem(w), &r); err != nil || !bytes.Equal(r.Value, w.Value) || r.Link != w.Link || !r.ExpiresAt.Equal(w.ExpiresAt) {
			t.Fatalf("%+v came back as %+v, %v", w, r, err)
		}
		in := intent{kind: rapid.SampledFrom([]byte("WDR")).Draw(t, "kind"), item: bytesOf("item", 20)}
		if rapid.Bool().Draw(t, "feed") {
			in.feed = bytesOf("entry", 200)
		}
		if back, err := parseIntent(in.encode()); err != nil || back.kind != in.kind || (back.feed == nil) != (in.feed == nil) || !bytes.Equal(back.feed, in.feed) || !bytes.Equal(back.item, in.item) {
			t.Fatalf("%+v came back as %+v, %v", in, back, err)
		}
		en := entry{time: rapid.Uint64().Draw(t, "time"), version: rapid.Uint64().Draw(t, "version"), key: string(bytesOf("key", 300)), data: bytesOf("data", 20)}
		if back, err := parseEntry(en.encode()); err != nil || back.time != en.time || back.version != en.version || back.key != en.key || !bytes.Equal(back.data, en.data) {
			t.Fatalf("%+v came back as %+v, %v", en, back, err)
		}
		writer := [writerSize]byte(rapid.SliceOfN(rapid.Byte(), writerSize, writerSize).Draw(t, "writer"))
		if by, data, err := decodeOutbox(encodeOutbox(writer, en.data)); err != nil || by != writer || !bytes.Equal(data, en.data) {
			t.Fatalf("outbox entry %x of %x came back as %x of %x, %v", en.data, writer, data, by, err)
		}
		if by, data, err := decodeOutbox(append([]byte{1}, en.data...)); err != nil || by != [writerSize]byte{} || !bytes.Equal(data, en.data) {
			t.Fatalf("outbox entry %x of format 1 came back as %x of %x, %v", en.data, data, by, err)
		}
		p := place{rapid.Uint32Range(firstEpoch, 1<<32-1).Draw(t, "epoch"), rapid.Uint64Range(0, 1e15-1).Draw(t, "index")}
		if back, err := parsePosition(p.position()); err != nil || back != p {
			t.Fatalf("%+v came back as %+v, %v", p, back, err)
		}
		junk := bytesOf("junk", 100)
		_ = decodeItem(junk, &r)
		_, _ = parseState(junk)
		_, _ = parseIntent(junk)
		_, _ = parseEntry(junk)
		_, _ = parseHead(junk)
		_, _ = parseRecord(junk, junk)
		_, _ = parseParticipants(junk)
		_, _ = parsePosition(kv.Position(junk))
		_, _, _ = decodeOutbox(junk)
		_, _ = parseHint(bt.Row{"h": {{Row: string(junk), Column: "h:v", Value: junk}}})
	})
}

// The four predicates, with bytes that might be taken for bounds.
func TestPredicates(t *testing.T) {
	s := newServer(t)
	e := s.open(t, clock.System{})
	if err := e.CreateSpace(t.Context(), "a", kv.SpaceOptions{}); err != nil {
		t.Fatal(err)
	}
	sp, err := e.space(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range []uint64{1, 0xff, 0x100, 0xffff, 0x00ff00ff00ff00ff} {
		for _, w := range [][6]byte{{}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {0, 0xff, 0, 0xff, 0, 0xff}} {
			for _, touch := range []uint32{0, 0xff, 0xffffffff} {
				v := version{p, w}
				free, err := parseState(unlocked(v, flagLive, touch))
				if err != nil {
					t.Fatal(err)
				}
				id := txID{0xff, 0xff, 0, 15: 0xff}
				locked := free.lockedBy(id, []byte{intentRead, 0}, version{})
				for _, c := range []struct {
					name  string
					state []byte // nil: absent
					p     predicate
					want  bool
				}{
					{"absent of absent", nil, stateCell.is(nil), true},
					{"absent of unlocked", free.raw, stateCell.is(nil), false},
					{"exact of absent", nil, stateCell.is(free.raw), false},
					{"exact of itself", free.raw, stateCell.is(free.raw), true},
					{"exact of a longer one", locked, stateCell.is(free.raw), false},
					{"exact of another touch", free.raw, stateCell.is(free.touched()), false},
					{"lock of itself", locked, stateCell.begins(locked[:headerSize]), true},
					{"lock of the unlocked", free.raw, stateCell.begins(locked[:headerSize]), false},
					{"lock of another", free.lockedBy(txID{0xff, 0xff, 1}, []byte{intentRead, 0}, version{}), stateCell.begins(locked[:headerSize]), false},
					{"blind of absent", nil, olderThan(p), true},
					{"blind of an older one", free.raw, olderThan(p + 1), true},
					{"blind of the same p", free.raw, olderThan(p), false},
					{"blind of a newer one", free.raw, olderThan(p - 1), false},
					{"blind of a locked one", locked, olderThan(p + 1), false},
				} {
					n++
					key := fmt.Sprint(n)
					if c.state != nil {
						if err := e.plain(t.Context(), "test", sp.table, []string{key}, []*mutation{newMutation().set(stateCell, c.state)}); err != nil {
							t.Fatal(err)
						}
					}
					res, err := e.cas(t.Context(), "test", sp.table, key, c.p, newMutation().set(itemCell, []byte("x")))
					if err != nil || res.applied != c.want {
						t.Errorf("%s: %v, %v, want %v (%x)", c.name, res.applied, err, c.want, c.state)
					}
				}
			}
		}
	}
}

func TestLimitsOfRequests(t *testing.T) {
	many := newMutation()
	for range maxMutations + 1 {
		many.deleteRow()
	}
	for _, c := range []struct {
		key string
		m   *mutation
		ok  bool
	}{
		{"k", newMutation().deleteRow(), true},
		{string(make([]byte, maxRowKey)), newMutation().deleteRow(), true},
		{string(make([]byte, maxRowKey+1)), newMutation().deleteRow(), false},
		{"", newMutation().deleteRow(), false},
		{"k", newMutation(), false},
		{"k", many, false},
		{"k", newMutation().set(itemCell, make([]byte, maxCell)), true},
		{"k", newMutation().set(itemCell, make([]byte, maxCell+1)), false},
	} {
		if err := c.m.check(c.key); (err == nil) != c.ok || err != nil && !errors.Is(err, kv.ErrTooLarge) {
			t.Errorf("key of %d bytes, %d mutations, cell of %d bytes: %v", len(c.key), c.m.ops, c.m.large, err)
		}
	}
	// The keys that the engine makes of the longest keys.
	longest := shardKeySize + versionSize + kv.MaxKeySize
	if longest > maxRowKey {
		t.Errorf("a hint's key may have %d bytes", longest)
	}
	for name, ok := range map[string]bool{"a": true, "_a-b.C9": true, "": false, "-a": false, "a b": false, "a/b": false, string(bytes.Repeat([]byte("a"), 50)): true, string(bytes.Repeat([]byte("a"), 51)): false} {
		if err := checkTableID(name); (err == nil) != ok {
			t.Errorf("table id %q: %v", name, err)
		}
	}
}

// No number is given out twice, each is above its floor, and a floor far ahead does
// not move the others.
func TestHybridClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := clock.NewManual(start())
		h := &hybrid{clock: c}
		seen := map[uint64]bool{}
		var highest uint64
		for range rapid.IntRange(1, 60).Draw(t, "numbers") {
			c.Advance(time.Duration(rapid.Int64Range(-int64(20*time.Second), int64(20*time.Second)).Draw(t, "by")))
			var floor uint64
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 1:
				floor = uint64(kv.VersionAt(c.Now().Add(time.Duration(rapid.Int64Range(0, int64(15*time.Second)).Draw(t, "ahead")))))
			case 2:
				floor = uint64(kv.VersionAt(c.Now().Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "far ahead")))))
			case 3:
				floor = highest
			}
			p := h.next(floor)
			if p <= floor || seen[p] {
				t.Fatalf("%d above %d, seen %v", p, floor, seen[p])
			}
			seen[p] = true
			highest = max(highest, p)
		}
	})
	c := clock.NewManual(start())
	h := &hybrid{clock: c}
	h.next(uint64(kv.VersionAt(start().Add(time.Hour))))
	if got := kv.Version(h.next(0)).Time(); got.After(start().Add(time.Second)) {
		t.Errorf("a version an hour ahead moves the clock to %v", got)
	}
	h.next(uint64(kv.VersionAt(start().Add(5 * time.Second))))
	if got := kv.Version(h.next(0)).Time(); got.Before(start().Add(5 * time.Second)) {
		t.Errorf("a version 5 s ahead does not move the clock: %v", got)
	}
}
