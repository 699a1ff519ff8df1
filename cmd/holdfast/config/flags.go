package config

import "github.com/spf13/pflag"

const fileFlag = "config"

// Flags defines on fs the flag of the configuration file and those of the most
// used keys. Load reads them after parsing.
func Flags(fs *pflag.FlagSet) {
	fs.StringP(fileFlag, "c", "", "configuration file (TOML); also $"+envPrefix+envFile)
	for _, k := range schemaOf(Default()).all() {
		if k.flag != "" {
			fs.Var(&flagValue{text: textOf(k.value)}, k.flag, k.help+" Key "+k.name+".")
		}
	}
}

// flagValue keeps what was given; Load reads it, so that flags, environment and
// file understand the same.
type flagValue struct{ text string }

func (f *flagValue) String() string     { return f.text }
func (f *flagValue) Set(s string) error { f.text = s; return nil }
func (f *flagValue) Type() string       { return "value" }

func (l *loader) readFlags(fs *pflag.FlagSet) {
	if fs == nil {
		return
	}
	for _, name := range l.names() {
		k := l.keys[name]
		if k.flag == "" {
			continue
		}
		if f := fs.Lookup(k.flag); f != nil && f.Changed {
			l.setText(name, f.Value.String(), "--"+k.flag)
		}
	}
}
