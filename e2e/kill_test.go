package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/admin"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// killRounds is how often the server is killed, unless HOLDFAST_KILL_ROUNDS says
// otherwise.
const killRounds = 12

func rounds(t *testing.T) int {
	text := os.Getenv("HOLDFAST_KILL_ROUNDS")
	if text == "" {
		return killRounds
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("HOLDFAST_KILL_ROUNDS: %v", err)
	}
	return n
}

// offloads are settings that a server is restarted with: which collections have
// their payloads in objects changes under the data.
var offloads = [][]string{
	{"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks,history,forms"},
	{"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks,history,forms"},
	{"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks,history,forms,passwords", "HOLDFAST_SYNC_OFFLOAD_MIN_BYTES=100"},
	{"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=forms,tabs"},
}

func TestKilledServerLosesNothingItHasAcknowledged(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	home := newHome(t)
	hc := newHTTP(t)
	server := home.Serve(t)
	c := newCast(t, seed, func(user string) *syncclient.Client { return login(t, home, hc, user) }, true)
	server.Stop(t)

	for round := range rounds(t) {
		home.Env = offloads[rng.IntN(len(offloads))]
		server := home.Serve(t)
		stop := make(chan struct{})
		life := 50*time.Millisecond + rand.N(700*time.Millisecond)
		killer := time.AfterFunc(life, func() {
			server.Kill()
			close(stop)
		})
		c.perform(t.Context(), stop)
		killer.Stop()
		if t.Failed() {
			t.Fatalf("round %d, killed after %v with %v\n%s", round, life, home.Env, server.Log())
		}
	}
	home.Env = offloads[0]
	server = home.Serve(t)
	c.curtain(t)
	t.Log(c.tally())
	waitForQueues(t, home)
	objects := openObjects(t, home, clock.System{})
	eventually(t, func() string {
		for _, a := range objectsOf(t, objects, "mayfly/forms/e") {
			if a.Committed {
				return "the object of an expired record is still there: " + a.Name
			}
		}
		return ""
	})
	waitForQueues(t, home)
	c.curtain(t)
	agrees(t, home)
	server.Stop(t)
	agrees(t, home)
	audit(t, home)
}

// agrees runs the program's own audit. Nothing is under way, so that there is no
// lag to allow for.
func agrees(t *testing.T, home *program.Home) {
	t.Helper()
	if r := home.Run(t, "verify", "--lag", "1ns"); r.Status != 0 {
		t.Errorf("verify: status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
	}
}

// login returns a client of a user of a running server.
func login(t *testing.T, home *program.Home, hc *http.Client, user string) *syncclient.Client {
	t.Helper()
	token := home.Output(t, "sync", "token", user)
	g, err := syncclient.Fetch(t.Context(), hc, home.SyncURL(), token, keyIDOf(user))
	if err != nil {
		t.Fatal(err)
	}
	return syncclient.New(hc, g)
}

// keyIDOf is what the browsers of a user send as X-KeyID.
func keyIDOf(user string) string { return syncclient.KeyID(1_700_000_000, "state of "+user) }

// waitForQueues waits until the running server has no message left, not even one
// that rests after a failure.
func waitForQueues(t *testing.T, home *program.Home) {
	t.Helper()
	eventually(t, func() string {
		for _, q := range queues(t, home) {
			if q.OldestAge > 0 || q.Ready+q.Leased > 0 || q.DeadLetters > 0 {
				return fmt.Sprintf("queue is not empty: %+v", q)
			}
		}
		return ""
	})
}

// queues lists the queues.
func queues(t *testing.T, home *program.Home) []admin.Queue {
	t.Helper()
	var list []admin.Queue
	if err := json.Unmarshal([]byte(home.Output(t, "queue", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatal("there are no queues")
	}
	return list
}
