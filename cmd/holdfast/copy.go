package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/api/admin"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/transfer"
	"github.com/holdfast-dev/holdfast/verify"
)

func (a *app) copyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "copy --from CONFIG --to CONFIG", Short: "Move everything to another engine and object store", Args: noArgs,
		Long: "Copies all rows, queues and objects of one configuration to the engine and the store of another,\n" +
			"which must be empty, and verifies the result. Each CONFIG is a configuration file, or the data\n" +
			"directory of a server that has none. HOLDFAST_ variables count for neither. No process may serve\n" +
			"either side meanwhile. A copy that was interrupted goes on where it stood when it is run again.",
	}
	from := cmd.Flags().String("from", "", "configuration file or data directory of the source")
	to := cmd.Flags().String("to", "", "configuration file or data directory of the target")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		source, err := loadSide("from", *from)
		if err != nil {
			return err
		}
		target, err := loadSide("to", *to)
		if err != nil {
			return err
		}
		return a.copy(cmd.Context(), source, target)
	}
	return cmd
}

// loadSide reads the configuration of one side of a copy.
func loadSide(flag, path string) (*config.Loaded, error) {
	if path == "" {
		return nil, &usageError{fmt.Errorf("say --%s: a configuration file or a data directory", flag)}
	}
	var opts config.Options
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		opts.Env = []string{"HOLDFAST_DATA_DIR=" + path}
	} else {
		opts.File = path
	}
	cfg, err := config.Load(opts)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--%s: %w", flag, err)}
	}
	return cfg, nil
}

func (a *app) copy(ctx context.Context, source, target *config.Loaded) error {
	log := a.logger(source)
	if err := a.emptyQueues(ctx, source, log); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if err := a.copySides(ctx, source, target, log); err != nil {
		return err
	}
	return a.verifyCopy(ctx, target, log)
}

// emptyQueues works off what waits in Holdfast's own queues, whose messages name
// objects by the URLs of the source.
func (a *app) emptyQueues(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (err error) {
	if _, err := os.Stat(cfg.DataDir); !cfg.Engine.Shared() && err != nil {
		return fmt.Errorf("there is no data directory %s", cfg.DataDir)
	}
	h, err := openHouse(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	running, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	for _, run := range []func(context.Context) error{h.runQueues, h.reconciler.Run, h.purger.Run} {
		group.Go(func() error {
			defer stop()
			return run(running)
		})
	}
	err = h.waitEmpty(running)
	stop()
	if err = errors.Join(group.Wait(), err); err != nil {
		return err
	}
	dead, err := h.changes.DeadLetters(ctx, nil, 1)
	if err == nil && len(dead) > 0 {
		err = errors.New("there are dead letters in the queue " + changes.QueueName + ", which name objects of this store; " +
			"settle them first: holdfast queue dead, redrive, drop")
	}
	return err
}

// waitEmpty waits until Holdfast's own queues hold no messages.
func (h *house) waitEmpty(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := 0
		for _, q := range []*queue.Queue{h.changes, h.purges} {
			messages, err := q.List(ctx, nil, nil, 1)
			if err != nil {
				return err
			}
			waiting += len(messages)
		}
		if waiting == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (a *app) copySides(ctx context.Context, source, target *config.Loaded, log *slog.Logger) (err error) {
	from, closeFrom, err := openSide(ctx, source, log)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	defer func() { err = errors.Join(err, closeFrom()) }()
	to, closeTo, err := openSide(ctx, target, log)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	defer func() { err = errors.Join(err, closeTo()) }()
	id, err := sourceID(ctx, from.DB)
	if err != nil {
		return err
	}
	bar := &walkBar{out: a.terminal()}
	report, err := transfer.Run(ctx, transfer.Options{
		From: from, To: to, SourceID: id, Clock: clock.System{},
		Progress: func(phase string, done int64) { bar.show(&admin.VerifyProgress{Phase: "copy " + phase, Done: done}) },
	})
	bar.clear()
	fmt.Fprintf(a.out, "copied %d rows of %d spaces, %d objects of %d bytes\n", report.Rows, report.Spaces, report.Objects, report.Bytes)
	if err != nil {
		return err
	}
	return dropOwnQueues(ctx, to.DB, log)
}

// sourceID returns the id of an engine's data, which it gives it the first time.
func sourceID(ctx context.Context, db *kv.DB) (string, error) {
	if err := db.EnsureSpaces(ctx, houseSpaces()...); err != nil {
		return "", err
	}
	var id string
	_, err := db.Update(ctx, func(tx *kv.Tx) error {
		row, err := tx.Get(houseSpace, []byte("id"))
		if id = string(row.Value); err != nil || row.Exists() {
			return err
		}
		u, err := uuid.NewRandomFromReader(rand.Reader)
		if err != nil {
			return err
		}
		id = u.String()
		tx.Put(kv.Write{Space: houseSpace, Key: []byte("id"), Value: []byte(id)})
		return nil
	})
	return id, err
}

// dropOwnQueues removes Holdfast's own queues, which are empty, so that they are made
// again as the target's configuration wants them.
func dropOwnQueues(ctx context.Context, db *kv.DB, log *slog.Logger) error {
	queues, err := queue.Open(ctx, db, queue.Options{TokenKey: make([]byte, 16), Rand: rand.Reader, Log: log})
	if err != nil {
		return err
	}
	for _, name := range []string{changes.QueueName, storage.PurgeQueue} {
		q, err := queues.Queue(ctx, name)
		if errors.Is(err, queue.ErrQueueNotFound) {
			continue
		}
		var waiting []queue.Message
		if err == nil {
			waiting, err = q.List(ctx, nil, nil, 1)
		}
		if err == nil && len(waiting) == 0 {
			err = queues.Drop(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openSide opens the engine and the store of a configuration and nothing above them.
func openSide(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (s transfer.Side, closeAll func() error, err error) {
	engine, limits, err := openEngine(ctx, cfg, clock.System{}, log)
	if err != nil {
		return s, nil, err
	}
	driver, closeStore, err := openStore(ctx, cfg, false, log)
	if err != nil {
		return s, nil, errors.Join(err, engine.Close())
	}
	s = transfer.Side{DB: kv.New(engine, limits), Objects: blob.New(driver, blob.Options{})}
	return s, func() error { return errors.Join(closeStore(), engine.Close()) }, nil
}

// verifyCopy compares rows and objects of the target.
func (a *app) verifyCopy(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (err error) {
	h, err := openHouse(ctx, cfg, log)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	bar := &walkBar{out: a.terminal()}
	opts := h.verifyOptions()
	opts.Found = func(f verify.Finding) {
		bar.clear()
		_ = a.printFinding(&f)
	}
	opts.Progress = func(phase string, done, total int64) {
		bar.show(&admin.VerifyProgress{Phase: "verify " + phase, Done: done, Total: total})
	}
	report, err := verify.Run(ctx, opts)
	bar.clear()
	if err != nil {
		return err
	}
	if err := a.printReport(&report); err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		return &exitError{exitDisagreement}
	}
	return nil
}
