package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

const (
	// noBudget is the budget of a drain that nobody bounds.
	noBudget = 365 * 24 * time.Hour
	// drainWait is how long nothing must come for a drain to be done. Nobody sends
	// while it runs: it owns the data directory.
	drainWait = time.Second
)

func (a *app) reconcileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "reconcile", Short: "Bring objects into agreement with rows, as change records say", Args: noArgs,
		Long: "Handles the change records that are waiting, without serving. `holdfast serve` does the same\n" +
			"all the time; this command is for a data directory that no process serves.",
	}
	once := cmd.Flags().Bool("once", false, "end when nothing is waiting any more")
	follow := cmd.Flags().Bool("follow", false, "go on until interrupted")
	budget := cmd.Flags().Duration("budget", noBudget, "with --once: end after this time at the latest")
	dead := cmd.Flags().Bool("dead-letters", false, "first send all dead letters again")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if *once == *follow {
			return &usageError{errors.New("say --once or --follow")}
		}
		cfg, err := a.load(cmd)
		if err != nil {
			return err
		}
		h, err := openHouse(cmd.Context(), cfg, a.logger(cfg))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.Close()) }()
		if *dead {
			n, err := h.changes.RedriveAll(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%d dead letters sent again\n", n)
		}
		return h.reconcile(cmd.Context(), *once, *budget)
	}
	return cmd
}

// reconcile runs the reconciler, and the queues that it receives from.
func (h *house) reconcile(ctx context.Context, once bool, budget time.Duration) error {
	leaseCtx, stopLeases := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeases()
	queueCtx, stopQueues := context.WithCancel(leaseCtx)
	defer stopQueues()
	leases, queues := make(chan error, 1), make(chan error, 1)
	go func() { leases <- h.leases.Run(leaseCtx) }()
	go func() { queues <- h.queues.Run(queueCtx) }()
	var err error
	if once {
		err = h.newReconciler(drainWait).Once(ctx, budget)
	} else {
		err = h.reconciler.Run(ctx)
	}
	stopQueues()
	err = errors.Join(err, <-queues)
	stopLeases()
	return errors.Join(err, <-leases)
}
