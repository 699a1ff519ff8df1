package queue

import "errors"

// Errors that callers tell apart. Errors of kv pass through, wrapped.
var (
	// ErrQueueNotFound: there is no such queue, or it was dropped.
	ErrQueueNotFound = errors.New("queue not found")
	// ErrQueueExists: a queue of this name exists.
	ErrQueueExists = errors.New("queue exists")
	// ErrExists: a message with this key is in the queue.
	ErrExists = errors.New("message exists")
	// ErrNotFound: there is no message with this key, or it has been
	// acknowledged.
	ErrNotFound = errors.New("message not found")
	// ErrSendDisabled: the queue takes no messages for now.
	ErrSendDisabled = errors.New("sending to the queue is disabled")
	// ErrLeaseLost: the lease has ended, was renewed under another token, or
	// the message has been acknowledged.
	ErrLeaseLost = errors.New("lease is lost")
	// ErrStopped: the service's Run has ended; nothing is delivered any more.
	ErrStopped = errors.New("queue service has stopped")
)
