package gcstest

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"

	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

// Server is a server with one bucket. See the package comment.
type Server struct {
	*faulthttp.Server
	Bucket string

	fake *fakestorage.Server

	mu       sync.RWMutex
	metagens map[string]int64 // guarded by mu: by name and generation; absent means 1
	settings map[string]any   // guarded by mu: of the bucket, as in its JSON
	pageLen  int              // guarded by mu: the most objects in an answer to a list
}

// New starts a server that ends with the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	fake, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, PublicHost: "127.0.0.1"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(fake.Stop)
	s := &Server{Bucket: "objects", fake: fake, metagens: map[string]int64{}, settings: map[string]any{}, pageLen: 1000}
	fake.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: s.Bucket})
	s.Server = faulthttp.New(tb, http.HandlerFunc(s.serve))
	return s
}

// SetBucket sets fields of the bucket as its JSON has them: "lifecycle", "versioning".
func (s *Server) SetBucket(fields map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.settings, fields)
}

// LimitPages makes lists come in pages of at most n objects. The service sends 1000,
// but may send fewer.
func (s *Server) LimitPages(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pageLen = n
}

// PutForeign creates an object as another program would.
func (s *Server) PutForeign(name, content string, customTime time.Time, metadata map[string]string, encoding string) {
	s.fake.CreateObject(fakestorage.Object{
		ObjectAttrs: fakestorage.ObjectAttrs{
			BucketName: s.Bucket, Name: name, CustomTime: customTime, Metadata: metadata, ContentEncoding: encoding,
		},
		Content: []byte(content),
	})
}

// serve sorts the requests. Names are escaped in paths, so a slash separates.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	// Whoever sends slowly must not hold a lock.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	path := r.URL.EscapedPath()
	if strings.HasPrefix(path, "/upload/") {
		s.mu.Lock()
		defer s.mu.Unlock()
		host := r.Host
		answer := s.forward(r)
		if u, err := url.Parse(answer.Header().Get("Location")); err == nil && u.Host != "" {
			u.Host = host // where the rest of a large upload goes
			answer.Header().Set("Location", u.String())
		}
		faulthttp.Send(w, answer)
		return
	}
	if !strings.HasPrefix(path, "/storage/v1/b/") && r.Method == http.MethodGet {
		s.download(w, r) // of the older interface: /bucket/name
		return
	}
	parts := strings.Split(strings.TrimPrefix(path, "/storage/v1/b/"), "/")
	switch {
	case len(parts) == 1 && r.Method == http.MethodGet:
		s.getBucket(w, r)
	case len(parts) == 2 && r.Method == http.MethodGet:
		s.list(w, r)
	case len(parts) == 3 && r.Method == http.MethodGet:
		s.get(w, r, unescape(parts[2]))
	case len(parts) == 3 && r.Method == http.MethodPatch:
		s.patch(w, r, unescape(parts[2]), body)
	case len(parts) == 3 && r.Method == http.MethodDelete:
		s.delete(w, r, unescape(parts[2]))
	case len(parts) == 8 && parts[3] == "rewriteTo":
		s.rewrite(w, r, unescape(parts[7]), body)
	default:
		fail(w, http.StatusNotImplemented, "not of this server: "+r.Method+" "+path)
	}
}

func unescape(s string) string {
	name, err := url.PathUnescape(s)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return name
}

func fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": status, "message": message}})
}

func (s *Server) forward(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	s.fake.HTTPHandler().ServeHTTP(answer, r)
	return answer
}

// object is the state of a name.
type object struct {
	fakestorage.ObjectAttrs
	exists bool
	key    string // of metagens
	meta   int64
}

// look must be called under mu.
func (s *Server) look(name string) object {
	o, err := s.fake.GetObjectStreaming(s.Bucket, name)
	if err != nil {
		return object{}
	}
	_ = o.Close() // content in memory
	key := name + "\x00" + strconv.FormatInt(o.Generation, 10)
	return object{ObjectAttrs: o.ObjectAttrs, exists: true, key: key, meta: max(s.metagens[key], 1)}
}

