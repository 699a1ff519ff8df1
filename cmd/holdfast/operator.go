package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/kv/pebble"
)

// The operator's commands speak to the admin door. An engine that several processes
// share they open themselves, and ask the pages in their own process. The embedded
// engine belongs to one process: if there is none, they do the same; else they ask it.

// adminAddressFile tells where the admin door of the process that owns the data
// directory listens.
const adminAddressFile = "admin.address"

func adminAddressPath(cfg *config.Loaded) string { return filepath.Join(cfg.DataDir, adminAddressFile) }

func writeAdminAddress(cfg *config.Loaded, address string) error {
	if err := os.WriteFile(adminAddressPath(cfg), []byte(address+"\n"), 0o600); err != nil {
		return fmt.Errorf("write where the admin door listens: %w", err)
	}
	return nil
}

func removeAdminAddress(cfg *config.Loaded) { _ = os.Remove(adminAddressPath(cfg)) }

// operator is a client of the admin door.
type operator struct {
	client *http.Client
	base   string
	token  string
	close  func() error
}

// operator finds the admin door, or opens the data directory to be it.
func (a *app) operator(ctx context.Context, cfg *config.Loaded) (*operator, error) {
	if _, err := os.Stat(cfg.DataDir); errors.Is(err, fs.ErrNotExist) && !cfg.Engine.Shared() {
		return nil, fmt.Errorf("there is no data directory %s; is data_dir right, and was `holdfast serve` run?", cfg.DataDir)
	}
	secrets, _, err := cfg.EnsureSecrets(rand.Reader)
	if err != nil {
		return nil, err
	}
	h, err := openHouse(ctx, cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		return &operator{
			client: &http.Client{Transport: inProcess{h.adminDoor(ctx)}}, base: "http://localhost",
			token: string(secrets.AdminToken), close: h.Close,
		}, nil
	}
	// Only while another process holds the directory is the address its own: an
	// old one might be somebody else's by now, who is not to see the token.
	address, readErr := os.ReadFile(adminAddressPath(cfg))
	if !errors.Is(err, pebble.ErrInUse) || readErr != nil {
		return nil, err
	}
	o := &operator{
		client: http.DefaultClient, base: "http://" + strings.TrimSpace(string(address)),
		token: string(secrets.AdminToken), close: func() error { return nil },
	}
	if !o.alive(ctx) {
		return nil, fmt.Errorf("%w; that process does not answer at its admin door, %s", err, o.base)
	}
	return o, nil
}

// alive reports whether the admin door answers.
func (o *operator) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.base+"/healthz", nil)
	if err != nil {
		return false
	}
	res, err := o.client.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// do sends a request and returns the body of a successful answer, to be closed.
func (o *operator) do(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, o.base+path, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	res, err := o.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the admin door: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	var answer struct{ Error string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Error == "" {
		answer.Error = res.Status
	}
	return nil, errors.New(answer.Error)
}

// call is do for an answer that is one JSON value.
func (o *operator) call(ctx context.Context, method, path string, body, answer any) error {
	content, err := o.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer content.Close()
	if err := json.NewDecoder(content).Decode(answer); err != nil {
		return fmt.Errorf("read the admin door's answer: %w", err)
	}
	return nil
}

// inProcess is an http.RoundTripper to a handler in the same process. The answer
// streams.
type inProcess struct{ handler http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	w := &pipeWriter{pipe: pw, header: http.Header{}, started: make(chan struct{})}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	go func() {
		t.handler.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		pw.Close()
	}()
	select {
	case <-w.started:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.header, Body: pr, ContentLength: -1, Request: r,
	}, nil
}

// pipeWriter is the http.ResponseWriter of inProcess.
type pipeWriter struct {
	pipe    *io.PipeWriter
	header  http.Header
	status  int
	started chan struct{} // closed once status is set
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		close(w.started)
	}
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(p)
}

func (w *pipeWriter) Flush() {}
