package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
)

// Options says where Load reads from. The zero value gives the defaults.
type Options struct {
	File  string         // TOML file; empty: the flag --config, then HOLDFAST_CONFIG, then none
	Env   []string       // as os.Environ returns it
	Flags *pflag.FlagSet // after parsing; only flags that Flags has defined and that were given count

	// Pipeline is the command of the pipeline that is run, if it is one. It makes
	// the names of the public pipeline count: variables below HOLDFAST_, flags.
	Pipeline Pipeline
	// Incomplete lets the command do without keys that it needs to run.
	Incomplete bool
}

// Loaded is a valid configuration and where it came from.
type Loaded struct {
	*Config
	File     string   // the file that was read; empty if none
	Warnings []string // what works, but deserves a look; one sentence each

	sources map[string]string // key -> where its value came from, if it is not the default
}

// Load reads the configuration. Its error lists every mistake, one in a line,
// each with the key or variable to change.
func Load(opts Options) (*Loaded, error) {
	cfg := Default()
	l := &loader{
		Loaded: &Loaded{Config: cfg, sources: map[string]string{}},
		keys:   schemaOf(cfg).byName(),
	}
	env := environment(opts.Env)
	l.File = fileOf(opts, env)
	if l.File != "" {
		l.readFile()
	}
	l.readAliases(env)
	if opts.Pipeline != "" {
		l.readPipeline(opts.Pipeline, env)
	}
	l.readEnv(env)
	l.readFlags(opts.Flags)
	l.readJobFlags(opts.Flags)
	l.readEmulators(env)
	if opts.Pipeline != "" && !opts.Incomplete && len(l.errs) == 0 {
		l.requirePipeline(opts.Pipeline)
	}
	if len(l.errs) == 0 {
		// A value that could not be read keeps its default, and what Validate
		// would say about that is noise.
		l.errs = append(l.errs, cfg.Validate())
	}
	if err := errors.Join(l.errs...); err != nil {
		return nil, err
	}
	l.Warnings = append(l.Warnings, cfg.warnings()...)
	return l.Loaded, nil
}

// readEmulators reads the variables that all clients of a service understand. A key that
// is set counts more.
func (l *loader) readEmulators(env map[string]string) {
	for variable, name := range map[string]string{
		"BIGTABLE_EMULATOR_HOST": "engine.bigtable.emulator_host",
		"SPANNER_EMULATOR_HOST":  "engine.spanner.emulator_host",
	} {
		if host := env[variable]; host != "" && *l.keys[name].value.(*string) == "" {
			l.set(name, host, variable)
		}
	}
}

// loader collects values and mistakes.
type loader struct {
	*Loaded
	keys map[string]key
	errs []error
}

func (l *loader) mistake(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

func (l *loader) warn(format string, args ...any) {
	l.Warnings = append(l.Warnings, fmt.Sprintf(format, args...))
}

// fileOf returns the file to read.
func fileOf(opts Options, env map[string]string) string {
	if opts.File != "" {
		return opts.File
	}
	if opts.Flags != nil {
		if f := opts.Flags.Lookup(fileFlag); f != nil && f.Value.String() != "" {
			return f.Value.String()
		}
	}
	return env[envPrefix+envFile]
}

// environment returns env as a map, without variables that are empty and those
// that Kubernetes makes for every service: a service named holdfast or sync would
// otherwise look like a configuration.
func environment(env []string) map[string]string {
	m := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if value != "" && !isServiceLink(name, value) {
			m[name] = value
		}
	}
	return m
}

// isServiceLink recognizes X_SERVICE_HOST, X_SERVICE_PORT, X_SERVICE_PORT_NAME,
// X_PORT=tcp://..., X_PORT_8000_TCP and what begins like the last.
func isServiceLink(name, value string) bool {
	if strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") {
		return true
	}
	_, port, ok := strings.Cut(name, "_PORT")
	if !ok {
		return false
	}
	number, isPart := strings.CutPrefix(port, "_")
	return strings.Contains(value, "://") ||
		isPart && number != "" && number[0] >= '0' && number[0] <= '9'
}

// set stores raw in the key named name.
func (l *loader) set(name string, raw any, source string) {
	if err := assign(l.keys[name].value, raw); err != nil {
		l.mistake("%s (%s): %w", name, source, err)
		return
	}
	l.sources[name] = source
}

// setText is set for a value that is not out of TOML.
func (l *loader) setText(name, text, source string) {
	raw, err := fromText(l.keys[name].value, text)
	if err != nil {
		l.mistake("%s (%s): %w", name, source, err)
		return
	}
	l.set(name, raw, source)
}

func (l *loader) readFile() {
	data, err := os.ReadFile(l.File)
	if err != nil {
		l.mistake("read the configuration file: %w", err)
		return
	}
	l.readTOML(data)
	if l.Sync.MasterSecret+l.TokenServer.MetricsHashSecret+l.Admin.Token == "" {
		return
	}
	if info, err := os.Stat(l.File); err == nil && info.Mode().Perm()&0o007 != 0 {
		l.warn("%s contains secrets and everybody on this machine can read it: chmod 640", l.File)
	}
}

func (l *loader) readTOML(data []byte) {
	var doc map[string]any
	if err := toml.Unmarshal(data, &doc); err != nil {
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			line, column := bad.Position()
			l.mistake("%s:%d:%d: %w", l.File, line, column, err)
		} else {
			l.mistake("%s: %w", l.File, err)
		}
		return
	}
	l.readTable("", doc)
}

func (l *loader) readTable(prefix string, doc map[string]any) {
	for _, part := range slices.Sorted(maps.Keys(doc)) {
		name := prefix + part
		_, isKey := l.keys[name]
		sub, isTable := doc[part].(map[string]any)
		switch {
		case strings.Contains(part, "."):
			l.mistake("unknown key %q (%s): its dots are inside quotes", name, l.File)
		case isKey:
			l.set(name, doc[part], l.File)
		case !l.isTable(name):
			l.mistake("unknown key %s (%s)%s", name, l.File, didYouMean("", name, l.names()))
		case !isTable:
			l.mistake("%s (%s): is a table: write [%s] and its keys below", name, l.File, name)
		default:
			l.readTable(name+".", sub)
		}
	}
}

func (l *loader) isTable(name string) bool {
	for k := range l.keys {
		if strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}

func (l *loader) names() []string { return slices.Sorted(maps.Keys(l.keys)) }

func (l *loader) readEnv(env map[string]string) {
	known := map[string]string{}
	for name, k := range l.keys {
		known[k.env()] = name
	}
	candidates := append(slices.Sorted(maps.Keys(known)), envFile)
	for _, v := range slices.Sorted(maps.Keys(env)) {
		short, ok := strings.CutPrefix(v, envPrefix)
		if !ok || short == envFile {
			continue
		}
		name, ok := known[short]
		if !ok {
			l.mistake("unknown environment variable %s%s", v, didYouMean(envPrefix, short, candidates))
			continue
		}
		l.setText(name, env[v], v)
	}
}
