package tokenserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-json-experiment/json"
)

// askOperator sends a request to the operator's pages.
func askOperator(t *testing.T, s *Store, method, path string, wantStatus int, answer any) {
	t.Helper()
	mux := http.NewServeMux()
	for pattern, page := range OperatorPages(s) {
		mux.Handle(pattern, page)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	if w.Code != wantStatus {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, w.Code, wantStatus, w.Body)
	}
	if answer != nil {
		if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
		}
	}
}

func TestOperatorSeesAccountsAndRetiresThem(t *testing.T) {
	b := newStoreBench(t, Policy{})
	b.addNode(t, Node{URL: "https://node.example", Available: 10, Capacity: 10})
	first := b.addUser(t, "ann@example", User{Generation: 1, ClientState: "aa"})
	b.addUser(t, "bob@example", User{Generation: 1, ClientState: "bb"})

	var accounts []Account
	askOperator(t, b.Store, "GET", "/v1/sync/accounts?n=1", 200, &accounts)
	if len(accounts) != 1 || accounts[0].Email != "ann@example" {
		t.Errorf("first page: %+v", accounts)
	}
	askOperator(t, b.Store, "GET", "/v1/sync/accounts?after=ann@example", 200, &accounts)
	if len(accounts) != 1 || accounts[0].Email != "bob@example" {
		t.Errorf("second page: %+v", accounts)
	}
	var account Account
	askOperator(t, b.Store, "GET", "/v1/sync/account?email=ann@example", 200, &account)
	if len(account.Users) != 1 || account.Users[0].UID != first {
		t.Errorf("account by email: %+v", account)
	}
	var nodes []Node
	askOperator(t, b.Store, "GET", "/v1/sync/nodes", 200, &nodes)
	if len(nodes) != 1 {
		t.Errorf("nodes: %+v", nodes)
	}

	var retirement struct {
		Retired bool `json:"retired"`
	}
	askOperator(t, b.Store, "POST", "/v1/sync/account/retire?email=ann@example", 200, &retirement)
	if !retirement.Retired || b.users(t, "ann@example")[0].Generation != retired {
		t.Errorf("retired %v: %+v", retirement.Retired, b.users(t, "ann@example"))
	}
	askOperator(t, b.Store, "POST", "/v1/sync/account/retire?email=ann@example", 200, &retirement)
	if retirement.Retired {
		t.Error("retired twice")
	}
}

func TestOperatorsMistakesAreExplained(t *testing.T) {
	b := newStoreBench(t, Policy{})
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/sync/accounts?n=0", 400},
		{"GET", "/v1/sync/accounts?n=x", 400},
		{"GET", "/v1/sync/accounts?n=1001", 400},
		{"GET", "/v1/sync/account?uid=x", 400},
		{"GET", "/v1/sync/account?uid=77", 404},
		{"GET", "/v1/sync/account?email=nobody", 404},
		{"POST", "/v1/sync/account/retire?email=nobody", 404},
	} {
		var answer struct {
			Error string `json:"error"`
		}
		askOperator(t, b.Store, c.method, c.path, c.status, &answer)
		if answer.Error == "" {
			t.Errorf("%s %s: no explanation", c.method, c.path)
		}
	}
	var accounts []Account
	askOperator(t, b.Store, "GET", "/v1/sync/accounts", 200, &accounts)
	if accounts == nil || len(accounts) != 0 {
		t.Errorf("accounts of an empty server: %v, want an empty list", accounts)
	}
}
