package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/program"
)

func TestMain(m *testing.M) { program.Main(m) }

// holds fails the test unless text holds each of the parts.
func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	holds(t, program.NewHome(t).Output(t, "version"), "holdfast dev (commit ", ", go1.")
}

func TestWrongUsageHasStatus2AndSaysWhatIsRight(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	for _, c := range []struct{ args, says string }{
		{"servee", `unknown command "servee" for "holdfast"; did you mean serve?`},
		{"queue lst", `unknown command "lst" for "holdfast queue"; did you mean list?`},
		{"config nonsense", `unknown command "nonsense"`},
		{"serve now", `unknown command "now"`},
		{"serve --nonsense", "unknown flag: --nonsense"},
		{"reconcile", "say --once or --follow"},
		{"reconcile --once --follow", "say --once or --follow"},
		{"sync token", "usage: holdfast sync token ACCOUNT"},
		{"queue peek", "usage: holdfast queue peek QUEUE"},
		{"queue redrive", "usage: holdfast queue redrive QUEUE [ID...]"},
		{"serve --log-level loud", "log.level"},
		{"serve --config nowhere.toml", "nowhere.toml"},
	} {
		r := home.Run(t, strings.Fields(c.args)...)
		if r.Status != 2 || !strings.Contains(r.Stderr, c.says) {
			t.Errorf("holdfast %s: status %d, want 2 and %q\n%s", c.args, r.Status, c.says, r.Stderr)
		}
		if n := strings.Count(r.Stderr, "\n"); n > 3 {
			t.Errorf("holdfast %s: an error of %d lines", c.args, n)
		}
	}
}

func TestCommandsWithoutADataDirectorySayItAndMakeNone(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	for args, status := range map[string]int{"queue list": 1, "sync users": 1, "verify": 2} {
		r := home.Run(t, strings.Fields(args)...)
		if r.Status != status || !strings.Contains(r.Stderr, "there is no data directory "+home.Dir) {
			t.Errorf("holdfast %s: status %d, want %d\n%s", args, r.Status, status, r.Stderr)
		}
	}
}

func TestConfigPrintShowsValuesAndSources(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, "HOLDFAST_SYNC_MASTER_SECRET=tell nobody of this", "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=history,tabs")
	out := home.Output(t, "config", "print", "--log-level", "warn")
	holds(t, out, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS", `collections = ["history", "tabs"]`, `level = "warn"`, `master_secret = "(secret)"`,
		fmt.Sprintf("data_dir = %q", home.Dir))
	if strings.Contains(out, "tell nobody") {
		t.Error("config print shows a secret")
	}
}

func TestConfigPrintIsAConfigurationFile(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	for _, args := range [][]string{{"config", "print"}, {"config", "print", "--defaults"}} {
		file := writeFile(t, home.Output(t, args...))
		if r := home.Run(t, "config", "check", "--config", file); r.Status != 0 {
			t.Errorf("the output of %v: status %d\n%s", args, r.Status, r.Stderr)
		}
	}
	holds(t, home.Output(t, "config", "print", "--defaults"), "# ", "[sync.offload]", "max_record_payload_bytes")
}

func TestConfigCheckNamesEveryMistakeAndTheNearestKey(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, "HOLDFAST_SYNC_LISTN=127.0.0.1:1", "HOLDFAST_QUEUE_LEASE=soon")
	file := writeFile(t, "[sync]\npublic_ul = \"https://example.org\"\n[store]\nkindd = \"fs\"\n")
	r := home.Run(t, "config", "check", "--config", file)
	if r.Status != 2 {
		t.Errorf("status %d, want 2", r.Status)
	}
	holds(t, r.Stderr, "did you mean HOLDFAST_SYNC_LISTEN?", "did you mean sync.public_url?", "did you mean store.kind?", "queue.lease", file)
}

func TestConfigCheckShowsWarnings(t *testing.T) {
	t.Parallel()
	holds(t, program.NewHome(t).Output(t, "config", "check"), "warning: tokenserver.mode is offline", "ok: defaults and environment")
}
