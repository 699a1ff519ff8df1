package queue

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"
	"time"
)

// token is what a lease token says.
type token struct {
	queue uint64 // number of the queue
	lease leaseID
	end   time.Time
	key   string
}

const (
	tokenFormat  = 1
	tokenMACSize = 16
)

// tokenCodec turns tokens into opaque printable text and back. The text is signed,
// so that a server can rely on what it once wrote without remembering it.
type tokenCodec struct{ macs sync.Pool }

func newTokenCodec(key []byte) tokenCodec {
	k := append([]byte(nil), key...)
	return tokenCodec{sync.Pool{New: func() any { return hmac.New(sha256.New, k) }}}
}

func (c *tokenCodec) sign(b []byte) []byte {
	mac := c.macs.Get().(hash.Hash)
	defer c.macs.Put(mac)
	mac.Reset()
	mac.Write(b)
	return mac.Sum(b)[:len(b)+tokenMACSize]
}

func (c *tokenCodec) encode(t token) string {
	b := make([]byte, 0, 48+len(t.key)+sha256.Size)
	b = append(b, tokenFormat)
	b = binary.AppendUvarint(b, t.queue)
	b = binary.AppendUvarint(b, t.lease.epoch)
	b = binary.AppendUvarint(b, t.lease.sequence)
	b = appendTime(b, t.end)
	b = append(b, t.key...)
	return base64.RawURLEncoding.EncodeToString(c.sign(b))
}

// decode returns false for text that encode has not made with the same key.
func (c *tokenCodec) decode(text string) (token, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < tokenMACSize {
		return token{}, false
	}
	n := len(b) - tokenMACSize
	if subtle.ConstantTimeCompare(c.sign(b[:n:n]), b) != 1 {
		return token{}, false
	}
	d := decoder{rest: b[:n]}
	format := d.byte()
	t := token{queue: d.uvarint(), lease: leaseID{d.uvarint(), d.uvarint()}, end: d.time()}
	t.key = string(d.rest)
	return t, !d.failed && format == tokenFormat
}
