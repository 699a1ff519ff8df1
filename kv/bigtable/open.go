package bigtable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	bt "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
)

// Open opens the engine, and creates the system's tables if they are missing. Its
// errors name the setting that is to blame. The caller closes the engine.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	return open(ctx, opts, func(string) error { return nil })
}

func open(ctx context.Context, opts Options, hook func(string) error) (*Engine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := opts.complete(); err != nil {
		return nil, fmt.Errorf("bigtable: open: %w", err)
	}
	e := &Engine{
		opts:   opts,
		log:    opts.Logger,
		hybrid: hybrid{clock: opts.Clock},
		hook:   hook,
		spaces: map[string]*space{},
		calls:  calls{drained: make(chan struct{})},

		readerPatience: readerPatience,
		closeTimeout:   closeTimeout,
	}
	e.base, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.loops, e.stopLoops = context.WithCancel(e.base)
	e.stripes.init()
	e.own.init()
	e.feeds.init()
	if err := e.start(ctx); err != nil {
		e.cancel()
		return nil, errors.Join(fmt.Errorf("bigtable: open project_id %s, instance_id %s: %w", opts.ProjectID, opts.InstanceID, err), e.closeClients())
	}
	e.loop(e.runSweeper)
	e.loop(e.runForwarder)
	return e, nil
}

func (e *Engine) start(ctx context.Context) error {
	if _, err := io.ReadFull(e.opts.Rand, e.writer[:]); err != nil {
		return fmt.Errorf("random bytes: %w", err)
	}
	way, err := e.dial(ctx)
	if err != nil {
		return err
	}
	e.log.Info("bigtable: connecting", "credentials", way)
	for t, name := range map[**table]string{&e.logTable: logTable, &e.streamTable: streamTable, &e.outboxTable: outboxTable} {
		*t = &table{name: e.opts.SystemPrefix + name, bt: e.data.Open(e.opts.SystemPrefix + name)}
	}
	e.catalogTable = &table{name: e.opts.SystemPrefix + catalogTable, bt: e.meta.Open(e.opts.SystemPrefix + catalogTable)}
	if err := e.createSystemTables(ctx); err != nil {
		return explainStart(err, e.opts)
	}
	if err := e.selfTest(ctx); err != nil {
		return explainStart(err, e.opts)
	}
	return explainStart(e.loadFloor(ctx), e.opts)
}

// dial makes the clients.
func (e *Engine) dial(ctx context.Context) (way string, err error) {
	opts, way, err := e.opts.clientOptions()
	if err != nil {
		return "", err
	}
	pool := e.opts.PoolSize
	setDefault(&pool, defaultPoolSize)
	config := bt.ClientConfig{
		AppProfile:      e.opts.AppProfile,
		MetricsProvider: e.opts.MetricsProvider,
		// Sessions carry no conditional writes.
		DisableSession:            true,
		DisableDynamicChannelPool: e.opts.PoolSize > 0,
	}
	// Whatever the client says about credentials stays out of the error.
	refused := func(what string, err error) error {
		e.log.Debug("bigtable: client refused", "client", what, "error", err)
		return fmt.Errorf("no %s client: the credentials (credentials_path, or the application default ones) cannot be used", what)
	}
	client := func(instance string) (*bt.Client, error) {
		all := append(slices.Clone(opts), option.WithGRPCConnectionPool(pool))
		c, err := bt.NewClientWithConfig(e.base, e.opts.ProjectID, instance, config, all...)
		if err != nil {
			return nil, refused("data", err)
		}
		return c, nil
	}
	admin := func(instance string) (*bt.AdminClient, error) {
		c, err := bt.NewAdminClient(e.base, e.opts.ProjectID, instance, opts...)
		if err != nil {
			return nil, refused("admin", err)
		}
		return c, nil
	}
	if e.data, err = client(e.opts.DataInstanceID); err != nil {
		return "", err
	}
	if e.dataAdmin, err = admin(e.opts.DataInstanceID); err != nil {
		return "", err
	}
	e.meta, e.metaAdmin = e.data, e.dataAdmin
	if e.opts.DataInstanceID != e.opts.InstanceID {
		if e.meta, err = client(e.opts.InstanceID); err != nil {
			return "", err
		}
		if e.metaAdmin, err = admin(e.opts.InstanceID); err != nil {
			return "", err
		}
	}
	return way, nil
}

