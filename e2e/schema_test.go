package e2e

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/program"
)

// TestServersOnSpannerNeedTheSchema makes the tables as an operator does, and serves
// without the right to make any.
func TestServersOnSpannerNeedTheSchema(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, append(spannerEngine.start(t), folderStore.start(t)...)...)
	home.Env = append(home.Env, "HOLDFAST_SYNC_PUBLIC_URL="+home.SyncURL(), "HOLDFAST_SYNC_MASTER_SECRET=a secret",
		"HOLDFAST_ENGINE_SPANNER_AUTO_SCHEMA=false")
	if r := home.Run(t, "serve"); r.Status != 1 || !strings.Contains(r.Stderr, "holdfast schema apply") {
		t.Errorf("serve without tables: status %d\n%s", r.Status, r.Stderr)
	}
	if r := home.Run(t, "schema", "diff"); r.Status != 1 || r.Stdout == "" {
		t.Errorf("diff of an empty database: status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
	}
	all := home.Output(t, "schema", "print")
	for _, want := range []string{"bsos", "ROW DELETION POLICY", "CREATE CHANGE STREAM payload_link_changes", "payload_link_reader"} {
		if !strings.Contains(all, want) {
			t.Errorf("the schema lacks %q", want)
		}
	}
	home.Output(t, "schema", "apply")
	if out := home.Output(t, "schema", "diff"); out != "" {
		t.Errorf("after apply there is still a difference:\n%s", out)
	}
	server := home.Serve(t)
	b := browser{t, login(t, home, newHTTP(t), "user")}
	b.put("/storage/tabs/x", `{"payload":"y"}`)
	waitForQueues(t, home)
	server.Stop(t)
	agrees(t, home)
}
