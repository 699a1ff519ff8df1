// Command holdfast is the server and its operator's tools. It wires packages
// together by one configuration and does nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

func main() {
	limitMemory(localMemory)
	os.Exit(runProcess())
}

func runProcess() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{env: os.Environ(), out: os.Stdout, errOut: os.Stderr}
	return a.run(ctx, os.Args[1:])
}

// app is the program, apart from the process that it runs in.
type app struct {
	env         []string
	out, errOut io.Writer
}

// exitError ends the program with a status of its own.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// run runs one command and returns the exit status: 0 for success, 1 for failure
// or, in verify, disagreements, 2 for wrong usage or, in verify, a walk that could
// not be finished, and 3 for publish when changes are lost.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.status
	}
	fmt.Fprintln(a.errOut, "holdfast:", err)
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Rows in a transactional engine, large bytes in an object store, and the two never disagree",
		Long: "Holdfast is a Firefox Sync server whose large records go to an object store.\n" +
			"`holdfast serve` works without any configuration.",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	config.Flags(root.PersistentFlags())
	root.AddCommand(a.serveCommand(), a.verifyCommand(), a.reconcileCommand(), a.publishCommand(), a.copyCommand(), a.storeCommand(),
		a.schemaCommand(), a.queueCommand(), a.syncCommand(), a.configCommand(), a.versionCommand())
	return withSubcommands(root)
}

// load reads the configuration for a command.
func (a *app) load(cmd *cobra.Command) (*config.Loaded, error) {
	cfg, err := config.Load(config.Options{Env: a.env, Flags: cmd.Flags()})
	if err != nil {
		return nil, &usageError{err}
	}
	return cfg, nil
}

func (a *app) logger(cfg *config.Loaded) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // validated
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.errOut, opts))
	}
	return slog.New(slog.NewTextHandler(a.errOut, opts))
}

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Serve everything that the configuration enables", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			return runServe(cmd.Context(), cfg, a.logger(cfg), a.out)
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print what is running", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo()
			_, err := fmt.Fprintf(a.out, "holdfast %s (commit %s, %s)\n", v.Version, orUnknown(v.Commit), v.Build)
			return err
		},
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Print or check the configuration"}
	printCmd := &cobra.Command{
		Use: "print", Short: "Print the effective configuration, secrets cut", Args: noArgs,
	}
	defaults := printCmd.Flags().Bool("defaults", false, "print the reference: every key with its default and what it means")
	printCmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *defaults {
			return config.WriteDefaults(a.out)
		}
		cfg, err := a.load(cmd)
		if err != nil {
			return err
		}
		return config.WriteEffective(a.out, cfg)
	}
	check := &cobra.Command{
		Use: "check", Short: "Say everything that is wrong with the configuration", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			for _, w := range cfg.Warnings {
				fmt.Fprintln(a.out, "warning:", w)
			}
			source := "defaults and environment"
			if cfg.File != "" {
				source = cfg.File
			}
			_, err = fmt.Fprintf(a.out, "ok: %s\n", source)
			return err
		},
	}
	cmd.AddCommand(printCmd, check)
	return withSubcommands(cmd)
}

// noArgs refuses positional arguments as wrong usage.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return &usageError{err}
	}
	return nil
}

func exactArgs(n int) cobra.PositionalArgs { return orUsage(cobra.ExactArgs(n)) }

func minimumArgs(n int) cobra.PositionalArgs { return orUsage(cobra.MinimumNArgs(n)) }

// orUsage makes a wrong number of arguments wrong usage.
func orUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{fmt.Errorf("%w: usage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// withSubcommands makes a command without an action of its own refuse to run.
func withSubcommands(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			err = fmt.Errorf("%w; did you mean %s?", err, near[0])
		}
		return &usageError{err}
	}
	return cmd
}
