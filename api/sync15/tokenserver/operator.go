package tokenserver

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
)

// OperatorPages returns pages about accounts and nodes, by their http.ServeMux
// patterns, for the operator's door, which asks for a token. Answers are JSON,
// errors {"error":"..."}.
//
//	GET  /v1/sync/accounts?after=&n=      accounts with their users, in pages
//	GET  /v1/sync/account?email=|uid=     one account
//	POST /v1/sync/account/retire?email=   end an account
//	GET  /v1/sync/nodes                   nodes
func OperatorPages(s *Store) map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/sync/accounts":        page(s.accountsPage),
		"GET /v1/sync/account":         page(s.accountPage),
		"POST /v1/sync/account/retire": page(s.retirePage),
		"GET /v1/sync/nodes":           page(func(r *http.Request) (any, error) { return s.Nodes(r.Context()) }),
	}
}

// pageError is an answer to an operator's mistake.
type pageError struct {
	status  int
	message string
}

func (e *pageError) Error() string { return e.message }

func page(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(r)
		status := http.StatusOK
		if err != nil {
			status = http.StatusInternalServerError
			var mistake *pageError
			if errors.As(err, &mistake) {
				status = mistake.status
			}
			answer = map[string]string{"error": err.Error()}
		}
		body, err := json.Marshal(answer)
		if err != nil {
			status, body = http.StatusInternalServerError, []byte(`{"error":"BUG: the answer could not be encoded"}`)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(append(body, '\n')) // who hung up does not want to know
	})
}

// maxAccounts bounds a page of accounts.
const maxAccounts = 1000

func (s *Store) accountsPage(r *http.Request) (any, error) {
	n := 100
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxAccounts {
			return nil, &pageError{http.StatusBadRequest, "n is a number from 1 to " + strconv.Itoa(maxAccounts)}
		}
	}
	accounts, err := s.Accounts(r.Context(), r.URL.Query().Get("after"), n)
	if accounts == nil {
		accounts = []Account{}
	}
	return accounts, err
}

func (s *Store) accountPage(r *http.Request) (any, error) {
	var a Account
	var err error
	if text := r.URL.Query().Get("uid"); text != "" {
		uid, bad := strconv.ParseUint(text, 10, 64)
		if bad != nil {
			return nil, &pageError{http.StatusBadRequest, "uid is a number"}
		}
		a, err = s.AccountOf(r.Context(), uid)
	} else {
		a, err = s.Account(r.Context(), r.URL.Query().Get("email"))
	}
	if err == nil && len(a.Users) == 0 {
		err = noAccount
	}
	return a, err
}

var noAccount = &pageError{http.StatusNotFound, "there is no such account; holdfast sync users, or GET /v1/sync/accounts, lists them"}

func (s *Store) retirePage(r *http.Request) (any, error) {
	email := r.URL.Query().Get("email")
	done, err := s.Retire(r.Context(), email)
	if err == nil && !done {
		a, lookup := s.Account(r.Context(), email)
		if lookup == nil && len(a.Users) == 0 {
			return nil, noAccount
		}
	}
	return map[string]bool{"retired": done}, err
}
