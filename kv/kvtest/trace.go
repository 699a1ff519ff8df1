package kvtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/kv"
)

// Op names a method of an engine.
type Op string

// The methods that Faults and NewTrace tell of.
const (
	OpCreateSpace Op = "create"
	OpDropSpace   Op = "drop"
	OpSpaces      Op = "spaces"
	OpGet         Op = "get"
	OpScan        Op = "scan"
	OpCommit      Op = "commit"
	OpReadFeed    Op = "feed"
)

// Call describes a call of an engine. Its slices and Txn are the caller's own and
// must not be changed or kept.
type Call struct {
	// N counts the calls of a Faults from 0.
	N  int
	Op Op
	// Space is set for all but Spaces, Get and Commit.
	Space string
	Refs  []kv.Ref // of Get
	Range kv.Range // of Scan
	Txn   *kv.Txn  // of Commit
	Shard int      // of ReadFeed
}

// String tells what is called on what, in one line that is the same on every
// engine and at every time: versions are only told apart from absence, and values
// are represented by their length.
func (c Call) String() string {
	var b strings.Builder
	b.WriteString(string(c.Op))
	switch c.Op {
	case OpGet:
		for _, r := range c.Refs {
			fmt.Fprintf(&b, " %s/%q", r.Space, r.Key)
			writeIf(&b, r.IncludeExpired, "+expired")
		}
	case OpScan:
		fmt.Fprintf(&b, " %s [%q", c.Space, c.Range.Start)
		if c.Range.End != nil {
			fmt.Fprintf(&b, " %q", c.Range.End)
		}
		b.WriteString(")")
		writeIf(&b, c.Range.Reverse, " reverse")
		writeIf(&b, c.Range.Limit > 0, fmt.Sprintf(" limit=%d", c.Range.Limit))
		writeIf(&b, c.Range.IncludeExpired, " +expired")
	case OpCommit:
		writeTxn(&b, c.Txn)
	case OpReadFeed:
		fmt.Fprintf(&b, " %s shard=%d", c.Space, c.Shard)
	case OpCreateSpace, OpDropSpace:
		b.WriteString(" " + c.Space)
	}
	return b.String()
}

func writeIf(b *strings.Builder, cond bool, s string) {
	if cond {
		b.WriteString(s)
	}
}

func writeTxn(b *strings.Builder, t *kv.Txn) {
	writeIf(b, t.Tag != "", fmt.Sprintf(" tag=%q", t.Tag))
	for _, c := range t.Checks {
		fmt.Fprintf(b, " check %s/%q", c.Space, c.Key)
		writeIf(b, c.IncludeExpired, "+expired")
		writeIf(b, c.Version == 0, "=absent")
	}
	for _, w := range t.Writes {
		if w.Delete {
			fmt.Fprintf(b, " delete %s/%q", w.Space, w.Key)
		} else {
			fmt.Fprintf(b, " put %s/%q %dB", w.Space, w.Key, len(w.Value))
		}
		writeIf(b, w.Link != "", " link="+w.Link)
		writeIf(b, !w.ExpiresAt.IsZero(), " expires")
		writeIf(b, w.Feed != nil, fmt.Sprintf(" feed=%dB", len(w.Feed)))
	}
}

// NewTrace returns an engine that does what engine does and reports each call,
// once it is done, as a line of the form "call: outcome". line may be called by
// many goroutines; to show the order of calls to several contracts, hand the same
// function to the recorders of all of them.
func NewTrace(engine kv.Engine, line func(string)) kv.Engine {
	f := NewFaults(engine)
	f.After(func(_ context.Context, c Call, err error) error {
		if err == nil {
			line(c.String() + ": ok")
		} else {
			line(c.String() + ": " + err.Error())
		}
		return err
	})
	return f
}
