package spanner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Options of Open and OpenAdmin. Which database must be given; the rest has
// defaults.
type Options struct {
	// Database is the full name, projects/P/instances/I/databases/D. It may be
	// given in parts instead.
	Database                          string
	ProjectID, InstanceID, DatabaseID string
	// Role is the database role that the engine's sessions have. Default: none,
	// all rights come from the account.
	Role string
	// EmulatorHost is the host and port of a server without encryption and
	// credentials. Default: what the environment variable SPANNER_EMULATOR_HOST
	// says, which the client itself obeys, or the service.
	EmulatorHost string
	// AutoSchema lets CreateSpace and DropSpace change the schema. It is meant for
	// tests and for small set-ups with one process: schema changes take from
	// seconds to minutes and need an account with the right to make them.
	AutoSchema bool
	// RouteToLeader sends what belongs to read-write transactions straight to the
	// leading region of a multi-region instance.
	RouteToLeader bool
	// Channels is the number of connections. Default: the client's, 4.
	Channels int
	// Clock decides expiry and the age of feed entries. Versions do not follow it:
	// they are Spanner's commit timestamps. Default: the system's.
	Clock clock.Clock
	// Logger gets warnings and the client's messages. Default: discard.
	Logger *slog.Logger
	// CloudMetrics lets the client send its own metrics to Cloud Monitoring.
	CloudMetrics bool
	// ClientOptions are appended to those that follow from the rest.
	ClientOptions []option.ClientOption
}

var databaseName = regexp.MustCompile(`^projects/[^/]+/instances/[^/]+/databases/[^/]+$`)

// database returns the full name of the database.
func (o *Options) database() (string, error) {
	name := o.Database
	if name == "" {
		for _, part := range []struct{ option, value string }{{"project", o.ProjectID}, {"instance", o.InstanceID}, {"database", o.DatabaseID}} {
			if part.value == "" {
				return "", fmt.Errorf("spanner: no %s given", part.option)
			}
		}
		name = fmt.Sprintf("projects/%s/instances/%s/databases/%s", o.ProjectID, o.InstanceID, o.DatabaseID)
	} else if o.ProjectID != "" || o.InstanceID != "" || o.DatabaseID != "" {
		return "", errors.New("spanner: the database is given both as a whole and in parts")
	}
	if !databaseName.MatchString(name) {
		return "", fmt.Errorf("spanner: database %q is not of the form projects/P/instances/I/databases/D", name)
	}
	return name, nil
}

func (o *Options) clientOptions() []option.ClientOption {
	var all []option.ClientOption
	if o.EmulatorHost != "" {
		all = append(all,
			option.WithEndpoint("passthrough:///"+o.EmulatorHost),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
			option.WithoutAuthentication(),
		)
	}
	return append(all, o.ClientOptions...)
}

// Open opens the engine on a database that has the schema for it, see Schema, or
// gets it, with AutoSchema. The caller closes the engine. A database whose schema is
// from a newer holdfast is refused.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	name, err := opts.database()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{database: name, clock: opts.Clock, log: opts.Logger, trims: map[trimKey]time.Time{}}
	if err := e.connect(ctx, opts); err != nil {
		return nil, fmt.Errorf("spanner: open %s: %w", name, err)
	}
	if err := e.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("spanner: open %s: %w", name, err), e.Close())
	}
	return e, nil
}

func (e *Engine) connect(ctx context.Context, opts Options) error {
	clientOpts := append([]option.ClientOption{option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(e.intercept))}, opts.clientOptions()...)
	if opts.Channels > 0 {
		clientOpts = append(clientOpts, option.WithGRPCConnectionPool(opts.Channels))
	}
	config := spanner.ClientConfig{
		DatabaseRole:         opts.Role,
		DisableRouteToLeader: !opts.RouteToLeader,
		DisableNativeMetrics: !opts.CloudMetrics,
		UserAgent:            "holdfast",
		Logger:               slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
	}
	// The client outlives the call.
	client, err := spanner.NewClientWithConfig(context.WithoutCancel(ctx), e.database, config, clientOpts...)
	if err != nil {
		return err
	}
	e.client = client
	if opts.AutoSchema {
		if e.admin, err = OpenAdmin(ctx, opts); err != nil {
			client.Close()
			return err
		}
	}
	return nil
}

// load checks the version of the schema, or sets it in a new database, and reads
// which spaces there are.
func (e *Engine) load(ctx context.Context) error {
	err := e.checkSchema(ctx)
	if errors.Is(err, errNoTable) && e.admin != nil {
		if _, err = e.admin.Apply(ctx, nil); err == nil {
			err = e.checkSchema(ctx)
		}
	}
	if err == nil {
		_, err = e.loadSpaces(ctx)
	}
	if errors.Is(err, errNoTable) {
		return fmt.Errorf("the database has no holdfast tables: run holdfast schema apply: %w", err)
	}
	return err
}

func (e *Engine) checkSchema(ctx context.Context) error {
	version, err := e.readSchemaVersion(ctx, e.client.Single())
	if err != nil || version == 0 {
		if err == nil {
			err = e.writeSchemaVersion(ctx)
		}
		return err
	}
	if version > schemaVersion {
		return fmt.Errorf("its schema has version %d and was made by a newer holdfast, this one knows up to version %d", version, schemaVersion)
	}
	return nil
}

// readSchemaVersion returns 0 if none is set.
func (e *Engine) readSchemaVersion(ctx context.Context, q querier) (version int64, err error) {
	err = q.Query(ctx, spanner.NewStatement("SELECT version FROM "+schemaTable+" WHERE id = 1")).Do(func(r *spanner.Row) error {
		return r.Columns(&version)
	})
	if err != nil {
		return 0, explain(ctx, e.database, err)
	}
	if version < 0 {
		return 0, fmt.Errorf("%w: version of the schema", kv.ErrCorrupt)
	}
	return version, nil
}

func (e *Engine) writeSchemaVersion(ctx context.Context) error {
	_, err := e.client.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		version, err := e.readSchemaVersion(ctx, tx)
		if err != nil || version > 0 {
			return err
		}
		return tx.BufferWrite([]*spanner.Mutation{spanner.Insert(schemaTable, []string{"id", "version"}, []any{1, schemaVersion})})
	})
	return explain(ctx, e.database, err)
}
