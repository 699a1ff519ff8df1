package changestream

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"cloud.google.com/go/spanner"
	sppb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/publish"
)

// Options says which stream to read and how.
type Options struct {
	// Database is projects/P/instances/I/databases/D.
	Database string
	// Stream is the name of the change stream.
	Stream string
	// Role is the database role to read with. Empty: none.
	Role string
	// Priority of the queries: high, medium or low. Empty: high.
	Priority string
	Clock    clock.Clock
}

// Source reads a change stream. Close it after use.
type Source struct {
	client    *spanner.Client
	opts      Options
	query     string
	priority  sppb.RequestOptions_Priority
	retention time.Duration
}

var (
	streamPattern   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,127}$`)
	databasePattern = regexp.MustCompile(`^projects/[^/]+/instances/[^/]+/databases/[^/]+$`)
)

var priorities = map[string]sppb.RequestOptions_Priority{
	"":       sppb.RequestOptions_PRIORITY_HIGH,
	"high":   sppb.RequestOptions_PRIORITY_HIGH,
	"medium": sppb.RequestOptions_PRIORITY_MEDIUM,
	"low":    sppb.RequestOptions_PRIORITY_LOW,
}

// startTimeout bounds the questions that Open asks.
const startTimeout = time.Minute

// Open checks that the stream is there and keeps what is needed, and returns a
// source of its changes.
func Open(ctx context.Context, opts Options, client ...option.ClientOption) (_ *Source, err error) {
	priority, ok := priorities[opts.Priority]
	switch {
	case !ok:
		return nil, fmt.Errorf("changestream: unknown priority %q", opts.Priority)
	case !databasePattern.MatchString(opts.Database):
		return nil, fmt.Errorf("changestream: %q is not a database such as projects/P/instances/I/databases/D", opts.Database)
	case !streamPattern.MatchString(opts.Stream):
		return nil, fmt.Errorf("changestream: %q cannot be the name of a change stream", opts.Stream)
	}
	s := &Source{
		opts: opts, priority: priority,
		query: "SELECT ChangeRecord FROM READ_" + opts.Stream +
			"(@start_timestamp, @end_timestamp, @partition_token, @heartbeat_milliseconds)",
	}
	s.client, err = spanner.NewClientWithConfig(ctx, opts.Database, spanner.ClientConfig{
		DatabaseRole: opts.Role, DisableNativeMetrics: true, UserAgent: "holdfast",
	}, client...)
	if err != nil {
		return nil, fmt.Errorf("changestream: open %s: %w", opts.Database, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.check(ctx); err != nil {
		s.client.Close()
		return nil, fmt.Errorf("changestream: check %s of %s: %w", opts.Stream, opts.Database, err)
	}
	return s, nil
}

// Close ends all reads.
func (s *Source) Close() { s.client.Close() }

// Name tells this stream from every other.
func (s *Source) Name() string { return s.opts.Database + "/changeStreams/" + s.opts.Stream }

// Read implements publish.Source. It has no deadline of its own.
func (s *Source) Read(ctx context.Context, q publish.Query, handle func(publish.Event) error) error {
	rows := s.client.Single().QueryWithOptions(ctx, spanner.Statement{SQL: s.query, Params: map[string]any{
		"start_timestamp":        q.Start,
		"end_timestamp":          spanner.NullTime{Time: q.End, Valid: !q.End.IsZero()},
		"partition_token":        spanner.NullString{StringVal: q.Token, Valid: q.Token != ""},
		"heartbeat_milliseconds": q.Heartbeat.Milliseconds(),
	}}, spanner.QueryOptions{Priority: s.priority})
	defer rows.Stop()
	for {
		row, err := rows.Next()
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return classify(err)
		}
		var column spanner.GenericColumnValue
		if err := row.Column(0, &column); err != nil {
			return fmt.Errorf("changestream: %w", err)
		}
		events, err := decode(column.Type, column.Value)
		if err != nil {
			return fmt.Errorf("changestream: %w: a record that cannot be read: %w", publish.ErrRefused, err)
		}
		for _, e := range events {
			if err := handle(e); err != nil {
				return err
			}
		}
	}
}

// classify adds what publish knows about an answer of Spanner.
func classify(err error) error {
	switch spanner.ErrCode(err) {
	case codes.OutOfRange:
		return fmt.Errorf("changestream: %w: %w", publish.ErrOutOfRange, err)
	case codes.InvalidArgument, codes.PermissionDenied, codes.NotFound, codes.Unimplemented:
		return fmt.Errorf("changestream: %w: %w", publish.ErrRefused, err)
	}
	return fmt.Errorf("changestream: %w", err)
}

const (
	// retentionMargin is how much earlier than Spanner we regard changes as gone.
	retentionMargin = time.Minute
	// creationPrecision is how exactly the creation of a stream is found.
	creationPrecision = time.Microsecond
)

// Oldest implements publish.Source: the end of the retention, or the creation of
// the stream if that is later. No table tells when a stream was created; it is
// found by asking.
func (s *Source) Oldest(ctx context.Context) (time.Time, error) {
	now := s.opts.Clock.Now().UTC()
	early := now.Add(-s.retention + retentionMargin)
	switch ok, err := s.has(ctx, early); {
	case err != nil:
		return time.Time{}, err
	case ok:
		return early, nil
	}
	late := now
	if ok, err := s.has(ctx, late); err != nil || !ok {
		return time.Time{}, cmpErr(err, errors.New("changestream: the stream has nothing at the present; is the clock right?"))
	}
	for late.Sub(early) > creationPrecision {
		middle := early.Add(late.Sub(early) / 2)
		ok, err := s.has(ctx, middle)
		if err != nil {
			return time.Time{}, err
		}
		if ok {
			late = middle
		} else {
			early = middle
		}
	}
	return late, nil
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// has reports whether the stream can be read from the given time on.
func (s *Source) has(ctx context.Context, at time.Time) (bool, error) {
	err := s.Read(ctx, publish.Query{Start: at, Heartbeat: 10 * time.Second}, func(publish.Event) error { return nil })
	if errors.Is(err, publish.ErrOutOfRange) {
		return false, nil
	}
	return err == nil, err
}
