package e2e

import (
	"os"
	"os/exec"
	"testing"
)

// suiteCollections are those that Mozilla's functional tests expect to be offloaded, in
// a run with offload.
const suiteCollections = "apis-1,crypto,meta,passwords,xxx_col,xxx_col1,xxx_col2,xxx_meh,xxxx,nonexistent"

// TestFunctionalSuite runs the program that HOLDFAST_SYNC_SUITE names against a server.
// It finds the server in BASE_URL, makes tokens with MASTER_SECRET and ends with status
// 0 if all is well, as a script around Mozilla's functional tests does.
func TestFunctionalSuite(t *testing.T) {
	suite := os.Getenv("HOLDFAST_SYNC_SUITE")
	if suite == "" {
		t.Skip("HOLDFAST_SYNC_SUITE names no program")
	}
	for _, offloaded := range []string{"", suiteCollections} {
		t.Run("offloaded="+offloaded, func(t *testing.T) {
			const secret = "secret-of-the-suite"
			home := newHome(t, "HOLDFAST_SYNC_MASTER_SECRET="+secret, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS="+offloaded)
			server := home.Serve(t)
			cmd := exec.CommandContext(t.Context(), suite)
			cmd.Env = append(os.Environ(), "BASE_URL="+home.SyncURL(), "MASTER_SECRET="+secret)
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out[max(0, len(out)-2000):])
			if err != nil {
				t.Fatalf("%v\n%s", err, server.Log())
			}
			waitForQueues(t, home)
			agrees(t, home)
			server.Stop(t)
			audit(t, home)
		})
	}
}
