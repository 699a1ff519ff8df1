package fs

import (
	"path/filepath"
	"strings"
)

// The last two characters of each entry under objects say what it is.
const (
	suffixUnfinalized = ".u" // object
	suffixFinalized   = ".f" // object
	suffixSegment     = ".d" // folder: the piece and a slash
	suffixContinued   = ".c" // folder: the piece goes on inside
	suffixLen         = 2
)

const (
	// folderSegments is how many leading segments of a name become folders.
	folderSegments = 2

	// chunkLen is the escaped length at which a piece is cut. With the bytes that
	// the last escape may exceed it by and the suffix, an entry stays below the
	// 255 bytes that file systems allow.
	chunkLen = 230
)

const hexDigits = "0123456789abcdef"

// location is where an object is, whatever its state.
type location struct {
	dir  string // folder
	base string // file name without the suffix; may be anything, even empty or ".."
}

func (l location) unfinalized() string { return filepath.Join(l.dir, l.base+suffixUnfinalized) }
func (l location) finalized() string   { return filepath.Join(l.dir, l.base+suffixFinalized) }

// locate returns the location of an object under the folder top.
func locate(top, name string) location {
	var path strings.Builder
	for range folderSegments {
		segment, rest, found := strings.Cut(name, "/")
		if !found {
			break
		}
		writePiece(&path, segment)
		path.WriteString(suffixSegment + "/")
		name = rest
	}
	writePiece(&path, name)
	dir, base := "", path.String()
	if i := strings.LastIndexByte(base, '/'); i >= 0 {
		dir, base = base[:i], base[i+1:]
	}
	return location{dir: filepath.Join(top, dir), base: base}
}

// writePiece appends the piece, cut into continued folders where it is long.
//
// A cut comes as soon as the escaped length reaches chunkLen, whatever follows.
// Therefore all names that begin with the bytes of a continued folder lie in it,
// and listing entry by entry keeps the order of names.
func writePiece(path *strings.Builder, piece string) {
	begin := path.Len()
	for i := range len(piece) {
		writeEscaped(path, piece[i])
		if path.Len()-begin >= chunkLen {
			path.WriteString(suffixContinued + "/")
			begin = path.Len()
		}
	}
}

func writeEscaped(b *strings.Builder, c byte) {
	switch {
	case isPlain(c):
		b.WriteByte(c)
	case c == '/':
		b.WriteByte('+')
	case 'A' <= c && c <= 'Z':
		b.WriteByte('^')
		b.WriteByte(c + 'a' - 'A')
	default:
		b.WriteByte('%')
		b.WriteByte(hexDigits[c>>4])
		b.WriteByte(hexDigits[c&15])
	}
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~'
}

// unescape is the inverse of escaping a piece. It is false for what escaping
// does not produce.
func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case isPlain(c):
		case c == '+':
			c = '/'
		case c == '^' && i+1 < len(s) && 'a' <= s[i+1] && s[i+1] <= 'z':
			c = s[i+1] - 'a' + 'A'
			i++
		case c == '%' && i+2 < len(s):
			high, low := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
			if high < 0 || low < 0 {
				return "", false
			}
			c = byte(high<<4 | low)
			if isPlain(c) || c == '/' || 'A' <= c && c <= 'Z' {
				return "", false
			}
			i += 2
		default:
			return "", false
		}
		b.WriteByte(c)
	}
	return b.String(), true
}

// entry is what a file or folder under objects stands for.
type entry struct {
	file   string // its name in the file system
	key    string // the bytes that it adds to the name of an object
	folder bool
}

// parseEntry tells what the file name stands for, and whether it belongs to the
// layout at all.
func parseEntry(file string) (entry, bool) {
	if len(file) < suffixLen {
		return entry{}, false
	}
	piece, suffix := file[:len(file)-suffixLen], file[len(file)-suffixLen:]
	key, ok := unescape(piece)
	if !ok {
		return entry{}, false
	}
	switch suffix {
	case suffixUnfinalized, suffixFinalized:
		return entry{file: file, key: key}, true
	case suffixSegment:
		return entry{file: file, key: key + "/", folder: true}, true
	case suffixContinued:
		return entry{file: file, key: key, folder: true}, true
	}
	return entry{}, false
}
