package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the steps from an empty schema to the one that this package
// works with. A step that was released never changes.
var migrations = []string{"0001_engine.sql"}

// ErrNewerSchema says that a later version of this package has migrated the schema.
var ErrNewerSchema = errors.New("the schema was written by a newer holdfast: run that one, or choose another Schema")

// migrate brings the schema up to date, in one transaction. Processes that start
// together wait for each other.
func (e *Engine) migrate(ctx context.Context, conn *pgx.Conn) error {
	done, err := e.migrated(ctx, conn)
	if err != nil || done == len(migrations) {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// It may take long, and is not worth less then.
		const patiently = "select set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)"
		if _, err := tx.Exec(ctx, patiently); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", e.lockBase+catalogLock); err != nil {
			return err
		}
		done, err := e.migrated(ctx, tx)
		if err != nil {
			return err
		}
		if done == 0 {
			if err := e.createSchema(ctx, tx); err != nil {
				return err
			}
		}
		for i := done; i < len(migrations); i++ {
			if err := e.step(ctx, tx, i); err != nil {
				return fmt.Errorf("migration %s: %w", migrations[i], err)
			}
		}
		return nil
	})
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// migrated returns how many migrations the schema has had.
func (e *Engine) migrated(ctx context.Context, q querier) (int, error) {
	var there bool
	// By the tables: what to_regclass says may be from before a lock was waited for.
	err := q.QueryRow(ctx, "select exists (select from pg_tables where schemaname = $1 and tablename = 'migrations')", e.schema).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	var done int
	err = q.QueryRow(ctx, "select coalesce(max(step), 0) from "+e.prefix+"migrations").Scan(&done)
	if err == nil && done > len(migrations) {
		err = ErrNewerSchema
	}
	return done, err
}

func (e *Engine) createSchema(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, "select exists (select from pg_namespace where nspname = $1)", e.schema).Scan(&there); err != nil {
		return err
	}
	if !there {
		// Not "if not exists": that asks for the right to create it in any case.
		if _, err := tx.Exec(ctx, "create schema "+pgx.Identifier{e.schema}.Sanitize()); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "create table "+e.prefix+"migrations (step integer primary key, name text not null, applied_at timestamptz not null default now())")
	return err
}

func (e *Engine) step(ctx context.Context, tx pgx.Tx, i int) error {
	sql, err := migrationFiles.ReadFile("migrations/" + migrations[i])
	if err != nil {
		return err
	}
	text := strings.NewReplacer(
		"{schema}.", e.prefix,
		"{catalog_lock}", strconv.FormatInt(e.lockBase+catalogLock, 10),
		"{sweep_lock}", strconv.FormatInt(e.lockBase+sweepLock, 10),
	).Replace(string(sql))
	if _, err := tx.Conn().PgConn().Exec(ctx, text).ReadAll(); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into "+e.prefix+"migrations (step, name) values ($1, $2)", i+1, migrations[i])
	return err
}

// checkCluster begins a new epoch of feed positions if the schema has come to
// another cluster, where transactions are numbered anew.
func (e *Engine) checkCluster(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, fmt.Sprintf(`update %[1]sengine set epoch = epoch + 1, cluster = %[1]scluster()
		where cluster <> %[1]scluster()`, e.prefix))
	return err
}
