package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/gcs"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

func (a *app) storeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "Look at the object store's settings"}
	check := &cobra.Command{
		Use: "check", Short: "Check the settings of the store that Holdfast relies on", Args: noArgs,
		Long: "Reads the settings of the object store, among them the lifecycle rules of a bucket, and says\n" +
			"which are right and which are not. It changes nothing.\n\n" +
			"Exit status: 0 no problem, 1 problems or a store that cannot be used.",
	}
	asJSON := jsonFlag(check)
	policy := check.Flags().Bool("print-policy", false, "print the lifecycle rules that a bucket of Google Cloud Storage should have, and end")
	check.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		cfg, err := a.load(cmd)
		if err != nil {
			return err
		}
		if *policy {
			return a.printPolicy(cfg)
		}
		store, closeStore, err := openStore(cmd.Context(), cfg, true, a.logger(cfg))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeStore()) }()
		findings, err := store.Check(cmd.Context())
		if err != nil {
			return err
		}
		return a.printStoreFindings(findings, *asJSON)
	}
	cmd.AddCommand(check)
	return withSubcommands(cmd)
}

func (a *app) printPolicy(cfg *config.Loaded) error {
	if cfg.Store.Kind != config.StoreGCS {
		return fmt.Errorf("store.kind is %q: its objects are removed by a worker of Holdfast, without a rule", cfg.Store.Kind)
	}
	_, err := fmt.Fprintln(a.out, gcs.LifecyclePolicy())
	return err
}

func (a *app) printStoreFindings(findings []blob.Finding, asJSON bool) error {
	problem := false
	for _, f := range findings {
		problem = problem || f.Level == blob.Problem
	}
	var err error
	if asJSON {
		type line struct{ Level, Setting, Text string }
		lines := []line{}
		for _, f := range findings {
			lines = append(lines, line{f.Level.String(), f.Setting, f.Text})
		}
		err = a.printJSON(lines)
	} else {
		err = a.table("LEVEL\tSETTING\tFINDING", len(findings), func(w io.Writer, i int) {
			fmt.Fprintf(w, "%v\t%s\t%s\n", findings[i].Level, findings[i].Setting, findings[i].Text)
		})
	}
	if err == nil && problem {
		err = &exitError{1}
	}
	return err
}
