package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/api/admin"
	"github.com/holdfast-dev/holdfast/verify"
)

// Exit statuses of verify.
const (
	exitDisagreement = 1
	exitNotFinished  = 2
)

func (a *app) verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Look for disagreements between rows and objects", Args: noArgs,
		Long: "Walks over all rows and all objects, beside a running server or without one, and prints every\n" +
			"disagreement. It changes nothing.\n\n" +
			"Exit status: 0 everything agrees, 1 disagreements were found, 2 the walk could not be finished.",
	}
	lag := cmd.Flags().Duration("lag", time.Hour, "how long a row may point at an object before it must be permanent")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON value a line: findings, then the report")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var found int64
		err := a.withOperator(func(ctx context.Context, o *operator, _ []string) (err error) {
			found, err = a.verify(ctx, o, *lag, *asJSON)
			return err
		})(cmd, args)
		switch {
		case err != nil:
			fmt.Fprintln(a.errOut, "holdfast:", err)
			return &exitError{exitNotFinished}
		case found > 0:
			return &exitError{exitDisagreement}
		}
		return nil
	}
	return cmd
}

// verify follows a walk and returns how many disagreements it found.
func (a *app) verify(ctx context.Context, o *operator, lag time.Duration, asJSON bool) (int64, error) {
	body, err := o.do(ctx, http.MethodPost, "/v1/verify?lag="+url.QueryEscape(lag.String()), nil)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	bar := &walkBar{out: a.terminal()}
	out := json.NewEncoder(a.out)
	for events := json.NewDecoder(body); ; {
		var e admin.VerifyEvent
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF):
			return 0, errors.New("the walk ended without a report")
		case err != nil:
			return 0, fmt.Errorf("read the walk: %w", err)
		}
		switch {
		case e.Progress != nil:
			bar.show(e.Progress)
		case e.Finding != nil:
			bar.clear()
			if asJSON {
				err = out.Encode(e.Finding)
			} else {
				err = a.printFinding(e.Finding)
			}
		case e.Report != nil:
			bar.clear()
			if asJSON {
				err = out.Encode(e.Report)
			} else {
				err = a.printReport(e.Report)
			}
			var found int64
			for _, n := range e.Report.Findings {
				found += n
			}
			return found, err
		default:
			bar.clear()
			return 0, errors.New(e.Error)
		}
		if err != nil {
			return 0, err
		}
	}
}

func (a *app) printFinding(f *verify.Finding) error {
	line := string(f.Kind)
	if f.Space != "" {
		line += " row " + f.Space + "/" + strconv.Quote(string(f.Key))
	}
	if f.Link != "" {
		line += " object " + f.Link
	}
	if f.Detail != "" {
		line += ": " + f.Detail
	}
	_, err := fmt.Fprintln(a.out, line)
	return err
}

func (a *app) printReport(r *verify.Report) error {
	fmt.Fprintf(a.out, "%d rows, %d links, %d objects, %d expiry entries\n", r.Rows, r.Links, r.Objects, r.Entries)
	if len(r.Findings) == 0 {
		_, err := fmt.Fprintln(a.out, "rows and objects agree")
		return err
	}
	for kind, n := range r.Findings {
		fmt.Fprintf(a.out, "%s: %d\n", kind, n)
	}
	if r.Truncated {
		fmt.Fprintln(a.out, "there was more to suspect than one walk follows up: run it again after a repair")
	}
	return nil
}

// terminal returns where progress is shown, nil if nobody would see it.
func (a *app) terminal() io.Writer {
	if f, ok := a.errOut.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// walkBar is a progress bar for the phases of a walk.
type walkBar struct {
	out   io.Writer // nil: show nothing
	phase string
	bar   *progressbar.ProgressBar
}

func (b *walkBar) show(p *admin.VerifyProgress) {
	if b.out == nil {
		return
	}
	if b.bar == nil || b.phase != p.Phase {
		b.clear()
		total := p.Total
		if total == 0 {
			total = -1 // a spinner with a count
		}
		b.phase = p.Phase
		b.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(b.out), progressbar.OptionSetDescription(p.Phase),
			progressbar.OptionShowCount(), progressbar.OptionSetItsString("items"), progressbar.OptionShowIts(),
			progressbar.OptionThrottle(50*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	_ = b.bar.Set64(p.Done) // what a bar cannot show is no reason to stop
}

// clear takes the bar away, so that other lines can be printed.
func (b *walkBar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
}
