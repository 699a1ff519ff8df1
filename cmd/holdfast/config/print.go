package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commentWidth is where comments of the reference are wrapped.
const commentWidth = 80

// WriteDefaults writes the reference: a TOML file with every key, its default and
// what it is for. Reading it back gives Default.
func WriteDefaults(w io.Writer) error {
	p := &printer{notes: func(p *printer, k key) {
		p.comment(k.help + " (" + envPrefix + k.env() + ")")
		if k.example != "" {
			p.line("#")
			for l := range strings.SplitSeq(k.example, "|") {
				p.line("#     " + l)
			}
		}
	}}
	p.comment("All settings of holdfast with their defaults. Each can also be set by the " +
		"environment variable in parentheses. Durations have a unit (\"10s\", \"1h30m\"); " +
		"bytes are a number or have a unit (\"64KiB\", \"2.5MiB\").")
	p.line("")
	p.table(schemaOf(Default()), true)
	return p.flush(w)
}

// WriteEffective writes the configuration as it is, as TOML, and beside each
// value that is not the default where it came from. Secrets are cut; a file with
// cut secrets is not meant to be read back.
func WriteEffective(w io.Writer, l *Loaded) error {
	p := &printer{notes: func(p *printer, k key) {
		if from := l.sources[k.name]; from != "" {
			p.comment("from " + from)
		}
	}}
	p.table(schemaOf(l.Config), false)
	return p.flush(w)
}

// printer builds a TOML document.
type printer struct {
	bytes.Buffer
	notes func(*printer, key) // writes what stands above a key
}

func (p *printer) flush(w io.Writer) error {
	if _, err := w.Write(bytes.TrimLeft(p.Bytes(), "\n")); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

func (p *printer) line(s string) { p.WriteString(s + "\n") }

func (p *printer) comment(text string) {
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > commentWidth {
			p.line(line)
			line = "#"
		}
		line += " " + word
	}
	p.line(line)
}

// table writes t. In the reference keys are spaced out and tables explained.
func (p *printer) table(t table, reference bool) {
	if t.name != "" {
		p.line("")
		if reference {
			p.comment(t.help)
		}
		p.line("[" + t.name + "]")
	}
	var after []key // a table of tables must stand below the plain keys
	for i, k := range t.keys {
		if _, ok := k.value.(*map[string]CollectionLimits); ok {
			after = append(after, k)
			continue
		}
		if reference && i > 0 {
			p.line("")
		}
		p.notes(p, k)
		p.line(last(k.name) + " = " + tomlOf(k.value))
	}
	for _, k := range after {
		p.collections(k, reference)
	}
	for _, sub := range t.tables {
		p.table(sub, reference)
	}
}

func (p *printer) collections(k key, reference bool) {
	all := *k.value.(*map[string]CollectionLimits)
	if len(all) == 0 && !reference {
		return
	}
	p.line("")
	p.notes(p, k)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p.line("[" + k.name + "." + quote(name) + "]")
		limits := all[name]
		for _, f := range limits.fields() {
			if *f.value > 0 {
				p.line(f.name + " = " + tomlOf(f.value))
			}
		}
	}
}

// tomlOf returns the value at p as TOML; secrets are cut.
func tomlOf(p any) string {
	switch v := p.(type) {
	case *string, *time.Duration:
		return quote(textOf(v))
	case *Secret:
		return quote(v.String())
	case *Bytes:
		if s := v.String(); strings.HasSuffix(s, "B") {
			return quote(s)
		}
	case *[]string:
		return list(*v, func(s string) string { return s })
	case *[]netip.Prefix:
		return list(*v, netip.Prefix.String)
	}
	return textOf(p)
}

func list[T any](all []T, text func(T) string) string {
	quoted := make([]string, len(all))
	for i, e := range all {
		quoted[i] = quote(text(e))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote returns s as a TOML string. TOML has the escapes of JSON, and forbids DEL
// besides.
func quote(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}

// textOf returns the value at p as it is written in the environment.
func textOf(p any) string {
	switch v := p.(type) {
	case *string:
		return *v
	case *bool:
		return strconv.FormatBool(*v)
	case *int:
		return strconv.Itoa(*v)
	case *float64:
		// TOML takes a number without a point for an integer, which assign allows.
		return strconv.FormatFloat(*v, 'f', -1, 64)
	case *time.Duration:
		return shortDuration(*v)
	case *Bytes:
		return v.String()
	case *[]string:
		return strings.Join(*v, ",")
	}
	return fmt.Sprintf("BUG: no writer for values of type %T", p)
}

// shortDuration is d.String without zero minutes and seconds at its end.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
