// Package verify looks for disagreements between rows, objects and indexes. It
// reads and reports, and repairs nothing.
//
// It runs beside all other work. What it suspects it checks again before it
// reports, in an order in which no concurrent change can produce the same picture;
// so a finding is a fact, of the moment in which it was confirmed.
//
// A run reads all rows with links and lists all objects, and reads the rows a
// second time if there are suspicions. It needs 9 bytes of memory for each link,
// and some hundred for each suspect, of which it keeps at most 100,000. Links are
// compared by 64-bit hashes with a seed of the run; two that collide, one in ten
// million million pairs at most, can hide a finding from that run only.
package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/queue"
)

// Kind is a kind of disagreement.
type Kind string

// All kinds.
const (
	// MissingObject: a row points at an object that does not exist. Data is lost.
	MissingObject Kind = "missing_object"
	// ForeignLink: a row points into another store, or its link is malformed.
	ForeignLink Kind = "foreign_link"
	// Unfinalized: a row has pointed at an object for longer than the lag, but
	// the object was not finalized: it will disappear.
	Unfinalized Kind = "unfinalized_object"
	// Orphan: a finalized object at which no row points, and for which no change
	// record is waiting. It stays for ever.
	Orphan Kind = "orphan_object"
	// Overdue: an unfinalized object that the store's lifecycle should have
	// removed some days ago.
	Overdue Kind = "overdue_object"
	// NoEntry: a row expires but has no entry in the expiry index: its sweep will
	// not come.
	NoEntry Kind = "missing_expiry_entry"
	// StaleEntry: an entry of the expiry index whose row does not exist or has
	// another expiry.
	StaleEntry Kind = "stale_expiry_entry"
	// Inconsistent is what one of Options.Checks found.
	Inconsistent Kind = "inconsistent"
)

// Finding is one disagreement.
type Finding struct {
	Kind Kind `json:"kind"`
	// Space and Key name the row, if there is one.
	Space string `json:"space,omitempty"`
	Key   []byte `json:"key,omitempty"`
	// Link is the URL of the object.
	Link   string `json:"link,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Report sums a run up.
type Report struct {
	Rows     int64          `json:"rows"`
	Links    int64          `json:"links"`
	Objects  int64          `json:"objects"`
	Entries  int64          `json:"expiry_entries"`
	Findings map[Kind]int64 `json:"findings"`
	// Truncated: there were more suspects than a run follows up. Run again after
	// a repair.
	Truncated bool `json:"truncated,omitempty"`
}

// Check looks into something that this package knows nothing about. It calls found,
// on its own goroutine, for each disagreement that it is sure of.
type Check struct {
	Name string
	Run  func(ctx context.Context, found func(space string, key []byte, detail string)) error
}

// Options says what to verify. DB, Store and Clock are required.
type Options struct {
	DB    *kv.DB
	Store blob.Reader
	Clock clock.Clock

	// Staged are the spaces out of which links move into others. They are read
	// first, so that a link on the move is seen.
	Staged []string
	// Index is the expiry index; nil if there is none.
	Index *expiry.Index
	// Lag is how long a row may point at an object before it must be finalized.
	// Default: 1 hour.
	Lag time.Duration
	// Pending calls fn for each link in a change record that waits or has failed.
	// The fate of these objects is not settled: they are no orphans. See
	// PendingIn. Without it, objects that were released a moment ago are
	// reported.
	Pending func(ctx context.Context, fn func(link string)) error
	// Checks run after all else.
	Checks []Check

	// Found, if not nil, gets each finding as it is confirmed. It is called by
	// one goroutine at a time.
	Found func(Finding)
	// Progress, if not nil, is told now and then how many items of a phase are
	// done, and of how many; total is 0 if that is not known.
	Progress func(phase string, done, total int64)
}

// defaultLag is far more than a pipeline in good health takes, and far less than
// the 30 days after which objects disappear.
const defaultLag = time.Hour

// Run verifies everything once. The report is valid as far as it goes if there is
// an error, which is one of the engine, the store, a check, or ctx.
func Run(ctx context.Context, opts Options) (Report, error) {
	if opts.Lag <= 0 {
		opts.Lag = defaultLag
	}
	v := &verifier{Options: opts, began: opts.Clock.Now(), links: newLinkSet()}
	v.report.Findings = map[Kind]int64{}
	steps := []func(context.Context) error{v.prepare, v.readRows, v.readObjects, v.confirm, v.readEntries, v.runChecks}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return v.report, fmt.Errorf("verify: %w", err)
		}
	}
	return v.report, nil
}

// verifier is the state of one run.
type verifier struct {
	Options
	began    time.Time
	report   Report
	linked   []string // spaces with links, in the order to read them
	expiring []string // other spaces in the expiry index
	links    *linkSet

	orphans     map[string]bool // names of objects that no row seems to point at
	unfinalized map[string]bool // names of objects that should be finalized
	overdue     map[string]bool
}

func (v *verifier) found(f Finding) {
	v.report.Findings[f.Kind]++
	if v.Found != nil {
		v.Found(f)
	}
}

// progressEvery is how many items pass between two calls of Progress.
const progressEvery = 1000

func (v *verifier) progress(phase string, done, total int64) {
	if v.Progress != nil && (done%progressEvery == 0 || done == total) {
		v.Progress(phase, done, total)
	}
}

// prepare finds the spaces to read.
func (v *verifier) prepare(ctx context.Context) error {
	spaces, err := v.DB.Spaces(ctx)
	if err != nil {
		return err
	}
	first := map[string]bool{}
	for _, name := range v.Staged {
		first[name] = true
		v.linked = append(v.linked, name)
	}
	for _, s := range spaces {
		switch {
		case first[s.Name]:
		case s.Links:
			v.linked = append(v.linked, s.Name)
		case v.Index != nil && v.Index.Covers(s.Name):
			v.expiring = append(v.expiring, s.Name)
		}
	}
	return nil
}

func (v *verifier) runChecks(ctx context.Context) error {
	for _, c := range v.Checks {
		v.progress(c.Name, 0, 0)
		err := c.Run(ctx, func(space string, key []byte, detail string) {
			v.found(Finding{Kind: Inconsistent, Space: space, Key: key, Detail: c.Name + ": " + detail})
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// PendingIn returns a function for Options.Pending that reads the messages and dead
// letters of a queue of change records. Messages that cannot be read are passed
// over: they name no object that anybody could act on.
func PendingIn(q *queue.Queue) func(ctx context.Context, fn func(link string)) error {
	const page = 100
	links := func(payload []byte, fn func(string)) {
		record, _ := changes.Decode(payload)
		for _, m := range record.Mods {
			if m.Old != "" {
				fn(m.Old)
			}
			if m.New != "" {
				fn(m.New)
			}
		}
	}
	return func(ctx context.Context, fn func(string)) error {
		var next []byte
		for {
			batch, err := q.List(ctx, next, nil, page)
			if err != nil {
				return err
			}
			for _, m := range batch {
				links(m.Payload, fn)
				next = append(m.Key, 0)
			}
			if len(batch) < page {
				break
			}
		}
		next = nil
		for {
			batch, err := q.DeadLetters(ctx, next, page)
			if err != nil {
				return err
			}
			for _, d := range batch {
				links(d.Message.Payload, fn)
				next = d.ID
			}
			if len(batch) < page {
				return nil
			}
		}
	}
}

// gone reports whether err says that a space was dropped while it was read.
func gone(err error) bool { return errors.Is(err, kv.ErrSpaceNotFound) }
