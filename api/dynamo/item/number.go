package item

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// Limits of numbers.
const (
	maxDigits   = 38
	minExponent = -130
	maxExponent = 125
)

// Number is a decimal number of at most 38 significant digits, from 1E-130 up to what
// is below 1E+126 in magnitude. The zero value is 0. Equal numbers are equal in Go.
//
// Its form is one that sorts by bytes and is no other number's beginning: one byte
// for the sign; then, unless it is 0, one for the exponent of the first digit and the
// digits in pairs, each pair c as 2c+1 but the last as 2c. Of a negative number all but
// the sign is complemented.
type Number struct {
	code string // empty for 0
}

const (
	signNegative = 0x40
	signZero     = 0x80
	signPositive = 0xc0
)

func (n Number) bytes() string {
	if n.code == "" {
		return string([]byte{signZero})
	}
	return n.code
}

// AppendKey appends the form that sorts.
func (n Number) AppendKey(dst []byte) []byte { return append(dst, n.bytes()...) }

// KeyNumber reads the number at the beginning of b, which AppendKey has written.
func KeyNumber(b []byte) (n Number, rest []byte, ok bool) {
	if len(b) == 0 {
		return n, nil, false
	}
	var flip byte
	switch b[0] {
	case signZero:
		return n, b[1:], true
	case signNegative:
		flip = 0xff
	case signPositive:
	default:
		return n, nil, false
	}
	for i := 2; i < len(b) && i < 2+(maxDigits+1)/2; i++ {
		if pair := b[i] ^ flip; pair > 2*99+1 {
			break
		} else if pair&1 == 0 {
			n = Number{string(b[:i+1])}
			_, ok := n.decode()
			return n, b[i+1:], ok
		}
	}
	return n, nil, false
}

// decimal is a number as digits without zeros at their ends, the first of which counts
// 10^exponent. 0 has none.
type decimal struct {
	negative bool
	exponent int
	digits   []byte // '0' to '9'
}

// ParseNumber reads a number as clients write it.
func ParseNumber(text string) (Number, error) {
	d, ok := scanNumber(text)
	if !ok {
		if text == "" {
			return Number{}, fault.Validation("The parameter cannot be converted to a numeric value")
		}
		return Number{}, fault.Validation("%s", "The parameter cannot be converted to a numeric value: "+text)
	}
	return d.number()
}

// exponentBound is beyond all exponents that matter: larger ones are cut to it.
const exponentBound = 1 << 30

func scanNumber(text string) (d decimal, ok bool) {
	s := text
	if s != "" && (s[0] == '+' || s[0] == '-') {
		d.negative = s[0] == '-'
		s = s[1:]
	}
	mantissa, exponent := s, ""
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if mantissa, exponent = s[:i], s[i+1:]; exponent == "" {
			return d, false
		}
	}
	whole, fraction, point := strings.Cut(mantissa, ".")
	if whole == "" && fraction == "" || !allDigits(whole) || !allDigits(fraction) || point && whole == "" && fraction == "" {
		return d, false
	}
	shift, ok := scanExponent(exponent)
	if !ok {
		return d, false
	}
	d.digits = make([]byte, 0, len(whole)+len(fraction))
	d.digits = append(append(d.digits, whole...), fraction...)
	leading := 0
	for leading < len(d.digits) && d.digits[leading] == '0' {
		leading++
	}
	d.digits = bytes.TrimRight(d.digits[leading:], "0")
	d.exponent = shift + len(whole) - 1 - leading
	if len(d.digits) == 0 {
		return decimal{}, true
	}
	return d, true
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

func scanExponent(s string) (int, bool) {
	if s == "" {
		return 0, true
	}
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || digits == "" || !allDigits(digits) {
		return 0, false
	}
	if digits = strings.TrimLeft(digits, "0"); len(digits) > 9 {
		digits = strconv.Itoa(exponentBound)
	}
	n, _ := strconv.Atoi(digits) // empty: 0
	if s[0] == '-' {
		n = -n
	}
	return n, true
}

func (d decimal) number() (Number, error) {
	switch {
	case len(d.digits) == 0:
		return Number{}, nil
	case len(d.digits) > maxDigits:
		return Number{}, fault.Validation("Attempting to store more than 38 significant digits in a Number")
	case d.exponent > maxExponent:
		return Number{}, errOverflow
	case d.exponent < minExponent:
		return Number{}, fault.Validation("Number underflow. Attempting to store a number with magnitude smaller than supported range")
	}
	var buf [2 + (maxDigits+1)/2]byte
	b := append(buf[:0], signPositive, byte(d.exponent-minExponent))
	for i := 0; i < len(d.digits); i += 2 {
		pair := 10 * (d.digits[i] - '0')
		if i+1 < len(d.digits) {
			pair += d.digits[i+1] - '0'
		}
		b = append(b, 2*pair+1)
	}
	b[len(b)-1]--
	if d.negative {
		b[0] = signNegative
		for i := 1; i < len(b); i++ {
			b[i] ^= 0xff
		}
	}
	return Number{string(b)}, nil
}

