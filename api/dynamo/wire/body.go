package wire

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/semaphore"
)

var (
	errTooLarge = errors.New("wire: the body is too large")
	errNoMemory = errors.New("wire: no memory for the body")
	errPacked   = errors.New("wire: the body cannot be unpacked")
)

// smallBody is up to what size a body costs little more than its connection does.
const smallBody = 16 << 10

// memory is what one request has of the budget for bodies. It never waits for more:
// requests that each hold a part could wait for one another.
type memory struct {
	budget *semaphore.Weighted
	taken  int64
}

func (m *memory) take(n int64) bool {
	if !m.budget.TryAcquire(n) {
		return false
	}
	m.taken += n
	return true
}

func (m *memory) release() {
	m.budget.Release(m.taken)
	m.taken = 0
}

// readAll reads a body of at most MaxBody bytes. The memory grows with what has come,
// not with what was announced. A length below 0 is unknown.
func (m *memory) readAll(r io.Reader, length int64) ([]byte, error) {
	limit := int64(MaxBody) + 1 // one more shows the end, or that there is none
	if length >= 0 {
		limit = min(limit, length+1)
	}
	b := make([]byte, 0, min(limit, smallBody))
	for {
		if len(b) == cap(b) {
			grown := min(2*int64(cap(b)), limit)
			if !m.take(grown - int64(cap(b))) {
				return nil, errNoMemory
			}
			b = append(make([]byte, 0, grown), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b) > MaxBody:
			return nil, errTooLarge
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}

// unpacker returns a reader of what body holds in that coding.
func unpacker(coding string, body []byte) (io.Reader, error) {
	source := bufio.NewReader(bytes.NewReader(body)) // so that what is after the end can be seen
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "gzip":
		r, err := gzip.NewReader(source)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errPacked, err)
		}
		return r, nil
	case "deflate":
		r, err := inflater(source, body)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errPacked, err)
		}
		return &untilEnd{r, source}, nil
	}
	return nil, fmt.Errorf("%w: coding %q", errPacked, coding)
}

// inflater reads deflate as the standard has it, with a head and a checksum, and as
// some clients send it, without.
func inflater(source io.Reader, body []byte) (io.Reader, error) {
	if len(body) >= 2 && body[0]&15 == 8 && (uint(body[0])<<8|uint(body[1]))%31 == 0 {
		return zlib.NewReader(source)
	}
	return flate.NewReader(source), nil
}

// untilEnd reads one stream and refuses anything behind it.
type untilEnd struct {
	stream io.Reader
	source *bufio.Reader
}

func (u *untilEnd) Read(b []byte) (int, error) {
	n, err := u.stream.Read(b)
	if err == io.EOF {
		if _, after := u.source.ReadByte(); after != io.EOF {
			err = errors.New("more data after the end")
		}
	}
	return n, err
}
