package config

import (
	"reflect"
	"strings"

	"github.com/agnivade/levenshtein"
)

const (
	envPrefix = "HOLDFAST_"
	envFile   = "CONFIG" // the file itself; not a key
)

// table is a table of the file: the keys of one struct, then its tables.
type table struct {
	name   string // dotted; empty for the top level
	help   string
	keys   []key
	tables []table
}

// key is a leaf of the configuration, bound to its place in a Config.
type key struct {
	name    string // dotted
	help    string
	flag    string
	example string
	value   any // pointer to the field
}

// env returns the environment variable of k, without envPrefix.
func (k key) env() string { return strings.ToUpper(strings.ReplaceAll(k.name, ".", "_")) }

// schemaOf returns the tables and keys of c; writing through them changes c.
func schemaOf(c *Config) table { return tableOf(reflect.ValueOf(c).Elem(), "", "") }

func tableOf(v reflect.Value, name, help string) table {
	t := table{name: name, help: help}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		sub := strings.TrimPrefix(name+"."+f.Tag.Get("key"), ".")
		if f.Type.Kind() == reflect.Struct {
			t.tables = append(t.tables, tableOf(v.Field(i), sub, f.Tag.Get("help")))
			continue
		}
		t.keys = append(t.keys, key{
			name:    sub,
			help:    f.Tag.Get("help"),
			flag:    f.Tag.Get("flag"),
			example: f.Tag.Get("example"),
			value:   v.Field(i).Addr().Interface(),
		})
	}
	return t
}

// all returns the keys of t and of its tables.
func (t table) all() []key {
	keys := t.keys
	for _, sub := range t.tables {
		keys = append(keys, sub.all()...)
	}
	return keys
}

// byName returns the keys of t by their dotted names.
func (t table) byName() map[string]key {
	m := map[string]key{}
	for _, k := range t.all() {
		m[k.name] = k
	}
	return m
}

// nearest returns the candidate that somebody who wrote name may have meant, or
// "". A known key in the wrong table, or without its table, is near.
func nearest(name string, candidates []string) string {
	const misplaced = 2 // as far as two wrong letters
	best, bestDistance := "", max(2, len(name)/4)+1
	for _, c := range candidates {
		d := levenshtein.ComputeDistance(name, c)
		if last(name) == last(c) || strings.HasSuffix(c, "_"+name) {
			d = min(d, misplaced)
		}
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

func last(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// didYouMean is the end of a message about an unknown name; prefix is left out of
// name and candidates.
func didYouMean(prefix, name string, candidates []string) string {
	if n := nearest(name, candidates); n != "" {
		return "; did you mean " + prefix + n + "?"
	}
	return "; config print --defaults lists all"
}
