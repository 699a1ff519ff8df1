package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/api/sync15/tokenserver"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/spanner"
	"github.com/holdfast-dev/holdfast/lease"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/transfer"
)

// allSpaces returns every space that the program uses.
func allSpaces() []kv.SpaceInfo {
	return slices.Concat(houseSpaces(), lease.Spaces(), queue.Spaces(), expiry.OwnSpaces(), storage.Spaces(), tokenserver.Spaces(), transfer.Spaces())
}

func (a *app) schemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "schema", Short: "Print, compare or make the tables that Spanner must have",
		Long: "Other engines make their tables when they start. Those of Spanner are made by an operator, because\n" +
			"that takes rights which the servers should not have.",
	}
	printed := &cobra.Command{
		Use: "print", Short: "Print all statements", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.loadSpanner(cmd); err != nil {
				return err
			}
			return a.printStatements(spanner.Schema(allSpaces()))
		},
	}
	diff := &cobra.Command{
		Use: "diff", Short: "Print the statements that the database still needs", Args: noArgs,
		Long: "Prints what apply would do.\n\nExit status: 0 the database has everything, 1 it does not.",
		RunE: a.withSchema(func(ctx context.Context, admin *spanner.Admin) error {
			missing, err := admin.Diff(ctx, allSpaces())
			if err == nil {
				err = a.printStatements(missing)
			}
			if err == nil && len(missing) > 0 {
				err = &exitError{1}
			}
			return err
		}),
	}
	apply := &cobra.Command{
		Use: "apply", Short: "Make what the database still needs", Args: noArgs,
		RunE: a.withSchema(func(ctx context.Context, admin *spanner.Admin) error {
			made, err := admin.Apply(ctx, allSpaces())
			if err != nil {
				return err
			}
			if len(made) == 0 {
				_, err = fmt.Fprintln(a.out, "the database has everything")
				return err
			}
			return a.printStatements(made)
		}),
	}
	cmd.AddCommand(printed, diff, apply)
	return withSubcommands(cmd)
}

// loadSpanner reads a configuration that must be of the engine on Spanner.
func (a *app) loadSpanner(cmd *cobra.Command) (*config.Loaded, error) {
	cfg, err := a.load(cmd)
	if err == nil && cfg.Engine.Kind != config.EngineSpanner {
		err = &usageError{fmt.Errorf("engine.kind is %q, which makes its tables itself; say --engine spanner", cfg.Engine.Kind)}
	}
	return cfg, err
}

func (a *app) withSchema(run func(context.Context, *spanner.Admin) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) (err error) {
		cfg, err := a.loadSpanner(cmd)
		if err != nil {
			return err
		}
		admin, err := spanner.OpenAdmin(cmd.Context(), spannerOptions(cfg, clock.System{}, a.logger(cfg)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, admin.Close()) }()
		return run(cmd.Context(), admin)
	}
}

func (a *app) printStatements(statements []string) error {
	for _, s := range statements {
		if _, err := fmt.Fprintf(a.out, "%s;\n\n", strings.TrimSpace(s)); err != nil {
			return err
		}
	}
	return nil
}
