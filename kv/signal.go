package kv

import "context"

// Signaler is implemented, beside Engine, by engines that reach the other
// processes that have the same engine open. A signal is a hint that something may
// have changed, so that the others need not wait for their next look. It may be
// lost, merged with an equal one, or come before or after what it is about
// becomes visible: nobody's correctness may depend on it.
type Signaler interface {
	// Signal sends a signal to the processes that listen. It does not wait for
	// the network. The name is printable ASCII of at most MaxSignalSize bytes.
	Signal(name string)

	// Listen calls fn, on one goroutine, for each signal of another process
	// until ctx ends, and then returns nil. Signals of this process may be
	// among them. After an interruption during which signals may have been
	// lost, fn gets "", which may mean any of them.
	Listen(ctx context.Context, fn func(name string)) error
}

// MaxSignalSize bounds the name of a signal, in bytes.
const MaxSignalSize = 200

// Signal sends a signal, as Signaler does, if the engine can.
func (db *DB) Signal(name string) {
	if s, ok := db.engine.(Signaler); ok {
		s.Signal(name)
	}
}

// Listen gets signals, as Signaler does, until ctx ends. If the engine has none, it
// only waits for that.
func (db *DB) Listen(ctx context.Context, fn func(name string)) error {
	if s, ok := db.engine.(Signaler); ok {
		return s.Listen(ctx, fn)
	}
	<-ctx.Done()
	return nil
}
