package tokenserver

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	badKeys       = &failure{401, "invalid-keysChangedAt", "body", "", "Unauthorized"}
	badGeneration = &failure{401, "invalid-generation", "body", "", "Unauthorized"}
)

func badState(reason string) *failure {
	return &failure{401, "invalid-client-state", "header", "X-Client-State", "Unacceptable client-state value " + reason}
}

// step is one request of an account, and what it shall lead to.
type step struct {
	generation, keys int64 // 0: not told
	state            string
	want             *failure // nil: granted
	newUser          bool     // granted to another user than before
	// The user as it is stored afterwards; generation 0 and no keys by default
	// means: as told.
	storedGeneration int64
	storedKeys       *int64
}

func TestAccountsMoveForward(t *testing.T) {
	for _, tt := range []struct {
		name  string
		users []User // the last one is the current one
		steps []step
	}{
		{
			"keys may not be newer than the generation, unless they are known",
			[]User{{Generation: 1232, KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{
				{generation: 1235, keys: 1236, state: "aaaa", want: badKeys},
				{generation: 1233, keys: 1234, state: "aaaa"},
				{keys: 1235, state: "aaaa", storedGeneration: 1235, storedKeys: some(1235)},
				{generation: 1236, keys: 1235, state: "aaaa"},
			},
		},
		{
			"a client state of the past stays in the past",
			[]User{
				{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa", ReplacedAt: some(1200)},
				{Generation: 1234, KeysChangedAt: some(1234), ClientState: "bbbb"},
			},
			[]step{
				{generation: 1234, keys: 1234, state: "aaaa", want: badState("stale value")},
				{generation: 1234, keys: 1234, state: "bbbb"},
				{generation: 1235, keys: 1235, state: "cccc", newUser: true},
				{generation: 1236, keys: 1236, state: "bbbb", want: badState("stale value")},
				{generation: 1236, keys: 1236, state: "aaaa", want: badState("stale value")},
			},
		},
		{
			"a new client state comes with a new generation",
			[]User{{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{
				{generation: 1234, keys: 1234, state: "bbbb", want: badState("new value with no generation change")},
				{keys: 1235, state: "bbbb", newUser: true, storedGeneration: 1235, storedKeys: some(1235)},
				{generation: 1235, keys: 1235, state: "cccc", want: badState("new value with no generation change")},
				{generation: 1236, keys: 1236, state: "cccc", newUser: true},
			},
		},
		{
			"a new client state comes with new keys",
			[]User{{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{
				{generation: 1235, keys: 1234, state: "bbbb", want: badState("new value with no keys_changed_at change")},
				{generation: 1235, keys: 1235, state: "bbbb", newUser: true},
			},
		},
		{
			"the generation does not go back",
			[]User{{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{
				{generation: 1233, keys: 1234, state: "aaaa", want: badGeneration},
				{keys: 1234, state: "aaaa", storedGeneration: 1234, storedKeys: some(1234)},
				{generation: 1234, keys: 1234, state: "aaaa"},
				{generation: 1235, keys: 1234, state: "aaaa"},
			},
		},
		{
			"known keys do not set a generation, new ones do",
			[]User{{KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{
				{keys: 1234, state: "aaaa", storedGeneration: 0, storedKeys: some(1234)},
				{keys: 1235, state: "aaaa", storedGeneration: 1235, storedKeys: some(1235)},
			},
		},
		{
			"the first keys set a generation",
			[]User{{ClientState: "aaaa"}},
			[]step{{keys: 1234, state: "aaaa", storedGeneration: 1234, storedKeys: some(1234)}},
		},
		{
			"keys do not go back",
			[]User{{Generation: 1234, ClientState: "aaaa"}},
			[]step{
				{generation: 1234, keys: 1234, state: "aaaa"},
				{generation: 1234, keys: 1233, state: "aaaa", want: badKeys},
				{generation: 1234, keys: 2345, state: "bbbb", want: badKeys},
				{generation: 1234, keys: 1234, state: "aaaa"},
				{generation: 1234, state: "aaaa", want: badKeys},
				{generation: 2345, keys: 2345, state: "bbbb", newUser: true},
			},
		},
		{
			"an account without client state gets one",
			[]User{{}},
			[]step{
				{generation: 1234, keys: 1234, state: "bbbb", newUser: true},
				{generation: 1235, keys: 1235, state: "", want: badState("empty string")},
				{keys: 1235, state: "cccc", newUser: true, storedGeneration: 1235, storedKeys: some(1235)},
				{keys: 1235, state: "dddd", want: badState("new value with no keys_changed_at change")},
				{generation: 1236, keys: 1236, state: "bbbb", want: badState("stale value")},
			},
		},
		{
			"a generation is set where there was none",
			[]User{{ClientState: "aaaa"}},
			[]step{{generation: 1234, keys: 1234, state: "aaaa"}},
		},
		{
			"keys are set where there were none, and may be older than the generation",
			[]User{{Generation: 1234, ClientState: "aaaa"}},
			[]step{{generation: 1234, keys: 1200, state: "aaaa"}},
		},
		{
			"a generation of 0 is none",
			[]User{{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{{generation: 0, keys: 1234, state: "aaaa", storedGeneration: 1234, storedKeys: some(1234)}},
		},
		{
			"keys of 0 are none",
			[]User{{Generation: 1234, ClientState: "aaaa"}},
			[]step{{generation: 1234, keys: 0, state: "aaaa", storedGeneration: 1234}},
		},
		{
			"a server that did not look at keys has already seen the new generation",
			[]User{
				{Generation: 1234, KeysChangedAt: some(1200), ClientState: "aaaa"},
				{Generation: 2345, KeysChangedAt: some(1200), ClientState: "bbbb"},
			},
			[]step{{generation: 2345, keys: 2345, state: "bbbb"}},
		},
		{
			"a retired account works with its own generation only",
			[]User{{Generation: math.MaxInt64, KeysChangedAt: some(1234), ClientState: "aaaa"}},
			[]step{
				{generation: 1235, keys: 1234, state: "aaaa", want: badGeneration},
				{generation: math.MaxInt64, keys: 1234, state: "aaaa"},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBothModes(t, func(t *testing.T, b *bench) {
				var uid uint64
				for _, u := range tt.users {
					uid = b.seed(t, u)
				}
				for i, s := range tt.steps {
					b.clock.Advance(time.Second)
					uid = runStep(t, b, i, s, uid)
				}
				if n := b.node(t, b.nodeID); n.Load != 0 {
					t.Errorf("node %+v: new keys are no new load", n)
				}
			})
		})
	}
}

// runStep makes the request of a step and returns whose turn is next.
func runStep(t *testing.T, b *bench, i int, s step, uid uint64) uint64 {
	t.Helper()
	q := request{generation: s.generation, keys: s.keys, state: s.state}
	if s.want != nil {
		before := b.users(t, testEmail)
		b.fails(t, q, s.want)
		if diff := cmp.Diff(before, b.users(t, testEmail)); diff != "" {
			t.Errorf("step %d was refused, yet changed (-before +after):\n%s", i, diff)
		}
		return uid
	}
	g := b.get(t, q)
	if (g.UID != uid) != s.newUser {
		t.Errorf("step %d: uid %d after %d, want new %v", i, g.UID, uid, s.newUser)
	}
	want := User{UID: g.UID, Generation: s.generation, ClientState: s.state, NodeID: b.nodeID, KeysChangedAt: some(s.keys)}
	if s.storedGeneration != 0 || s.storedKeys != nil {
		want.Generation, want.KeysChangedAt = s.storedGeneration, s.storedKeys
	}
	if s.keys == 0 {
		want.KeysChangedAt = s.storedKeys
	}
	got := b.user(t, g.UID)
	if want.CreatedAt = got.CreatedAt; s.newUser && got.CreatedAt != b.clock.Now().UnixMilli() {
		t.Errorf("step %d: created at %d, want %d", i, got.CreatedAt, b.clock.Now().UnixMilli())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("step %d: user (-want +got):\n%s", i, diff)
	}
	for _, u := range b.users(t, testEmail)[1:] {
		if u.ReplacedAt == nil {
			t.Errorf("step %d: older user %d is not replaced", i, u.UID)
		}
	}
	return g.UID
}

func TestNewKeysGetANewUserOnTheSameNode(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		b.addNode(t, Node{URL: "https://empty", Capacity: 100, Available: 100})
		first := b.get(t, request{generation: 1234, keys: 1234, state: "aaaa"})
		b.clock.Advance(time.Minute)
		second := b.get(t, request{generation: 2345, keys: 2345, state: "bbbb"})
		old, err := b.keyring.Verify(first.ID, start)
		if err != nil {
			t.Fatal(err)
		}
		token, err := b.keyring.Verify(second.ID, start)
		if err != nil {
			t.Fatal(err)
		}
		if token.UID == old.UID || token.Node != old.Node || old.FxAKID != "0000000001234-qqo" || token.FxAKID != "0000000002345-u7s" {
			t.Errorf("first %+v\nthen  %+v", old.Claims, token.Claims)
		}
		now := b.clock.Now().UnixMilli()
		want := []User{
			{UID: second.UID, Generation: 2345, ClientState: "bbbb", CreatedAt: now, NodeID: b.nodeID, KeysChangedAt: some(2345)},
			{UID: first.UID, Generation: 1234, ClientState: "aaaa", CreatedAt: start.UnixMilli(), ReplacedAt: &now, NodeID: b.nodeID, KeysChangedAt: some(1234)},
		}
		if diff := cmp.Diff(want, b.users(t, testEmail)); diff != "" {
			t.Errorf("users (-want +got):\n%s", diff)
		}
	})
}

func TestKeyIDFallsBackToTheGeneration(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		for _, tt := range []struct {
			q    request
			want string
		}{
			{request{account: "a", generation: 77, state: "00ff"}, "0000000000077-AP8"},
			{request{account: "b"}, "0000000000000-"},
			{request{account: "c", keys: 5, generation: 77, state: "aa"}, "0000000000005-qg"},
			{request{account: "d", keys: 12345678901234, state: "aa"}, "12345678901234-qg"},
		} {
			token, err := b.keyring.Verify(b.get(t, tt.q).ID, start)
			if err != nil || token.FxAKID != tt.want {
				t.Errorf("%+v: %q (%v), want %q", tt.q, token.FxAKID, err, tt.want)
			}
		}
	})
}

func TestOlderUsersAreRepairedAfterARace(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		seed := func(generation, created int64) uint64 {
			return b.seed(t, User{Generation: generation, KeysChangedAt: some(1234), ClientState: "aaaa", CreatedAt: created})
		}
		older := []uint64{seed(1234, 1234), seed(1235, 1234), seed(1234, 1235)}
		current := seed(1236, 1233)
		if g := b.get(t, request{generation: 1236, keys: 1236, state: "aaaa"}); g.UID != current {
			t.Errorf("uid %d, want %d", g.UID, current)
		}
		for _, uid := range older {
			if u := b.user(t, uid); u.ReplacedAt == nil || *u.ReplacedAt != 1233 {
				t.Errorf("older user %+v, want it replaced when the current one was made", u)
			}
		}
		if u := b.user(t, current); u.ReplacedAt != nil {
			t.Errorf("current user %+v", u)
		}
	})
}

func TestReplacedUserIsCopied(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		b.seed(t, User{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa", CreatedAt: 1234})
		last := b.seed(t, User{Generation: 1236, KeysChangedAt: some(1234), ClientState: "bbbb", CreatedAt: 1236, ReplacedAt: some(1237)})
		b.fails(t, request{generation: 1235, keys: 1234, state: "bbbb"}, badGeneration) // checked against the copy
		g := b.get(t, request{generation: 1236, keys: 1234, state: "bbbb"})
		want := User{UID: g.UID, Generation: 1236, ClientState: "bbbb", CreatedAt: start.UnixMilli(), NodeID: b.nodeID, KeysChangedAt: some(1234)}
		if diff := cmp.Diff(want, b.user(t, g.UID)); diff != "" || g.UID <= last {
			t.Errorf("copy (-want +got):\n%s", diff)
		}
		if u := b.user(t, last); *u.ReplacedAt != 1237 {
			t.Errorf("the replaced user is now %+v", u)
		}
		if n := b.node(t, b.nodeID); n.Load != 1 {
			t.Errorf("node %+v, want one user placed", n)
		}
	})
}

func TestReplacedUserWithNewKeysIsCopiedFirst(t *testing.T) {
	b := newBench(t)
	b.seed(t, User{Generation: 1236, KeysChangedAt: some(1234), ClientState: "bbbb", CreatedAt: 1236, ReplacedAt: some(1237)})
	g := b.get(t, request{generation: 1300, keys: 1300, state: "cccc"})
	users := b.users(t, testEmail)
	if len(users) != 3 || users[0].UID != g.UID || users[1].ClientState != "bbbb" || users[1].ReplacedAt == nil {
		t.Errorf("users %+v", users)
	}
	checkStore(t, b.storeBench)
}

func TestUserWithoutNodeMoves(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		for i, replaced := range []*int64{some(1234), nil} {
			email := fmt.Sprintf("user%d", i)
			old := b.addUser(t, email+"@"+testDomain, User{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa", CreatedAt: 1234, ReplacedAt: replaced, NodeID: 99})
			g := b.get(t, request{account: email, generation: 1234, keys: 1234, state: "aaaa"})
			if u := b.user(t, g.UID); u.NodeID != b.nodeID || u.UID == old {
				t.Errorf("moved user %+v", u)
			}
			if u := b.user(t, old); u.ReplacedAt == nil {
				t.Errorf("old user %+v", u)
			}
		}
	})
}

func TestRetiredUserWithoutNodeIsAnError(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		b.seed(t, User{Generation: math.MaxInt64, KeysChangedAt: some(1234), ClientState: "aaaa", NodeID: 99})
		b.fails(t, request{generation: math.MaxInt64, keys: 1234, state: "aaaa"},
			&failure{500, "internal-error", "internal", "", "Server error"})
	})
}

func TestRemovedNodeSendsItsUsersElsewhere(t *testing.T) {
	b := newBench(t)
	first := b.get(t, good)
	if err := b.RemoveNode(t.Context(), b.nodeID); err != nil {
		t.Fatal(err)
	}
	b.fails(t, good, &failure{503, "internal-error", "internal", "", "Server error"})
	b.addNode(t, Node{URL: "https://other", Capacity: 1})
	second := b.get(t, good)
	if second.UID == first.UID || second.APIEndpoint != fmt.Sprintf("https://other/1.5/%d", second.UID) {
		t.Errorf("moved from %s to %s", first.APIEndpoint, second.APIEndpoint)
	}
}

func TestNewUserIsPlaced(t *testing.T) {
	inBothModes(t, func(t *testing.T, b *bench) {
		for i, available := range []int64{0, 1, 5} {
			b.addNode(t, Node{URL: fmt.Sprintf("https://node%d", i), Capacity: 100, Available: available})
		}
		g := b.get(t, good)
		for range 3 {
			if again := b.get(t, good); again.UID != g.UID || again.APIEndpoint != g.APIEndpoint {
				t.Errorf("then %s", again.APIEndpoint)
			}
		}
		want := []User{{UID: g.UID, Generation: 1234, ClientState: "aaaa", CreatedAt: start.UnixMilli(), NodeID: b.nodeID, KeysChangedAt: some(1234)}}
		if diff := cmp.Diff(want, b.users(t, testEmail)); diff != "" {
			t.Errorf("users (-want +got):\n%s", diff)
		}
		if n := b.node(t, b.nodeID); n.Available != 99 || n.Load != 1 {
			t.Errorf("node %+v", n)
		}
	})
}

// TestPlacement makes a first request: what nodes there are, where it goes, and
// what is available afterwards.
func TestPlacement(t *testing.T) {
	for _, tt := range []struct {
		name      string
		nodes     []Node
		want      int // index of the node chosen; -1: none
		available []int64
	}{
		{
			"the least loaded node that takes users",
			[]Node{
				{Capacity: 100, Available: 100, Backoff: true}, {Capacity: 100, Available: 100, Downed: true},
				{Capacity: 100, Available: 99, Load: 1}, {Capacity: 100, Available: 98, Load: 2}, {Capacity: 100, Available: 97, Load: 3},
			},
			2, []int64{100, 100, 98, 98, 97},
		},
		{
			"capacity is released when nothing is available",
			[]Node{
				{Capacity: 100, Load: 99}, {Capacity: 100, Load: 90}, {Capacity: 81, Load: 80},
				{Capacity: 71, Load: 70, Backoff: true}, {Capacity: 61, Load: 60, Downed: true},
			},
			1, []int64{1, 9, 1, 1, 0},
		},
		{
			"nothing is released while something is available",
			[]Node{{Capacity: 100}, {Capacity: 100, Available: 1, Load: 99}},
			1, []int64{0, 0},
		},
		{
			"full nodes",
			[]Node{{Capacity: 100, Load: 100}, {Capacity: 90, Load: 90}, {Capacity: 80, Load: 80}},
			-1, []int64{0, 0, 0},
		},
		{
			"only nodes that take nobody",
			[]Node{{Capacity: 100, Backoff: true}, {Capacity: 100, Available: 5, Downed: true}},
			-1, []int64{0, 5},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			if err := b.RemoveNode(t.Context(), b.nodeID); err != nil {
				t.Fatal(err)
			}
			for i, n := range tt.nodes {
				n.URL = fmt.Sprintf("https://node%d", i)
				b.addNode(t, n)
			}
			if tt.want < 0 {
				b.fails(t, good, &failure{503, "internal-error", "internal", "", "Server error"})
			} else if g, want := b.get(t, good), fmt.Sprintf("https://node%d/1.5/1", tt.want); g.APIEndpoint != want {
				t.Errorf("placed at %s, want %s", g.APIEndpoint, want)
			}
			nodes, err := b.Nodes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range nodes {
				load := tt.nodes[i].Load
				if i == tt.want {
					load++
				}
				if n.Available != tt.available[i] || n.Load != load {
					t.Errorf("node %d: %+v, want %d available and load %d", i, n, tt.available[i], load)
				}
			}
		})
	}
}

func TestNewUsersCanBeRefused(t *testing.T) {
	b := newBench(t, func(_ *Options, p *Policy) { p.RefuseNewUsers = true })
	b.fails(t, good, &failure{403, "new-users-disabled", "body", "", "New users are not allowed"})
	b.seed(t, User{Generation: 1234, KeysChangedAt: some(1234), ClientState: "aaaa"})
	b.get(t, good)
	b.get(t, request{generation: 2000, keys: 2000, state: "bbbb"}) // a new user of a known account
}

func TestClockThatJumpsBackDoesNotHideTheNewUser(t *testing.T) {
	b := newBench(t)
	b.seed(t, User{Generation: 2000, KeysChangedAt: some(1000), ClientState: "aaaa"})
	b.clock.Advance(-time.Hour)
	// The generation stays, so that only the time of creation tells them apart.
	q := request{keys: 1500, state: "bbbb"}
	first := b.get(t, q)
	if second := b.get(t, q); second.UID != first.UID {
		t.Errorf("uid %d, then %d", first.UID, second.UID)
	}
	checkStore(t, b.storeBench)
}

func TestSimultaneousRequestsOfOneClientGetOneCredential(t *testing.T) {
	b := newBench(t)
	endpoints := make([]string, 24)
	var wg sync.WaitGroup
	for i := range endpoints {
		wg.Go(func() {
			if w := b.do(good); w.Code == http.StatusOK {
				endpoints[i] = w.Header().Get("X-Timestamp") // a complete answer
			}
		})
	}
	wg.Wait()
	for i, e := range endpoints {
		if e == "" {
			t.Errorf("request %d failed", i)
		}
	}
	if users := b.users(t, testEmail); len(users) != 1 || b.node(t, b.nodeID).Load != 1 {
		t.Errorf("users %+v", users)
	}
}

func TestRequestOfAKnownUserIsOneRead(t *testing.T) {
	b := newBench(t)
	b.get(t, good)
	b.faults.Reset()
	b.get(t, good)
	if n := b.faults.Calls(); n != 1 {
		t.Errorf("%d calls to the engine, want 1", n)
	}
	for _, line := range []string{
		`token_verification_seconds_count{token_type="OAuth"} 2`, `token_creation_seconds_count 2`,
		`storage_get_users_seconds_count 2`, `storage_allocate_user_seconds_count 1`, `storage_put_user_seconds_count 0`,
	} {
		if !b.counted(line) {
			t.Errorf("metrics do not show %s", line)
		}
	}
}

func BenchmarkKnownUser(bm *testing.B) {
	b := newStoreBench(bm, Policy{})
	b.addNode(bm, Node{Capacity: 10, Available: 10})
	c := claimsOf("a@x")
	for bm.Loop() {
		if _, err := b.Assign(bm.Context(), c); err != nil {
			bm.Fatal(err)
		}
	}
}
