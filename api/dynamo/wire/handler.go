package wire

import (
	"bytes"
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/semaphore"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
	"github.com/holdfast-dev/holdfast/api/dynamo/sigv4"
)

// Limits of a request, in bytes.
const (
	// MaxBody bounds a body as it is sent, and as it is when unpacked.
	MaxBody = 16 << 20
	// MaxHead bounds the request line, and all headers together. The http.Server
	// must let through somewhat more, or it answers with a status of its own.
	MaxHead = 16 << 10
	// MinBodyBudget is enough for one body, sent and unpacked.
	MinBodyBudget = 3 * (MaxBody + 1)
)

// Target is what X-Amz-Target names.
type Target struct {
	API       string // DynamoDB or DynamoDBStreams
	Operation string
}

// The APIs of a [Target].
const (
	DynamoDB        = "DynamoDB"
	DynamoDBStreams = "DynamoDBStreams"
)

// Request is a request whose envelope is read.
type Request struct {
	HTTP   *http.Request // its body is read already
	ID     string        // the x-amzn-RequestId of the answer
	Target Target
	// Sent is the body as it came: what the signature covers.
	Sent []byte
	// Body is the unpacked body. It is JSON in UTF-8 and an object once
	// Authenticate has accepted the request.
	Body []byte
}

// Call is one request in the hands of the door. Its methods are called in this order,
// once each, on one goroutine; the second only if the first returns nil.
type Call interface {
	// Authenticate says who sent the request, or refuses it.
	Authenticate(ctx context.Context, rq *Request) error
	// Serve does what the request asks for and returns the body of the answer,
	// compact JSON or nothing. An error is a [*fault.Error], maybe with members (see
	// [With]); any other is answered as an internal error.
	Serve(ctx context.Context, rq *Request) ([]byte, error)
}

// Options are what a [Handler] needs.
type Options struct {
	// Begin returns the Call of an operation, nil if there is no such operation.
	Begin func(Target) Call
	// Random is where request ids come from, such as crypto/rand.Reader.
	Random io.Reader
	// BodyBudget bounds the bytes of all bodies that are in memory at one time.
	// Bodies below 16 KiB do not count. A request for which there is no room is
	// answered with 503, and its client tries again.
	BodyBudget int64
	// Failed is told why a request failed that is answered as an internal error.
	// May be nil.
	Failed func(rq *Request, err error)
}

// Handler serves the protocol. It is safe for concurrent use.
type Handler struct {
	opts    Options
	budget  *semaphore.Weighted
	packers [2]sync.Pool // of the codings of answers
}

// New returns a Handler.
func New(opts Options) (*Handler, error) {
	if opts.BodyBudget < MinBodyBudget {
		return nil, fmt.Errorf("wire: the memory for request bodies (%d) is less than %d", opts.BodyBudget, int64(MinBodyBudget))
	}
	return &Handler{opts: opts, budget: semaphore.NewWeighted(opts.BodyBudget)}, nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := exchange{h: h, w: w, memory: memory{budget: h.budget}, rq: Request{HTTP: r, ID: h.newID()}}
	defer x.memory.release()
	x.serve()
}

// newID returns 52 characters of 0-9 and A-V. It is for people who read logs: when
// the source fails they have to do without.
func (h *Handler) newID() string {
	var b [32]byte
	io.ReadFull(h.opts.Random, b[:])
	return base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:])
}

// exchange is one request and its answer.
type exchange struct {
	h      *Handler
	w      http.ResponseWriter
	rq     Request
	memory memory
}

func (x *exchange) serve() {
	r := x.rq.HTTP
	switch {
	case requestLine(r) > MaxHead || headers(r) > MaxHead:
		x.hangUp(http.StatusBadRequest)
	case r.Method == http.MethodGet && r.URL.Path == "/":
		x.answer(http.StatusOK, []byte("healthy: "+r.Host+" "))
	case r.Method == http.MethodOptions && r.Header.Get("Origin") != "":
		x.preflight()
	case r.Method != http.MethodPost || r.URL.Path != "/":
		x.unknown()
	default:
		x.post()
	}
}

func requestLine(r *http.Request) int {
	return len(r.Method) + len(r.RequestURI) + len(r.Proto) + len("  \r\n")
}