var errOverflow = fault.Validation("Number overflow. Attempting to store a number with magnitude larger than supported range")

// decode is false for what number has not made.
func (n Number) decode() (d decimal, ok bool) {
	if n.code == "" || n.code == string([]byte{signZero}) {
		return d, true
	}
	if len(n.code) < 3 || n.code[0] != signPositive && n.code[0] != signNegative {
		return d, false
	}
	var flip byte
	if d.negative = n.code[0] == signNegative; d.negative {
		flip = 0xff
	}
	d.exponent = int(n.code[1]^flip) + minExponent
	d.digits = make([]byte, 0, 2*(len(n.code)-2))
	for i := 2; i < len(n.code); i++ {
		pair := n.code[i] ^ flip
		last := i == len(n.code)-1
		if pair > 2*99+1 || pair&1 == 0 != last {
			return d, false
		}
		pair /= 2
		d.digits = append(d.digits, '0'+pair/10, '0'+pair%10)
	}
	d.digits = bytes.TrimRight(d.digits, "0")
	return d, len(d.digits) > 0 && d.digits[0] != '0' && len(d.digits) <= maxDigits &&
		len(n.code) == 2+(len(d.digits)+1)/2 && d.exponent <= maxExponent
}

// String returns the number in plain decimals, without an exponent.
func (n Number) String() string { return string(n.appendText(nil)) }

func (n Number) appendText(dst []byte) []byte {
	d, ok := n.decode()
	if !ok || len(d.digits) == 0 {
		return append(dst, '0')
	}
	if d.negative {
		dst = append(dst, '-')
	}
	if d.exponent < 0 {
		dst = append(dst, "0."...)
		for range -d.exponent - 1 {
			dst = append(dst, '0')
		}
		return append(dst, d.digits...)
	}
	whole := min(d.exponent+1, len(d.digits))
	dst = append(dst, d.digits[:whole]...)
	for range d.exponent + 1 - whole {
		dst = append(dst, '0')
	}
	if whole < len(d.digits) {
		dst = append(append(dst, '.'), d.digits[whole:]...)
	}
	return dst
}

// size counts digits in pairs, those before and those after the point.
func (n Number) size() int {
	d, _ := n.decode()
	whole := max(0, min(d.exponent+1, len(d.digits)))
	fraction := len(d.digits) - whole
	size := 1 + (whole+1)/2 + (fraction+1)/2
	if d.negative {
		size++
	}
	return size
}

// Sign is -1, 0 or 1.
func (n Number) Sign() int {
	switch n.bytes()[0] {
	case signNegative:
		return -1
	case signPositive:
		return 1
	}
	return 0
}

// Compare orders numbers by their value.
func (n Number) Compare(m Number) int { return strings.Compare(n.bytes(), m.bytes()) }

// Add returns n + m, or a fault if that cannot be stored exactly.
func (n Number) Add(m Number) (Number, error) { return n.plus(m, false) }

// Sub returns n - m, or a fault if that cannot be stored exactly.
func (n Number) Sub(m Number) (Number, error) { return n.plus(m, true) }

func (n Number) plus(m Number, negated bool) (Number, error) {
	a, _ := n.decode()
	b, _ := m.decode()
	if negated {
		b.negative = !b.negative
	}
	unit := min(a.unit(), b.unit())
	if max(a.exponent, b.exponent)-unit > 2*maxDigits && len(a.digits) > 0 && len(b.digits) > 0 {
		return Number{}, errOverflow // more than 38 digits
	}
	sum := a.times(unit)
	sum.Add(sum, b.times(unit))
	d := decimal{negative: sum.Sign() < 0}
	text := sum.Abs(sum).Append(nil, 10)
	d.exponent = unit + len(text) - 1
	if d.digits = bytes.TrimRight(text, "0"); len(d.digits) > maxDigits {
		return Number{}, errOverflow
	}
	n, err := d.number()
	if err != nil {
		return n, errOverflow
	}
	return n, nil
}

// unit is the exponent of the last digit.
func (d decimal) unit() int { return d.exponent - len(d.digits) + 1 }

// times returns the number in units of 10^unit.
func (d decimal) times(unit int) *big.Int {
	i := new(big.Int)
	if len(d.digits) == 0 {
		return i
	}
	i.SetString(string(d.digits)+strings.Repeat("0", d.unit()-unit), 10)
	if d.negative {
		i.Neg(i)
	}
	return i
}

// Integer returns the number if it is a whole one that fits.
func (n Number) Integer() (i int64, ok bool) {
	d, ok := n.decode()
	if !ok || d.exponent > 18 || d.unit() < 0 && len(d.digits) > 0 {
		return 0, false
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	return i, err == nil
}

// Int returns a whole number.
func Int(i int64) Number {
	n, _ := ParseNumber(strconv.FormatInt(i, 10)) // has 19 digits at most
	return n
}
