package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/program"
)

// TestCopyMovesEverything copies a server's data to another one, which then serves what
// the first had.
func TestCopyMovesEverything(t *testing.T) {
	t.Parallel()
	source, target := program.NewHome(t, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS="+everyCollection), program.NewHome(t)
	want := fillForCopy(t, source)
	moves(t, source, target, configOf(t, target), want)
	audit(t, target)
}

// TestCopyMovesToTheCluster copies a laptop's data to an engine that processes share.
func TestCopyMovesToTheCluster(t *testing.T) {
	for _, engine := range []place{postgresEngine, bigtableEngine} {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			source := program.NewHome(t, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS="+everyCollection)
			want := fillForCopy(t, source)
			target := homeIn(t, engine, folderStore)
			moves(t, source, target, configOf(t, target), want)
		})
	}
}

// fillForCopy gives a home records of two users, some offloaded, and an open batch, and
// returns what the first user has in bookmarks.
func fillForCopy(t *testing.T, home *program.Home) map[string]string {
	server := home.Serve(t)
	b := browser{t, login(t, home, newHTTP(t), "mover")}
	firstSync(t, b)
	b.do(200, "POST", "/storage/bookmarks", posts(0, 90, "kept"))
	b.do(202, "POST", "/storage/bookmarks?batch=true", posts(3, 10, "open"))
	b.put("/storage/history/old", `{"payload":"replaced"}`)
	b.put("/storage/history/old", `{"payload":"in service"}`)
	other := browser{t, login(t, home, newHTTP(t), "other")}
	other.put("/storage/tabs/one", `{"payload":"theirs"}`)
	want := b.payloads("bookmarks")
	server.Stop(t)
	return want
}

// configOf writes a configuration file with the settings of a home.
func configOf(t *testing.T, home *program.Home) string {
	lines := []string{"data_dir = '" + home.Dir + "'"}
	for _, setting := range append(slices.Clone(home.Place), home.Env...) {
		name, value, _ := strings.Cut(setting, "=")
		table, key := "", strings.ToLower(strings.TrimPrefix(name, "HOLDFAST_"))
		for _, t := range []string{"engine_postgres", "engine_bigtable", "engine_spanner", "engine", "store_gcs", "store_s3", "store", "sync"} {
			if rest, ok := strings.CutPrefix(key, t+"_"); ok {
				table, key = strings.ReplaceAll(t, "_", ".")+".", rest
				break
			}
		}
		if value != "true" {
			value = "'" + value + "'"
		}
		lines = append(lines, table+key+" = "+value)
	}
	path := filepath.Join(t.TempDir(), "holdfast.toml")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// moves copies source to target, whose configuration is in a file, and compares.
func moves(t *testing.T, source, target *program.Home, config string, want map[string]string) {
	out := source.Output(t, "copy", "--from", source.Dir, "--to", config)
	if !strings.Contains(out, "rows and objects agree") || strings.Contains(out, "copied 0 rows") {
		t.Errorf("the copy says:\n%s", out)
	}
	if out := source.Output(t, "copy", "--from", source.Dir, "--to", config); !strings.Contains(out, "copied 0 rows") {
		t.Errorf("a second copy says:\n%s", out)
	}
	server := target.Serve(t)
	b := browser{t, login(t, target, newHTTP(t), "mover")}
	got := b.payloads("bookmarks")
	for id, payload := range want {
		if got[id] != payload {
			t.Errorf("bookmark %s is %.40q, want %.40q", id, got[id], payload)
		}
	}
	if got := b.payloads("history")["old"]; got != "in service" {
		t.Errorf("history is %q", got)
	}
	b.put("/storage/history/old", `{"payload":"newer"}`)
	other := browser{t, login(t, target, newHTTP(t), "other")}
	if got := other.payloads("tabs")["one"]; got != "theirs" {
		t.Errorf("the other user has %q", got)
	}
	waitForQueues(t, target)
	agrees(t, target)
	server.Stop(t)
}

func TestCopyRefusesATargetThatIsInUse(t *testing.T) {
	t.Parallel()
	source, target := program.NewHome(t), program.NewHome(t)
	fillForCopy(t, source)
	fillForCopy(t, target)
	r := source.Run(t, "copy", "--from", source.Dir, "--to", target.Dir)
	if r.Status != 1 || !strings.Contains(r.Stderr, "the target is not empty") {
		t.Errorf("status %d: %s", r.Status, r.Stderr)
	}
	server := target.Serve(t)
	defer server.Stop(t)
	if r := source.Run(t, "copy", "--from", target.Dir, "--to", source.Dir); r.Status != 1 || !strings.Contains(r.Stderr, "source: ") {
		t.Errorf("of a source that is served: status %d: %s", r.Status, r.Stderr)
	}
}
