package e2e

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

// cluster is several processes on one engine and store, behind a load balancer.
type cluster struct {
	t     *testing.T
	nodes []*node
	front *httptest.Server

	mu      sync.Mutex
	serving []*node // guarded by mu
}

// node is a process of a cluster.
type node struct {
	home   *program.Home
	server *program.Server
}

// newCluster starts n processes in a place that they share.
func newCluster(t *testing.T, n int, env ...string) *cluster {
	c := &cluster{t: t}
	c.front = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: c.route,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) // nobody knows what the process did
		},
		ErrorLog: quiet,
	})
	t.Cleanup(c.front.Close)
	for range n {
		home := program.NewHome(t, append([]string{"HOLDFAST_SYNC_PUBLIC_URL=" + c.front.URL}, env...)...)
		c.nodes = append(c.nodes, &node{home: home})
	}
	for _, n := range c.nodes {
		c.start(n)
	}
	return c
}

// route sends a request to any process that serves.
func (c *cluster) route(r *httputil.ProxyRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.serving) == 0 {
		panic(http.ErrAbortHandler)
	}
	target, err := url.Parse(c.serving[rand.IntN(len(c.serving))].home.SyncURL())
	if err != nil {
		panic(err)
	}
	r.SetURL(target)
	r.Out.Host = r.In.Host
}

func (c *cluster) start(n *node) {
	n.server = n.home.Serve(c.t)
	c.admit(n)
}

func (c *cluster) admit(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = append(c.serving, n)
}

// expel sends no more requests to a process. Those that it has stay there.
func (c *cluster) expel(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.serving[:0:0]
	for _, s := range c.serving {
		if s != n {
			kept = append(kept, s)
		}
	}
	c.serving = kept
}

func (c *cluster) login(hc *http.Client, user string) *syncclient.Client {
	c.t.Helper()
	token := c.nodes[0].home.Output(c.t, "sync", "token", user)
	g, err := syncclient.Fetch(c.t.Context(), hc, c.front.URL, token, keyIDOf(user))
	if err != nil {
		c.t.Fatal(err)
	}
	return syncclient.New(hc, g)
}

// tell shows what there is to know when a test has failed.
func (c *cluster) tell() {
	if !c.t.Failed() {
		return
	}
	c.t.Logf("waiting: %s", c.nodes[0].home.Run(c.t, "queue", "peek", "payload_link_changes", "--json").Stdout)
	for i, n := range c.nodes {
		c.t.Logf("process %d:\n%s", i, n.server.Log())
	}
}

// pauseOf is longer than any lease of a process on its work, so that others take it over.
const pauseOf = 14 * time.Second

// trouble kills one process, and pauses another for so long that others take over what
// it owned, and lets both come back.
func (c *cluster) trouble(rng *rand.Rand) {
	order := rng.Perm(len(c.nodes))
	victim, sleeper := c.nodes[order[0]], c.nodes[order[1]]
	c.expel(sleeper)
	sleeper.server.Signal(c.t, syscall.SIGSTOP)
	awake := time.NewTimer(pauseOf)
	defer awake.Stop()
	for waking := false; !waking; {
		victim.server.Kill()
		c.expel(victim)
		c.start(victim)
		pause := time.NewTimer(500*time.Millisecond + time.Duration(rng.Int64N(int64(3*time.Second))))
		select {
		case <-awake.C:
			waking = true
		case <-pause.C:
		}
		pause.Stop()
	}
	sleeper.server.Signal(c.t, syscall.SIGCONT)
	c.admit(sleeper)
}

func TestProcessesOnPostgresSurviveKillsAndPauses(t *testing.T) {
	t.Parallel()
	surviveTrouble(t, 3, postgresEngine)
}

func TestProcessesOnBigtableSurviveKillsAndPauses(t *testing.T) {
	t.Parallel()
	surviveTrouble(t, 2, bigtableEngine)
}

// surviveTrouble puts load on processes that share an engine while they are killed and
// paused, and then audits what is left.
func surviveTrouble(t *testing.T, processes int, engine place) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 1<<33))
	env := append(engine.start(t), folderStore.start(t)...)
	cl := newCluster(t, processes, append(env, "HOLDFAST_SYNC_MASTER_SECRET=a secret of all processes",
		"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks,history,forms", "HOLDFAST_RECONCILE_LEASE=3s")...)
	defer cl.tell()
	hc := newHTTP(t)
	c := newCast(t, seed, func(user string) *syncclient.Client { return cl.login(hc, user) }, false)
	for _, w := range c.workers {
		w.latecomers = true
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for range max(1, rounds(t)/killRounds) {
			cl.trouble(rng)
		}
	}()
	c.perform(t.Context(), stop)
	c.curtain(t)
	t.Log(c.tally())
	home := cl.nodes[0].home
	waitForQueues(t, home)
	c.curtain(t)
	agrees(t, home)
	for _, n := range cl.nodes {
		n.server.Stop(t)
	}
	agrees(t, home)
}
