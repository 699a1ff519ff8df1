package policy

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// pattern is a text with wildcards and variables.
type pattern []element

// element is a byte, a wildcard or a variable.
type element struct {
	symbol   symbol
	variable Key
	// otherwise stands for a variable without a value, if not nil.
	otherwise *string
}

// symbol is a byte that stands for itself, or something else.
type symbol int16

const (
	anyOne   symbol = -1 // ?: one character
	anyMany  symbol = -2 // *: any characters, also none
	variable symbol = -3
)

// parsePattern reads a pattern. Variables are those of version 2012-10-17.
func parsePattern(text string, wildcards, variables bool) (pattern, error) {
	p := make(pattern, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '*' && wildcards:
			p = append(p, element{symbol: anyMany})
		case c == '?' && wildcards:
			p = append(p, element{symbol: anyOne})
		case c == '$' && variables && strings.HasPrefix(text[i:], "${"):
			name, _, ok := strings.Cut(text[i+2:], "}")
			if !ok {
				return nil, fmt.Errorf("%q: ${ without }", text)
			}
			e, err := parseVariable(name)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
			p = append(p, e)
			i += len("${") + len(name)
		default:
			p = append(p, element{symbol: symbol(c)})
		}
	}
	return p, nil
}

// parseVariable reads what stands between ${ and }.
func parseVariable(s string) (element, error) {
	switch s {
	case "*", "?", "$": // what would otherwise mean something
		return element{symbol: symbol(s[0])}, nil
	}
	name, otherwise, hasDefault := strings.Cut(s, ",")
	k, ok := keys[strings.ToLower(strings.TrimSpace(name))]
	switch {
	case !ok:
		return element{}, fmt.Errorf("unknown variable %q", name)
	case k.several:
		return element{}, fmt.Errorf("%q may have several values and is no variable", name)
	}
	e := element{symbol: variable, variable: k.name}
	if hasDefault {
		otherwise = strings.TrimSpace(otherwise)
		if len(otherwise) < 2 || otherwise[0] != '\'' || otherwise[len(otherwise)-1] != '\'' {
			return element{}, fmt.Errorf("the default of variable %q is not in single quotes", name)
		}
		otherwise = otherwise[1 : len(otherwise)-1]
		e.otherwise = &otherwise
	}
	return e, nil
}

// symbols puts values in place of the variables, or returns false if one has none.
// What a value holds stands for itself.
func (p pattern) symbols(context map[Key][]string) ([]symbol, bool) {
	symbols := make([]symbol, 0, len(p))
	for _, e := range p {
		if e.symbol != variable {
			symbols = append(symbols, e.symbol)
			continue
		}
		var value string
		switch values := context[e.variable]; {
		case len(values) > 0:
			value = values[0]
		case e.otherwise != nil:
			value = *e.otherwise
		default:
			return nil, false
		}
		for _, c := range []byte(value) {
			symbols = append(symbols, symbol(c))
		}
	}
	return symbols, true
}

// text is the pattern with values in place of the variables, for the operators that
// know no wildcards.
func (p pattern) text(context map[Key][]string) (string, bool) {
	symbols, ok := p.symbols(context)
	b := make([]byte, len(symbols))
	for i, s := range symbols {
		b[i] = byte(s)
	}
	return string(b), ok
}

func (p pattern) match(s string, context map[Key][]string) found {
	symbols, ok := p.symbols(context)
	if !ok {
		return open
	}
	if glob(symbols, s) {
		return yes
	}
	return no
}

// glob matches in a time of at most len(p) times len(s): when the rest does not fit,
// only the last star is tried again with more.
func glob(p []symbol, s string) bool {
	star, resume := -1, 0
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(p) && p[i] == anyMany:
			star, resume = i, j
			i++
		case i < len(p) && p[i] == anyOne:
			i++
			j += runeLen(s[j:])
		case i < len(p) && p[i] == symbol(s[j]):
			i++
			j++
		case star >= 0:
			resume += runeLen(s[resume:])
			i, j = star+1, resume
		default:
			return false
		}
	}
	for i < len(p) && p[i] == anyMany {
		i++
	}
	return i == len(p)
}

func runeLen(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	return n
}
