package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/gcs"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/reconcile/pubsub"
)

// deadLettersEmpty is how long the dead letters must have nothing to be done with
// them: those that fail again come back after their deadline.
const deadLettersEmpty = 10 * time.Second

// pubsubRun is what a command line asks of the reconciler of a subscription.
type pubsubRun struct {
	dead    bool
	bounded bool
	budget  time.Duration
}

// reconcilePubSub works on a subscription and a bucket until the budget is spent,
// nothing is waiting, or ctx ends.
func reconcilePubSub(ctx context.Context, cfg *config.Loaded, log *slog.Logger, run pubsubRun) (err error) {
	c := &cfg.Reconcile.PubSub
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	limitMemory(clusterMemory)
	name := c.Subscription
	opts := pubsub.Options{Clock: clock.System{}, Deadline: c.AckDeadline, UntilEmpty: run.bounded}
	if run.dead {
		name, opts.EmptyAfter = c.DeadLetterSubscription, deadLettersEmpty
	}
	if name, err = pubsub.SubscriptionName(c.Project, name); err != nil {
		return err
	}
	driver, err := gcs.Open(ctx, gcs.Options{Bucket: c.Bucket, Endpoint: c.StoreEndpoint, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	source, err := pubsub.Open(ctx, name, opts, emulator(c.Emulator)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()

	reg := metrics.New()
	options := reconcile.Options{
		Clock: clock.System{}, Concurrency: cfg.Reconcile.Concurrency, DeleteDelay: cfg.Reconcile.DeleteDelay,
		RequireTransactionTag: cfg.Reconcile.RequireTransactionTag, Metrics: reg, Log: log,
	}
	if run.bounded {
		options.Wait = run.budget // it is the service that says when nothing is waiting
	}
	reconciler := reconcile.New(source, blob.New(driver, blob.Options{}), options)
	return withMetrics(ctx, reg, cfg, c.MetricsListenAddr, log, func(ctx context.Context) error {
		if run.bounded {
			return reconciler.Once(ctx, run.budget)
		}
		return reconciler.Run(ctx)
	})
}

// withMetrics runs work, and meanwhile sends metrics to statsd and serves them at
// address, if that is not empty.
func withMetrics(ctx context.Context, reg *metrics.Registry, cfg *config.Loaded, address string, log *slog.Logger, work func(context.Context) error) error {
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var others errgroup.Group
	if address != "" {
		server, err := metricsServer(address, reg, log)
		if err != nil {
			return err
		}
		others.Go(func() error {
			<-beside.Done()
			return server.Close()
		})
	}
	if cfg.Statsd.Enabled {
		others.Go(func() error { return reg.RunStatsd(beside, cfg.Statsd.Address, log) })
	}
	err := work(ctx)
	stop()
	return errors.Join(err, others.Wait())
}

// metricsServer serves /metrics and /healthz at address.
func metricsServer(address string, reg *metrics.Registry, log *slog.Logger) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", reg.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	d := &door{name: "metrics", listener: l, handler: mux}
	d.prepare(log)
	go func() {
		if err := d.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served any more", "error", err)
		}
	}()
	log.Info("metrics are served", "address", l.Addr().String())
	return d.server, nil
}
