package publish

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast/changes"
)

var (
	// ErrLost says that the stream no longer has what comes next: it was read too
	// late, or it was made anew.
	ErrLost = errors.New("changes are lost: the stream no longer has what was to be read next")

	// ErrOutOfRange is a Source's answer to a time that the partition, or the
	// stream, does not have.
	ErrOutOfRange = errors.New("time is out of the range of the partition")

	// ErrRefused is a Source's answer to what repeating cannot mend: a partition
	// that was never there, a right that is missing.
	ErrRefused = errors.New("the stream refuses to be read")
)

// Event is what a partition of a stream delivers. Time is that of the commit, of
// the heartbeat, or from which on the children are to be read; everything of the
// partition that is older has been delivered.
type Event struct {
	Time time.Time
	// Change is what a transaction did to rows of one table in one way, nil in
	// other events. Its time is not set.
	Change *changes.Raw
	// Children take over the partition's rows. They come just before its end.
	Children []Child
}

// Child is a partition that takes over rows of its parents.
type Child struct {
	Token   string
	Parents []string
}

// Query asks for a part of a stream.
type Query struct {
	// Token names the partition. Empty: only the partitions that exist at Start
	// are asked for, as Children.
	Token string
	// Start and End are inclusive; an End of zero is none.
	Start, End time.Time
	// Heartbeat is after which time without a change a partition says that there
	// was none.
	Heartbeat time.Duration
}

// Source is a change stream. Methods may be called concurrently.
type Source interface {
	// Read calls handle for the events of a partition, in the order of their
	// times, until the partition or the query ends, and then returns nil. It ends
	// early with an error of handle, with the end of ctx, with ErrOutOfRange or
	// ErrRefused, or with an error after which reading again makes sense.
	Read(ctx context.Context, q Query, handle func(Event) error) error

	// Oldest returns the time from which on the stream can be read now.
	Oldest(ctx context.Context) (time.Time, error)
}

// MaxMessageSize is how large a message gets that Publisher sends, in bytes.
// Pub/Sub takes 10 MB with all that belongs to a request.
const MaxMessageSize = 9_000_000

// Topic is where messages go. Methods may be called concurrently.
type Topic interface {
	// Publish sends messages and waits until each is confirmed or has failed. It
	// returns those that have not been confirmed, in their order, and why.
	Publish(ctx context.Context, messages [][]byte) (failed [][]byte, err error)
}
