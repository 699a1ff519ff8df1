package bso

import "strings"

// params are the parameters of a query string that any request knows, nil when
// they are absent.
type params struct {
	ids, newer, older, full, limit, offset, sort, batch, commit *string
}

func parseParams(raw string) params {
	var p params
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		name, value, _ := strings.Cut(pair, "=")
		if field := p.field(decodeForm(name)); field != nil && *field == nil {
			decoded := decodeForm(value)
			*field = &decoded
		}
	}
	return p
}

func (p *params) field(name string) **string {
	switch name {
	case "ids":
		return &p.ids
	case "newer":
		return &p.newer
	case "older":
		return &p.older
	case "full":
		return &p.full
	case "limit":
		return &p.limit
	case "offset":
		return &p.offset
	case "sort":
		return &p.sort
	case "batch":
		return &p.batch
	case "commit":
		return &p.commit
	}
	return nil
}

// decodeForm decodes a name or value of a query string. A percent sign without two
// hex digits stands for itself, as browsers read it: some clients send ids
// unencoded. So every query string can be read.
func decodeForm(s string) string {
	if !strings.ContainsAny(s, "%+") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '+':
			b = append(b, ' ')
		case s[i] == '%' && i+2 < len(s) && unhex(s[i+1]) >= 0 && unhex(s[i+2]) >= 0:
			b = append(b, byte(unhex(s[i+1])<<4|unhex(s[i+2])))
			i += 2
		default:
			b = append(b, s[i])
		}
	}
	return string(b)
}

// unhex returns the value of a hex digit, or -1.
func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c - 'a' + 10)
	case 'A' <= c && c <= 'F':
		return int(c - 'A' + 10)
	}
	return -1
}
