package kv

import (
	"context"
	"time"
)

// Version orders the states of one row. It is taken from a hybrid logical
// clock: milliseconds since 2024-01-01T00:00:00Z in the upper bits and a counter
// in the lower 12. Versions of one key are unique and strictly increasing, also
// across deletion and re-creation and across clocks that jump back. Versions of
// different keys say nothing about the order of their commits. 0 is no version:
// the row does not exist.
type Version uint64

// versionEpochMilli is 2024-01-01T00:00:00Z in Unix milliseconds, the zero of
// the clock inside a Version.
const versionEpochMilli = 1704067200000

// versionCounterBits is the width of the counter below the milliseconds.
const versionCounterBits = 12

// VersionAt returns the smallest version of the millisecond that t lies in, and
// 0 for times at or before the epoch of versions.
func VersionAt(t time.Time) Version {
	milli := t.UnixMilli() - versionEpochMilli
	if milli <= 0 {
		return 0
	}
	return Version(milli) << versionCounterBits
}

// Time returns the time inside v, exact to the millisecond. It may be ahead of
// the clock when many commits shared a millisecond or a clock jumped back.
func (v Version) Time() time.Time {
	return time.UnixMilli(int64(v>>versionCounterBits) + versionEpochMilli).UTC()
}

// Row is one row as a read returns it.
type Row struct {
	Key   []byte
	Value []byte
	// Link is the URL of the object that the row owns, empty if none.
	Link string
	// ExpiresAt is when the row ceases to exist, in whole microseconds. The
	// zero time means never.
	ExpiresAt time.Time
	// Version is 0 if the row does not exist.
	Version Version
	// Expired reports that ExpiresAt has passed by the engine's clock. It is
	// set only on reads that include expired rows.
	Expired bool
}

// Exists reports whether there is such a row, be it expired or not.
func (r Row) Exists() bool { return r.Version != 0 }

// Ref names one row to read.
type Ref struct {
	Space string
	Key   []byte
	// IncludeExpired asks for the row also when it has expired but has not been
	// removed yet. Without it such a row reads as absent.
	IncludeExpired bool
}

// Range selects the rows of a space with Start <= key < End, in the order of
// their keys. A nil End means no upper bound.
type Range struct {
	Start, End []byte
	// Reverse visits the rows from the highest key to the lowest.
	Reverse bool
	// Limit ends the scan after so many rows. 0 means no limit.
	Limit int
	// IncludeExpired visits expired rows that have not been removed yet too.
	IncludeExpired bool
}

// Prefix returns the range of all keys that begin with p.
func Prefix(p []byte) Range { return Range{Start: p, End: PrefixEnd(p)} }

