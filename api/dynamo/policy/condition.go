package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// condition asks one thing of one key.
type condition struct {
	key        Key
	quantifier quantifier
	ifExists   bool
	negated    bool
	null       bool // the operator is Null, which asks whether there are values at all
	wantAbsent bool
	tests      []test // of which one must pass, or if negated none may
}

// quantifier is how the several values of a key count.
type quantifier int

const (
	single quantifier = iota
	forAllValues
	forAnyValue
)

// test compares a value of the request with one of the policy.
type test func(value string, context map[Key][]string) found

func (c *condition) holds(s *statement, context map[Key][]string) bool {
	values := context[c.key]
	absent := len(values) == 0
	switch {
	case c.null:
		return absent == c.wantAbsent
	case c.quantifier == forAllValues:
		for _, v := range values {
			if !c.passes(v, s, context) {
				return false
			}
		}
		return true
	case c.quantifier == forAnyValue:
		for _, v := range values {
			if c.passes(v, s, context) {
				return true
			}
		}
		return absent && c.ifExists
	case absent:
		return c.negated || c.ifExists
	}
	return c.passes(values[0], s, context)
}

func (c *condition) passes(value string, s *statement, context map[Key][]string) bool {
	found := no
	for _, t := range c.tests {
		found = found.or(t(value, context))
	}
	return s.holds(found, c.negated)
}

// operator is what a condition compares with.
type operator struct {
	kind    kind // of the keys that it is for; text is for all
	negated bool
	// test reads a value of the policy.
	test func(value string, variables bool) (test, error)
}

var operators = map[string]operator{
	"StringEquals":              {test: equals},
	"StringNotEquals":           {test: equals, negated: true},
	"StringEqualsIgnoreCase":    {test: equalsIgnoreCase},
	"StringNotEqualsIgnoreCase": {test: equalsIgnoreCase, negated: true},
	"StringLike":                {test: like},
	"StringNotLike":             {test: like, negated: true},
	"Bool":                      {test: isBool, kind: boolean},
	"IpAddress":                 {test: inNetwork, kind: address},
	"NotIpAddress":              {test: inNetwork, kind: address, negated: true},
	"DateEquals":                {test: compareTime(func(c int) bool { return c == 0 }), kind: date},
	"DateNotEquals":             {test: compareTime(func(c int) bool { return c == 0 }), kind: date, negated: true},
	"DateLessThan":              {test: compareTime(func(c int) bool { return c < 0 }), kind: date},
	"DateLessThanEquals":        {test: compareTime(func(c int) bool { return c <= 0 }), kind: date},
	"DateGreaterThan":           {test: compareTime(func(c int) bool { return c > 0 }), kind: date},
	"DateGreaterThanEquals":     {test: compareTime(func(c int) bool { return c >= 0 }), kind: date},
}

const (
	nullOperator = "Null"
	existsSuffix = "IfExists"
)

// newCondition makes the condition of one operator, as it is written, on one key.
func newCondition(name, keyName string, values []string, variables bool) (condition, error) {
	k, ok := keys[strings.ToLower(keyName)]
	if !ok {
		return condition{}, fmt.Errorf("unknown condition key %q", keyName)
	}
	if name == nullOperator {
		return nullCondition(k.name, values)
	}
	c := condition{key: k.name}
	plain := name
	if rest, ok := strings.CutPrefix(plain, "ForAllValues:"); ok {
		c.quantifier, plain = forAllValues, rest
	} else if rest, ok := strings.CutPrefix(plain, "ForAnyValue:"); ok {
		c.quantifier, plain = forAnyValue, rest
	}
	plain, c.ifExists = strings.CutSuffix(plain, existsSuffix)
	op, ok := operators[plain]
	switch {
	case !ok:
		return condition{}, fmt.Errorf("unknown operator %q", name)
	case op.kind != text && op.kind != k.kind:
		return condition{}, fmt.Errorf("operator %q: %s is %s, not %s", name, k.name, k.kind, op.kind)
	case k.several && c.quantifier == single:
		return condition{}, fmt.Errorf("operator %q: %s may have several values, use ForAllValues or ForAnyValue", name, k.name)
	}
	c.negated = op.negated
	for _, v := range values {
		t, err := op.test(v, variables)
		if err != nil {
			return condition{}, fmt.Errorf("operator %q: %w", name, err)
		}
		c.tests = append(c.tests, t)
	}
	return c, nil
}

func nullCondition(key Key, values []string) (condition, error) {
	if len(values) != 1 {
		return condition{}, fmt.Errorf("operator %q takes one value", nullOperator)
	}
	absent, err := parseBool(values[0])
	if err != nil {
		return condition{}, fmt.Errorf("operator %q: %w", nullOperator, err)
	}
	return condition{key: key, null: true, wantAbsent: absent}, nil
}

func equals(value string, variables bool) (test, error) {
	return textTest(value, variables, func(a, b string) bool { return a == b })
}

func equalsIgnoreCase(value string, variables bool) (test, error) {
	return textTest(value, variables, strings.EqualFold)
}

func textTest(value string, variables bool, equal func(a, b string) bool) (test, error) {
	p, err := parsePattern(value, false, variables)
	if err != nil {
		return nil, err
	}
	return func(value string, context map[Key][]string) found {
		want, ok := p.text(context)
		switch {
		case !ok:
			return open
		case equal(value, want):
			return yes
		}
		return no
	}, nil
}

func like(value string, variables bool) (test, error) {
	p, err := parsePattern(value, true, variables)
	if err != nil {
		return nil, err
	}
	return p.match, nil
}

// whether makes a test of one that needs no variables.
func whether(holds func(value string) bool) test {
	return func(value string, _ map[Key][]string) found {
		if holds(value) {
			return yes
		}
		return no
	}
}

func isBool(value string, _ bool) (test, error) {
	want, err := parseBool(value)
	if err != nil {
		return nil, err
	}
	return whether(func(value string) bool {
		got, err := parseBool(value)
		return err == nil && got == want
	}), nil
}

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

func inNetwork(value string, _ bool) (test, error) {
	network, err := parseNetwork(value)
	if err != nil {
		return nil, err
	}
	return whether(func(value string) bool {
		a, err := netip.ParseAddr(value)
		return err == nil && network.Contains(a.Unmap())
	}), nil
}

// parseNetwork reads a network, or an address as the network that holds only itself.
func parseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	network, err := netip.ParsePrefix(s)
	if err != nil || network.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network", s)
	}
	return network, nil
}

func compareTime(holds func(order int) bool) func(string, bool) (test, error) {
	return func(value string, _ bool) (test, error) {
		want, err := parseTime(value)
		if err != nil {
			return nil, err
		}
		return whether(func(value string) bool {
			got, err := parseTime(value)
			return err == nil && holds(got.Compare(want))
		}), nil
	}
}

// parseTime reads a time as RFC 3339 writes it, a date, or seconds since 1970.
func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	if seconds, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Unix(seconds, 0), nil
	}
	return time.Time{}, errors.New(strconv.Quote(s) + " is no time")
}
