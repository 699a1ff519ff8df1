package blob

import "context"

// Checker is a Driver that can look at the settings of its store. All drivers are
// one.
type Checker interface {
	// Check reads the settings that Holdfast's promises rest on and says what it
	// found, also of those that are right. It changes nothing. An error means that
	// the store cannot be used at all; a setting that could not be read is a
	// finding.
	Check(ctx context.Context) ([]Finding, error)
}

// Finding is what a Check says of one setting.
type Finding struct {
	Level   Level
	Setting string // "lifecycle", "versioning", …
	Text    string // a sentence for the operator
}

// Level says what a Finding asks of the operator.
type Level int

// The levels, from the least to the most urgent.
const (
	OK      Level = iota // as it should be
	Note                 // harmless, but worth knowing: a cost, a setting that could not be read
	Problem              // objects may be lost, or never removed
)

// String returns "ok", "note" or "problem".
func (l Level) String() string {
	switch l {
	case OK:
		return "ok"
	case Note:
		return "note"
	}
	return "problem"
}
