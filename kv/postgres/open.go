package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Options of Open. All but URL have a default.
type Options struct {
	// URL says where the database is and who connects: a URL
	// (postgres://user:password@host:5432/database?sslmode=verify-full) or
	// keywords and values (host=… user=…), as psql takes them. What is missing
	// comes from where psql takes it: the environment (PGHOST, PGPASSWORD, …) and
	// files (~/.pgpass). It may lead to a pooler that gives each transaction
	// another connection.
	URL string
	// ListenURL is a direct connection to the same database, past any such pooler.
	// Only Listen uses it. Default: URL.
	ListenURL string
	// ReadURL, if set, is a hot standby of the same server. It takes over scans after
	// their first page, once it has replayed all that was committed until then, so
	// they show no less than the primary would. A standby that is late, down or
	// follows another primary is left out. Default: none.
	ReadURL string
	// Schema is where the tables are. Lower-case ASCII letters, digits and
	// underscores, not beginning with a digit. Default: DefaultSchema.
	Schema string
	// PoolSize is the largest number of connections to the primary, and to the
	// standby, beside the one that listens.
	// Default: DefaultPoolSize.
	PoolSize int
	// Clock decides expiry and feeds the versions. Default: the system's.
	Clock clock.Clock
	// Logger gets warnings. Default: discard.
	Logger *slog.Logger
}

const (
	// DefaultSchema is the default of Options.Schema.
	DefaultSchema = "holdfast"
	// DefaultPoolSize is the default of Options.PoolSize.
	DefaultPoolSize = 16
)

// oldest is the oldest version of the server that will do.
const oldest = 14

// connectTimeout bounds one attempt to connect whose URL does not.
const connectTimeout = 10 * time.Second

// schemaName leaves room for the longest suffixes.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// Open opens the engine in a schema, which it creates or brings up to date. The
// caller closes the engine. Errors name the option that is wrong and never contain
// its value's password. A schema of a newer version is refused (ErrNewerSchema).
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Schema == "" {
		opts.Schema = DefaultSchema
	}
	if opts.PoolSize <= 0 {
		opts.PoolSize = DefaultPoolSize
	}
	if opts.ListenURL == "" {
		opts.ListenURL = opts.URL
	}
	e, err := open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("postgres: open: %w", err)
	}
	return e, nil
}

func open(ctx context.Context, opts Options) (*Engine, error) {
	if !schemaName.MatchString(opts.Schema) {
		return nil, fmt.Errorf("%w: Schema: lower-case letters, digits and underscores, at most 48", kv.ErrInvalid)
	}
	config, err := poolConfig("URL", opts.URL, opts.PoolSize)
	if err != nil {
		return nil, err
	}
	var read *pgxpool.Config
	if opts.ReadURL != "" {
		if read, err = poolConfig("ReadURL", opts.ReadURL, opts.PoolSize); err != nil {
			return nil, err
		}
	}
	listen, err := pgx.ParseConfig(opts.ListenURL)
	if err != nil {
		return nil, badURL("ListenURL")
	}
	setDefaults(listen)
	e := &Engine{
		listen:   listen,
		schema:   opts.Schema,
		prefix:   pgx.Identifier{opts.Schema}.Sanitize() + ".",
		lockBase: lockBase(opts.Schema),
		clock:    opts.Clock,
		log:      opts.Logger,
		calls:    calls{drained: make(chan struct{})},
		chores:   chores{swept: opts.Clock.Now()},
	}
	e.commitSQL = e.commitStatement()
	if err := e.prepare(ctx, config.ConnConfig); err != nil {
		return nil, explain(err)
	}
	e.work, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	if e.pool, err = pgxpool.NewWithConfig(e.work, config); err != nil {
		e.stop()
		return nil, explain(err)
	}
	if read != nil {
		if e.standby.pool, err = pgxpool.NewWithConfig(e.work, read); err != nil {
			return nil, errors.Join(explain(err), e.Close())
		}
	}
	return e, nil
}

func poolConfig(option, url string, size int) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, badURL(option)
	}
	config.MaxConns = int32(min(size, 10_000))
	setDefaults(config.ConnConfig)
	return config, nil
}

// badURL does not say more: parsers like to quote what they cannot read.
func badURL(option string) error {
	return fmt.Errorf("%w: %s: neither postgres://user:password@host:port/database nor keyword=value pairs", kv.ErrInvalid, option)
}

func setDefaults(c *pgx.ConnConfig) {
	// Nothing is prepared: see args, and Poolers in the package comment.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "holdfast"
	}
}

// prepare looks whether the server will do and brings the schema up to date, on a
// connection of its own.
func (e *Engine) prepare(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := e.checkServer(ctx, conn); err != nil {
		return err
	}
	if err := e.migrate(ctx, conn); err != nil {
		return err
	}
	return e.checkCluster(ctx, conn)
}

func (e *Engine) checkServer(ctx context.Context, conn *pgx.Conn) error {
	var version int
	var standby bool
	var isolation, fsync string
	err := conn.QueryRow(ctx, `select current_setting('server_version_num')::int, pg_is_in_recovery(),
		current_setting('transaction_isolation'), current_setting('fsync')`).Scan(&version, &standby, &isolation, &fsync)
	switch {
	case err != nil:
		return err
	case version < oldest*10_000:
		return fmt.Errorf("URL: the server is PostgreSQL %d; version %d or later is needed", version/10_000, oldest)
	case standby:
		return errStandby
	case isolation != "read committed":
		return fmt.Errorf("URL: default_transaction_isolation is %q for this role or database; set it to \"read committed\"", isolation)
	}
	if fsync == "off" {
		e.log.Warn("postgres: the server has fsync = off: a crash of its machine loses or corrupts data")
	}
	return nil
}

var errStandby = errors.New("URL: the server only reads; name the primary")

// explain names the option behind an error that the server or the network gave.
func explain(err error) error {
	var connect *pgconn.ConnectError
	switch {
	case hasCode(err, codeWrongPassword, codeNotAuthorized):
		return fmt.Errorf("URL: the server does not let this user in (wrong user or password, or pg_hba.conf): %w", err)
	case hasCode(err, codeUnknownDatabase):
		return fmt.Errorf("URL: the database does not exist: %w", err)
	case hasCode(err, codeReadOnly):
		return fmt.Errorf("%w: %w", errStandby, err)
	case hasCode(err, codeNoRight):
		return fmt.Errorf("option Schema: the user may not create it or its tables; grant create on the database, or create the schema with this user as its owner: %w", err)
	case errors.As(err, &connect):
		return fmt.Errorf("URL: no connection to the server: %w", err)
	}
	return err
}
