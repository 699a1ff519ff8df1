package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/publish"
	"github.com/holdfast-dev/holdfast/publish/changestream"
	publishpubsub "github.com/holdfast-dev/holdfast/publish/pubsub"
)

// statusLost is the exit status of a publisher that has found changes lost.
const statusLost = 3

func (a *app) publishCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "publish", Short: "Carry link changes from a Spanner change stream to a Pub/Sub topic", Args: noArgs,
		Long: "Reads a change stream of Cloud Spanner, leaves out what has no link, and publishes the rest to a\n" +
			"Pub/Sub topic, for `holdfast reconcile` or another reconciler. It understands the environment of the\n" +
			"public pipeline's publisher and, as flags, the parameters of its job.\n\n" +
			"Status 3 means that changes are lost: the stream no longer has what was to be published next.",
	}
	reset := cmd.Flags().Bool("reset", false, "forget how far the stream was published, and begin anew")
	manifests := cmd.Flags().Bool("print-manifests", false, "print Kubernetes manifests for this configuration and end")
	config.JobFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(config.Options{Env: a.env, Flags: cmd.Flags(), Pipeline: config.PipelinePublish, Incomplete: *manifests})
		if err != nil {
			return err
		}
		if *manifests {
			return writePublishManifests(a.out, cfg)
		}
		err = runPublish(cmd.Context(), cfg, a.logger(cfg), *reset)
		if errors.Is(err, publish.ErrLost) {
			fmt.Fprintf(a.errOut, "holdfast: %v\nholdfast: repair what was missed, then start once with --reset\n", err)
			return &exitError{statusLost}
		}
		return err
	}
	return cmd
}

// runPublish publishes until ctx ends.
func runPublish(ctx context.Context, cfg *config.Loaded, log *slog.Logger, reset bool) (err error) {
	c := &cfg.Publish
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	limitMemory(clusterMemory)
	system := clock.System{}
	start, err := c.StartTime(system.Now())
	if err != nil {
		return err
	}
	end, err := c.EndTime()
	if err != nil {
		return err
	}
	topicProject := c.TopicProject
	if topicProject == "" {
		topicProject = c.Project
	}
	name, err := publishpubsub.TopicName(topicProject, c.Topic)
	if err != nil {
		return err
	}
	source, err := changestream.Open(ctx, changestream.Options{
		Database: c.StreamDatabase(), Stream: c.Stream, Role: c.Role, Priority: c.Priority, Clock: system,
	}, emulator(c.SpannerEmulator)...)
	if err != nil {
		return err
	}
	defer source.Close()
	topic, err := publishpubsub.Open(ctx, name, emulator(c.PubSubEmulator)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, topic.Close()) }()
	positions, closePositions, err := openPositions(ctx, cfg, source.Name(), log)
	if err != nil {
		return err
	}
	defer closePositions()

	reg := metrics.New()
	publisher := publish.New(source, topic, positions, publish.Options{
		Clock: system, Start: start, End: end, Reset: reset, Heartbeat: c.Heartbeat, Concurrency: c.Concurrency,
		MaxPartitions: c.MaxPartitions, Metrics: reg, Log: log,
	})
	log.Info("publishing", "stream", source.Name(), "topic", name)
	return withMetrics(ctx, reg, cfg, c.MetricsListenAddr, log, publisher.Run)
}

// openPositions opens what keeps how far the stream is published.
func openPositions(ctx context.Context, cfg *config.Loaded, stream string, log *slog.Logger) (publish.Positions, func(), error) {
	if database := cfg.Publish.PositionsDatabase(); database != "" {
		if database == cfg.Publish.StreamDatabase() {
			log.Warn("positions are kept in the database that has the stream: the publisher needs rights on tables there")
		}
		p, err := changestream.OpenPositions(ctx, changestream.PositionsOptions{
			Database: database, Stream: stream, Owner: ownerName(), Clock: clock.System{},
		}, emulator(cfg.Publish.SpannerEmulator)...)
		if err != nil {
			return nil, nil, err
		}
		return p, p.Close, nil
	}
	path := cfg.PositionsPath()
	if cfg.Publish.PositionsFile == "" {
		if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
			return nil, nil, fmt.Errorf("make the data directory: %w", err)
		}
	}
	log.Info("positions are kept in a file; where it does not last, all that the stream has is published again after each start", "file", path)
	return publish.OpenFile(path, stream), func() {}, nil
}

// ownerName tells this process from all others.
func ownerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s %d %s", host, os.Getpid(), rand.Text())
}

// emulator returns what a client needs to use another server than Google's; nothing
// if there is none.
func emulator(address string) []option.ClientOption {
	if address == "" {
		return nil
	}
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + address), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}
