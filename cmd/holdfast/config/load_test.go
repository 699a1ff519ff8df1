package config

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// sameConfig compares configurations; an empty list is like none.
var sameConfig = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

// file writes text to a new file and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, opts Options) *Loaded {
	t.Helper()
	l, err := Load(opts)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return l
}

func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error\n%v\ndoes not say %q", err, text)
		}
	}
}

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("holdfast", pflag.ContinueOnError)
	Flags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestDefaultsAreValidAndWithoutWarnings(t *testing.T) {
	l := load(t, Options{Flags: flags(t)})
	if d := cmp.Diff(Default(), l.Config, sameConfig); d != "" {
		t.Errorf("Load of nothing (-default +got):\n%s", d)
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings %q", l.Warnings)
	}
}

func TestReferenceIsACompleteFileWithTheDefaults(t *testing.T) {
	var b bytes.Buffer
	if err := WriteDefaults(&b); err != nil {
		t.Fatal(err)
	}
	l := load(t, Options{File: file(t, b.String())})
	if d := cmp.Diff(Default(), l.Config, sameConfig); d != "" {
		t.Errorf("reference read back (-default +got):\n%s", d)
	}
	for name, k := range schemaOf(Default()).byName() {
		if k.help == "" || last(name) == "" {
			t.Errorf("key %q has no name or no help", name)
		}
		if l.sources[name] == "" && k.example == "" {
			t.Errorf("the reference lacks %s", name)
		}
	}
	for line := range strings.Lines(b.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > commentWidth {
			t.Errorf("line of %d bytes: %s", n, line)
		}
	}
}

func TestExamplesOfTheReferenceAreValid(t *testing.T) {
	for _, k := range schemaOf(Default()).all() {
		if k.example != "" {
			text := "[sync.offload]\ncollections = [\"history\"]\n" + strings.ReplaceAll(k.example, "|", "\n")
			l := load(t, Options{File: file(t, text)})
			if l.sources[k.name] == "" {
				t.Errorf("the example of %s does not set it", k.name)
			}
		}
	}
}

func TestNoTwoKeysShareAVariable(t *testing.T) {
	seen := map[string]string{envFile: "the file"}
	for name, k := range schemaOf(Default()).byName() {
		if other, ok := seen[k.env()]; ok {
			t.Errorf("%s and %s are both %s", name, other, k.env())
		}
		seen[k.env()] = name
	}
}

func TestFlagBeatsEnvironmentBeatsUpstreamNameBeatsFileBeatsDefault(t *testing.T) {
	path := file(t, "sync.listen = '127.0.0.1:1'\n")
	layers := []struct {
		source string
		want   string
		add    func(*Options)
	}{
		{"", "127.0.0.1:8000", func(*Options) {}},
		{path, "127.0.0.1:1", func(o *Options) { o.File = path }},
		{"SYNC_PORT", "127.0.0.1:2", func(o *Options) { o.Env = append(o.Env, "SYNC_PORT=2") }},
		{"HOLDFAST_SYNC_LISTEN", "127.0.0.1:3", func(o *Options) { o.Env = append(o.Env, "HOLDFAST_SYNC_LISTEN=127.0.0.1:3") }},
		{"--sync-listen", "127.0.0.1:4", func(o *Options) { o.Flags = flags(t, "--sync-listen", "127.0.0.1:4") }},
	}
	var opts Options
	for _, layer := range layers {
		layer.add(&opts)
		l := load(t, opts)
		if l.Sync.Listen != layer.want || l.sources["sync.listen"] != layer.source {
			t.Errorf("with %s: %s from %q, want %s", layer.source, l.Sync.Listen, l.sources["sync.listen"], layer.want)
		}
	}
}

