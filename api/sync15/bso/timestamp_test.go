package bso

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTimestampHasExactlyTwoDecimals(t *testing.T) {
	for ts, want := range map[Timestamp]string{
		0: "0.00", 1: "0.01", 10: "0.10", 172345678900: "1723456789.00", 172345678912: "1723456789.12", -105: "-1.05", MaxTimestamp: "999999999999.99",
	} {
		if got := ts.String(); got != want {
			t.Errorf("Timestamp(%d) is %s, want %s", ts, got, want)
		}
		b, err := json.Marshal(map[string]Timestamp{"modified": ts})
		if err != nil || string(b) != `{"modified":`+want+`}` {
			t.Errorf("Timestamp(%d) in JSON: %s, %v", ts, b, err)
		}
	}
}

func TestParseTimestamp(t *testing.T) {
	for s, want := range map[string]Timestamp{
		"0": 0, "5": 500, "5.": 500, ".5": 50, "+5": 500, "5.25": 525, "5.259": 525, "0.009": 0, "007.10": 710, "66071.01": 6607101,
		"1723456789.12": 172345678912, "1e3": 100000, "1.5E+1": 1500, "12345e-3": 1234, "1e-1000000000000": 0, "0e1000000000000": 0,
		"1e300": MaxTimestamp, "9e999999999": MaxTimestamp, "999999999999.99": MaxTimestamp, "999999999999.999": MaxTimestamp, "1000000000000": MaxTimestamp,
		strings.Repeat("9", 5000): MaxTimestamp, strings.Repeat("0", 5000) + "1": 100, "0." + strings.Repeat("0", 50) + "1e50": 10,
		"9223372036854775808": MaxTimestamp, ".00001e3": 1,
	} {
		got, err := ParseTimestamp(s)
		if err != nil || got != want {
			t.Errorf("%.40q: got %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "+", ".", "+.", "-1", "-0", "++5", "nan", "NaN", "inf", "Infinity", "abc", "5a", "5.5.5", "1,5", "0x10", "1_0", " 5", "5 ", "e5", "1e", "1e+", "1e1.5", "1e5e5", "٣"} {
		if got, err := ParseTimestamp(s); err == nil {
			t.Errorf("%q was read as %d", s, got)
		}
	}
}

func TestTimestampSurvivesItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ts := Timestamp(rapid.Int64Range(0, int64(MaxTimestamp)).Draw(t, "ts"))
		if got, err := ParseTimestamp(ts.String()); err != nil || got != ts {
			t.Errorf("%d was rendered as %s and read as %d, %v", ts, ts, got, err)
		}
		if got := Floor(ts.Time()); got != ts {
			t.Errorf("%d came back from a time as %d", ts, got)
		}
		if got := Ceil(ts.Time()); got != ts {
			t.Errorf("%d was rounded up to %d", ts, got)
		}
	})
}

func TestFloorAndCeilEncloseTheMoment(t *testing.T) {
	base := time.Unix(1700000000, 0)
	for offset, want := range map[time.Duration][2]Timestamp{
		0: {0, 0}, 1: {0, 1}, 10*time.Millisecond - 1: {0, 1}, 10 * time.Millisecond: {1, 1}, 999*time.Millisecond + 1: {99, 100},
	} {
		at := base.Add(offset)
		if f, c := Floor(at)-170000000000, Ceil(at)-170000000000; f != want[0] || c != want[1] {
			t.Errorf("%v: got %d and %d, want %v", offset, f, c, want)
		}
	}
}

func FuzzParseTimestamp(f *testing.F) {
	for _, s := range []string{"0", "5.", ".5", "+5", "1e3", "12345e-3", "-1", "1e300", "nan"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTimestamp(s)
		if err != nil {
			return
		}
		if got < 0 || got > MaxTimestamp {
			t.Fatalf("%q was read as %d", s, got)
		}
		if _, exponent, _ := strings.Cut(strings.ToLower(s), "e"); len(exponent) > 4 {
			return // too large for exact arithmetic
		}
		want, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q is no number, but was read as %d", s, got)
		}
		want.Mul(want, big.NewRat(100, 1))
		whole := new(big.Int).Quo(want.Num(), want.Denom())
		if !whole.IsInt64() || whole.Int64() > int64(MaxTimestamp) {
			whole.SetInt64(int64(MaxTimestamp))
		}
		if whole.Int64() != int64(got) {
			t.Fatalf("%q was read as %d, want %v", s, got, whole)
		}
	})
}
