package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bytes is a number of bytes. It is written as an integer or with a unit, as in
// "2.5MiB" (KiB, MiB, GiB: 1024; KB, MB, GB: 1000).
type Bytes int64

var units = []struct {
	name string
	size int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

// parseBytes reads a number of bytes. A fraction of a byte is refused.
func parseBytes(s string) (Bytes, error) {
	number, size := strings.TrimSpace(s), int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, size = strings.TrimSpace(n), u.size
			break
		}
	}
	bad := fmt.Errorf("%q is not a number of bytes such as 4096, \"64KiB\" or \"2.5MiB\"", s)
	if strings.Trim(number, "0123456789.") != "" {
		return 0, bad
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		if n > math.MaxInt64/size {
			return 0, bad
		}
		return Bytes(n * size), nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if f *= float64(size); err != nil || f != math.Trunc(f) || f >= math.MaxInt64 {
		return 0, bad
	}
	return Bytes(f), nil
}

// String returns b in the largest unit that divides it, so that nothing is
// rounded.
func (b Bytes) String() string {
	for _, u := range []struct {
		name string
		size Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Secret is a text that nothing prints: every way of formatting it gives
// "(secret)", or nothing if it is empty. string(s) is the text itself.
type Secret string

const cut = "(secret)"

// String hides s.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return cut
}

// GoString hides s.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText hides s.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides s.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// fromText turns text, from the environment or a flag, into what a TOML file
// would give for a value of dst's type.
func fromText(dst any, text string) (any, error) {
	switch dst.(type) {
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("%q is neither true nor false", text)
		}
		return b, nil
	case *int:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", text)
		}
		return n, nil
	case *float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", text)
		}
		return f, nil
	case *[]string, *[]netip.Prefix:
		list := []any{}
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		return list, nil
	case *map[string]CollectionLimits:
		var m map[string]any
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return nil, fmt.Errorf("not JSON like {\"history\":{\"max_post_bytes\":26214400}}: %w", err)
		}
		return m, nil
	}
	return text, nil
}

// assign stores raw, a value out of a TOML document, in dst, a pointer to a
// field. On an error dst keeps its value. The text of secrets stays out of errors.
func assign(dst, raw any) error {
	switch d := dst.(type) {
	case *string:
		return as(d, raw, "a text in quotes")
	case *Secret:
		s, ok := raw.(string)
		if !ok {
			return errors.New("want a text in quotes")
		}
		*d = Secret(s)
		return nil
	case *bool:
		return as(d, raw, "true or false, without quotes")
	case *int:
		n, ok := raw.(int64)
		if !ok || int64(int(n)) != n {
			return wrongType(raw, "a whole number")
		}
		*d = int(n)
		return nil
	case *float64:
		if n, ok := raw.(int64); ok {
			raw = float64(n)
		}
		if f, ok := raw.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			return wrongType(raw, "a number")
		}
		return as(d, raw, "a number")
	case *time.Duration:
		return assignDuration(d, raw)
	case *Bytes:
		return assignBytes(d, raw)
	case *[]string:
		return assignList(d, raw, func(s string) (string, error) { return s, nil })
	case *[]netip.Prefix:
		return assignList(d, raw, parsePrefix)
	case *map[string]CollectionLimits:
		return assignCollections(d, raw)
	}
	return fmt.Errorf("BUG: no reader for values of type %T", dst)
}

func as[T any](d *T, raw any, want string) error {
	v, ok := raw.(T)
	if !ok {
		return wrongType(raw, want)
	}
	*d = v
	return nil
}

func wrongType(raw any, want string) error {
	switch raw.(type) {
	case map[string]any:
		return errors.New("is a table, want " + want)
	case []any:
		return errors.New("is a list, want " + want)
	case string:
		return fmt.Errorf("%q is not %s", raw, want)
	}
	return fmt.Errorf("%v is not %s", raw, want)
}

func assignDuration(d *time.Duration, raw any) error {
	const want = `a duration with a unit, such as "10s" or "1h30m"`
	s, ok := raw.(string)
	if !ok {
		return wrongType(raw, want)
	}
	v, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		return wrongType(raw, want)
	}
	*d = v
	return nil
}

func assignBytes(d *Bytes, raw any) error {
	switch v := raw.(type) {
	case int64:
		*d = Bytes(v)
	case float64: // JSON has no other numbers
		if v != math.Trunc(v) || math.Abs(v) >= 1<<53 {
			return fmt.Errorf("%v is not a whole number of bytes", v)
		}
		*d = Bytes(v)
	case string:
		n, err := parseBytes(v)
		if err != nil {
			return err
		}
		*d = n
	default:
		return wrongType(raw, `a number of bytes such as 4096 or "2.5MiB"`)
	}
	return nil
}

func assignList[T any](d *[]T, raw any, parse func(string) (T, error)) error {
	list, ok := raw.([]any)
	if !ok {
		return wrongType(raw, `a list such as ["a", "b"]`)
	}
	var out []T
	for _, e := range list {
		s, ok := e.(string)
		if !ok {
			return wrongType(e, "a text in quotes")
		}
		v, err := parse(s)
		if err != nil {
			return err
		}
		out = append(out, v)
	}
	*d = out
	return nil
}

// parsePrefix reads a network or a single address.
func parsePrefix(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is neither an IP address nor a network such as 10.0.0.0/8", s)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

func assignCollections(d *map[string]CollectionLimits, raw any) error {
	tables, ok := raw.(map[string]any)
	if !ok {
		return wrongType(raw, "a table of tables")
	}
	out := map[string]CollectionLimits{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		limits, err := parseCollectionLimits(name, tables[name])
		errs = append(errs, err)
		out[name] = limits
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	*d = out
	return nil
}

func parseCollectionLimits(collection string, raw any) (CollectionLimits, error) {
	var l CollectionLimits
	fields := map[string]*Bytes{}
	for _, f := range l.fields() {
		fields[f.name] = f.value
	}
	values, ok := raw.(map[string]any)
	if !ok {
		return l, fmt.Errorf("%s: %w", collection, wrongType(raw, "a table of limits"))
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		dst := fields[name]
		if dst == nil {
			errs = append(errs, fmt.Errorf("%s: unknown key %s%s", collection, name,
				didYouMean("", name, slices.Sorted(maps.Keys(fields)))))
			continue
		}
		err := assignBytes(dst, values[name])
		if err == nil && *dst <= 0 {
			err = errors.New("must be above 0; leave it out to keep the general limit")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", collection, name, err))
		}
	}
	return l, errors.Join(errs...)
}

// limitField is a limit with its name.
type limitField struct {
	name  string
	value *Bytes
}

func (l *CollectionLimits) fields() []limitField {
	return []limitField{
		{"max_record_payload_bytes", &l.MaxRecordPayloadBytes},
		{"max_post_bytes", &l.MaxPostBytes},
		{"max_request_bytes", &l.MaxRequestBytes},
	}
}
