package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
	"github.com/holdfast-dev/holdfast/api/sync15/tokenserver"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

func (a *app) syncCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "sync", Short: "Users of the Sync door, and tokens of offline mode"}
	cmd.AddCommand(a.syncTokenCommand(), a.syncUsersCommand())
	return withSubcommands(cmd)
}

// syncTokenCommand mints a token. It needs the master secret only, so it works
// beside a running server.
func (a *app) syncTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token ACCOUNT", Short: "Mint an access token for offline mode", Args: exactArgs(1),
		Long: "Prints a token that the token server accepts in offline mode (tokenserver.mode = \"offline\")\n" +
			"in place of one that Mozilla accounts issued. Whoever has it is ACCOUNT.",
	}
	ttl := cmd.Flags().Duration("ttl", 24*time.Hour, "how long the token is good")
	generation := cmd.Flags().Int64("generation", 0, "generation of the account; a higher one than before locks out older tokens")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := a.load(cmd)
		if err != nil {
			return err
		}
		secrets, _, err := cfg.EnsureSecrets(rand.Reader)
		if err != nil {
			return err
		}
		offline, err := oauth.NewOffline(string(secrets.Master), clock.System{})
		if err != nil {
			return err
		}
		token, err := offline.Mint(args[0], *generation, *ttl)
		if err != nil {
			return err
		}
		if cfg.TokenServer.Mode != config.ModeOffline {
			fmt.Fprintf(a.errOut, "note: this configuration has tokenserver.mode = %q and accepts no such token\n", cfg.TokenServer.Mode)
		}
		_, err = fmt.Fprintln(a.out, token)
		return err
	}
	return cmd
}

func (a *app) syncUsersCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "users", Short: "List accounts and their users, show or retire one", Args: noArgs}
	after := cmd.Flags().String("after", "", "go on behind the account with this email address")
	n := cmd.Flags().IntP("number", "n", 100, "how many accounts")
	asJSON := cmd.PersistentFlags().Bool("json", false, "print JSON")
	cmd.RunE = a.withOperator(func(ctx context.Context, o *operator, _ []string) error {
		var accounts []tokenserver.Account
		path := fmt.Sprintf("/v1/sync/accounts?n=%d&after=%s", *n, url.QueryEscape(*after))
		if err := o.call(ctx, http.MethodGet, path, nil, &accounts); err != nil {
			return err
		}
		return a.printAccounts(accounts, *asJSON)
	})
	show := &cobra.Command{Use: "show EMAIL|UID", Short: "Show one account", Args: exactArgs(1)}
	show.RunE = a.withOperator(func(ctx context.Context, o *operator, args []string) error {
		query := "email=" + url.QueryEscape(args[0])
		if _, err := strconv.ParseUint(args[0], 10, 64); err == nil {
			query = "uid=" + args[0]
		}
		var account tokenserver.Account
		if err := o.call(ctx, http.MethodGet, "/v1/sync/account?"+query, nil, &account); err != nil {
			return err
		}
		return a.printAccounts([]tokenserver.Account{account}, *asJSON)
	})
	retire := &cobra.Command{Use: "retire EMAIL", Short: "Let an account get no tokens any more", Args: exactArgs(1)}
	retire.RunE = a.withOperator(func(ctx context.Context, o *operator, args []string) error {
		var answer struct{ Retired bool }
		if err := o.call(ctx, http.MethodPost, "/v1/sync/account/retire?email="+url.QueryEscape(args[0]), nil, &answer); err != nil {
			return err
		}
		word := "was retired before"
		if answer.Retired {
			word = "retired"
		}
		_, err := fmt.Fprintf(a.out, "%s %s\n", args[0], word)
		return err
	})
	cmd.AddCommand(show, retire)
	return cmd
}

func (a *app) printAccounts(accounts []tokenserver.Account, asJSON bool) error {
	if asJSON {
		return a.printJSON(accounts)
	}
	type line struct {
		email string
		user  tokenserver.User
	}
	var lines []line
	for _, account := range accounts {
		for _, u := range account.Users {
			lines = append(lines, line{account.Email, u})
		}
	}
	return a.table("ACCOUNT\tUID\tGENERATION\tCLIENT STATE\tNODE\tCREATED\tREPLACED", len(lines), func(w io.Writer, i int) {
		u := lines[i].user
		replaced := ""
		if u.ReplacedAt != nil {
			replaced = time.UnixMilli(*u.ReplacedAt).UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%d\t%s\t%s\n", lines[i].email, u.UID, u.Generation, u.ClientState, u.NodeID,
			time.UnixMilli(u.CreatedAt).UTC().Format(time.RFC3339), replaced)
	})
}
