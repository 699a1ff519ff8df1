// Package fault is what the DynamoDB door refuses a request with.
package fault

import (
	"errors"
	"fmt"
)

// Error is an answer other than success. The zero value is none.
type Error struct {
	// Name is the exception's, as in "ValidationException".
	Name string
	// Message is the text that the client sees. Some exceptions have none.
	Message string
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Name
	}
	return e.Name + ": " + e.Message
}

// New returns an exception with a text.
func New(name, format string, args ...any) *Error {
	return &Error{Name: name, Message: text(format, args)}
}

// Validation returns a ValidationException: a request that is wrong whatever is stored.
func Validation(format string, args ...any) *Error {
	return &Error{Name: ValidationException, Message: text(format, args)}
}

// Serialization returns a SerializationException: a body that is no request.
func Serialization(format string, args ...any) *Error {
	return &Error{Name: SerializationException, Message: text(format, args)}
}

// text leaves a text without arguments as it is: it may hold a client's percent sign.
func text(format string, args []any) string {
	if len(args) == 0 {
		return format
	}
	return fmt.Sprintf(format, args...)
}

// Prefixed returns err with a text in front of its message, if it is a
// ValidationException, and err itself otherwise.
func Prefixed(prefix string, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Name != ValidationException {
		return err
	}
	return &Error{Name: e.Name, Message: prefix + e.Message}
}

// Names of the exceptions that packages of the door make without the tables' state.
const (
	ValidationException    = "ValidationException"
	SerializationException = "SerializationException"
)
