package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

const (
	// noBudget is the budget of a drain that nobody bounds.
	noBudget = 365 * 24 * time.Hour
	// drainWait is how long nothing must come for a drain to be done. Nobody sends
	// while it runs: it owns the data directory.
	drainWait = time.Second
)

// reconcileFlags is the command line of reconcile.
type reconcileFlags struct {
	once, follow, dead, manifests bool
	budget                        time.Duration
}

func (a *app) reconcileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "reconcile", Short: "Bring objects into agreement with rows, as change records say", Args: noArgs,
		Long: "Handles the change records that are waiting, without serving. `holdfast serve` does the same\n" +
			"all the time; this command is for a data directory that no process serves.\n\n" +
			"With reconcile.pubsub.subscription, or PUBSUB_SUBSCRIPTION, it works on that subscription and on a\n" +
			"bucket instead: until RUN_BUDGET_SECONDS are spent or nothing is waiting, for ever without a budget.\n" +
			"Records that fail do not change its status.",
	}
	var f reconcileFlags
	cmd.Flags().BoolVar(&f.once, "once", false, "end when nothing is waiting any more")
	cmd.Flags().BoolVar(&f.follow, "follow", false, "go on until interrupted")
	cmd.Flags().DurationVar(&f.budget, "budget", noBudget, "with --once: end after this time at the latest")
	cmd.Flags().BoolVar(&f.dead, "dead-letters", false, "first send all dead letters again; of a subscription: handle its dead letters, once each, and end")
	cmd.Flags().BoolVar(&f.manifests, "print-manifests", false, "print Kubernetes manifests for a subscription and end: a CronJob, with --follow a Deployment")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(config.Options{Env: a.env, Flags: cmd.Flags(), Pipeline: config.PipelineReconcile, Incomplete: f.manifests})
		switch {
		case err != nil:
			return err
		case f.once && f.follow:
			return errOnceOrFollow
		case f.manifests:
			return writeReconcileManifests(a.out, cfg, f.follow)
		case cfg.Reconcile.PubSub.Subscription != "":
			return a.reconcileSubscription(cmd.Context(), cfg, f)
		case !f.once && !f.follow:
			return errOnceOrFollow
		}
		return a.reconcileDirectory(cmd.Context(), cfg, f)
	}
	return cmd
}

var errOnceOrFollow = &usageError{errors.New("say --once or --follow")}

// reconcileSubscription works on a Pub/Sub subscription. The command line counts
// more than the budget of the configuration.
func (a *app) reconcileSubscription(ctx context.Context, cfg *config.Loaded, f reconcileFlags) error {
	budget, bounded, err := cfg.Reconcile.PubSub.Budget()
	if err != nil {
		return err
	}
	switch {
	case f.follow && f.dead:
		return &usageError{errors.New("--dead-letters of a subscription are handled once; leave --follow out")}
	case f.follow:
		bounded = false
	case f.once, f.dead && !bounded:
		budget, bounded = f.budget, true
	}
	return reconcilePubSub(ctx, cfg, a.logger(cfg), pubsubRun{dead: f.dead, bounded: bounded, budget: budget})
}

// reconcileDirectory works on the queue and the store of the data directory.
func (a *app) reconcileDirectory(ctx context.Context, cfg *config.Loaded, f reconcileFlags) (err error) {
	h, err := openHouse(ctx, cfg, a.logger(cfg))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if f.dead {
		n, err := h.changes.RedriveAll(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.out, "%d dead letters sent again\n", n)
	}
	return h.reconcile(ctx, f.once, f.budget)
}

// reconcile runs the reconciler and the queues that it receives from.
func (h *house) reconcile(ctx context.Context, once bool, budget time.Duration) error {
	queueCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	queues := make(chan error, 1)
	go func() { queues <- h.runQueues(queueCtx) }()
	var err error
	if once {
		err = h.newReconciler(drainWait).Once(ctx, budget)
	} else {
		err = h.reconciler.Run(ctx)
	}
	stop()
	return errors.Join(err, <-queues)
}
