package key_test

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/kv/key"
)

// nasty strings consist of the bytes that the encoding treats specially.
func nastyString() *rapid.Generator[string] {
	nasty := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 0xfe, 0xff}), 0, 6).Draw(t, "bytes"))
	})
	return rapid.OneOf(nasty, rapid.String())
}

func anyUint() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, math.MaxUint64}))
}

func anyTime() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time { return time.Unix(0, rapid.Int64().Draw(t, "nanoseconds")).UTC() })
}

// checkPart checks, for pairs of values of one type: bytes order as values do, no
// encoding is a proper prefix of another, and what is read is what was written.
func checkPart[T any](t *testing.T, gen *rapid.Generator[T], compare func(a, b T) int, enc func([]byte, T) []byte, dec func(*key.Reader) T) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		ka, kb := enc(nil, a), enc(nil, b)
		if got, want := bytes.Compare(ka, kb), compare(a, b); got != want {
			t.Fatalf("order of %x and %x is %d, of the values %d", ka, kb, got, want)
		}
		if compare(a, b) != 0 && (bytes.HasPrefix(ka, kb) || bytes.HasPrefix(kb, ka)) {
			t.Fatalf("one of %x and %x is a prefix of the other", ka, kb)
		}
		// Also behind other parts, which must stay as they are, and before others.
		joined := enc(enc([]byte("head"), a), b)
		r := key.NewReader(joined[len("head"):])
		gotA, gotB := dec(r), dec(r)
		if err := r.Done(); err != nil || compare(gotA, a) != 0 || compare(gotB, b) != 0 {
			t.Fatalf("read %v and %v, error %v", gotA, gotB, err)
		}
		for n := range ka {
			if r := key.NewReader(ka[:n]); compare(dec(r), *new(T)) != 0 || !errors.Is(r.Done(), key.ErrMalformed) {
				t.Fatalf("%x was read although it is cut", ka[:n])
			}
		}
	})
}

func TestStringsKeepOrderAndPrefixFreedom(t *testing.T) {
	checkPart(t, nastyString(), strings.Compare, key.AppendString, (*key.Reader).String)
}

func TestBytesKeepOrderAndPrefixFreedom(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) []byte { return []byte(nastyString().Draw(t, "string")) })
	checkPart(t, gen, bytes.Compare, key.AppendBytes, (*key.Reader).Bytes)
}

func TestUintsKeepOrderAndPrefixFreedom(t *testing.T) {
	checkPart(t, anyUint(), cmp.Compare, key.AppendUint, (*key.Reader).Uint)
}

func TestIntsKeepOrderAndPrefixFreedom(t *testing.T) {
	gen := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, math.MaxInt64}))
	checkPart(t, gen, cmp.Compare, key.AppendInt, (*key.Reader).Int)
}

func TestTimesKeepOrderAndPrefixFreedom(t *testing.T) {
	compare := func(a, b time.Time) int { return a.Compare(b) }
	checkPart(t, anyTime(), compare, key.AppendTime, (*key.Reader).Time)
}

func TestTimesOutOfRangeAreTheNearest(t *testing.T) {
	min, max := key.AppendInt(nil, math.MinInt64), key.AppendInt(nil, math.MaxInt64)
	for _, year := range []int{-10_000, 1, 1677} {
		if got := key.AppendTime(nil, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)); !bytes.Equal(got, min) {
			t.Errorf("year %d = %x, want %x", year, got, min)
		}
	}
	for _, year := range []int{2263, 9999, 100_000} {
		if got := key.AppendTime(nil, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)); !bytes.Equal(got, max) {
			t.Errorf("year %d = %x, want %x", year, got, max)
		}
	}
}

func TestKeysOfSeveralPartsSortPartByPart(t *testing.T) {
	type parts struct {
		s string
		u uint64
		b string
	}
	gen := rapid.Custom(func(t *rapid.T) parts {
		// Few values, so that first parts are often equal.
		return parts{
			rapid.SampledFrom([]string{"", "\x00", "\x00\x01", "a", "a\x00", "a\xff", "ab"}).Draw(t, "s"),
			rapid.SampledFrom([]uint64{0, 1, 255, 256}).Draw(t, "u"), nastyString().Draw(t, "b"),
		}
	})
	enc := func(p parts) []byte { return key.AppendString(key.AppendUint(key.AppendString(nil, p.s), p.u), p.b) }
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		want := cmp.Or(strings.Compare(a.s, b.s), cmp.Compare(a.u, b.u), strings.Compare(a.b, b.b))
		if got := bytes.Compare(enc(a), enc(b)); got != want {
			t.Fatalf("order of %x and %x is %d, want %d", enc(a), enc(b), got, want)
		}
		if inScan, same := bytes.HasPrefix(enc(b), key.AppendString(nil, a.s)), a.s == b.s; inScan != same {
			t.Fatalf("scan of the prefix %q meets %+v: %v", a.s, b, inScan)
		}
	})
}

