package changestream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/holdfast-dev/holdfast/publish"
)

// defaultRetention is that of a stream which does not say otherwise.
const defaultRetention = 24 * time.Hour

// check looks whether the stream exists and has the options that it needs.
func (s *Source) check(ctx context.Context) error {
	found := false
	err := s.ask(ctx, "SELECT CHANGE_STREAM_NAME FROM INFORMATION_SCHEMA.CHANGE_STREAMS WHERE CHANGE_STREAM_NAME = @stream",
		func(*spanner.Row) error { found = true; return nil })
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: there is no such change stream, or this identity has no SELECT on it", publish.ErrRefused)
	}
	options := map[string]string{}
	err = s.ask(ctx, "SELECT OPTION_NAME, OPTION_VALUE FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS WHERE CHANGE_STREAM_NAME = @stream",
		func(row *spanner.Row) error {
			var name, value spanner.NullString
			if err := row.Columns(&name, &value); err != nil {
				return err
			}
			options[strings.ToLower(name.StringVal)] = value.StringVal
			return nil
		})
	if err != nil {
		return err
	}
	s.retention, err = checkOptions(options)
	return err
}

func (s *Source) ask(ctx context.Context, sql string, row func(*spanner.Row) error) error {
	rows := s.client.Single().Query(ctx, spanner.Statement{SQL: sql, Params: map[string]any{"stream": s.opts.Stream}})
	if err := rows.Do(row); err != nil {
		return classify(err)
	}
	return nil
}

// checkOptions returns the stream's retention. The error says all that is wrong
// with its options.
func checkOptions(options map[string]string) (time.Duration, error) {
	var errs []error
	refuse := func(name, why string) {
		errs = append(errs, fmt.Errorf("%w: its option %s is %s: %s", publish.ErrRefused, name, options[name], why))
	}
	if v, ok := options["value_capture_type"]; ok && v != "OLD_AND_NEW_VALUES" {
		refuse("value_capture_type", "without old values nothing would ever be deleted; it must be OLD_AND_NEW_VALUES")
	}
	for _, name := range []string{"exclude_ttl_deletes", "exclude_delete", "exclude_insert", "exclude_update", "allow_txn_exclusion"} {
		if v, ok := options[name]; ok && !strings.EqualFold(v, "false") {
			refuse(name, "changes would be missing; it must be false")
		}
	}
	retention := defaultRetention
	if v, ok := options["retention_period"]; ok {
		var err error
		if retention, err = parseRetention(v); err != nil {
			refuse("retention_period", "not a time such as 7d")
		}
	}
	return retention, errors.Join(errs...)
}

// parseRetention reads a number and one of the units d, h, m, s.
func parseRetention(s string) (time.Duration, error) {
	s = strings.Trim(s, `"' `)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	d, err := time.ParseDuration(s)
	if err == nil && d <= 2*retentionMargin {
		err = errors.New("too short")
	}
	return d, err
}