// createSystemTables creates the tables that are missing. To list them first spares
// the small quota of changes to tables.
func (e *Engine) createSystemTables(ctx context.Context) error {
	families := map[string][]string{catalogTable: {"c"}, logTable: {"t"}, outboxTable: {"h"}, streamTable: {"h", "r"}}
	for _, in := range []struct {
		admin *bt.AdminClient
		names []string
	}{{e.metaAdmin, []string{catalogTable}}, {e.dataAdmin, []string{logTable, streamTable, outboxTable}}} {
		present, err := e.listTables(ctx, in.admin)
		if err != nil {
			return err
		}
		for _, name := range in.names {
			id := e.opts.SystemPrefix + name
			if slices.Contains(present, id) {
				continue
			}
			conf := &bt.TableConf{TableID: id, ColumnFamilies: map[string]bt.Family{}, SplitKeys: splits(DefaultSystemPrefix + name)}
			for _, f := range families[name] {
				conf.ColumnFamilies[f] = bt.Family{GCPolicy: bt.MaxVersionsPolicy(1)}
			}
			if err := e.createTable(ctx, in.admin, conf); err != nil {
				return err
			}
		}
	}
	return nil
}

// probeKey begins the keys of rows that the self-test leaves for a moment.
const probeKey = "\xfe"

// mostSkew is the difference to the service's clock from which on Open warns.
const mostSkew = 500 * time.Millisecond

// selfTest makes sure that a compare-and-set is one here: of two with the same
// condition the second must fail. Through an app profile that routes to several
// clusters both might succeed.
func (e *Engine) selfTest(ctx context.Context) error {
	random := make([]byte, 16)
	if _, err := io.ReadFull(e.opts.Rand, random); err != nil {
		return fmt.Errorf("random bytes: %w", err)
	}
	key := probeKey + string(random)
	m := newMutation().setAt(recordCell, bt.ServerTime, []byte("probe"))
	first, err := e.cas(ctx, "self-test", e.logTable, key, recordCell.is(nil), m)
	if err != nil {
		return err
	}
	second, err := e.cas(ctx, "self-test", e.logTable, key, recordCell.is(nil), m)
	if err != nil {
		return err
	}
	if !first.applied && !first.unsure || second.applied {
		return errors.New("the service does not keep conditional writes apart; app_profile must route to a single cluster")
	}
	var at time.Time
	err = e.read(ctx, "self-test", e.logTable, callTimeout, bt.SingleRow(key), func() {}, func(r bt.Row) bool {
		at = r[recordCell.family][0].Timestamp.Time()
		return true
	})
	if err != nil {
		return err
	}
	if skew := e.opts.Clock.Now().Sub(at); !at.IsZero() && skew.Abs() > mostSkew {
		e.log.Warn("bigtable: the clock differs from the service's", "by", skew)
	}
	return e.deleteRows(ctx, "self-test", e.logTable, []string{key})
}

// explainStart tells which setting an error at the start is about.
func explainStart(err error, o Options) error {
	var failed *callError
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.code {
	case codes.FailedPrecondition:
		return fmt.Errorf("app_profile %q does not allow single-row transactions: it must route to a single cluster: %w", o.AppProfile, err)
	case codes.NotFound:
		return fmt.Errorf("there is no such instance or app profile (instance_id, data_instance_id %s, app_profile): %w", o.DataInstanceID, err)
	case codes.PermissionDenied:
		return fmt.Errorf("the account lacks rights on the instance: it must read and write rows and create tables (credentials_path): %w", err)
	case codes.Unauthenticated:
		return fmt.Errorf("the credentials are not accepted (credentials_path): %w", err)
	}
	return err
}
