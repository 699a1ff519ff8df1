package changestream

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/publish"
)

const (
	positionsTable = "holdfast_publish_positions"
	claimsTable    = "holdfast_publish_claims"
)

// Schema is the tables of Positions, for whoever makes them by hand. Streams share
// them.
var Schema = []string{
	"CREATE TABLE IF NOT EXISTS " + positionsTable + ` (
  stream STRING(MAX) NOT NULL,
  token STRING(MAX) NOT NULL,
  parents ARRAY<STRING(MAX)>,
  start_timestamp TIMESTAMP NOT NULL,
  watermark TIMESTAMP NOT NULL,
  state STRING(16) NOT NULL,
) PRIMARY KEY (stream, token)`,
	"CREATE TABLE IF NOT EXISTS " + claimsTable + ` (
  stream STRING(MAX) NOT NULL,
  owner STRING(MAX) NOT NULL,
  claimed_until TIMESTAMP NOT NULL,
) PRIMARY KEY (stream)`,
}

// PositionsOptions says where positions are and whose.
type PositionsOptions struct {
	// Database is projects/P/instances/I/databases/D: by preference not the one
	// that has the stream, so that the publisher needs no right on its tables.
	Database string
	// Stream is the Name of the stream.
	Stream string
	// Owner tells this publisher from the others of the stream.
	Owner string
	Clock clock.Clock
}

// Positions keeps the positions of a stream in two tables of a database. The claim
// is a row that every change checks. Close it after use.
type Positions struct {
	client *spanner.Client
	opts   PositionsOptions
}

// OpenPositions returns the positions of a stream. It makes the tables if they are
// missing and it may.
func OpenPositions(ctx context.Context, opts PositionsOptions, client ...option.ClientOption) (*Positions, error) {
	if !databasePattern.MatchString(opts.Database) {
		return nil, fmt.Errorf("changestream: %q is not a database such as projects/P/instances/I/databases/D", opts.Database)
	}
	c, err := spanner.NewClientWithConfig(ctx, opts.Database, spanner.ClientConfig{DisableNativeMetrics: true, UserAgent: "holdfast"}, client...)
	if err != nil {
		return nil, fmt.Errorf("changestream: open %s: %w", opts.Database, err)
	}
	p := &Positions{client: c, opts: opts}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.ensureTables(ctx, client); err != nil {
		c.Close()
		return nil, fmt.Errorf("changestream: positions in %s: %w", opts.Database, err)
	}
	return p, nil
}

// Close ends the use of the database.
func (p *Positions) Close() { p.client.Close() }

func (p *Positions) ensureTables(ctx context.Context, client []option.ClientOption) error {
	_, err := p.Load(ctx)
	if err == nil {
		err = p.client.Single().Read(ctx, claimsTable, p.key(), []string{"owner"}).Do(func(*spanner.Row) error { return nil })
	}
	if code := spanner.ErrCode(err); err == nil || code != codes.NotFound && code != codes.InvalidArgument {
		return err
	}
	admin, err := database.NewDatabaseAdminClient(ctx, client...)
	if err != nil {
		return err
	}
	defer admin.Close()
	op, err := admin.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{Database: p.opts.Database, Statements: Schema})
	if err == nil {
		err = op.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("make the tables %s and %s: %w", positionsTable, claimsTable, err)
	}
	return nil
}

func (p *Positions) key() spanner.Key { return spanner.Key{p.opts.Stream} }

// claim reads whose turn it is.
func (p *Positions) claim(ctx context.Context, tx *spanner.ReadWriteTransaction) (owner string, until time.Time, err error) {
	row, err := tx.ReadRow(ctx, claimsTable, p.key(), []string{"owner", "claimed_until"})
	if spanner.ErrCode(err) == codes.NotFound {
		return "", time.Time{}, nil
	}
	if err == nil {
		err = row.Columns(&owner, &until)
	}
	return owner, until, err
}

// Claim implements publish.Positions.
func (p *Positions) Claim(ctx context.Context, lease time.Duration) (mine bool, err error) {
	_, err = p.client.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		owner, until, err := p.claim(ctx, tx)
		if err != nil {
			return err
		}
		now := p.opts.Clock.Now()
		mine = owner == p.opts.Owner || owner == "" || !now.Before(until)
		switch {
		case !mine:
			return nil
		case lease > 0:
			return tx.BufferWrite([]*spanner.Mutation{spanner.InsertOrUpdate(claimsTable,
				[]string{"stream", "owner", "claimed_until"}, []any{p.opts.Stream, p.opts.Owner, now.Add(lease)})})
		case owner == p.opts.Owner:
			return tx.BufferWrite([]*spanner.Mutation{spanner.Delete(claimsTable, p.key())})
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("changestream: claim positions: %w", err)
	}
	return mine, nil
}

// Load implements publish.Positions.
func (p *Positions) Load(ctx context.Context) ([]publish.Position, error) {
	var all []publish.Position
	rows := p.client.Single().Read(ctx, positionsTable, p.key().AsPrefix(),
		[]string{"token", "parents", "start_timestamp", "watermark", "state"})
	err := rows.Do(func(row *spanner.Row) error {
		var q publish.Position
		var state string
		if err := row.Columns(&q.Token, &q.Parents, &q.Start, &q.Watermark, &state); err != nil {
			return err
		}
		q.State = publish.State(state)
		all = append(all, q)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("changestream: load positions: %w", err)
	}
	return all, nil
}

// Save implements publish.Positions.
func (p *Positions) Save(ctx context.Context, positions []publish.Position, forget []string) error {
	var changes []*spanner.Mutation
	for _, q := range positions {
		changes = append(changes, spanner.InsertOrUpdate(positionsTable,
			[]string{"stream", "token", "parents", "start_timestamp", "watermark", "state"},
			[]any{p.opts.Stream, q.Token, q.Parents, q.Start, q.Watermark, string(q.State)}))
	}
	for _, token := range forget {
		changes = append(changes, spanner.Delete(positionsTable, spanner.Key{p.opts.Stream, token}))
	}
	return p.change(ctx, changes)
}

// Reset implements publish.Positions.
func (p *Positions) Reset(ctx context.Context) error {
	return p.change(ctx, []*spanner.Mutation{spanner.Delete(positionsTable, p.key().AsPrefix())})
}

// change makes changes if the claim is ours.
func (p *Positions) change(ctx context.Context, changes []*spanner.Mutation) error {
	_, err := p.client.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		owner, _, err := p.claim(ctx, tx)
		if err != nil {
			return err
		}
		if owner != p.opts.Owner {
			return publish.ErrDeposed
		}
		return tx.BufferWrite(changes)
	})
	if err != nil {
		return fmt.Errorf("changestream: store positions: %w", err)
	}
	return nil
}