// Keys are stored, so their bytes never change.
func TestEncodingIsFixed(t *testing.T) {
	for want, got := range map[string][]byte{
		"a\x00\xffb\x00\x01":                   key.AppendString(nil, "a\x00b"),
		"\x00\xff\xff\x00\x01":                 key.AppendBytes(nil, []byte("\x00\xff")),
		"\x00":                                 key.AppendUint(nil, 0),
		"\x02\x01\x2c":                         key.AppendUint(nil, 300),
		"\x08\xff\xff\xff\xff\xff\xff\xff\xff": key.AppendUint(nil, math.MaxUint64),
		"\x7f\xff\xff\xff\xff\xff\xff\xff":     key.AppendInt(nil, -1),
		"\x80\x00\x00\x00\x3b\x9a\xca\x01":     key.AppendTime(nil, time.Unix(1, 1)),
	} {
		if string(got) != want {
			t.Errorf("encoded as %x, want %x", got, want)
		}
	}
}

func TestReaderRefusesWhatNoAppendMakes(t *testing.T) {
	for name, c := range map[string]struct {
		key  string
		read func(*key.Reader)
	}{
		"string without end":       {"abc", func(r *key.Reader) { _ = r.String() }},
		"string with odd escape":   {"a\x00\x02b\x00\x01", func(r *key.Reader) { _ = r.String() }},
		"uint of nine bytes":       {"\x09123456789", func(r *key.Reader) { r.Uint() }},
		"uint with leading zero":   {"\x02\x00\x01", func(r *key.Reader) { r.Uint() }},
		"int of seven bytes":       {"1234567", func(r *key.Reader) { r.Int() }},
		"time of seven bytes":      {"1234567", func(r *key.Reader) { r.Time() }},
		"bytes left over":          {"\x00\x01x", func(r *key.Reader) { _ = r.String() }},
		"more asked than there is": {"\x00\x01", func(r *key.Reader) { _ = r.String(); r.Uint() }},
	} {
		r := key.NewReader([]byte(c.key))
		c.read(r)
		if err := r.Done(); !errors.Is(err, key.ErrMalformed) {
			t.Errorf("%s: error = %v, want %v", name, err, key.ErrMalformed)
		}
	}
}

func TestAllResultsAreZeroAfterAFailure(t *testing.T) {
	r := key.NewReader(key.AppendString([]byte("\x09"), "rest"))
	if u := r.Uint(); u != 0 || !errors.Is(r.Err(), key.ErrMalformed) {
		t.Fatalf("Uint = %d, error %v", u, r.Err())
	}
	if r.Uint() != 0 || r.Int() != 0 || r.String() != "" || r.Bytes() != nil || !r.Time().IsZero() || len(r.Rest()) != 0 {
		t.Error("a reader went on after its failure")
	}
}

// FuzzReader: no input panics, and what is read without an error is encoded in one
// way only, the one that was read.
func FuzzReader(f *testing.F) {
	f.Add("subti", key.AppendTime(key.AppendInt(key.AppendUint(key.AppendString(nil, "a\x00b"), 300), -1), time.Unix(1, 2)))
	f.Add("b", []byte("\x00\xff\x00\x01"))
	f.Add("uu", []byte{9, 0, 2, 0, 1})
	f.Fuzz(func(t *testing.T, types string, in []byte) {
		r := key.NewReader(in)
		var out []byte
		for _, c := range types {
			switch c {
			case 's':
				out = key.AppendString(out, r.String())
			case 'b':
				out = key.AppendBytes(out, r.Bytes())
			case 'u':
				out = key.AppendUint(out, r.Uint())
			case 'i':
				out = key.AppendInt(out, r.Int())
			case 't':
				out = key.AppendTime(out, r.Time())
			}
			if r.Err() != nil {
				return
			}
		}
		if out = append(out, r.Rest()...); !bytes.Equal(out, in) {
			t.Fatalf("%x was read as %x", in, out)
		}
	})
}
