package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// catchUp is how long a scan waits for the standby before it goes on at the
	// primary.
	catchUp = time.Second
	// standbyRest is how long a standby that failed or was late is left alone.
	standbyRest = 10 * time.Second
)

// standby takes over long scans, see Options.ReadURL.
type standby struct {
	pool *pgxpool.Pool // nil: there is none
	// restsUntil is in microseconds of the engine's clock.
	restsUntil atomic.Int64
}

func (s *standby) close() {
	if s.pool != nil {
		s.pool.Close()
	}
}

var errStandbyLate = errors.New("the standby has not replayed what the scan must see, or follows another primary")

// usable returns the standby's connections if it has replayed all that was committed
// until now, and nil otherwise.
func (e *Engine) usable(ctx context.Context) *pgxpool.Pool {
	if e.standby.pool == nil || e.clock.Now().UnixMicro() < e.standby.restsUntil.Load() {
		return nil
	}
	if err := e.awaitStandby(ctx); err != nil {
		e.restStandby(ctx, err)
		return nil
	}
	return e.standby.pool
}

func (e *Engine) restStandby(ctx context.Context, err error) {
	if ctx.Err() == nil {
		e.standby.restsUntil.Store(e.clock.Now().Add(standbyRest).UnixMicro())
		e.log.Warn("postgres: scans do not use the standby for a while", "error", err)
	}
}

// awaitStandby compares how far the standby is with how far the primary's log is on
// disk: what anybody can see is there. The timeline tells a standby of this primary
// from one that was left behind when another became the primary.
func (e *Engine) awaitStandby(ctx context.Context) error {
	var goal, cluster string
	var timeline int64
	err := e.roundTrip(ctx, "select pg_current_wal_flush_lsn()::text, "+e.prefix+"cluster(), "+e.prefix+"era() & 4294967295", new(args), func(v [][]byte) (err error) {
		goal, cluster = string(v[0]), string(v[1])
		timeline, err = decodeInt(v[2])
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		there := false
		err := roundTrip(ctx, e.standby.pool, `select pg_is_in_recovery() and pg_last_wal_replay_lsn() >= $1::text::pg_lsn
			and (select system_identifier::text = $2 from pg_control_system())
			and (select timeline_id = $3 from pg_control_checkpoint())`,
			new(args).text(goal).text(cluster).int8(timeline), func(v [][]byte) error {
				there = isTrue(v[0])
				return nil
			})
		if err != nil || there {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errStandbyLate
		}
	}
}
