package s3test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

// The credentials that the server knows.
const (
	AccessKeyID     = "test-key-id"
	SecretAccessKey = "test-secret"
)

// Server is a server with one bucket. See the package comment.
type Server struct {
	*faulthttp.Server
	Bucket string

	backend *s3mem.Backend
	handler http.Handler

	mu        sync.RWMutex             // held for writing by requests that change something
	ignored   map[string][]string      // guarded by mu: headers by method
	lifecycle string                   // guarded by mu: XML
	ahead     time.Duration            // guarded by mu: of the server's clock
	pageLen   int                      // guarded by mu: the most keys in an answer to a list
	older     map[string]time.Duration // guarded by mu: by key, see Age
}

// New starts a server that ends with the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	backend := s3mem.New()
	s := &Server{Bucket: "objects", backend: backend, ignored: map[string][]string{}, pageLen: 1000, older: map[string]time.Duration{}}
	s.handler = gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithTimeSkewLimit(0)).Server()
	if err := backend.CreateBucket(s.Bucket); err != nil {
		tb.Fatal(err)
	}
	s.Server = faulthttp.New(tb, http.HandlerFunc(s.serve))
	return s
}

// Ignore makes the server overlook a header in requests of a method, as stores with
// fewer conditions do.
func (s *Server) Ignore(method, header string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ignored[method] = append(s.ignored[method], header)
}

// Advance lets the clock that lists show go ahead of the time of the objects.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// Age lets lists show an object as that much older than it is.
func (s *Server) Age(key string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.older[key] = d
}

// LimitPages makes lists come in pages of at most n keys. S3 sends 1000, but may send
// fewer.
func (s *Server) LimitPages(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pageLen = n
}

// SetLifecycle sets the bucket's rules, as the XML that S3 answers with.
func (s *Server) SetLifecycle(rules string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifecycle = rules
}

// SetVersioning turns versioning on or off.
func (s *Server) SetVersioning(tb testing.TB, on bool) {
	tb.Helper()
	v := gofakes3.VersioningConfiguration{}
	v.SetEnabled(on)
	if err := s.backend.SetVersioningConfiguration(s.Bucket, v); err != nil {
		tb.Fatal(err)
	}
}

// Keys returns the keys in the bucket, in order.
func (s *Server) Keys(tb testing.TB) []string {
	tb.Helper()
	list, err := s.backend.ListBucket(s.Bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		tb.Fatal(err)
	}
	var keys []string
	for _, c := range list.Contents {
		keys = append(keys, c.Key)
	}
	return keys
}

// PutRaw creates an object as another program would.
func (s *Server) PutRaw(tb testing.TB, key, content string, metadata map[string]string) {
	tb.Helper()
	meta := map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}
	for k, v := range metadata {
		meta["X-Amz-Meta-"+http.CanonicalHeaderKey(k)] = v
	}
	if _, err := s.backend.PutObject(s.Bucket, key, meta, strings.NewReader(content), int64(len(content)), nil); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	// Whoever sends slowly must not hold a lock.
	body, err := io.ReadAll(r.Body)
	if err != nil || r.ContentLength >= 0 && int64(len(body)) != r.ContentLength {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if code := checkSignature(r); code != "" {
		fail(w, http.StatusForbidden, code)
		return
	}
	// Nor must whoever receives slowly.
	answer := httptest.NewRecorder()
	s.answer(answer, r)
	faulthttp.Send(w, answer)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	if r.Method == http.MethodPut || r.Method == http.MethodDelete {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, header := range s.ignored[r.Method] {
			r.Header.Del(header)
		}
	} else {
		s.mu.RLock()
		defer s.mu.RUnlock()
	}
	switch {
	case key == "" && query.Has("lifecycle"):
		s.getLifecycle(w)
	case key == "" && query.Get("list-type") == "2":
		s.list(w, bucket, query)
	case r.Method == http.MethodDelete && s.mismatch(w, bucket, key, r.Header.Get("If-Match")):
	default:
		s.handler.ServeHTTP(w, r)
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>refused by the test server</Message></Error>", code)
}

// checkSignature returns the code of the error in the request's signature, or "". It
// signs the request anew and compares.
func checkSignature(r *http.Request) string {
	auth := r.Header.Get("Authorization")
	_, rest, _ := strings.Cut(auth, "Credential=")
	credential, rest, _ := strings.Cut(rest, ", SignedHeaders=")
	signed, _, ok := strings.Cut(rest, ", Signature=")
	scope := strings.Split(credential, "/")
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	switch {
	case !ok || len(scope) != 5 || err != nil:
		return "AccessDenied"
	case scope[0] != AccessKeyID:
		return "InvalidAccessKeyId"
	}
	again := &http.Request{Method: r.Method, Host: r.Host, Header: http.Header{}}
	again.URL = &url.URL{Scheme: "http", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery}
	for _, name := range strings.Split(signed, ";") {
		if values := r.Header.Values(name); len(values) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = values
		}
		if name == "content-length" {
			again.ContentLength = r.ContentLength
			again.Header.Del("Content-Length")
		}
	}
	creds := aws.Credentials{AccessKeyID: AccessKeyID, SecretAccessKey: SecretAccessKey, SessionToken: r.Header.Get("X-Amz-Security-Token")}
	err = v4.NewSigner().SignHTTP(r.Context(), creds, again, r.Header.Get("X-Amz-Content-Sha256"), scope[3], scope[2], at,
		func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil || again.Header.Get("Authorization") != auth {
		return "SignatureDoesNotMatch"
	}
	return ""
}

// mismatch answers a DELETE whose condition does not hold.
func (s *Server) mismatch(w http.ResponseWriter, bucket, key, want string) bool {
	if want == "" {
		return false
	}
	o, err := s.backend.HeadObject(bucket, key)
	if err != nil {
		fail(w, http.StatusNotFound, "NoSuchKey")
		return true
	}
	if gofakes3.FormatETag(o.Hash) != want {
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return true
	}
	return false
}

func (s *Server) getLifecycle(w http.ResponseWriter) {
	if s.lifecycle == "" {
		fail(w, http.StatusNotFound, "NoSuchLifecycleConfiguration")
		return
	}
	_, _ = io.WriteString(w, s.lifecycle)
}

type listed struct {
	Key, ETag, LastModified string
	Size                    int64
}

func (s *Server) list(w http.ResponseWriter, bucket string, query url.Values) {
	list, err := s.backend.ListBucket(bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		fail(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	limit := s.pageLen
	if n, err := strconv.Atoi(query.Get("max-keys")); err == nil {
		limit = min(limit, n)
	}
	var result struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		Name        string
		IsTruncated bool
		KeyCount    int
		Contents    []listed
	}
	result.Name = bucket
	for _, c := range list.Contents {
		if !strings.HasPrefix(c.Key, query.Get("prefix")) || c.Key <= query.Get("start-after") {
			continue
		}
		if len(result.Contents) == limit {
			result.IsTruncated = true
			break
		}
		key := c.Key
		if query.Get("encoding-type") == "url" {
			key = url.QueryEscape(key)
		}
		// S3 shows seconds here.
		changed := c.LastModified.Add(-s.older[c.Key]).Truncate(time.Second).UTC().Format("2006-01-02T15:04:05.000Z")
		result.Contents = append(result.Contents, listed{key, c.ETag, changed, c.Size})
	}
	result.KeyCount = len(result.Contents)
	w.Header().Set("Date", time.Now().Add(s.ahead).UTC().Format(http.TimeFormat))
	_ = xml.NewEncoder(w).Encode(result)
}
