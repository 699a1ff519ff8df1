package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-dev/holdfast/kv"
)

// Codes of errors, SQLSTATE in the manual.
const (
	codeSerialization     = "40001"
	codeDeadlock          = "40P01"
	codeLockNotAvailable  = "55P03"
	codeUndefinedTable    = "42P01"
	codeUndefinedFunction = "42883"
	codeInternal          = "XX000"
	codeNoRight           = "42501"
	codeReadOnly          = "25006"
	codeUnknownDatabase   = "3D000"
	codeWrongPassword     = "28P01"
	codeNotAuthorized     = "28000"
	codeIsolation         = "HF001" // raised by commit
)

// hasCode reports whether the server answered with one of the codes.
func hasCode(err error, codes ...string) bool {
	var p *pgconn.PgError
	return errors.As(err, &p) && slices.Contains(codes, p.Code)
}

// spaceGone reports whether a statement met the table or a function of a space that
// has been dropped, or is being dropped.
func spaceGone(err error) bool {
	return hasCode(err, codeUndefinedTable, codeUndefinedFunction, codeInternal)
}

// aborted reports whether the server has rolled the transaction back because of
// other transactions.
func aborted(err error) bool {
	return hasCode(err, codeSerialization, codeDeadlock, codeLockNotAvailable)
}

// nothingDone reports whether a statement that failed has certainly changed
// nothing, and will not. An error of the server's own ends the transaction. Those
// that end the connection, and those of poolers (class 08), say nothing of what
// became of a transaction sent before.
func nothingDone(err error) bool {
	if pgconn.SafeToRetry(err) {
		return true
	}
	var p *pgconn.PgError
	return errors.As(err, &p) && p.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(p.Code, "08")
}

// outcome returns the error of a commit whose statement failed.
func outcome(ctx context.Context, err error) error {
	if nothingDone(err) {
		return interrupted(ctx, err)
	}
	return fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, interrupted(ctx, err))
}

// interrupted says that the context has ended, which a failure that it caused may
// hide.
func interrupted(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
