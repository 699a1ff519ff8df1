// Package syncclient is a small client of the Sync door for tests. It asks for
// tokens, signs and repeats requests as browsers do, and leaves judging the
// answers to its caller.
package syncclient

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
)

// Grant is the answer of the token server.
type Grant struct {
	ID           string `json:"id"`
	Key          string `json:"key"`
	UID          uint64 `json:"uid"`
	APIEndpoint  string `json:"api_endpoint"`
	Duration     int64  `json:"duration"`
	HashedFxAUID string `json:"hashed_fxa_uid"`
}

// StatusError is an answer of the token server that is no grant.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("token server: %d %s", e.Status, e.Body) }

// Fetch asks the token server below base for a grant. keyID is what a browser
// sends as X-KeyID: when the keys changed, "-", the client state.
func Fetch(ctx context.Context, hc *http.Client, base, accessToken, keyID string) (Grant, error) {
	var g Grant
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/1.0/sync/1.5", nil)
	if err != nil {
		return g, err
	}
	rq.Header.Set("Authorization", "Bearer "+accessToken)
	rq.Header.Set("X-KeyID", keyID)
	res, err := hc.Do(rq)
	if err != nil {
		return g, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return g, err
	}
	if res.StatusCode != http.StatusOK {
		return g, &StatusError{res.StatusCode, string(body)}
	}
	return g, json.Unmarshal(body, &g)
}

// KeyID returns the X-KeyID of a client whose keys changed at the given time, in
// seconds.
func KeyID(changedAt int64, clientState string) string {
	return fmt.Sprintf("%d-%s", changedAt, base64.RawURLEncoding.EncodeToString([]byte(clientState)))
}

// Client speaks for one user. It is safe for concurrent use.
type Client struct {
	// HTTP sends the requests.
	HTTP *http.Client
	// Renew fetches another grant. It is called when the server answers 401, as a
	// browser does, at most once for a request. Nil: a 401 is just an answer.
	Renew func(context.Context) (Grant, error)
	// Attempts is how often a request is made that the server asks to repeat
	// later, by 409 or 503. 0 and 1: once.
	Attempts int
	// MostPause bounds how long Retry-After is respected. 0: no bound.
	MostPause time.Duration

	mu    sync.Mutex
	grant Grant
}

// New returns a client that uses a grant.
func New(hc *http.Client, g Grant) *Client { return &Client{HTTP: hc, grant: g} }

// UID returns the user's number.
func (c *Client) UID() uint64 { return c.current().UID }

func (c *Client) current() Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grant
}

// Request is a request below the user's endpoint.
type Request struct {
	Method string
	// Target is path and query, encoded: "/storage/tabs?full=1".
	Target string
	Body   string
	// Header holds what goes beyond the headers that every browser sends.
	Header map[string]string
}

// Response is an answer that has arrived completely.
type Response struct {
	Status int
	Header http.Header
	Body   string
}

// JSON reads the body into v.
func (r *Response) JSON(v any) error {
	if err := json.Unmarshal([]byte(r.Body), v); err != nil {
		return fmt.Errorf("status %d, body %.200q: %w", r.Status, r.Body, err)
	}
	return nil
}

// Do makes a request, again when the server asks for it. An error means that no
// complete answer has arrived: nobody knows what the server did.
func (c *Client) Do(ctx context.Context, rq Request) (*Response, error) {
	renewed := false
	for attempt := 1; ; attempt++ {
		res, err := c.Once(ctx, rq)
		switch {
		case err != nil:
			return nil, err
		case res.Status == http.StatusUnauthorized && c.Renew != nil && !renewed:
			renewed = true
			g, err := c.Renew(ctx)
			if err != nil {
				return nil, err
			}
			c.mu.Lock()
			c.grant = g
			c.mu.Unlock()
			continue
		case !again(res.Status) || attempt >= c.Attempts:
			return res, nil
		}
		if err := sleep(ctx, c.pause(res)); err != nil {
			return res, nil
		}
	}
}

func again(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusConflict
}

// pause returns how long to wait before the next attempt.
func (c *Client) pause(res *Response) time.Duration {
	d := time.Second
	if s, err := strconv.ParseFloat(res.Header.Get("Retry-After"), 64); err == nil {
		d = time.Duration(s * float64(time.Second))
	}
	if c.MostPause > 0 {
		d = min(d, c.MostPause)
	}
	return d
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Once makes a request once.
func (c *Client) Once(ctx context.Context, rq Request) (*Response, error) {
	hr, err := c.Sign(ctx, rq, bytes.NewReader([]byte(rq.Body)))
	if err != nil {
		return nil, err
	}
	res, err := c.HTTP.Do(hr)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("the answer (status %d) broke off: %w", res.StatusCode, err)
	}
	return &Response{res.StatusCode, res.Header, string(body)}, nil
}

// Sign returns the HTTP request that a browser would send for rq, with the given
// body in place of rq.Body.
func (c *Client) Sign(ctx context.Context, rq Request, body io.Reader) (*http.Request, error) {
	g := c.current()
	hr, err := http.NewRequestWithContext(ctx, rq.Method, g.APIEndpoint+rq.Target, body)
	if err != nil {
		return nil, err
	}
	// The Go client makes another attempt on its own if it may read the body
	// again; a browser that knows nothing of the first one would not.
	hr.GetBody = nil
	if rq.Method == http.MethodPut || rq.Method == http.MethodPost {
		hr.Header.Set("Content-Type", "text/plain")
	} else {
		hr.Body = nil
	}
	hr.Header.Set("Accept", "application/json;q=0.9,*/*;q=0.2")
	for name, value := range rq.Header {
		hr.Header.Set(name, value)
	}
	origin, err := hawk.ParsePublicURL(hr.URL.Scheme + "://" + hr.URL.Host)
	if err != nil {
		return nil, err
	}
	h := hawk.Header{ID: g.ID, TS: strconv.FormatInt(time.Now().Unix(), 10), Nonce: rand.Text()}
	h.MAC = h.Sign(origin.Request(rq.Method, hr.URL.RequestURI()), g.Key)
	hr.Header.Set("Authorization", h.String())
	return hr, nil
}

// Escape encodes a record's id for a target.
func Escape(id string) string { return url.PathEscape(id) }
