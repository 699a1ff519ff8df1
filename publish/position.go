package publish

import (
	"context"
	"errors"
	"strings"
	"time"
)

// State is how far a partition is.
type State string

// The states of a partition, in their order.
const (
	Created  State = "created"  // known, not begun
	Running  State = "running"  // begun
	Finished State = "finished" // read and published to its end, its children are known
)

// Position is a partition and how far it has been published.
type Position struct {
	Token   string
	Parents []string
	Start   time.Time
	// Watermark: everything older has been published. Not before Start.
	Watermark time.Time
	State     State
}

// ErrDeposed says that another Publisher has claimed the positions.
var ErrDeposed = errors.New("another publisher has claimed the positions")

// Positions is the durable memory of one Publisher. Several of them may be on one
// store; a claim says whose turn it is. Methods may be called concurrently.
type Positions interface {
	// Claim makes this Publisher the only one for the length of lease, or
	// prolongs that, and reports true, unless another one's claim has not ended.
	// A lease of 0 gives the claim back.
	Claim(ctx context.Context, lease time.Duration) (bool, error)
	// Load returns all positions.
	Load(ctx context.Context) ([]Position, error)
	// Save stores positions and removes those of the tokens in forget, all in one
	// step, or nothing and returns ErrDeposed if another Publisher has made a
	// claim since.
	Save(ctx context.Context, positions []Position, forget []string) error
	// Reset removes all positions.
	Reset(ctx context.Context) error
}

// searchPrefix begins the tokens of searches: partitions of Publisher's own that
// deliver only children, those that exist at one time.
const searchPrefix = "search "

func searchToken(at time.Time) string { return searchPrefix + at.UTC().Format(time.RFC3339Nano) }

func isSearch(token string) bool { return strings.HasPrefix(token, searchPrefix) }
