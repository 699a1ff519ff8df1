package bso

import (
	"net/url"
	"strconv"
	"strings"
)

// Resource is what a URL below /1.5/ names.
type Resource uint8

// The resources, with their URL below /1.5/{uid}.
const (
	Storage              Resource = iota + 1 // (nothing), /storage
	InfoCollections                          // /info/collections
	InfoCollectionCounts                     // /info/collection_counts
	InfoCollectionUsage                      // /info/collection_usage
	InfoQuota                                // /info/quota
	InfoConfiguration                        // /info/configuration
	Collection                               // /storage/{collection}
	Item                                     // /storage/{collection}/{bso}
)

// Route is a parsed URL path.
type Route struct {
	Resource   Resource
	UID        uint64
	Collection string // decoded, and not yet checked: see CheckNames
	ID         string // of a record, likewise
}

// ParsePath reads the raw path of a request, still percent-encoded and without the
// query. A path that names no resource is an [*Error] with status 404. Names are
// decoded but not judged, because that is told only to an authenticated client.
func ParsePath(rawPath string) (Route, error) {
	rest, ok := strings.CutPrefix(rawPath, "/1.5/")
	if !ok {
		return Route{}, errNoResource
	}
	uid, rest, more := strings.Cut(rest, "/")
	r := Route{}
	if r.UID, ok = parseUID(uid); !ok {
		return Route{}, errNoResource
	}
	if !more {
		r.Resource = Storage
		return r, nil
	}
	first, rest, more := strings.Cut(rest, "/")
	switch {
	case first == "storage" && !more:
		r.Resource = Storage
	case first == "storage":
		if !r.parseNames(rest) {
			return Route{}, errNoResource
		}
	case first == "info" && more:
		if r.Resource = infoView(rest); r.Resource == 0 {
			return Route{}, errNoResource
		}
	default:
		return Route{}, errNoResource
	}
	return r, nil
}

var errNoResource = &Error{Status: 404, Code: CodeOther, Detail: "the URL names nothing"}

func infoView(name string) Resource {
	switch name {
	case "collections":
		return InfoCollections
	case "collection_counts":
		return InfoCollectionCounts
	case "collection_usage":
		return InfoCollectionUsage
	case "quota":
		return InfoQuota
	case "configuration":
		return InfoConfiguration
	}
	return 0
}

func parseUID(s string) (uint64, bool) {
	if len(s) < 1 || len(s) > 10 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	uid, err := strconv.ParseUint(s, 10, 64)
	return uid, err == nil
}

// parseNames reads {collection} or {collection}/{bso}.
func (r *Route) parseNames(s string) bool {
	collection, id, more := strings.Cut(s, "/")
	if collection == "" || more && (id == "" || strings.Contains(id, "/")) {
		return false
	}
	r.Resource, r.Collection = Collection, unescape(collection)
	if more {
		r.Resource, r.ID = Item, unescape(id)
	}
	return true
}

// unescape decodes one path segment. A wrong escape gives the empty string, which
// is no valid name.
func unescape(segment string) string {
	s, err := url.PathUnescape(segment)
	if err != nil {
		return ""
	}
	return s
}

// CheckNames judges the names of collection and record in the path.
func (r Route) CheckNames() error {
	if r.Resource >= Collection && !ValidCollection(r.Collection) {
		return bad("request.process.invalid_collection", "the collection's name is not valid")
	}
	if r.Resource == Item && !ValidID(r.ID) {
		return bad("request.process.invalid_bso", "the record's id is not valid")
	}
	return nil
}

// Allows reports whether the resource knows the HTTP method; 405 if not.
func (r Route) Allows(method string) bool {
	switch method {
	case "GET", "HEAD":
		return r.Resource != Storage
	case "DELETE":
		return r.Resource == Storage || r.Resource == Collection || r.Resource == Item
	case "POST":
		return r.Resource == Collection
	case "PUT":
		return r.Resource == Item
	}
	return false
}

// ValidCollection reports whether s is a name of a collection: 1 to 32 characters
// of letters, digits, '.', '_' and '-'.
func ValidCollection(s string) bool {
	if len(s) < 1 || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isURLSafe(c) && c != '.' {
			return false
		}
	}
	return true
}

// ValidID reports whether s is an id of a record: 1 to 64 printable ASCII
// characters.
func ValidID(s string) bool {
	if len(s) < 1 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func isURLSafe(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
