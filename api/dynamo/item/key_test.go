package item

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The worked examples of the layout.
func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"table": {Key(String("user#42"), number(t, "1.5")), "8BF10C04 53 07 75736572233432 4E C0821E"},
		"index": {
			IndexKey(String("OPEN"), String("2026-01-01"), String("user#42"), String("order-7")),
			"A7D05597 53044F50454E 53323032362D30312D30310001 530775736572233432 536F726465722D37",
		},
		"ttl": {
			TTLKey(1767225600, "123456789012", "Sessions", Key(String("session-1"), nil)),
			"05 000000006955B900 0C313233343536373839303132 0853657373696F6E73 B3A90820 5309 73657373696F6E2D31",
		},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s: %X, want %X", name, c.got, want)
		}
	}
	for in, want := range map[string]string{"a": "61 00 01", "a\x00": "61 00 FF 00 01", "ab": "61 62 00 01"} {
		if got := appendOrdered(nil, String(in)); !bytes.Equal(got[1:], unhex(t, want)) {
			t.Errorf("%q is %X", in, got)
		}
	}
	long := String(strings.Repeat("p", 2048))
	if n := len(Key(String(strings.Repeat("p", 255)), String(strings.Repeat("s", 1024)))); n != 1286 {
		t.Errorf("the longest key has %d bytes", n)
	}
	if n := len(Key(long, String(strings.Repeat("s", 1024)))); n != 1062 {
		t.Errorf("a key with a long partition key has %d bytes", n)
	}
	zeros := Bytes(make([]byte, 1024))
	if n := len(IndexKey(String(strings.Repeat("p", 255)), zeros, String(strings.Repeat("p", 255)), zeros)); n != 3594 {
		t.Errorf("the longest index key has %d bytes", n)
	}
	if bytes.Equal(Key(long, nil), Key(String(strings.Repeat("p", 2047)+"q"), nil)) {
		t.Error("two long partition keys have one key")
	}
}

func TestTTLKeysAreReadAgain(t *testing.T) {
	key := Key(String("session-1"), number(t, "-3"))
	e, ok := ParseTTLKey(TTLKey(7, "000000000000", "Table", key))
	if !ok || e.Expiry != 7 || e.Account != "000000000000" || e.Table != "Table" || !bytes.Equal(e.Key, key) {
		t.Errorf("%v, %v", e, ok)
	}
	whole := TTLKey(7, "1", "T", key)
	for n := range whole {
		if e, ok := ParseTTLKey(whole[:n]); ok && len(e.Key) == len(key) {
			t.Errorf("the first %d bytes are read as %v", n, e)
		}
	}
}

func TestSegmentsAreAllKeys(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 1000, 1_000_000} {
		var end []byte
		for i := range n {
			s := Segment(i, n)
			if i > 0 && !bytes.Equal(s.Start, end) || i < n-1 && bytes.Compare(s.Start, s.End) >= 0 {
				t.Fatalf("segment %d of %d is %X", i, n, s)
			}
			end = s.End
		}
		if end != nil || !bytes.Equal(Segment(0, n).Start, make([]byte, 4)) {
			t.Errorf("%d segments end at %X", n, end)
		}
	}
}

func (r Range) holds(key []byte) bool {
	return bytes.Compare(key, r.Start) >= 0 && (len(r.End) == 0 || bytes.Compare(key, r.End) < 0)
}

// drawKey draws a value that may be a key, from few, which are close to each other.
func drawKey(r *rapid.T, t Type) Value {
	if t == N {
		return drawNumber(r)
	}
	return append(Value{byte(t)}, rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xfe, 0xff}), 0, 4).Draw(r, "key")...)
}

func TestRangesHoldWhatConditionsMean(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		kind := rapid.SampledFrom([]Type{S, N, B}).Draw(r, "type")
		hash, other := String("p"), String("q")
		key, value, high := drawKey(r, kind), drawKey(r, kind), drawKey(r, kind)
		order, _ := Compare(key, value)
		below, _ := Compare(key, high)
		for op, means := range map[Operator]bool{
			EqualTo: order == 0, LessThan: order < 0, AtMost: order <= 0, GreaterThan: order > 0, AtLeast: order >= 0,
			Between: order >= 0 && below <= 0, BeginsWith: bytes.HasPrefix(key, value),
		} {
			if op == BeginsWith && kind == N {
				continue
			}
			for at, keys := range map[string][2][]byte{
				"table":       {Key(hash, key), Key(other, key)},
				"index":       {IndexKey(hash, key, String("base"), String("\xff\xff")), IndexKey(other, key, hash, key)},
				"local index": {LocalKey(hash, key, drawKey(r, kind)), LocalKey(other, key, value)},
			} {
				in := Sorted(hash, op, value, high, at != "table")
				if in.holds(keys[0]) != means {
					r.Errorf("%s, operator %d of %q and %q, %q: %v, want %v", at, op, key, value, high, !means, means)
				}
				if in.holds(keys[1]) {
					r.Errorf("%s: the range holds a key of another partition", at)
				}
				if !Partition(hash).holds(keys[0]) || Partition(hash).holds(keys[1]) {
					r.Errorf("%s: the partition is wrong", at)
				}
			}
		}
	})
}

func TestIndexKeysSortByTheSortKey(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		kind := rapid.SampledFrom([]Type{S, N, B}).Draw(r, "type")
		a, b := drawKey(r, kind), drawKey(r, kind)
		order, _ := Compare(a, b)
		x := IndexKey(String("p"), a, drawKey(r, S), drawKey(r, B))
		y := IndexKey(String("p"), b, drawKey(r, S), drawKey(r, B))
		if order != 0 && bytes.Compare(x, y) != order {
			r.Errorf("%q and %q sort as %d in the index", a, b, -order)
		}
	})
}

func TestSuccessor(t *testing.T) {
	for in, want := range map[string]string{"00": "01", "01ff": "02", "ffff": "", "": "", "610061": "610062"} {
		if got := successor(unhex(t, in)); !bytes.Equal(got, unhex(t, want)) {
			t.Errorf("%s: %X", in, got)
		}
	}
}
