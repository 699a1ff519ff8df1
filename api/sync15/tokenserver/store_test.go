package tokenserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/metrics"
)

var start = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// storeBench is a Store on an engine in memory.
type storeBench struct {
	*Store
	clock    *clock.Manual
	faults   *kvtest.Faults
	registry *metrics.Registry
	nodes    int // how many were added without a URL
}

func newStoreBench(t testing.TB, p Policy) *storeBench {
	t.Helper()
	c := clock.NewManual(start)
	f := kvtest.NewFaults(kvtest.NewModel(c))
	registry := metrics.New()
	t.Cleanup(func() {
		f.Close()
		if err := registry.Err(); err != nil {
			t.Error(err)
		}
	})
	s, err := NewStore(kv.New(f, kvtest.ModelLimits), StoreOptions{Clock: c, Policy: p, Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateSpaces(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &storeBench{Store: s, clock: c, faults: f, registry: registry}
}

// addNode adds a node and returns its id.
func (b *storeBench) addNode(t testing.TB, n Node) int64 {
	t.Helper()
	if n.URL == "" {
		b.nodes++
		n.URL = fmt.Sprintf("https://unnamed%d.example.com", b.nodes)
	}
	n, err := b.AddNode(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return n.ID
}

func (b *storeBench) node(t testing.TB, id int64) Node {
	t.Helper()
	nodes, err := b.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := (&service{Nodes: nodes}).find(id)
	if n == nil {
		t.Fatalf("no node %d", id)
	}
	return *n
}

// addUser writes a user as another server might have left it, and returns its uid.
func (b *storeBench) addUser(t testing.TB, email string, u User) uint64 {
	t.Helper()
	_, err := b.db.Update(t.Context(), func(tx *kv.Tx) error {
		var list userList
		if _, err := load(tx, userRef(email), &list); err != nil {
			return err
		}
		list.Users = append(list.Users, u)
		if err := giveUIDs(tx, list.Users, email); err != nil {
			return err
		}
		u = list.Users[len(list.Users)-1]
		return put(tx, userRef(email), list)
	})
	if err != nil {
		t.Fatal(err)
	}
	return u.UID
}

func (b *storeBench) users(t testing.TB, email string) []User {
	t.Helper()
	a, err := b.Account(t.Context(), email)
	if err != nil {
		t.Fatal(err)
	}
	return a.Users
}

// user returns the user with a uid, found by it.
func (b *storeBench) user(t testing.TB, uid uint64) User {
	t.Helper()
	a, err := b.AccountOf(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range a.Users {
		if u.UID == uid {
			return u
		}
	}
	t.Fatalf("no user %d", uid)
	return User{}
}

// claimsOf are good claims of an account.
func claimsOf(email string) Claims {
	return Claims{Email: email, ClientState: "aaaa", Generation: some(1234), KeysChangedAt: some(1234)}
}

func TestSimultaneousFirstRequestsOfOneAccountGetOneUser(t *testing.T) {
	b := newStoreBench(t, Policy{})
	id := b.addNode(t, Node{Capacity: 100, Available: 100})
	const requests = 40
	uids := make([]uint64, requests)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			a, err := b.Assign(t.Context(), claimsOf("a@example.com"))
			if err != nil {
				t.Error(err)
			}
			uids[i] = a.User.UID
		})
	}
	wg.Wait()
	for _, uid := range uids {
		if uid != uids[0] || uid == 0 {
			t.Fatalf("uids %v", uids)
		}
	}
	if n := b.node(t, id); n.Load != 1 || n.Available != 99 {
		t.Errorf("node %+v after one user", n)
	}
	if n := len(b.users(t, "a@example.com")); n != 1 {
		t.Errorf("%d users", n)
	}
}

func TestSimultaneousAccountsNeverOversubscribeNodes(t *testing.T) {
	b := newStoreBench(t, Policy{ReleaseRate: 0.3})
	const accounts = 40
	capacity := map[int64]int64{}
	var room int64
	for i, n := range []Node{{Capacity: 7, Available: 2}, {Capacity: 11}, {Capacity: 3, Available: 3, Load: 2}, {Capacity: 4, Available: 9}} {
		n.URL = fmt.Sprintf("https://node%d.example.com", i)
		capacity[b.addNode(t, n)] = n.Capacity
		room += n.Capacity - n.Load
	}
	var mu sync.Mutex
	perNode, uids := map[int64]int64{}, map[uint64]bool{}
	refused := 0
	var wg sync.WaitGroup
	for i := range accounts {
		wg.Go(func() {
			a, err := b.Assign(t.Context(), claimsOf(fmt.Sprintf("%d@example.com", i)))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				perNode[a.User.NodeID]++
				uids[a.User.UID] = true
			case errors.Is(err, ErrNoNode):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if int64(len(uids)) != room || int64(refused) != accounts-room {
		t.Errorf("%d users and %d refused, want %d and %d", len(uids), refused, room, accounts-room)
	}
	for id, most := range capacity {
		if n := b.node(t, id); n.Load != most {
			t.Errorf("node %+v, want it full", n)
		}
	}
}

// checkStore verifies the invariants of the package over everything stored.
func checkStore(t testing.TB, b *storeBench) {
	t.Helper()
	accounts, err := b.Accounts(t.Context(), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]string{}
	for _, a := range accounts {
		current := 0
		for _, u := range a.Users {
			if u.ReplacedAt == nil {
				current++
			}
			if other, ok := seen[u.UID]; ok || u.UID == 0 || u.UID > maxUID {
				t.Errorf("uid %d of %s was given to %s", u.UID, a.Email, other)
			}
			seen[u.UID] = a.Email
			owner, err := b.AccountOf(t.Context(), u.UID)
			if err != nil || owner.Email != a.Email {
				t.Errorf("uid %d leads to %q, want %q (%v)", u.UID, owner.Email, a.Email, err)
			}
		}
		if current > 1 {
			t.Errorf("%s has %d users that are not replaced", a.Email, current)
		}
	}
}

// TestAnyHistoryKeepsTheInvariants runs random requests and orders of the operator
// against counts kept beside them.
func TestAnyHistoryKeepsTheInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newStoreBench(t, Policy{ReleaseRate: rapid.SampledFrom([]float64{0.01, 0.1, 0.5, 1}).Draw(rt, "rate")})
		loads := map[int64]int64{} // of the nodes that exist
		email := rapid.StringMatching(`[a-c]@x`)
		generations := rapid.Int64Range(0, 6)
		for step := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			b.clock.Advance(time.Duration(rapid.Int64Range(-2, 3).Draw(rt, "ms")) * time.Millisecond)
			switch rapid.SampledFrom([]string{"assign", "assign", "assign", "assign", "add", "update", "remove", "retire", "password"}).Draw(rt, "op") {
			case "assign":
				assignStep(t, rt, b, loads, email.Draw(rt, "email"))
			case "add":
				n := Node{URL: fmt.Sprintf("https://n%d", step), Capacity: rapid.Int64Range(0, 4).Draw(rt, "capacity")}
				loads[b.addNode(t, n)] = 0
			case "update":
				id := rapid.Int64Range(1, 5).Draw(rt, "node")
				down, capacity := rapid.Bool().Draw(rt, "downed"), rapid.Int64Range(0, 6).Draw(rt, "capacity")
				_, err := b.UpdateNode(t.Context(), id, NodeChange{Downed: &down, Capacity: &capacity})
				if _, ok := loads[id]; ok != (err == nil) || !ok && !errors.Is(err, ErrNodeNotFound) {
					rt.Fatalf("update node %d: %v", id, err)
				}
			case "remove":
				id := rapid.Int64Range(1, 5).Draw(rt, "node")
				err := b.RemoveNode(t.Context(), id)
				if _, ok := loads[id]; ok != (err == nil) || !ok && !errors.Is(err, ErrNodeNotFound) {
					rt.Fatalf("remove node %d: %v", id, err)
				}
				delete(loads, id)
			case "retire":
				if _, err := b.Retire(t.Context(), email.Draw(rt, "email")); err != nil {
					rt.Fatal(err)
				}
			case "password":
				at := time.UnixMilli(generations.Draw(rt, "generation"))
				if _, err := b.PasswordChanged(t.Context(), email.Draw(rt, "email"), at); err != nil {
					rt.Fatal(err)
				}
			}
			checkStore(t, b)
		}
	})
}

// assignStep makes a random request, twice, and follows the load of the nodes.
func assignStep(t *testing.T, rt *rapid.T, b *storeBench, loads map[int64]int64, email string) {
	maybe := func(label string) *int64 {
		if n := rapid.Int64Range(0, 6).Draw(rt, label); n > 0 {
			return &n
		}
		return nil
	}
	c := Claims{Email: email, ClientState: rapid.StringMatching(`[ab]?`).Draw(rt, "state"), Generation: maybe("generation"), KeysChangedAt: maybe("keys")}
	nodes, _ := b.Nodes(t.Context())
	before := b.users(t, email)
	a, err := b.Assign(t.Context(), c)
	if err != nil {
		if diff := cmp.Diff(before, b.users(t, email)); diff != "" {
			rt.Fatalf("refused with %v, yet changed (-before +after):\n%s", err, diff)
		}
		after, _ := b.Nodes(t.Context())
		if diff := cmp.Diff(nodes, after); diff != "" {
			rt.Fatalf("refused with %v, yet nodes changed (-before +after):\n%s", err, diff)
		}
		return
	}
	old := (&service{Nodes: nodes}).find(a.User.NodeID)
	if old == nil || old.URL != a.Node {
		rt.Fatalf("assigned to node %d %q, which is not there", a.User.NodeID, a.Node)
	}
	if n := b.node(t, a.User.NodeID); n.Load > old.Load {
		if loads[n.ID]++; n.Load != old.Load+1 || old.Load >= old.Capacity || old.Downed || old.Backoff || n.Available < 0 {
			rt.Fatalf("a user was placed: %+v became %+v", *old, n)
		}
	}
	for id, load := range loads {
		if n := b.node(t, id); n.Load != load {
			rt.Fatalf("node %+v, want load %d", n, load)
		}
	}
	if a.User.ClientState != c.ClientState {
		rt.Fatalf("asked for client state %q, got %+v", c.ClientState, a.User)
	}
	users := b.users(t, email)
	if diff := cmp.Diff(a.User, users[0]); diff != "" {
		rt.Fatalf("current user (-assigned +stored):\n%s", diff)
	}
	again, err := b.Assign(t.Context(), c)
	if diff := cmp.Diff(a, again); diff != "" || err != nil {
		rt.Fatalf("the same request again: %v (-first +second):\n%s", err, diff)
	}
}

func TestFailureAtAnyCallNeverLeavesTwoCurrentUsers(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *storeBench, int64) Claims{
		"first request": func(*testing.T, *storeBench, int64) Claims { return claimsOf("a@x") },
		"new keys": func(t *testing.T, b *storeBench, node int64) Claims {
			b.addUser(t, "a@x", User{Generation: 1000, ClientState: "bbbb", CreatedAt: 1, NodeID: node})
			return claimsOf("a@x")
		},
		"node gone and new keys": func(t *testing.T, b *storeBench, node int64) Claims {
			b.addUser(t, "a@x", User{Generation: 1000, ClientState: "bbbb", CreatedAt: 1, NodeID: node + 1})
			return claimsOf("a@x")
		},
		"new numbers": func(t *testing.T, b *storeBench, node int64) Claims {
			b.addUser(t, "a@x", User{Generation: 1000, ClientState: "aaaa", CreatedAt: 1, NodeID: node})
			return claimsOf("a@x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			clean := newStoreBench(t, Policy{})
			c := prepare(t, clean, clean.addNode(t, Node{URL: "https://n", Capacity: 9, Available: 9}))
			want, err := clean.Assign(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			kvtest.EachCall(t, func(t *testing.T, p *kvtest.Point) {
				b := newStoreBench(t, Policy{})
				node := b.addNode(t, Node{URL: "https://n", Capacity: 9, Available: 9})
				c := prepare(t, b, node)
				p.Arm(b.faults)
				got, err := b.Assign(t.Context(), c)
				b.faults.Reset()
				if p.Fired() == (err == nil) {
					t.Errorf("fault: %v, error: %v", p.Fired(), err)
				}
				if err == nil && !cmp.Equal(want, got) {
					t.Errorf("assigned %+v, want %+v", got, want)
				}
				checkStore(t, b)
				if got, err = b.Assign(t.Context(), c); err != nil {
					t.Fatalf("second try: %v", err)
				}
				checkStore(t, b)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("second try (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(clean.users(t, "a@x"), b.users(t, "a@x")); diff != "" {
					t.Errorf("users after the second try (-undisturbed +got):\n%s", diff)
				}
				if diff := cmp.Diff(clean.node(t, node), b.node(t, node)); diff != "" {
					t.Errorf("node after the second try (-undisturbed +got):\n%s", diff)
				}
			})
		})
	}
}

func TestCorruptRowIsReportedAsSuch(t *testing.T) {
	b := newStoreBench(t, Policy{})
	b.addNode(t, Node{Capacity: 9})
	ref := userRef("a@x")
	if _, err := b.db.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{{Space: ref.Space, Key: ref.Key, Value: []byte(`{"users":7}`)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Assign(t.Context(), claimsOf("a@x")); !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("Assign: %v, want ErrCorrupt", err)
	}
	if _, err := b.Accounts(t.Context(), "", 10); !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("Accounts: %v, want ErrCorrupt", err)
	}
}

func TestUIDsAndUsersRunOut(t *testing.T) {
	b := newStoreBench(t, Policy{})
	node := b.addNode(t, Node{Capacity: 9})
	setLast := func(uid uint64) {
		_, err := b.db.Update(t.Context(), func(tx *kv.Tx) error { return put(tx, uidRef(0), lastUID{uid}) })
		if err != nil {
			t.Fatal(err)
		}
	}
	setLast(maxUID - 1)
	if a, err := b.Assign(t.Context(), claimsOf("a@x")); err != nil || a.User.UID != maxUID {
		t.Errorf("%+v, %v; want the last uid", a, err)
	}
	if _, err := b.Assign(t.Context(), claimsOf("b@x")); !errors.Is(err, errNoUIDLeft) {
		t.Errorf("%v, want errNoUIDLeft", err)
	}
	setLast(1)
	many := make([]User, maxUsers)
	for i := range many {
		many[i] = User{UID: uint64(i + 2), ReplacedAt: some(1), NodeID: node}
	}
	if _, err := b.db.Update(t.Context(), func(tx *kv.Tx) error { return put(tx, userRef("c@x"), userList{many}) }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Assign(t.Context(), claimsOf("c@x")); !errors.Is(err, errTooManyUsers) {
		t.Errorf("%v, want errTooManyUsers", err)
	}
}

func TestAccountsAreListedInPages(t *testing.T) {
	b := newStoreBench(t, Policy{})
	b.addNode(t, Node{Capacity: 100})
	want := []string{"a", "a@x", "a@x\x00", "a@xy", "b@x"}
	for _, email := range want {
		if _, err := b.Assign(t.Context(), claimsOf(email)); err != nil {
			t.Fatal(err)
		}
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []string
		for after := ""; ; after = got[len(got)-1] {
			page, err := b.Accounts(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range page {
				got = append(got, a.Email)
			}
			if len(page) < limit {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
		}
	}
	if _, err := b.Accounts(t.Context(), "", 0); !errors.Is(err, kv.ErrInvalid) {
		t.Errorf("limit 0: %v, want ErrInvalid", err)
	}
	for _, uid := range []uint64{0, 99} {
		if a, err := b.AccountOf(t.Context(), uid); err != nil || a.Users != nil {
			t.Errorf("uid %d: %+v, %v; want no users", uid, a, err)
		}
	}
}

func TestNodesAreAddedChangedAndRemoved(t *testing.T) {
	ctx := context.Background()
	b := newStoreBench(t, Policy{})
	if nodes, err := b.Nodes(ctx); err != nil || len(nodes) != 0 {
		t.Fatalf("%v, %v", nodes, err)
	}
	for _, want := range []bool{true, false} {
		if added, err := b.EnsureNode(ctx, "https://sync.example.org/", 100_000); err != nil || added != want {
			t.Errorf("EnsureNode: %v, %v; want %v", added, err, want)
		}
	}
	if _, err := b.EnsureNode(ctx, "sync.example.org", 1); !errors.Is(err, ErrInvalidNode) {
		t.Errorf("%v, want ErrInvalidNode", err)
	}
	if _, err := b.AddNode(ctx, Node{ID: 7, URL: "https://other"}); !errors.Is(err, ErrInvalidNode) {
		t.Errorf("%v, want ErrInvalidNode", err)
	}
	if _, err := b.AddNode(ctx, Node{URL: "https://sync.example.org"}); !errors.Is(err, ErrNodeExists) {
		t.Errorf("%v, want ErrNodeExists", err)
	}
	yes := true
	second := b.addNode(t, Node{URL: "https://second", Capacity: 5})
	changed, err := b.UpdateNode(ctx, second, NodeChange{Capacity: some(9), Available: some(3), Load: some(2), Downed: &yes, Backoff: &yes})
	want := Node{ID: second, URL: "https://second", Capacity: 9, Available: 3, Load: 2, Downed: true, Backoff: true}
	if diff := cmp.Diff(want, changed); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := b.UpdateNode(ctx, second, NodeChange{Capacity: some(-1)}); !errors.Is(err, ErrInvalidNode) {
		t.Errorf("%v, want ErrInvalidNode", err)
	}
	if diff := cmp.Diff(want, b.node(t, second)); diff != "" {
		t.Errorf("node after a refused change (-want +got):\n%s", diff)
	}
	if err := b.RemoveNode(ctx, second); err != nil {
		t.Error(err)
	}
	if third := b.addNode(t, Node{URL: "https://second"}); third == second {
		t.Errorf("id %d was given out again", third)
	}
}

func TestAccountEventsOnlyMoveForward(t *testing.T) {
	b := newStoreBench(t, Policy{})
	b.addNode(t, Node{Capacity: 100})
	if done, err := b.Retire(t.Context(), "a@x"); err != nil || done {
		t.Errorf("retired an account that is not there: %v, %v", done, err)
	}
	a, err := b.Assign(t.Context(), claimsOf("a@x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		at   int64
		want int64
	}{{1235, 1234}, {1200, 1234}, {1236, 1235}, {0, 1235}, {math.MinInt64, 1235}} {
		done, err := b.PasswordChanged(t.Context(), "a@x", time.UnixMilli(tt.at))
		if got := b.user(t, a.User.UID).Generation; got != tt.want || err != nil || done != (tt.at == 1236) {
			t.Errorf("password changed at %d: generation %d (%v, %v), want %d", tt.at, got, done, err, tt.want)
		}
	}
	for _, want := range []bool{true, false} {
		if done, err := b.Retire(t.Context(), "a@x"); err != nil || done != want {
			t.Errorf("Retire: %v, %v; want %v", done, err, want)
		}
	}
	u := b.user(t, a.User.UID)
	if u.Generation != math.MaxInt64 || u.ReplacedAt == nil || *u.ReplacedAt != start.UnixMilli() {
		t.Errorf("retired user %+v", u)
	}
	if done, _ := b.PasswordChanged(t.Context(), "a@x", start); done {
		t.Error("a retired account took a new password")
	}
	var claims *ClaimsError
	if _, err := b.Assign(t.Context(), claimsOf("a@x")); !errors.As(err, &claims) || claims.Status != "invalid-generation" {
		t.Errorf("a retired account asks: %v", err)
	}
}

func TestFixedNodeTakesAllUsers(t *testing.T) {
	b := newStoreBench(t, Policy{FixedNode: 2})
	if _, err := b.Assign(t.Context(), claimsOf("a@x")); !errors.Is(err, ErrNoNode) {
		t.Errorf("%v, want ErrNoNode", err)
	}
	b.addNode(t, Node{URL: "https://first", Capacity: 9, Available: 9})
	b.addNode(t, Node{URL: "https://second", Capacity: 1, Load: 1, Downed: true})
	a, err := b.Assign(t.Context(), claimsOf("a@x"))
	if err != nil || a.Node != "https://second" {
		t.Fatalf("%+v, %v", a, err)
	}
	if n := b.node(t, 2); n.Load != 2 || n.Available != 0 {
		t.Errorf("node %+v", n)
	}
}

func TestStoreRefusesImpossibleOptions(t *testing.T) {
	c := clock.NewManual(start)
	for _, o := range []StoreOptions{{}, {Clock: c, Policy: Policy{ReleaseRate: -1}}, {Clock: c, Policy: Policy{ReleaseRate: 1.1}}, {Clock: c, Policy: Policy{ReleaseRate: math.NaN()}}} {
		if _, err := NewStore(nil, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestTheServersOwnNodeMovesWithItsUsers(t *testing.T) {
	b := newStoreBench(t, Policy{})
	ensure := func(url string) {
		t.Helper()
		if err := b.EnsureOwnNode(t.Context(), url, 10); err != nil {
			t.Fatal(err)
		}
	}
	where := func(email string) string {
		t.Helper()
		a, err := b.Assign(t.Context(), claimsOf(email))
		if err != nil {
			t.Fatal(err)
		}
		return a.Node
	}
	ensure("http://127.0.0.1:8000/")
	if got := where("ann@example"); got != "http://127.0.0.1:8000" {
		t.Errorf("first address: %s", got)
	}
	for _, url := range []string{"https://sync.example.org", "https://sync.example.org", "http://192.0.2.1:8000"} {
		ensure(url)
		if got := where("ann@example"); got != url {
			t.Errorf("ann is sent to %s, the server is at %s", got, url)
		}
		if got := where("new-at-" + url + "@example"); got != url {
			t.Errorf("a new user is sent to %s, the server is at %s", got, url)
		}
	}
	nodes, err := b.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Load != 3 {
		t.Errorf("nodes %+v, %v; want one with three users", nodes, err)
	}

	// A node that an operator has added is not touched, and may become the own one.
	other := b.addNode(t, Node{URL: "https://other.example", Capacity: 5, Available: 5})
	ensure("https://sync.example.org")
	if got := b.node(t, other).URL; got != "https://other.example" {
		t.Errorf("the other node is at %s now", got)
	}
	ensure("https://other.example")
	ensure("https://third.example")
	if got := b.node(t, other).URL; got != "https://third.example" {
		t.Errorf("the adopted node is at %s", got)
	}
	if err := b.EnsureOwnNode(t.Context(), "ftp://x", 10); !errors.Is(err, ErrInvalidNode) {
		t.Errorf("impossible address: %v", err)
	}
}