func TestWhichFileIsRead(t *testing.T) {
	path := func(dir string) string { return file(t, fmt.Sprintf("data_dir = %q\n", dir)) }
	env := []string{"HOLDFAST_CONFIG=" + path("env")}
	byFlag := flags(t, "--config", path("flag"))
	for want, opts := range map[string]Options{
		"./holdfast-data": {Flags: flags(t)},
		"env":             {Env: env, Flags: flags(t)},
		"flag":            {Env: env, Flags: byFlag},
		"option":          {Env: env, Flags: byFlag, File: path("option")},
	} {
		if got := load(t, opts).DataDir; got != want {
			t.Errorf("read %s, want %s", got, want)
		}
	}
	_, err := Load(Options{File: "/nonexistent/holdfast.toml"})
	wantError(t, err, "read the configuration file", "/nonexistent/holdfast.toml")
}

// settable lists a value for every type of key: in the file, in the environment,
// and as it must arrive.
var settable = []struct {
	key, toml, env string
	get            func(*Config) any
	want           any
}{
	{"data_dir", `"/d"`, "/d", func(c *Config) any { return c.DataDir }, "/d"},
	{"sync.quota.enabled", "true", "true", func(c *Config) any { return c.Sync.Quota.Enabled }, true},
	{"sync.limits.max_post_records", "1_00", "100", func(c *Config) any { return c.Sync.Limits.MaxPostRecords }, 100},
	{"tokenserver.node_capacity_release_rate", "1", "1", func(c *Config) any { return c.TokenServer.NodeCapacityReleaseRate }, 1.0},
	{"queue.lease", `"1m30s"`, "1m30s", func(c *Config) any { return c.Queue.Lease }, 90 * time.Second},
	{"sync.backoff", `"0"`, "0", func(c *Config) any { return c.Sync.Backoff }, time.Duration(0)},
	{"sync.offload.min_bytes", "4096", "4096", func(c *Config) any { return c.Sync.Offload.MinBytes }, Bytes(4096)},
	{"engine.cache_bytes", `"2.5MiB"`, "2.5MiB", func(c *Config) any { return c.Engine.CacheBytes }, Bytes(2_621_440)},
	{"admin.hosts", `["a", "b"]`, " a, b,", func(c *Config) any { return c.Admin.Hosts }, []string{"a", "b"}},
	{"sync.trusted_proxies", `["10.1.2.3/8", "::1"]`, "10.1.2.3/8,::1", func(c *Config) any { return c.Sync.TrustedProxies },
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}},
	{"sync.master_secret", `"sssssssssssssssss"`, "sssssssssssssssss", func(c *Config) any { return c.Sync.MasterSecret }, Secret("sssssssssssssssss")},
	{"sync.limits.collections", `{tabs = {max_request_bytes = "3MiB"}}`, `{"tabs":{"max_request_bytes":3145728}}`,
		func(c *Config) any { return c.Sync.Limits.Collections }, map[string]CollectionLimits{"tabs": {MaxRequestBytes: 3 << 20}}},
}

func TestEveryTypeIsReadFromFileAndEnvironment(t *testing.T) {
	for _, s := range settable {
		for where, opts := range map[string]Options{
			"file":        {File: file(t, s.key+" = "+s.toml+"\n")},
			"environment": {Env: []string{"HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_")) + "=" + s.env}},
		} {
			l := load(t, opts)
			if d := cmp.Diff(s.want, s.get(l.Config), sameConfig); d != "" {
				t.Errorf("%s from %s (-want +got):\n%s", s.key, where, d)
			}
		}
	}
}