// PrefixEnd returns the smallest key that is larger than every key with prefix
// p, or nil if there is none.
func PrefixEnd(p []byte) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] != 0xff {
			end := append([]byte(nil), p[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}

// Check is a condition of a minitransaction.
type Check struct {
	Space string
	Key   []byte
	// Version is the version that the row must have when the commit happens.
	// 0: the row must not exist.
	Version Version
	// IncludeExpired compares with the row as it is stored. Without it an
	// expired row counts as absent: only Version 0 matches it.
	IncludeExpired bool
}

// Write is one change of a minitransaction. It replaces the whole row.
type Write struct {
	Space string
	Key   []byte
	Value []byte
	// Link is the URL of the object that the row owns from now on.
	Link string
	// ExpiresAt is cut to whole microseconds. The zero time means never. A time
	// in the past is legal: the row is never seen, and its expiry is reported
	// like any other.
	ExpiresAt time.Time
	// Delete removes the row; Value, Link and ExpiresAt must be empty then.
	// Deleting an absent row is not an error.
	Delete bool
	// Feed, if not nil, is appended to the space's feed with this write.
	Feed []byte
}

// Txn is a minitransaction: if all checks hold, all writes happen, at one
// instant; otherwise nothing does. A key may be checked once and written once.
// Checks without writes and writes without checks are legal.
type Txn struct {
	// Tag travels with the commit to where changes are reported. At most 50
	// bytes of printable ASCII; empty if none.
	Tag    string
	Checks []Check
	Writes []Write
}

// Position is a place in one shard of a feed. It is opaque, totally ordered only
// by the engine, and stays valid across restarts. "" is the beginning.
type Position string

// FeedEntry is one entry of a feed.
type FeedEntry struct {
	// Position is where to go on after this entry.
	Position Position
	// Key is the key of the row whose write carried the entry, and Version the
	// version which that write gave it.
	Key     []byte
	Version Version
	Data    []byte
}

// SpaceOptions are fixed when a space is created.
type SpaceOptions struct {
	// Links allows rows of the space to carry a link.
	Links bool
	// FeedShards is the number of shards of the space's feed, up to 64; 0 means
	// that the space has no feed. The shard of an entry follows from its key.
	FeedShards int
	// FeedRetention is how long an entry can be read. It must be set if and only
	// if FeedShards is.
	FeedRetention time.Duration
}

// SpaceInfo describes an existing space.
type SpaceInfo struct {
	Name string
	SpaceOptions
}

// Limits bounds what one commit may hold. They differ between engines in degree
// only; what is the same everywhere are the constants of this package.
type Limits struct {
	// CommitRows is the largest number of different keys checked or written.
	CommitRows int
	// CommitBytes is the largest sum of the lengths of keys, values, links and
	// feed entries in the writes.
	CommitBytes int
}

// Limits that hold on every engine, in bytes.
const (
	// MaxKeySize leaves room for an engine's own prefix below Bigtable's limit
	// of 4 KiB for a row key.
	MaxKeySize = 4000
	// MaxValueSize is the limit of one cell in Spanner.
	MaxValueSize = 10 << 20
	// MaxLinkSize holds the longest bucket and object names.
	MaxLinkSize = 2048
	// MaxTagSize is the limit of a transaction tag in Spanner.
	MaxTagSize = 50
	// MaxFeedEntrySize bounds one feed entry.
	MaxFeedEntrySize = 2 << 20
	// MaxFeedShards bounds SpaceOptions.FeedShards.
	MaxFeedShards = 64
	// MaxSpaceNameSize is what remains of a Bigtable table name behind a prefix.
	MaxSpaceNameSize = 48
)

// Engine is what a driver implements. Its callers go through DB, so a driver may
// assume that its arguments are valid: names, sizes and combinations are those
// that DB lets through, and contexts are not nil.
//
// All methods may be called by many goroutines at once. An engine keeps none of
// the slices that it is given beyond the call. After Close every method returns
// ErrClosed. Errors other than those named here are failures of the engine and
// mean, for Commit, that nothing was written.
//
// What Get, Scan and ReadFeed return is durable: a crash after they return does
// not undo it. Otherwise somebody could act outside of the engine on a change
// that then never happened.
type Engine interface {
	// CreateSpace creates a space. If it exists with the same options nothing
	// happens; with other options the error is ErrSpaceMismatch.
	CreateSpace(ctx context.Context, name string, opts SpaceOptions) error

	// DropSpace removes a space with all its rows and its feed, for good: a
	// space created later under the name is empty. The error is
	// ErrSpaceNotFound if there is no such space.
	DropSpace(ctx context.Context, name string) error

	// Spaces lists the existing spaces in the order of their names.
	Spaces(ctx context.Context) ([]SpaceInfo, error)

	// Get reads rows at one instant: the result is a consistent cut across all
	// refs. It has one row per ref, in their order; an absent row has Version 0
	// and only its Key set. The rows belong to the caller. ErrSpaceNotFound if
	// a space does not exist.
	Get(ctx context.Context, refs []Ref) ([]Row, error)

	// Scan calls fn for each row of the range, in order, on the caller's
	// goroutine, until fn returns false. Each row is as some commit left it, and
	// no row that existed unchanged during the whole scan is missed; rows that
	// change meanwhile may be seen in either state, so the scan as a whole is
	// not a consistent cut. The row's slices are valid only until fn returns.
	// fn may not call the engine's Close. ErrSpaceNotFound if the space does
	// not exist.
	Scan(ctx context.Context, space string, r Range, fn func(Row) bool) error

	// Commit applies all writes of t, or none.
	//
	// Each check must name the version that its row has at the moment of the
	// commit. If one does not, nothing is written and the error is a
	// *ConflictError with exactly the refs whose checks failed. An engine that
	// cannot tell which of them failed, or that gave up because of another
	// commit in flight, names the refs that it could not settle.
	//
	// The version returned is larger than every version in t.Checks, and than
	// every version that the written keys have ever had. All rows written get
	// it.
	//
	// After ErrUnknownOutcome the writes may or may not be there, or may still
	// appear: read to find out. After any other error nothing was written, and
	// nothing will be. If ctx ends before the call nothing is written; if it
	// ends during the call, the outcome may be unknown.
	//
	// ErrSpaceNotFound if a space does not exist.
	Commit(ctx context.Context, t *Txn) (Version, error)

	// ReadFeed returns up to limit entries of one shard behind the position
	// after, in order. Entries of one key come in the order of their commits. A
	// reader that goes on from the position of the last entry it got misses
	// none and sees none twice. Entries older than the retention are not
	// returned; if such entries were removed behind after, the error is
	// ErrFeedTrimmed, and reading from "" goes on with the oldest one kept.
	ReadFeed(ctx context.Context, space string, shard int, after Position, limit int) ([]FeedEntry, error)

	// Close waits for running calls and releases everything. Further calls of
	// Close return nil.
	Close() error
}
