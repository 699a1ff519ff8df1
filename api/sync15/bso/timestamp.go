package bso

import (
	"errors"
	"strconv"
	"time"
)

// Timestamp is a moment in hundredths of a second since the epoch, the protocol's
// unit. The zero Timestamp stands for what does not exist.
type Timestamp int64

const tick = 10 * time.Millisecond

// MaxTimestamp is the largest value that [ParseTimestamp] returns, in the year
// 33658; larger input means the same, the far future.
const MaxTimestamp Timestamp = 999_999_999_999_99

// Floor returns the last tick of the clock at or before t: when a request began.
func Floor(t time.Time) Timestamp {
	return Timestamp(t.Unix()*100 + int64(t.Nanosecond())/int64(tick))
}

// Ceil returns the first tick of the clock at or after t: when a write happens.
func Ceil(t time.Time) Timestamp { return Floor(t.Add(tick - 1)) }

// Time returns t as a time in UTC.
func (t Timestamp) Time() time.Time {
	return time.Unix(int64(t)/100, int64(t)%100*int64(tick)).UTC()
}

// Append appends t in seconds with exactly two decimals, which is its form in
// headers and a number in JSON.
func (t Timestamp) Append(dst []byte) []byte {
	if t < 0 {
		dst, t = append(dst, '-'), -t
	}
	dst = strconv.AppendInt(dst, int64(t)/100, 10)
	return append(dst, '.', byte('0'+t/10%10), byte('0'+t%10))
}

// String returns t as Append renders it.
func (t Timestamp) String() string { return string(t.Append(make([]byte, 0, 16))) }

// MarshalJSON renders t as a number with exactly two decimals.
func (t Timestamp) MarshalJSON() ([]byte, error) { return t.Append(nil), nil }

var errTimestamp = errors.New("sync: not a decimal number of seconds")

// ParseTimestamp reads a decimal number of seconds, cutting off what is beyond two
// decimals. A plus sign, a bare point at either end and an exponent are allowed; a
// minus sign is not. Numbers of any size and length are accepted.
func ParseTimestamp(s string) (Timestamp, error) {
	if s != "" && s[0] == '+' {
		s = s[1:]
	}
	end := 0
	digits, point := 0, -1
	for ; end < len(s); end++ {
		switch c := s[end]; {
		case c >= '0' && c <= '9':
			digits++
			continue
		case c == '.' && point < 0:
			point = end
			continue
		}
		break
	}
	exponent, err := parseExponent(s[end:])
	if digits == 0 || err != nil {
		return 0, errTimestamp
	}
	if point < 0 {
		point = end
	}
	return scale(s[:end], point+exponent+2), nil
}

// scale returns the number that the first n digits of s make, where s may hold one
// point, and n may be negative or lie beyond the digits, as if zeros followed.
func scale(s string, n int) Timestamp {
	var t Timestamp
	for i := 0; n > 0; i++ {
		if i < len(s) && s[i] == '.' {
			continue
		}
		n--
		t *= 10
		if i < len(s) {
			t += Timestamp(s[i] - '0')
		} else if t == 0 {
			return 0
		}
		if t > MaxTimestamp {
			return MaxTimestamp
		}
	}
	return t
}

// parseExponent reads nothing or a part like e-12. Exponents beyond a million are
// taken for a million: no text in a header is long enough to make a difference.
func parseExponent(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	if s[0] != 'e' && s[0] != 'E' {
		return 0, errTimestamp
	}
	s = s[1:]
	sign := 1
	if s != "" && (s[0] == '+' || s[0] == '-') {
		if s[0] == '-' {
			sign = -1
		}
		s = s[1:]
	}
	if s == "" {
		return 0, errTimestamp
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, errTimestamp
		}
		n = min(n*10+int(s[i]-'0'), 1_000_000)
	}
	return sign * n, nil
}