func TestValuesOfTheWrongTypeAreRefused(t *testing.T) {
	cases := map[string]string{ // file -> message
		"data_dir = 1":                                          "data_dir (FILE): 1 is not a text in quotes",
		"data_dir = ['a']":                                      "data_dir (FILE): is a list, want a text in quotes",
		"sync.enabled = 'true'":                                 `"true" is not true or false, without quotes`,
		"sync.enabled = {}":                                     "is a table, want true or false",
		"sync.limits.max_post_records = 1.5":                    "1.5 is not a whole number",
		"tokenserver.node_capacity_release_rate = nan":          "NaN is not a number",
		"queue.lease = 10":                                      `10 is not a duration with a unit, such as "10s"`,
		"queue.lease = '10'":                                    `"10" is not a duration with a unit`,
		"queue.lease = 'soon'":                                  `"soon" is not a duration`,
		"engine.cache_bytes = 'much'":                           `"much" is not a number of bytes`,
		"engine.cache_bytes = '1.0001KiB'":                      "is not a number of bytes",
		"engine.cache_bytes = '99999999999GiB'":                 "is not a number of bytes",
		"engine.cache_bytes = true":                             "true is not a number of bytes",
		"admin.hosts = 'a'":                                     `"a" is not a list such as`,
		"admin.hosts = [1]":                                     "1 is not a text",
		"sync.trusted_proxies = ['proxy']":                      `"proxy" is neither an IP address nor a network`,
		"sync.master_secret = 123456":                           "sync.master_secret (FILE): want a text in quotes",
		"sync = 1":                                              "sync (FILE): is a table: write [sync]",
		"sync.limits.collections = 1":                           "is not a table of tables",
		"sync.limits.collections.tabs = 1":                      "tabs: 1 is not a table of limits",
		"sync.limits.collections.tabs.max_pots_bytes = 1":       "tabs: unknown key max_pots_bytes; did you mean max_post_bytes?",
		"sync.limits.collections.tabs.max_post_bytes = 0":       "tabs.max_post_bytes: must be above 0",
		"sync.limits.collections.tabs.max_post_bytes = '-1KiB'": "is not a number of bytes",
		"a = ": "FILE:1:4: toml:",
	}
	for text, want := range cases {
		path := file(t, text)
		_, err := Load(Options{File: path})
		if err == nil {
			t.Errorf("%s: no error", text)
			continue
		}
		if got := strings.ReplaceAll(err.Error(), path, "FILE"); !strings.Contains(got, want) {
			t.Errorf("%s: error %q, want %q", text, got, want)
		}
	}
	for env, want := range map[string]string{
		"HOLDFAST_SYNC_ENABLED=maybe":                                   `sync.enabled (HOLDFAST_SYNC_ENABLED): "maybe" is neither true nor false`,
		"HOLDFAST_SYNC_LIMITS_MAX_POST_RECORDS=many":                    `"many" is not a whole number`,
		"HOLDFAST_TOKENSERVER_NODE_CAPACITY_RELEASE_RATE=x":             `"x" is not a number`,
		"HOLDFAST_SYNC_LIMITS_COLLECTIONS=[1]":                          "not JSON like",
		`HOLDFAST_SYNC_LIMITS_COLLECTIONS={"a":{"x":1}}`:                "a: unknown key x",
		`SYNC_SYNCSTORAGE__LIMITS__COLLECTIONS={"a":{"x":1}}`:           "sync.limits.collections (SYNC_SYNCSTORAGE__LIMITS__COLLECTIONS): a: unknown key x",
		`HOLDFAST_SYNC_LIMITS_COLLECTIONS={"a":{"max_post_bytes":1.5}}`: "1.5 is not a whole number of bytes",
	} {
		_, err := Load(Options{Env: []string{env}})
		wantError(t, err, want)
	}
}

func TestUnknownNamesAreRefusedWithTheNearestKnownOne(t *testing.T) {
	for text, want := range map[string]string{
		"sync.publc_url = ''":          "unknown key sync.publc_url (FILE); did you mean sync.public_url?",
		"public_url = ''":              "unknown key public_url (FILE); did you mean sync.public_url?",
		"[snyc]\nlisten = ''":          "unknown key snyc (FILE)",
		"[engine]\nlifecycle_period=1": "did you mean store.lifecycle_period?",
		"quite_something_else = 1":     "unknown key quite_something_else (FILE); config print --defaults lists all",
		"'sync.listen' = ''":           `unknown key "sync.listen" (FILE): its dots are inside quotes`,
	} {
		path := file(t, text)
		_, err := Load(Options{File: path})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), path, "FILE"), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
	for env, want := range map[string]string{
		"HOLDFAST_SYNC_PUBLC_URL=x":  "unknown environment variable HOLDFAST_SYNC_PUBLC_URL; did you mean HOLDFAST_SYNC_PUBLIC_URL?",
		"HOLDFAST_PUBLIC_URL=x":      "did you mean HOLDFAST_SYNC_PUBLIC_URL?",
		"HOLDFAST_SYNC__LISTEN=x":    "did you mean HOLDFAST_SYNC_LISTEN?",
		"HOLDFAST_CONFIGG=x":         "did you mean HOLDFAST_CONFIG?",
		"HOLDFAST_VERYMUCHUNKNOWN=x": "HOLDFAST_VERYMUCHUNKNOWN; config print --defaults lists all",
	} {
		_, err := Load(Options{Env: []string{env}})
		wantError(t, err, want)
	}
}

