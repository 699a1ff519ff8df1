package tokenserver

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func some(n int64) *int64 { return &n }

func TestClaimsAreComparedInOrder(t *testing.T) {
	const (
		keys  = "invalid-keysChangedAt"
		gen   = "invalid-generation"
		state = "invalid-client-state"
	)
	type user struct {
		gen   int64
		keys  *int64
		state string
	}
	known := user{2000, some(1000), "aa"}
	for _, tt := range []struct {
		name    string
		user    user
		claims  Claims
		status  string // "" means accepted
		reason  string
		oldKeys string // client state of an older user
	}{
		{name: "nothing new", user: known, claims: Claims{ClientState: "aa", Generation: some(2000), KeysChangedAt: some(1000)}},
		{name: "new generation", user: known, claims: Claims{ClientState: "aa", Generation: some(2001), KeysChangedAt: some(1000)}},
		{name: "no generation", user: known, claims: Claims{ClientState: "aa", KeysChangedAt: some(1000)}},
		{name: "new keys of the new generation", user: known, claims: Claims{ClientState: "bb", Generation: some(3000), KeysChangedAt: some(3000)}},
		{name: "new keys without generation", user: known, claims: Claims{ClientState: "bb", KeysChangedAt: some(1001)}},

		{name: "1: keys newer than the generation", user: known, claims: Claims{ClientState: "aa", Generation: some(2001), KeysChangedAt: some(2002)}, status: keys},
		{name: "1: known keys may be newer than the generation", user: user{1000, some(1500), "aa"}, claims: Claims{ClientState: "aa", Generation: some(1200), KeysChangedAt: some(1500)}},
		{name: "1: first keys may be newer than the generation", user: user{1000, nil, "aa"}, claims: Claims{ClientState: "aa", Generation: some(1000), KeysChangedAt: some(1500)}},
		{name: "1 before 2", user: known, claims: Claims{ClientState: "", Generation: some(2001), KeysChangedAt: some(2002)}, status: keys},
		{name: "2: empty state", user: known, claims: Claims{ClientState: "", Generation: some(3000), KeysChangedAt: some(3000)}, status: state, reason: "empty string"},
		{name: "2: empty state was there before", user: user{2000, some(1000), ""}, claims: Claims{ClientState: "", Generation: some(2000), KeysChangedAt: some(1000)}},
		{name: "2 before 3", user: known, oldKeys: "", claims: Claims{ClientState: "", Generation: some(3000), KeysChangedAt: some(3000)}, status: state, reason: "empty string"},
		{name: "3: state of an older user", user: known, oldKeys: "00", claims: Claims{ClientState: "00", Generation: some(3000), KeysChangedAt: some(3000)}, status: state, reason: "stale value"},
		{name: "3: an older user with the current state", user: known, oldKeys: "aa", claims: Claims{ClientState: "aa", Generation: some(3000), KeysChangedAt: some(3000)}},
		{name: "3 before 4", user: known, oldKeys: "00", claims: Claims{ClientState: "00", Generation: some(2000), KeysChangedAt: some(1000)}, status: state, reason: "stale value"},
		{name: "4: new state, same generation", user: known, claims: Claims{ClientState: "bb", Generation: some(2000), KeysChangedAt: some(1001)}, status: state, reason: "new value with no generation change"},
		{name: "4: new state, older generation", user: known, claims: Claims{ClientState: "bb", Generation: some(1999), KeysChangedAt: some(1001)}, status: state, reason: "new value with no generation change"},
		{name: "4 before 5", user: known, claims: Claims{ClientState: "bb", Generation: some(2000), KeysChangedAt: some(1000)}, status: state, reason: "new value with no generation change"},
		{name: "5: new state, same keys", user: known, claims: Claims{ClientState: "bb", Generation: some(2001), KeysChangedAt: some(1000)}, status: state, reason: "new value with no keys_changed_at change"},
		{name: "5: new state, older keys, no generation", user: known, claims: Claims{ClientState: "bb", KeysChangedAt: some(999)}, status: state, reason: "new value with no keys_changed_at change"},
		{name: "5: new state, no keys known", user: user{2000, nil, "aa"}, claims: Claims{ClientState: "bb", Generation: some(2001), KeysChangedAt: some(1)}},
		{name: "6: older generation", user: known, claims: Claims{ClientState: "aa", Generation: some(1999), KeysChangedAt: some(1000)}, status: gen},
		{name: "6 before 7", user: known, claims: Claims{ClientState: "aa", Generation: some(1999), KeysChangedAt: some(999)}, status: gen},
		{name: "7: older keys", user: known, claims: Claims{ClientState: "aa", Generation: some(2000), KeysChangedAt: some(999)}, status: keys},
		{name: "8: keys withheld", user: known, claims: Claims{ClientState: "aa", Generation: some(2000)}, status: keys},
		{name: "8: new state and keys withheld", user: known, claims: Claims{ClientState: "bb", Generation: some(2001)}, status: keys},
		{name: "8: keys withheld while 0", user: user{2000, some(0), "aa"}, claims: Claims{ClientState: "aa", Generation: some(2000)}},
		{name: "8: keys withheld while unknown", user: user{2000, nil, "aa"}, claims: Claims{ClientState: "aa", Generation: some(2000)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := User{Generation: tt.user.gen, KeysChangedAt: tt.user.keys, ClientState: tt.user.state}
			err := tt.claims.check(&u, func(s string) bool { return s == tt.oldKeys })
			var got *ClaimsError
			errors.As(err, &got)
			want := &ClaimsError{Status: tt.status, Reason: tt.reason}
			if tt.status == "" {
				want = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("check (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClaimsMoveTheUserForward(t *testing.T) {
	for _, tt := range []struct {
		name      string
		gen       int64
		keys      *int64
		claimGen  *int64
		claimKeys *int64
		wantGen   int64
		wantKeys  *int64
	}{
		{"both given", 5, some(3), some(7), some(6), 7, some(6)},
		{"only keys, newer than all", 5, some(3), nil, some(6), 6, some(6)},
		{"only keys, first ones", 5, nil, nil, some(6), 6, some(6)},
		{"only keys, not newer than the generation", 5, some(3), nil, some(5), 5, some(5)},
		{"only keys, the known ones, newer than the generation", 5, some(6), nil, some(6), 5, some(6)},
		{"first keys, older than the generation", 5, nil, nil, some(4), 5, some(4)},
		{"nothing given", 5, nil, nil, nil, 5, nil},
		{"nothing given and keys of 0", 5, some(0), nil, nil, 5, some(0)},
		{"only a generation", 5, nil, some(8), nil, 8, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Claims{Generation: tt.claimGen, KeysChangedAt: tt.claimKeys}
			gen, keys := c.update(&User{Generation: tt.gen, KeysChangedAt: tt.keys})
			if gen != tt.wantGen || !equal(keys, tt.wantKeys) {
				t.Errorf("generation %d keys %v, want %d and %v", gen, cmp.Diff(keys, tt.wantKeys), tt.wantGen, tt.wantKeys)
			}
		})
	}
}

func TestLeastLoadedNodeIsChosen(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes []Node
		want  int64 // 0: none
	}{
		{"none", nil, 0},
		{"empty before used", []Node{{ID: 1, Available: 9, Capacity: 10, Load: 1}, {ID: 2, Available: 1, Capacity: 10}}, 2},
		{"first of the empty ones", []Node{{ID: 1, Available: 1, Capacity: 1}, {ID: 2, Available: 10, Capacity: 10}}, 1},
		{"first of equals", []Node{{ID: 1, Available: 1, Capacity: 10, Load: 5}, {ID: 2, Available: 5, Capacity: 10, Load: 5}}, 1},
		{"by logarithms, not by share", []Node{{ID: 1, Available: 1, Capacity: 10_000, Load: 3_000}, {ID: 2, Available: 1, Capacity: 4, Load: 2}}, 2},
		{"downed", []Node{{ID: 1, Available: 5, Capacity: 5, Downed: true}, {ID: 2, Available: 1, Capacity: 5, Load: 4}}, 2},
		{"backoff", []Node{{ID: 1, Available: 5, Capacity: 5, Backoff: true}, {ID: 2, Available: 1, Capacity: 5, Load: 4}}, 2},
		{"nothing available", []Node{{ID: 1, Capacity: 5}}, 0},
		{"full", []Node{{ID: 1, Available: 5, Capacity: 5, Load: 5}}, 0},
		{"capacity of one", []Node{{ID: 1, Available: 1, Capacity: 1}}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got int64
			if n := (&service{Nodes: tt.nodes}).leastLoaded(); n != nil {
				got = n.ID
			}
			if got != tt.want {
				t.Errorf("node %d, want %d", got, tt.want)
			}
		})
	}
}

func TestReleaseGivesEveryExhaustedNodeAPlace(t *testing.T) {
	svc := &service{Nodes: []Node{
		{ID: 1, Capacity: 100, Load: 20},
		{ID: 2, Capacity: 100, Load: 95},
		{ID: 3, Capacity: 3, Load: 1}, // a tenth of it is less than one
		{ID: 4, Capacity: 100, Load: 100},
		{ID: 5, Capacity: 100, Downed: true},
		{ID: 6, Capacity: 100, Backoff: true},
		{ID: 7, Capacity: 100, Available: 2},
	}}
	svc.release(0.1)
	var got []int64
	for _, n := range svc.Nodes {
		got = append(got, n.Available)
	}
	if diff := cmp.Diff([]int64{10, 5, 1, 0, 0, 10, 2}, got); diff != "" {
		t.Errorf("available (-want +got):\n%s", diff)
	}
}

func TestNodeURLs(t *testing.T) {
	for url, want := range map[string]string{
		"https://sync.example.org":       "https://sync.example.org",
		"http://127.0.0.1:8000/":         "http://127.0.0.1:8000",
		"https://example.org/prefix//":   "https://example.org/prefix",
		"ftp://example.org":              "",
		"example.org":                    "",
		"https://":                       "",
		"https://example.org?x=1":        "",
		"https://example.org/#top":       "",
		"https://user@example.org":       "",
		"https://example.org/\x7f":       "",
		"https://example.org/a%20prefix": "https://example.org/a%20prefix",
	} {
		got, err := checkNode(Node{URL: url})
		if got != want || errors.Is(err, ErrInvalidNode) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", url, got, err, want)
		}
	}
	for _, n := range []Node{{Capacity: -1}, {Load: -1}, {Available: -1}} {
		n.URL = "https://example.org"
		if _, err := checkNode(n); !errors.Is(err, ErrInvalidNode) {
			t.Errorf("%+v: %v, want ErrInvalidNode", n, err)
		}
	}
}

func TestCurrentUserIsTheYoungestOfTheNewestGeneration(t *testing.T) {
	l := userList{Users: []User{
		{UID: 1, Generation: 4, CreatedAt: 4}, {UID: 2, Generation: 5, CreatedAt: 4}, {UID: 3, Generation: 5, CreatedAt: 4},
		{UID: 4, Generation: 4, CreatedAt: 5}, {UID: 5, Generation: math.MaxInt64, CreatedAt: 1}, {UID: 6, Generation: 5, CreatedAt: 3},
	}}
	l.sort()
	var got []uint64
	for _, u := range l.Users {
		got = append(got, u.UID)
	}
	if diff := cmp.Diff([]uint64{5, 3, 2, 6, 4, 1}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}
