package fs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// header is what a file starts with, before the content:
//
//	 0  4  "HFOB"
//	 4  4  version of the file format, 1
//	 8  8  size of the content in bytes
//	16  8  custom time in milliseconds since 1970, valid until finalized
//	24  4  CRC-32C of the content
//	28  4  CRC-32C of the 28 bytes before
//
// Numbers are little-endian.
type header struct {
	size       int64
	customTime time.Time
	crc        uint32
}

const (
	headerLen   = 32
	fileVersion = 1
)

var (
	fileMagic  = []byte("HFOB")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// put writes the header to the first headerLen bytes of b.
func (h header) put(b []byte) {
	copy(b, fileMagic)
	binary.LittleEndian.PutUint32(b[4:], fileVersion)
	binary.LittleEndian.PutUint64(b[8:], uint64(h.size))
	binary.LittleEndian.PutUint64(b[16:], uint64(h.customTime.UnixMilli()))
	binary.LittleEndian.PutUint32(b[24:], h.crc)
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// parseHeader reads the header of a file of fileSize bytes. Errors wrap
// blob.ErrCorrupt, except for a newer version.
func parseHeader(b []byte, fileSize int64) (header, error) {
	if len(b) < headerLen || !bytes.Equal(b[:4], fileMagic) {
		return header{}, fmt.Errorf("%w: the file has no header", blob.ErrCorrupt)
	}
	if binary.LittleEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli) {
		return header{}, fmt.Errorf("%w: checksum of the header", blob.ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != fileVersion {
		return header{}, fmt.Errorf("file format %d is newer than %d, the newest known", v, fileVersion)
	}
	h := header{
		size:       int64(binary.LittleEndian.Uint64(b[8:])),
		customTime: time.UnixMilli(int64(binary.LittleEndian.Uint64(b[16:]))).UTC(),
		crc:        binary.LittleEndian.Uint32(b[24:]),
	}
	if fileSize-headerLen != h.size {
		return header{}, fmt.Errorf("%w: the file has %d bytes of content instead of %d", blob.ErrCorrupt, fileSize-headerLen, h.size)
	}
	return h, nil
}

func (h header) attrs(name string, finalized bool) blob.Attrs {
	a := blob.Attrs{Name: name, Size: h.size, CustomTime: h.customTime, CRC32C: h.crc, HasCRC32C: true}
	if finalized {
		a.Committed, a.CustomTime = true, blob.FinalizedTime
	}
	return a
}