func TestAllMistakesOfAllSourcesAreReportedTogether(t *testing.T) {
	path := file(t, "sync.publc_url = ''\nqueue.lease = 10\n")
	_, err := Load(Options{
		File:  path,
		Env:   []string{"HOLDFAST_FOO=1", "SYNC_SYNCSTORAGE__DATABASE_URL=spanner://x"},
		Flags: flags(t, "--offload-collections", "a,b"),
	})
	wantError(t, err, "sync.publc_url", "queue.lease", "HOLDFAST_FOO", "SYNC_SYNCSTORAGE__DATABASE_URL")
	_, err = Load(Options{Env: []string{"HOLDFAST_LOG_LEVEL=loud", "HOLDFAST_SYNC_LISTEN=nowhere", "HOLDFAST_RECONCILE_MAX_ATTEMPTS=0"}})
	wantError(t, err, "log.level", "sync.listen", "reconcile.max_attempts")
}

func TestEmptyVariablesCountAsNotSet(t *testing.T) {
	env := []string{"HOLDFAST_TYPO=", "SYNC_SYNCSTORAGE__GCS_PAYLOAD_BUCKET=", "HOLDFAST_CONFIG=", "strange"}
	for _, k := range schemaOf(Default()).all() {
		env = append(env, envPrefix+k.env()+"=")
	}
	l := load(t, Options{Env: env})
	if d := cmp.Diff(Default(), l.Config, sameConfig); d != "" {
		t.Errorf("(-default +got):\n%s", d)
	}
}

func TestVariablesOfKubernetesServicesAreNotSettings(t *testing.T) {
	env := []string{}
	for _, service := range []string{"HOLDFAST", "HOLDFAST_SYNC", "SYNC", "SYNC_STATSD"} {
		env = append(env, service+"_SERVICE_HOST=10.0.0.1", service+"_SERVICE_PORT=8000", service+"_SERVICE_PORT_HTTP=8000",
			service+"_PORT=tcp://10.0.0.1:8000", service+"_PORT_8000_TCP=tcp://10.0.0.1:8000", service+"_PORT_8000_TCP_PROTO=tcp",
			service+"_PORT_8000_TCP_PORT=8000", service+"_PORT_8000_TCP_ADDR=10.0.0.1")
	}
	l := load(t, Options{Env: env})
	if d := cmp.Diff(Default(), l.Config, sameConfig); d != "" {
		t.Errorf("(-default +got):\n%s", d)
	}
}

func TestEffectiveConfigurationSaysWhereValuesComeFrom(t *testing.T) {
	l := load(t, Options{
		Env:   []string{"SYNC_PORT=9", `HOLDFAST_SYNC_LIMITS_COLLECTIONS={"a.b":{"max_request_bytes":3145728}}`},
		Flags: flags(t, "--data-dir=x"),
	})
	var b bytes.Buffer
	if err := WriteEffective(&b, l); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# from --data-dir\ndata_dir = \"x\"\n",
		"# from SYNC_PORT\nlisten = \"127.0.0.1:9\"\n",
		"# from HOLDFAST_SYNC_LIMITS_COLLECTIONS\n[sync.limits.collections.\"a.b\"]\nmax_request_bytes = \"3MiB\"\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	if n := strings.Count(b.String(), "#"); n != 3 {
		t.Errorf("%d comments, want 3", n)
	}
	again := load(t, Options{File: file(t, b.String())})
	if d := cmp.Diff(l.Config, again.Config, sameConfig); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
}

