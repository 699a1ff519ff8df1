package blob

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewCRC32C returns the hash that Attrs.CRC32C is made with.
func NewCRC32C() hash.Hash32 { return crc32.New(castagnoli) }

// exactReader passes on the bytes of r and fails unless there are exactly as
// many as announced. It looks for surplus bytes before it hands out the last
// one, so that a driver that stops reading at the announced size sees the error
// as well.
type exactReader struct {
	ctx  context.Context
	r    io.Reader
	left int64
	err  error // sticky
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.err == nil && e.ctx.Err() != nil {
		e.err = e.ctx.Err()
	}
	if e.err != nil || len(p) == 0 {
		return 0, e.err
	}
	if e.left == 0 {
		e.err = io.EOF
		return 0, e.err
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	switch {
	case e.left == 0 && (err == nil || errors.Is(err, io.EOF)):
		err = e.expectEnd()
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: %d bytes are missing", ErrWrongSize, e.left)
	}
	if e.err = err; err != nil {
		return 0, err
	}
	return n, nil
}

// expectEnd returns nil if r has no further bytes.
func (e *exactReader) expectEnd() error {
	var surplus [1]byte
	n, err := io.ReadFull(e.r, surplus[:])
	if n > 0 {
		return fmt.Errorf("%w: there are more bytes", ErrWrongSize)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// verifier compares what it reads with what it should have read, at the end.
type verifier struct {
	ctx  context.Context
	r    io.ReadCloser
	want int64       // bytes still to come
	sum  hash.Hash32 // nil: nothing to compare with
	crc  uint32
	err  error // sticky
}

func newVerifier(ctx context.Context, r io.ReadCloser, a Attrs, offset, length int64) *verifier {
	v := &verifier{ctx: ctx, r: r, want: max(a.Size-offset, 0), crc: a.CRC32C}
	if length >= 0 {
		v.want = min(v.want, length)
	}
	if a.HasCRC32C && v.want == a.Size {
		v.sum = NewCRC32C()
	}
	return v
}

func (v *verifier) Read(p []byte) (int, error) {
	if v.err == nil && v.ctx.Err() != nil {
		v.err = v.ctx.Err()
	}
	if v.err != nil || len(p) == 0 {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	v.want -= int64(n)
	if v.sum != nil {
		v.sum.Write(p[:n]) // a hash never fails
	}
	if v.want < 0 || errors.Is(err, io.EOF) {
		err = v.verdict()
	}
	v.err = err
	return n, err
}

// verdict is what the reader ends with.
func (v *verifier) verdict() error {
	if v.want != 0 {
		return fmt.Errorf("blob: read: %w: length is wrong by %d bytes", ErrCorrupt, -v.want)
	}
	if v.sum != nil && v.sum.Sum32() != v.crc {
		return fmt.Errorf("blob: read: %w: checksum %08x, expected %08x", ErrCorrupt, v.sum.Sum32(), v.crc)
	}
	return io.EOF
}

func (v *verifier) Close() error { return v.r.Close() }
