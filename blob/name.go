package blob

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// CheckName returns an error that wraps ErrInvalidName unless name is 1 to
// MaxNameLen bytes of valid UTF-8 without NUL, CR and LF, and neither "." nor
// "..".
//
// Links travel in JSON and in text columns, so a name must be UTF-8; the other
// rules are those of GCS, the strictest of the stores.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > MaxNameLen:
		return fmt.Errorf("%w: %d bytes are more than %d", ErrInvalidName, len(name), MaxNameLen)
	case name == "." || name == "..":
		return fmt.Errorf("%w: it is %q", ErrInvalidName, name)
	}
	return checkText(name)
}

// checkText checks what also holds for a part of a name.
func checkText(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%w: it is not UTF-8", ErrInvalidName)
	}
	if strings.ContainsAny(s, "\x00\r\n") {
		return fmt.Errorf("%w: it contains NUL, CR or LF", ErrInvalidName)
	}
	return nil
}

// nameOf splits url into prefix and name. See Store.Name.
func nameOf(prefix, url string) (string, error) {
	if name, ok := strings.CutPrefix(url, prefix); ok {
		if err := CheckName(name); err != nil {
			return "", fmt.Errorf("%w: %w", ErrInvalidURL, err)
		}
		return name, nil
	}
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok || !isScheme(scheme) {
		return "", fmt.Errorf("%w: no scheme", ErrInvalidURL)
	}
	bucket, name, ok := strings.Cut(rest, "/")
	if bucket == "" && scheme != "file" {
		return "", fmt.Errorf("%w: no bucket", ErrInvalidURL)
	}
	if !ok || name == "" {
		return "", fmt.Errorf("%w: no name", ErrInvalidURL)
	}
	return "", ErrForeignURL
}

// isScheme reports whether s has the form of a URL scheme.
func isScheme(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		other := '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'
		if !letter && (i == 0 || !other) {
			return false
		}
	}
	return s != ""
}
