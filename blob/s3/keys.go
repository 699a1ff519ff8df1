package s3

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/holdfast-dev/holdfast/blob"
)

const (
	ownPrefix   = ".holdfast/"
	namePrefix  = ownPrefix + "n/"
	markPrefix  = ownPrefix + "s/"
	hashPrefix  = ownPrefix + "h/"
	probeKey    = ownPrefix + "probe"
	maxKeyLen   = blob.MaxNameLen
	markSep     = "!"
	lastMark    = markSep + "~" // after a name: sorts after all its marks
	markSuffix  = len(markSep) + idLen + etagHashLen
	idLen       = 26 // of rand.Text
	etagHashLen = 16
	afterOwn    = ownPrefix + "\U0010ffff" // sorts after all our keys, and is none
	beforeNames = ownPrefix + "n."         // sorts right before namePrefix, and is none
)

// keyOf returns the key of a name's content. It keeps the order of names, and turns a
// prefix of names into a prefix of keys if that is longer than ownPrefix.
func keyOf(name string) string {
	if rest, ok := strings.CutPrefix(name, ownPrefix); ok {
		return namePrefix + rest
	}
	return name
}

// nameOf returns the name whose content is under the key, if it is such a key.
func nameOf(key string) (string, bool) {
	if rest, ok := strings.CutPrefix(key, namePrefix); ok {
		return ownPrefix + rest, true
	}
	return key, !strings.HasPrefix(key, ownPrefix)
}

// markKey returns the key of an incarnation's mark. It has a hash of the ETag, because
// a list shows ETags, but no metadata.
func markKey(name, id, etag string) string {
	suffix := markSep + id + hashOf(etag)[:etagHashLen]
	if key := markPrefix + name + suffix; len(key) <= maxKeyLen {
		return key
	}
	return hashPrefix + hashOf(name) + suffix
}

// markedName returns the name in the key of a mark, its incarnation and the hash of
// its ETag.
func markedName(key string) (name, id, etagHash string, ok bool) {
	rest, ok := strings.CutPrefix(key, markPrefix)
	cut := len(rest) - markSuffix
	if !ok || cut <= 0 || rest[cut:cut+len(markSep)] != markSep {
		return "", "", "", false
	}
	id = rest[cut+len(markSep):]
	return rest[:cut], id[:idLen], id[idLen:], true
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
