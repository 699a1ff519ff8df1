package wire

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// Member is what an error's body has besides its type and text.
type Member struct {
	Name  string
	Value jsontext.Value
}

// With returns err with more members in its body.
func With(err *fault.Error, members ...Member) error {
	return &withMembers{err, members}
}

type withMembers struct {
	err     *fault.Error
	members []Member
}

func (e *withMembers) Error() string { return e.err.Error() }
func (e *withMembers) Unwrap() error { return e.err }

// Prefixes of the type of an error.
const (
	prefixDynamoDB   = "com.amazonaws.dynamodb.v20120810#"
	prefixValidation = "com.amazon.coral.validate#"
	prefixService    = "com.amazon.coral.service#"
)

// typePrefix depends on whose exception it is: that of the service's model, unless the
// framework around the service made it.
func typePrefix(name string) string {
	switch name {
	case fault.ValidationException:
		return prefixValidation
	case fault.SerializationException, fault.UnknownOperationException, fault.AccessDeniedException,
		fault.MissingAuthenticationTokenException, fault.IncompleteSignatureException,
		fault.InvalidSignatureException, fault.UnrecognizedClientException, fault.ExpiredTokenException,
		fault.InternalFailure, fault.ServiceUnavailable:
		return prefixService
	}
	return prefixDynamoDB
}

// textMember is the name of the member with the text of an error.
func textMember(name string) string {
	switch name {
	case fault.SerializationException, fault.AccessDeniedException,
		fault.TransactionCanceledException, fault.IdempotentParameterMismatchException:
		return "Message"
	}
	return "message"
}

func status(name string) int {
	switch name {
	case fault.InternalServerError, fault.InternalFailure:
		return http.StatusInternalServerError
	case fault.ServiceUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// errInternal is the answer to what is nobody's mistake but ours.
var errInternal = fault.New(fault.InternalServerError, "Internal server error")

// renderError returns the answer to a request that failed.
func renderError(err error) (int, []byte) {
	e := errInternal
	errors.As(err, &e)
	b := append([]byte(`{"__type":"`), typePrefix(e.Name)+e.Name...)
	b = append(b, '"')
	if e.Message != "" {
		b = append(append(append(b, `,"`...), textMember(e.Name)...), `":`...)
		b = appendQuoted(b, e.Message)
	}
	var with *withMembers
	if errors.As(err, &with) {
		for _, m := range with.members {
			b = append(appendQuoted(append(b, ','), m.Name), ':')
			b = append(b, m.Value...)
		}
	}
	return status(e.Name), append(b, '}')
}

// appendQuoted appends s as a JSON string, with a replacement for what is no UTF-8.
func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// refuse answers with an error.
func (x *exchange) refuse(err error) {
	status, body := renderError(err)
	if status == http.StatusInternalServerError && x.h.opts.Failed != nil {
		x.h.opts.Failed(&x.rq, err)
	}
	x.answer(status, body)
}

// refuseBody answers when there is no body to look at.
func (x *exchange) refuseBody(err error) {
	switch {
	case errors.Is(err, errTooLarge):
		x.hangUp(http.StatusRequestEntityTooLarge)
	case errors.Is(err, errNoMemory):
		x.w.Header().Set("Connection", "close")
		x.refuse(fault.New(fault.ServiceUnavailable, "The service is busy, try again"))
	case errors.Is(err, errPacked):
		x.answer(renderError(fault.New(fault.InternalFailure, "")))
	default:
		x.hangUp(http.StatusBadRequest) // the body ended early
	}
}

// hangUp answers without a body and ends the connection, because the rest of the
// request is not read.
func (x *exchange) hangUp(status int) {
	x.w.Header().Set("Connection", "close")
	x.answer(status, nil)
}

// unknown is the answer to what cannot be an operation.
func (x *exchange) unknown() {
	x.answer(http.StatusNotFound, []byte("<UnknownOperationException/>\n"))
}

// preflight answers a browser that asks what it may send.
func (x *exchange) preflight() {
	asked, h := x.rq.HTTP.Header, x.w.Header()
	for _, name := range []string{"Headers", "Method"} {
		if v := asked.Get("Access-Control-Request-" + name); v != "" {
			h.Set("Access-Control-Allow-"+strings.TrimSuffix(name, "s")+"s", v)
		}
	}
	h.Set("Access-Control-Max-Age", "172800")
	x.answer(http.StatusOK, nil)
}

const exposed = "x-amzn-RequestId,x-amzn-ErrorType,x-amz-request-id,x-amz-id-2,x-amzn-ErrorMessage,x-amz-crc32,Date"

// compressFrom is the length of the first body that is worth to be compressed.
const compressFrom = 4<<10 + 1

// answer sends a whole answer, packed if the client likes it.
func (x *exchange) answer(status int, body []byte) {
	h := x.w.Header()
	if len(body) >= compressFrom {
		if coding := acceptedCoding(x.rq.HTTP.Header["Accept-Encoding"]); coding != "" {
			body = x.h.pack(coding, body)
			h.Set("Content-Encoding", coding)
		}
	}
	if x.rq.HTTP.Header.Get("Origin") != "" {
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", exposed)
	}
	if t := contentType(x.rq.HTTP); t != "" {
		h.Set("Content-Type", t)
	} else {
		h.Set("Content-Type", plainJSON)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Server", "Server")
	h["x-amzn-RequestId"] = []string{x.rq.ID} // spelled as the service does
	h["x-amz-crc32"] = []string{strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10)}
	x.w.WriteHeader(status)
	x.w.Write(body) // a client that went away needs no answer
}

// codings of answers, the better first.
var codings = [...]string{"gzip", "deflate"}

// acceptedCoding returns the coding that a client likes best, or nothing for none.
func acceptedCoding(header []string) string {
	quality := map[string]float64{}
	for entry := range strings.SplitSeq(strings.Join(header, ","), ",") {
		name, parameter, _ := strings.Cut(entry, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		q := 1.0
		if v, ok := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(parameter), " ", ""), "q="); ok {
			q, _ = strconv.ParseFloat(v, 64) // 0 if it is none
		}
		quality[name] = q
	}
	best, bestQuality := "", quality["identity"]
	for _, c := range codings {
		q, named := quality[c]
		if !named {
			q = quality["*"]
		}
		if q > bestQuality || q == bestQuality && q > 0 && best == "" {
			best, bestQuality = c, q
		}
	}
	return best
}

// packer is a gzip.Writer or a zlib.Writer.
type packer interface {
	io.WriteCloser
	Reset(io.Writer)
}

// pack compresses a body. Packers are used again: each has some hundred KiB.
func (h *Handler) pack(coding string, body []byte) []byte {
	pool := &h.packers[0]
	if coding == codings[1] {
		pool = &h.packers[1]
	}
	p, _ := pool.Get().(packer)
	if p == nil && coding == codings[0] {
		p = gzip.NewWriter(nil)
	} else if p == nil {
		p = zlib.NewWriter(nil)
	}
	var b bytes.Buffer
	p.Reset(&b)
	p.Write(body)
	p.Close() // a Buffer takes everything
	pool.Put(p)
	return b.Bytes()
}
