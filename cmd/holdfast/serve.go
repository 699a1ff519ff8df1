package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/lease"
)

// runServe serves until ctx ends, then stops in order: no new requests, running
// requests finish, workers finish what they have in hand, queues store their
// leases, the engine closes.
func runServe(ctx context.Context, cfg *config.Loaded, log *slog.Logger, out io.Writer) error {
	var doors []*door
	defer func() {
		for _, d := range doors {
			d.listener.Close() // does nothing after an orderly end
		}
	}()
	listen := func(name, address string, enabled bool) (*door, error) {
		if !enabled {
			return nil, nil
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen for the %s door (change %s.listen if the address is taken): %w", name, name, err)
		}
		d := &door{name: name, listener: l}
		doors = append(doors, d)
		return d, nil
	}
	sync, err := listen("sync", cfg.Sync.Listen, cfg.Sync.Enabled || cfg.TokenServer.Enabled)
	if err != nil {
		return err
	}
	operator, err := listen("admin", cfg.Admin.Listen, cfg.Admin.Enabled)
	if err != nil {
		return err
	}
	if sync != nil {
		cfg.Sync.Listen = sync.listener.Addr().String() // with the port that a 0 stands for
	}

	h, err := openHouse(ctx, cfg, log)
	if err != nil {
		return err
	}
	if sync != nil {
		if sync.handler, err = h.syncDoor(ctx); err != nil {
			return errors.Join(err, h.Close())
		}
	}
	if operator != nil {
		operator.handler = h.adminDoor(ctx)
		if !cfg.Engine.Shared() {
			if err := writeAdminAddress(cfg, operator.listener.Addr().String()); err != nil {
				return errors.Join(err, h.Close())
			}
			defer removeAdminAddress(cfg)
		}
	}
	greet(out, cfg, doors)
	err = h.run(ctx, doors)
	return errors.Join(err, h.Close())
}

// door is an http.Server on its listener.
type door struct {
	name     string
	listener net.Listener
	handler  http.Handler
	server   *http.Server
}

// Times that a client may take. Bodies and answers can be large and lines slow, so
// only the head of a request and an idle connection have fixed bounds; the body's
// is generous.
const (
	headTimeout = 10 * time.Second
	bodyTimeout = 5 * time.Minute
	idleTimeout = 2 * time.Minute
	maxHeadSize = 32 << 10
)

func (d *door) prepare(log *slog.Logger) {
	d.server = &http.Server{
		Handler: d.handler, ReadHeaderTimeout: headTimeout, ReadTimeout: bodyTimeout, WriteTimeout: bodyTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeadSize, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// run runs the doors and workers until ctx ends or one of them fails.
func (h *house) run(ctx context.Context, doors []*door) error {
	// The workers outlive ctx, so that the doors can finish their requests while
	// queues and workers still run; the queues outlive the workers.
	queueCtx, stopQueues := context.WithCancel(context.WithoutCancel(ctx))
	defer stopQueues()
	workerCtx, stopWorkers := context.WithCancel(queueCtx)
	defer stopWorkers()

	failed := make(chan error, 1)
	fail := func(name string, err error) {
		if err != nil {
			select {
			case failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	}
	var queues, workers, servers errgroup.Group
	spawn := func(g *errgroup.Group, ctx context.Context, name string, run func(context.Context) error) {
		g.Go(func() error {
			err := run(ctx)
			fail(name, err)
			return err
		})
	}
	spawn(&queues, queueCtx, "queues", h.runQueues)
	for _, w := range h.workers() {
		spawn(&workers, workerCtx, w.name, w.run)
	}
	for _, d := range doors {
		d.prepare(h.log)
		spawn(&servers, ctx, d.name+" door", func(context.Context) error {
			if err := d.server.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}

	var cause error
	select {
	case <-ctx.Done():
		h.log.Info("stopping: finishing requests and work in hand")
	case cause = <-failed:
		h.log.Error("stopping because a part has failed", "error", cause)
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.Shutdown.Timeout)
	defer cancel()
	for _, d := range doors {
		if err := d.server.Shutdown(shutdown); err != nil {
			h.log.Warn("cut off requests that did not finish in time", "door", d.name)
			d.server.Close()
		}
	}
	servers.Wait()
	stopWorkers()
	workers.Wait()
	stopQueues()
	return errors.Join(cause, queues.Wait())
}

// worker is something that runs as long as the process. All of them may run in several
// processes of one engine: reconciler and purge receive from queues, the sweeper shares
// its shards out, the lifecycle runs in one process at a time.
type worker struct {
	name string
	run  func(context.Context) error
}

func (h *house) workers() []worker {
	all := []worker{
		{"expiry sweeper", h.sweeper.Run},
		{"purge", h.purger.Run},
	}
	if h.cfg.Store.Kind != config.StoreGCS { // whose bucket has a rule
		all = append(all, worker{"lifecycle", h.runLifecycle})
	}
	if h.cfg.Reconcile.Enabled {
		all = append(all, worker{"reconciler", h.reconciler.Run})
	}
	if h.cfg.Statsd.Enabled {
		all = append(all, worker{"statsd", func(ctx context.Context) error {
			return h.metrics.RunStatsd(ctx, h.cfg.Statsd.Address, h.log)
		}})
	}
	return all
}

// runLifecycle runs the lifecycle while no other process does.
func (h *house) runLifecycle(ctx context.Context) error {
	return h.leases.Compete(ctx, "lifecycle", []string{"lifecycle"}, func(ctx context.Context, _ *lease.Lease) error {
		return h.lifecycle.Run(ctx)
	})
}
