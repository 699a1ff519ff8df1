package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/holdfast-dev/holdfast/clock"
)

// DefaultTimeout bounds one question to the account service.
const DefaultTimeout = 10 * time.Second

// Options say how to reach the account service.
type Options struct {
	Server  string        // URL without the /v1, such as https://oauth.accounts.firefox.com
	Timeout time.Duration // of one question; 0 is DefaultTimeout
	Client  *http.Client  // nil is http.DefaultClient
	Clock   clock.Clock   // nil is the system's
}

// service asks the account service.
type service struct {
	base    string
	timeout time.Duration
	client  *http.Client
	clock   clock.Clock
}

func newService(o Options) *service {
	s := &service{base: strings.TrimRight(o.Server, "/"), timeout: o.Timeout, client: o.Client, clock: o.Clock}
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
	}
	if s.client == nil {
		s.client = http.DefaultClient
	}
	if s.clock == nil {
		s.clock = clock.System{}
	}
	return s
}

// maxAnswer bounds an answer; real ones are below 4 KiB.
const maxAnswer = 1 << 20

// do sends a request and reads an answer that is successful JSON. Any other answer
// is a refusal; no answer, or one that blames the service itself, wraps
// ErrUnavailable.
func (s *service) do(ctx context.Context, method, path string, question, answer any) error {
	operation := method + " " + path
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var body io.Reader
	if question != nil {
		text, err := json.Marshal(question)
		if err != nil {
			return fmt.Errorf("oauth: %s: %w", operation, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, body)
	if err != nil {
		return unavailable(operation, err)
	}
	if question != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return unavailable(operation, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
		return unavailable(operation, err)
	case res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests:
		return unavailable(operation, fmt.Errorf("status %d", res.StatusCode))
	case res.StatusCode < 200 || res.StatusCode > 299:
		return refused(RefusedRemotely)
	case json.Unmarshal(text, answer) != nil:
		return refused(RefusedRemotely)
	}
	return nil
}

// verify asks the service whose a token is.
func (s *service) verify(ctx context.Context, token string) (Identity, error) {
	question := struct {
		Token string `json:"token"`
	}{token}
	var answer struct {
		User       string   `json:"user"`
		Scope      []string `json:"scope"`
		Generation *int64   `json:"generation"`
	}
	if err := s.do(ctx, http.MethodPost, "/v1/verify", question, &answer); err != nil {
		return Identity{}, err
	}
	return identify(answer.User, answer.Scope, answer.Generation)
}

// keys asks the service for its keys and leaves out those that cannot be used.
func (s *service) keys(ctx context.Context) ([]jose.JSONWebKey, error) {
	var answer struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := s.do(ctx, http.MethodGet, "/v1/jwks", nil, &answer); err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, text := range answer.Keys {
		if k, err := ParseKey(string(text)); err == nil {
			keys = append(keys, k)
		}
	}
	return keys, nil
}