func headers(r *http.Request) int {
	const around = len(": \r\n")
	n := len("Host") + len(r.Host) + around
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + around
		}
	}
	return n
}

// post serves what should be an operation.
func (x *exchange) post() {
	r := x.rq.HTTP
	if r.ContentLength > MaxBody {
		x.hangUp(http.StatusRequestEntityTooLarge)
		return
	}
	var err error
	if x.rq.Sent, err = x.memory.readAll(r.Body, r.ContentLength); err != nil {
		x.refuseBody(err)
		return
	}
	if len(x.rq.Sent) > 0 && contentType(r) == "" {
		x.unknown()
		return
	}
	if x.rq.Body, err = x.unpack(); err != nil {
		x.refuseBody(err)
		return
	}
	body, err := x.call()
	if err != nil {
		x.refuse(err)
		return
	}
	x.answer(http.StatusOK, body)
}

// call makes the checks that are left, each of which has its place between others,
// and runs the operation.
func (x *exchange) call() ([]byte, error) {
	body := jsontext.Value(x.rq.Body)
	if len(body) > 0 && !body.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return nil, errNoRequest
	}
	target, ok := x.target()
	if !ok {
		return nil, fault.New(fault.UnknownOperationException, "")
	}
	x.rq.Target = target
	c := x.h.opts.Begin(target)
	if c == nil {
		return nil, fault.New(fault.UnknownOperationException, "")
	}
	ctx := x.rq.HTTP.Context()
	if err := c.Authenticate(ctx, &x.rq); err != nil {
		return nil, err
	}
	if body.Kind() != '{' || !validText(body) {
		return nil, errNoRequest
	}
	return c.Serve(ctx, &x.rq)
}

// errNoRequest is a body that is not one JSON object.
var errNoRequest = fault.Serialization("")

// validText tells whether valid JSON is UTF-8 and has no escape of half a surrogate
// pair, which could not be stored.
func validText(body jsontext.Value) bool {
	if !utf8.Valid(body) {
		return false
	}
	return !bytes.Contains(body, []byte(`\u`)) || body.IsValid(jsontext.AllowDuplicateNames(true))
}

// target reads X-Amz-Target. A presigned URL has it among its parameters.
func (x *exchange) target() (Target, bool) {
	r := x.rq.HTTP
	given := r.Header["X-Amz-Target"]
	if len(given) == 0 {
		given = r.URL.Query()["X-Amz-Target"]
	}
	if len(given) != 1 {
		return Target{}, false
	}
	prefix, operation, _ := strings.Cut(given[0], ".")
	api, ok := strings.CutSuffix(prefix, "_20120810")
	return Target{api, operation}, ok && (api == DynamoDB || api == DynamoDBStreams)
}

const (
	json10    = "application/x-amz-json-1.0"
	plainJSON = "application/json"
)

// contentType returns the accepted type of a request's body, or nothing.
func contentType(r *http.Request) string {
	t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	t = strings.TrimSpace(t)
	for _, accepted := range []string{json10, plainJSON} {
		if strings.EqualFold(t, accepted) {
			return accepted
		}
	}
	return ""
}

// unpack undoes the framing and the coding of a body.
func (x *exchange) unpack() ([]byte, error) {
	body := x.rq.Sent
	header := x.rq.HTTP.Header
	codings := header["Content-Encoding"]
	if sigv4.Streaming(header) {
		if !x.memory.take(int64(len(body))) {
			return nil, errNoMemory
		}
		payload, ok := sigv4.Payload(body)
		if !ok {
			return body, nil // which is no JSON
		}
		body, codings = payload, withoutFraming(codings)
	}
	if len(codings) == 0 {
		return body, nil
	}
	source, err := unpacker(strings.Join(codings, ","), body)
	if err != nil {
		return nil, err
	}
	unpacked, err := x.memory.readAll(source, -1)
	if err != nil && !errors.Is(err, errTooLarge) && !errors.Is(err, errNoMemory) {
		err = errors.Join(errPacked, err)
	}
	return unpacked, err
}

// withoutFraming is Content-Encoding without the entry for the pieces of a body that
// is signed in pieces.
func withoutFraming(values []string) []string {
	var left []string
	for coding := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "aws-chunked") {
			left = append(left, coding)
		}
	}
	return left
}