// holds reports whether the preconditions in the query hold.
func (o object) holds(q url.Values) bool {
	gen := int64(0)
	if o.exists {
		gen = o.Generation
	}
	for key, have := range map[string]int64{"ifGenerationMatch": gen, "ifMetagenerationMatch": o.meta} {
		if want := q.Get(key); want != "" && want != strconv.FormatInt(have, 10) {
			return false
		}
	}
	return true
}

// resource returns the JSON of the object as the service shows it.
func (s *Server) resource(name string) map[string]any {
	r := httptest.NewRequest(http.MethodGet, "/storage/v1/b/"+s.Bucket+"/o/"+url.PathEscape(name), nil)
	var fields map[string]any
	if json.Unmarshal(s.forward(r).Body.Bytes(), &fields) != nil {
		panic(http.ErrAbortHandler)
	}
	s.amend(fields)
	return fields
}

// amend corrects the JSON of an object.
func (s *Server) amend(fields map[string]any) {
	name, _ := fields["name"].(string)
	gen, _ := fields["generation"].(string)
	fields["metageneration"] = strconv.FormatInt(max(s.metagens[name+"\x00"+gen], 1), 10)
	if t, _ := fields["customTime"].(string); strings.HasPrefix(t, "0001-") {
		delete(fields, "customTime")
	}
}

func sendJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

func (s *Server) getBucket(w http.ResponseWriter, r *http.Request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	answer := s.forward(r)
	var fields map[string]any
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &fields) != nil {
		faulthttp.Send(w, answer)
		return
	}
	maps.Copy(fields, s.settings)
	sendJSON(w, fields)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	query := r.URL.Query()
	if n, err := strconv.Atoi(query.Get("maxResults")); err != nil || n > s.pageLen {
		query.Set("maxResults", strconv.Itoa(s.pageLen))
		r.URL.RawQuery = query.Encode()
	}
	answer := s.forward(r)
	var fields map[string]any
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &fields) != nil {
		faulthttp.Send(w, answer)
		return
	}
	items, _ := fields["items"].([]any)
	for _, item := range items {
		s.amend(item.(map[string]any))
	}
	sendJSON(w, fields)
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	s.mu.RLock()
	answer := s.forward(r)
	s.mu.RUnlock()
	faulthttp.Send(w, answer) // whoever receives slowly must not hold a lock either
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	answer := s.forward(r)
	if answer.Code != http.StatusOK {
		faulthttp.Send(w, answer)
		return
	}
	sendJSON(w, s.resource(name))
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.look(name)
	var change struct{ CustomTime *time.Time }
	switch {
	case json.Unmarshal(body, &change) != nil:
		fail(w, http.StatusBadRequest, "Parse Error")
	case !o.exists:
		fail(w, http.StatusNotFound, "No such object: "+s.Bucket+"/"+name)
	case !o.holds(r.URL.Query()):
		fail(w, http.StatusPreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
	case change.CustomTime != nil && change.CustomTime.Before(o.CustomTime):
		fail(w, http.StatusBadRequest, "Custom time cannot be set to an earlier time.")
	default:
		if answer := s.forward(r); answer.Code != http.StatusOK {
			faulthttp.Send(w, answer)
			return
		}
		s.metagens[o.key] = o.meta + 1
		sendJSON(w, s.resource(name))
	}
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := s.look(name); {
	case !o.exists:
		fail(w, http.StatusNotFound, "No such object: "+s.Bucket+"/"+name)
	case !o.holds(r.URL.Query()):
		fail(w, http.StatusPreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
	default:
		faulthttp.Send(w, s.forward(r))
	}
}

func (s *Server) rewrite(w http.ResponseWriter, r *http.Request, dst string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.look(dst).holds(r.URL.Query()) {
		fail(w, http.StatusPreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
		return
	}
	if answer := s.forward(r); answer.Code != http.StatusOK {
		faulthttp.Send(w, answer)
		return
	}
	patch := httptest.NewRequest(http.MethodPatch, "/storage/v1/b/"+s.Bucket+"/o/"+url.PathEscape(dst), bytes.NewReader(body))
	if answer := s.forward(patch); answer.Code != http.StatusOK {
		faulthttp.Send(w, answer)
		return
	}
	resource := s.resource(dst)
	sendJSON(w, map[string]any{
		"kind": "storage#rewriteResponse", "done": true, "resource": resource,
		"objectSize": resource["size"], "totalBytesRewritten": resource["size"],
	})
}