func TestStrangeTextsSurvivePrintingAndReading(t *testing.T) {
	const strange = "\x00\t\n\x1f\x7f\"\\'# <&> é\u2028"
	want := load(t, Options{Flags: flags(t, "--data-dir", strange)})
	var b bytes.Buffer
	if err := WriteEffective(&b, want); err != nil {
		t.Fatal(err)
	}
	if got := load(t, Options{File: file(t, b.String())}); got.DataDir != strange {
		t.Errorf("%q came back as %q", strange, got.DataDir)
	}
}

func TestFlagsHaveHelpAndDefaults(t *testing.T) {
	got := flags(t).FlagUsages()
	for _, want := range []string{"--config", "--data-dir value", `(default ./holdfast-data)`, "sync.public_url", "--log-level"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func FuzzFile(f *testing.F) {
	var b bytes.Buffer
	if err := WriteDefaults(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	for _, s := range settable {
		f.Add([]byte(s.key + " = " + s.toml))
	}
	f.Add([]byte("[sync.limits.collections.\"\x7f\"]\nmax_post_bytes = 1e3"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := Default()
		l := &loader{Loaded: &Loaded{Config: cfg, sources: map[string]string{}}, keys: schemaOf(cfg).byName()}
		l.readTOML(data)
		if len(l.errs) > 0 || cfg.Validate() != nil {
			return
		}
		cfg.Sync.MasterSecret, cfg.TokenServer.MetricsHashSecret, cfg.Admin.Token = "", "", ""
		var out bytes.Buffer
		if err := WriteEffective(&out, l.Loaded); err != nil {
			t.Fatal(err)
		}
		again := Default()
		l2 := &loader{Loaded: &Loaded{Config: again, sources: map[string]string{}}, keys: schemaOf(again).byName()}
		l2.readTOML(out.Bytes())
		if len(l2.errs) > 0 {
			t.Fatalf("%v in\n%s", l2.errs, &out)
		}
		if d := cmp.Diff(cfg, again, sameConfig); d != "" {
			t.Errorf("read back (-want +got):\n%s", d)
		}
	})
}

func FuzzEnvironment(f *testing.F) {
	keys := schemaOf(Default()).byName()
	names := slices.Sorted(maps.Keys(keys))
	aliasNames := slices.Sorted(maps.Keys(aliases()))
	for i, s := range settable {
		f.Add(uint16(i), s.env)
	}
	f.Fuzz(func(t *testing.T, n uint16, text string) {
		i := int(n) % (len(names) + len(aliasNames))
		name := aliasPrefix
		if i < len(names) {
			name = envPrefix + keys[names[i]].env()
		} else {
			name += aliasNames[i-len(names)]
		}
		_, _ = Load(Options{Env: []string{name + "=" + text}})
	})
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"0", "4096", "2.5MiB", "1 GB", "1.5", "9223372036854775807", ".", "1e3", "B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := parseBytes(s)
		if err != nil {
			return
		}
		if b < 0 {
			t.Errorf("%q: %d", s, b)
		}
		if again, err := parseBytes(b.String()); err != nil || again != b {
			t.Errorf("%q = %d, printed %s, read as %d, %v", s, b, b, again, err)
		}
	})
}

func TestEmulatorsOfTheEnvironmentCountUnlessAKeyIsSet(t *testing.T) {
	env := []string{"BIGTABLE_EMULATOR_HOST=127.0.0.1:1", "SPANNER_EMULATOR_HOST=127.0.0.1:2"}
	l := load(t, Options{Env: env})
	if b, s := l.Engine.Bigtable.EmulatorHost, l.Engine.Spanner.EmulatorHost; b != "127.0.0.1:1" || s != "127.0.0.1:2" {
		t.Errorf("emulators %q and %q", b, s)
	}
	l = load(t, Options{File: file(t, "engine.bigtable.emulator_host = 'localhost:3'"), Env: env})
	if b := l.Engine.Bigtable.EmulatorHost; b != "localhost:3" {
		t.Errorf("emulator %q", b)
	}
}
