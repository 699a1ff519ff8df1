package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api/admin"
)

// withOperator is the body of a command that asks the admin door.
func (a *app) withOperator(f func(ctx context.Context, o *operator, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		cfg, err := a.load(cmd)
		if err != nil {
			return err
		}
		o, err := a.operator(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, o.close()) }()
		return f(cmd.Context(), o, args)
	}
}

func (a *app) queueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Short: "Look into queues, and handle dead letters"}
	cmd.AddCommand(a.queueListCommand(), a.queuePeekCommand(), a.queueDeadCommand(),
		a.deadLetterCommand("redrive", "Send dead letters again", "sent again"),
		a.deadLetterCommand("drop", "Delete dead letters for good", "deleted"))
	return withSubcommands(cmd)
}

func (a *app) queueListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List all queues", Args: noArgs}
	asJSON := jsonFlag(cmd)
	cmd.RunE = a.withOperator(func(ctx context.Context, o *operator, _ []string) error {
		var queues []admin.Queue
		if err := o.call(ctx, http.MethodGet, "/v1/queues", nil, &queues); err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(queues)
		}
		return a.table("QUEUE\tOLDEST\tREADY\tLEASED\tDEAD\tSENT\tACKED\tEXPIRED", len(queues), func(w io.Writer, i int) {
			q := queues[i]
			age := time.Duration(q.OldestAge * float64(time.Second)).Round(time.Second)
			fmt.Fprintf(w, "%s\t%v\t%d\t%d\t%d\t%d\t%d\t%d\n", q.Name, age, q.Ready, q.Leased, q.DeadLetters, q.Sent, q.Acked, q.Expired)
		})
	})
	return cmd
}

func (a *app) queuePeekCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "peek QUEUE", Short: "Show messages without taking them", Args: exactArgs(1)}
	n := cmd.Flags().IntP("number", "n", 10, "how many")
	oldest := cmd.Flags().Bool("oldest", false, "those that have waited longest for an acknowledgement, instead of those that are due next")
	asJSON := jsonFlag(cmd)
	cmd.RunE = a.withOperator(func(ctx context.Context, o *operator, args []string) error {
		order := "due"
		if *oldest {
			order = "oldest"
		}
		var messages []admin.Message
		path := fmt.Sprintf("/v1/queues/%s/messages?n=%d&order=%s", url.PathEscape(args[0]), *n, order)
		if err := o.call(ctx, http.MethodGet, path, nil, &messages); err != nil {
			return err
		}
		return a.printMessages(messages, *asJSON)
	})
	return cmd
}

func (a *app) queueDeadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dead QUEUE", Short: "Show dead letters", Args: exactArgs(1)}
	n := cmd.Flags().IntP("number", "n", 10, "how many")
	after := cmd.Flags().String("after", "", "go on behind the dead letter with this id")
	asJSON := jsonFlag(cmd)
	cmd.RunE = a.withOperator(func(ctx context.Context, o *operator, args []string) error {
		var messages []admin.Message
		path := fmt.Sprintf("/v1/queues/%s/dead?n=%d&after=%s", url.PathEscape(args[0]), *n, url.QueryEscape(*after))
		if err := o.call(ctx, http.MethodGet, path, nil, &messages); err != nil {
			return err
		}
		return a.printMessages(messages, *asJSON)
	})
	return cmd
}

func (a *app) deadLetterCommand(name, short, done string) *cobra.Command {
	cmd := &cobra.Command{Use: name + " QUEUE [ID...]", Short: short, Args: minimumArgs(1)}
	all := cmd.Flags().Bool("all", false, "all dead letters of the queue")
	cmd.RunE = a.withOperator(func(ctx context.Context, o *operator, args []string) error {
		if *all == (len(args) > 1) {
			return &usageError{errors.New("name the ids of dead letters, or --all")}
		}
		var answer admin.Done
		path := "/v1/queues/" + url.PathEscape(args[0]) + "/" + name
		if err := o.call(ctx, http.MethodPost, path, admin.Selection{IDs: args[1:], All: *all}, &answer); err != nil {
			return err
		}
		_, err := fmt.Fprintf(a.out, "%d %s\n", answer.Count, done)
		return err
	})
	return cmd
}

func jsonFlag(cmd *cobra.Command) *bool { return cmd.Flags().Bool("json", false, "print JSON") }

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows in columns.
func (a *app) table(header string, n int, row func(w io.Writer, i int)) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for i := range n {
		row(w, i)
	}
	return w.Flush()
}

func (a *app) printMessages(messages []admin.Message, asJSON bool) error {
	if asJSON {
		return a.printJSON(messages)
	}
	return a.table("ID\tKEY\tDELIVER TIME\tATTEMPTS\tREASON\tPAYLOAD", len(messages), func(w io.Writer, i int) {
		m := messages[i]
		payload := m.Payload
		if payload == "" {
			payload = m.PayloadBase64
		}
		if len(payload) > 60 {
			payload = payload[:60] + "..."
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%q\n", m.ID, m.Key, m.DeliverTime.Format(time.RFC3339), m.Attempts, m.Reason, payload)
	})
}
