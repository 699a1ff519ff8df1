package item

import (
	"bytes"
	"encoding/hex"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var nines = strings.Repeat("9", 38)

func TestNumbersAreWrittenPlainly(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "+0.00": "0", "0e99999999999": "0", "1": "1", "+1": "1", "00042": "42", "3.140": "3.14", "1.0": "1", "1.": "1",
		".5": "0.5", "-.5": "-0.5", "1.5E2": "150", "1.5e+2": "150", "15e-1": "1.5", "100": "100", "-0.001": "-0.001", "1e0": "1",
		"1E125": "1" + strings.Repeat("0", 125), "1E-130": "0." + strings.Repeat("0", 129) + "1",
		nines: nines, "0." + nines: "0." + nines, nines + "0000": nines + "0000", "-" + nines + "e88": "-" + nines + strings.Repeat("0", 88),
		"0000000000000000000000000000000000000000000000001": "1", "1e-0000000000000000001": "0.1",
	} {
		n, err := ParseNumber(in)
		if err != nil || n.String() != want {
			t.Errorf("%s is %s, %v, want %s", in, n, err, want)
		}
	}
}

func TestWhatIsNoNumberIsRefused(t *testing.T) {
	const (
		none  = "The parameter cannot be converted to a numeric value"
		long  = "Attempting to store more than 38 significant digits in a Number"
		large = "Number overflow. Attempting to store a number with magnitude larger than supported range"
		small = "Number underflow. Attempting to store a number with magnitude smaller than supported range"
	)
	for in, want := range map[string]string{
		"": none, " 1": none + ":  1", "1 ": none + ": 1 ", "a": none + ": a", "NaN": none + ": NaN", "Infinity": none + ": Infinity", "0x10": none + ": 0x10",
		"1_000": none + ": 1_000", "1e": none + ": 1e", "e5": none + ": e5", ".": none + ": .", "-": none + ": -", "+-1": none + ": +-1", "1.2.3": none + ": 1.2.3",
		"1e1.5": none + ": 1e1.5", "1e+-5": none + ": 1e+-5", "--1": none + ": --1", "1,5": none + ": 1,5", "%d": none + ": %d", "١": none + ": ١",
		nines + "9": long, "1." + nines: long, "1e126": large, "-1e126": large, "1e99999999999999999999": large, "1e-131": small, "-1e-99999999999": small,
	} {
		_, err := ParseNumber(in)
		if err == nil || err.Error() != "ValidationException: "+want {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
	if _, err := ParseNumber(strings.Repeat("7", 1<<20)); err == nil {
		t.Error("a million digits are accepted")
	}
}

// The worked examples of the order-preserving form.
func TestNumberKeys(t *testing.T) {
	for in, want := range map[string]string{
		"-" + nines + "e88": "4000" + strings.Repeat("38", 18) + "39", "-100": "407beb", "-10": "407ceb", "-1.51": "407de0eb", "-1.5": "407de1",
		"-1": "407deb", "-1E-130": "40ffeb", "0": "80", "-0.00": "80", "1E-130": "c00014", "0.05": "c08064", "1": "c08214", "1.5": "c0821e",
		"1.51": "c0821f14", "10": "c08314", "99.99": "c083c7c6", "100": "c08414", "1719692400": "c08b23278b30",
		"12345678901234567890123456789012345678": "c0a71945719db51945719db51945719db519 45719c", nines + "e88": "c0ff" + strings.Repeat("c7", 18) + "c6",
	} {
		n, err := ParseNumber(in)
		if err != nil {
			t.Fatal(err)
		}
		key := n.AppendKey(nil)
		if got := hex.EncodeToString(key); got != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
		back, rest, ok := KeyNumber(append(key, "rest"...))
		if !ok || back != n || string(rest) != "rest" {
			t.Errorf("%s is read as %s, %q", in, back, rest)
		}
		if Num(n).Number() != n {
			t.Errorf("%s is another number as a value", in)
		}
	}
	for _, bad := range []string{"", "00", "c0", "c082", "c08215", "c082c8", "407d", "c08200", "c0821f00", "41", "c0ff" + strings.Repeat("c7", 19) + "c6"} {
		b, _ := hex.DecodeString(bad)
		if n, _, ok := KeyNumber(b); ok {
			t.Errorf("%s is read as %s", bad, n)
		}
	}
}

// drawNumberText draws a number in one of its spellings; many are close to each other.
func drawNumberText(r *rapid.T) string {
	digits := rapid.SampledFrom([]string{"", "1", "15", "150", "151", "1499999", "99", "999", nines, nines[1:] + "8"}).Draw(r, "digits")
	if rapid.Bool().Draw(r, "any") {
		digits = rapid.StringMatching(`[0-9]{1,38}`).Draw(r, "any digits")
	}
	sign := rapid.SampledFrom([]string{"", "+", "-"}).Draw(r, "sign")
	point := rapid.IntRange(0, len(digits)).Draw(r, "point")
	exponent := rapid.SampledFrom([]string{"", "e0", "E5", "e-5", "e-1", "e60", "e-60"}).Draw(r, "exponent")
	return sign + "0" + digits[:point] + "." + digits[point:] + exponent
}

func rat(text string) *big.Rat {
	r, _ := new(big.Rat).SetString(text)
	return r
}

func TestNumbersSortLikeTheirKeys(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		x, y := drawNumberText(r), drawNumberText(r)
		a, errA := ParseNumber(x)
		b, errB := ParseNumber(y)
		if errA != nil || errB != nil {
			r.Fatalf("%s, %s: %v, %v", x, y, errA, errB)
		}
		want := rat(x).Cmp(rat(y))
		if got := bytes.Compare(append(a.AppendKey(nil), 0xff), append(b.AppendKey(nil), 0xff)); got != want {
			r.Errorf("the keys of %s and %s compare as %d", x, y, got)
		}
		if a.Compare(b) != want || (a == b) != (want == 0) || a.Sign() != rat(x).Sign() {
			r.Errorf("%s and %s compare as %d, sign %d", x, y, a.Compare(b), a.Sign())
		}
		if rat(a.String()).Cmp(rat(x)) != 0 {
			r.Errorf("%s is printed as %s", x, a)
		}
		if again, err := ParseNumber(a.String()); err != nil || again != a {
			r.Errorf("%s is read again as %s, %v", a, again, err)
		}
	})
}

