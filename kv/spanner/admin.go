package spanner

import (
	"context"
	"fmt"
	"slices"
	"strings"

	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/kv"
)

// Admin looks at the schema of a database and changes it. It needs the rights
// spanner.databases.getDdl and spanner.databases.updateDdl, which the engine does
// without.
type Admin struct {
	client   *database.DatabaseAdminClient
	database string
}

// OpenAdmin connects to the administration of the database that the options name.
// The caller closes it.
func OpenAdmin(ctx context.Context, opts Options) (*Admin, error) {
	name, err := opts.database()
	if err != nil {
		return nil, err
	}
	client, err := database.NewDatabaseAdminClient(context.WithoutCancel(ctx), opts.clientOptions()...)
	if err != nil {
		return nil, fmt.Errorf("spanner: connect to the administration of %s: %w", name, err)
	}
	return &Admin{client: client, database: name}, nil
}

// Close ends the connection.
func (a *Admin) Close() error { return a.client.Close() }

// Diff returns the statements that Apply would run: what the spaces need and the
// database does not have. It is an error if something is there that no statement
// can bring into shape.
func (a *Admin) Diff(ctx context.Context, spaces []kv.SpaceInfo) ([]string, error) {
	have, err := a.schema(ctx)
	if err != nil {
		return nil, err
	}
	return diff(have, spaces)
}

func (a *Admin) schema(ctx context.Context) ([]string, error) {
	resp, err := a.client.GetDatabaseDdl(ctx, &databasepb.GetDatabaseDdlRequest{Database: a.database})
	if err != nil {
		return nil, fmt.Errorf("spanner: read the schema: %w", explain(ctx, a.database, err))
	}
	return resp.GetStatements(), nil
}

// Apply makes what the spaces need and the database does not have, waits until it
// is there, and returns the statements it ran. It takes nothing away.
func (a *Admin) Apply(ctx context.Context, spaces []kv.SpaceInfo) ([]string, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		ddl, err := a.Diff(ctx, spaces)
		if err != nil || len(ddl) == 0 {
			return nil, err
		}
		err = a.update(ctx, ddl)
		if err == nil {
			return ddl, nil
		}
		// Somebody else, who is doing the same, was faster.
		if attempt == attempts || status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Duplicate name") {
			return nil, fmt.Errorf("spanner: change the schema: %w", explain(ctx, a.database, err))
		}
	}
}

func (a *Admin) update(ctx context.Context, ddl []string) error {
	op, err := a.client.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{Database: a.database, Statements: ddl})
	if err != nil {
		return err
	}
	return op.Wait(ctx)
}

// drop removes the tables of a space.
func (a *Admin) drop(ctx context.Context, space string) error {
	have, err := a.schema(ctx)
	if err != nil {
		return err
	}
	ddl, err := dropStatements(have, space)
	if err != nil {
		return err
	}
	if err := a.update(ctx, ddl); err != nil {
		return fmt.Errorf("spanner: change the schema: %w", explain(ctx, a.database, err))
	}
	return nil
}

// withSpace returns spaces and one more, unless it is among them.
func withSpace(spaces []kv.SpaceInfo, s kv.SpaceInfo) []kv.SpaceInfo {
	if slices.ContainsFunc(spaces, func(o kv.SpaceInfo) bool { return o.Name == s.Name }) {
		return spaces
	}
	return append(slices.Clone(spaces), s)
}
