package sigv4

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
)

// Streaming tells whether a body with these headers is framed and signed in pieces.
func Streaming(h http.Header) bool {
	return strings.Join(h[contentSHA256], ",") == streamingBody
}

// Payload returns what a framed body holds, without looking at the signatures, or
// false if it is not well framed. It does not change body.
func Payload(body []byte) ([]byte, bool) {
	payload := make([]byte, 0, len(body))
	for {
		data, _, rest, ok := nextChunk(body)
		switch {
		case !ok:
			return nil, false
		case len(data) == 0:
			return payload, len(rest) == 0
		}
		payload = append(payload, data...)
		body = rest
	}
}

const (
	maxChunkHead = 16 + len(chunkSignature) + 2*sha256.Size + 2

	chunkSignature = ";chunk-signature="
	emptyHash      = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// nextChunk cuts off the first piece: its size in hexadecimal digits, its signature,
// its bytes. The last piece has none.
func nextChunk(body []byte) (data []byte, signature string, rest []byte, ok bool) {
	end := bytes.Index(body[:min(len(body), maxChunkHead)], []byte("\r\n"))
	if end < 0 {
		return nil, "", nil, false
	}
	digits, signature, ok := strings.Cut(string(body[:end]), chunkSignature)
	if !ok {
		return nil, "", nil, false
	}
	size, err := strconv.ParseUint(digits, 16, 32)
	body = body[end+2:]
	if err != nil || size > uint64(len(body)) || !bytes.HasPrefix(body[size:], []byte("\r\n")) {
		return nil, "", nil, false
	}
	return body[:size], signature, body[size+2:], true
}

// checkChunks checks the signature of each piece, which covers the one before it, the
// first being the request's, and that nothing is left out or added at the end.
func checkChunks(h http.Header, body, key []byte, timeAndScope, previous string) bool {
	var length int
	for {
		data, signature, rest, ok := nextChunk(body)
		if !ok {
			return false
		}
		sum := sha256.Sum256(data)
		toSign := algorithm + "-PAYLOAD\n" + timeAndScope + previous + "\n" + emptyHash + "\n" + hex.EncodeToString(sum[:])
		if !hmac.Equal([]byte(hex.EncodeToString(sign(key, toSign))), []byte(signature)) {
			return false
		}
		if len(data) == 0 {
			given := h.Get("X-Amz-Decoded-Content-Length")
			return len(rest) == 0 && (given == "" || given == strconv.Itoa(length))
		}
		length += len(data)
		previous, body = signature, rest
	}
}