func TestArithmeticIsExact(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		x, y := drawNumberText(r), drawNumberText(r)
		a, _ := ParseNumber(x)
		b, _ := ParseNumber(y)
		for minus, do := range map[bool]func(Number) (Number, error){false: a.Add, true: a.Sub} {
			want := new(big.Rat).Add(rat(x), rat(y))
			if minus {
				want.Sub(rat(x), rat(y))
			}
			got, err := do(b)
			if err == nil && rat(got.String()).Cmp(want) != 0 {
				r.Errorf("%s with %s, minus %v, is %s", x, y, minus, got)
			}
			text := want.FloatString(300)
			digits := strings.Trim(strings.Replace(strings.TrimLeft(text, "-"), ".", "", 1), "0")
			if (err == nil) != (len(digits) <= 38) {
				r.Errorf("%s with %s, minus %v, has %d digits: %v", x, y, minus, len(digits), err)
			}
		}
	})
	one, _ := ParseNumber("1")
	tiny, _ := ParseNumber("1e-130")
	huge, _ := ParseNumber(nines + "e88")
	last, _ := ParseNumber("1e88")
	for name, do := range map[string]func() (Number, error){
		"too many digits": func() (Number, error) { return one.Add(tiny) },
		"too large":       func() (Number, error) { return huge.Add(last) },
		"far apart":       func() (Number, error) { return huge.Sub(tiny) },
	} {
		if n, err := do(); err != error(errOverflow) {
			t.Errorf("%s: %s, %v", name, n, err)
		}
	}
	if n, err := (Number{}).Sub(tiny); err != nil || n.Sign() != -1 {
		t.Errorf("0 - 1e-130 = %s, %v", n, err)
	}
}

func TestIntegers(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "5": 5, "-5": -5, "1e3": 1000, "9223372036854775807": 9223372036854775807, "-9223372036854775808": -9223372036854775808} {
		n, _ := ParseNumber(in)
		if got, ok := n.Integer(); !ok || got != want || Int(want) != n {
			t.Errorf("%s is %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{"0.5", "9223372036854775808", "1e125", "1e-130"} {
		n, _ := ParseNumber(in)
		if got, ok := n.Integer(); ok {
			t.Errorf("%s is %d", in, got)
		}
	}
}

func FuzzNumber(f *testing.F) {
	f.Add("1.5e3")
	f.Add("-0.00E-5")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseNumber(text)
		if err != nil {
			return
		}
		back, rest, ok := KeyNumber(n.AppendKey(nil))
		if !ok || back != n || len(rest) > 0 {
			t.Errorf("%s is read from its key as %s", text, back)
		}
		if again, err := ParseNumber(n.String()); err != nil || again != n {
			t.Errorf("%s is read again as %s: %v", n, again, err)
		}
	})
}
