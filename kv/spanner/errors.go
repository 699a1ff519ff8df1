package spanner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cloud.google.com/go/spanner"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

var (
	// errNoTable: a statement named a table that does not exist.
	errNoTable = errors.New("table does not exist")
	// errNoColumn: a statement named a column that does not exist.
	errNoColumn = errors.New("column does not exist")
)

// translate turns an error of the client into one of the contract.
func translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	switch code := spanner.ErrCode(err); {
	case code == codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	case (code == codes.NotFound || code == codes.InvalidArgument) && strings.Contains(err.Error(), "Table not found"):
		return fmt.Errorf("%w: %w", errNoTable, err)
	case code == codes.InvalidArgument && strings.Contains(err.Error(), "Unrecognized name"):
		return fmt.Errorf("%w: %w", errNoColumn, err)
	}
	return err
}

// explain turns an error into one that tells an operator what to do.
func explain(ctx context.Context, database string, err error) error {
	err = translate(ctx, err)
	if err == nil || errors.Is(err, errNoTable) {
		return err
	}
	switch spanner.ErrCode(err) {
	case codes.NotFound:
		return fmt.Errorf("there is no such project, instance or database, check the setting of the database %s: %w", database, err)
	case codes.PermissionDenied:
		return fmt.Errorf("the account, or its database role, lacks a right; reading and writing takes roles/spanner.databaseUser, changing the schema roles/spanner.databaseAdmin: %w", err)
	case codes.Unauthenticated:
		return fmt.Errorf("the service refuses the credentials: %w", err)
	}
	return err
}

// missingSpace turns a missing table into the contract's error.
func missingSpace(err error) error {
	if errors.Is(err, errNoTable) {
		return fmt.Errorf("%w: %w", kv.ErrSpaceNotFound, err)
	}
	return err
}
