package bigtable

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/fnv"
	"time"

	bt "cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-dev/holdfast/kv"
)

// sweeper bounds how long garbage of crashed processes stays: everything that it does
// a reader or writer may do too, except that only it forgets. It is one goroutine.
type sweeper struct {
	pass   int
	shards [logShards]logShard
	// tombstones has, by table, how far the search for tombstones has got.
	tombstones map[string]*tombstoneRound
}

// logShard is a shard of the log as this process knows it.
type logShard struct {
	mine bool
	// lease is the lease's cell, and still how many passes found it unchanged.
	lease []byte
	still int
	// All records up to settled are finished, all up to deleted were removed, as
	// long as none comes late.
	settled, deleted uint64
	// pending counts the passes that found a transaction undecided.
	pending map[txID]int
}

const (
	// leaseKey begins the keys of leases in the log.
	leaseKey = "\xf1"
	// leasePasses without a sign of life end a lease.
	leasePasses = 3
	// sweepPage bounds what is read of a shard at once.
	sweepPage = 500
	// youth is the age below which the coordinator is left to finish its rows.
	youth = 2 * time.Second
)

func (e *Engine) runSweeper(ctx context.Context) {
	ticker := time.NewTicker(e.opts.SweeperCadence)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := e.sweepOnce(ctx); err != nil && ctx.Err() == nil {
				e.log.Debug("bigtable: sweep failed", "error", err)
			}
		}
	}
}

// passes is the number of passes in d.
func (e *Engine) passes(d time.Duration) int { return max(1, int(d/e.opts.SweeperCadence)) }

// sweepOnce does one pass over the shards that this process holds.
func (e *Engine) sweepOnce(ctx context.Context) error {
	sw := &e.sweep
	sw.pass++
	if err := e.takeLeases(ctx); err != nil {
		return err
	}
	// Now and then all is looked at, for records that came late.
	fresh := sw.pass%e.passes(24*time.Hour) == 0
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range sw.shards {
		if sh := &sw.shards[i]; sh.mine {
			if fresh {
				sh.settled, sh.deleted = 0, 0
			}
			g.Go(func() error { return e.sweepShard(gctx, byte(i), sh) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, s := range e.known() {
		h := fnv.New32a()
		h.Write([]byte(s.table.name)) // never fails
		if sw.shards[h.Sum32()%logShards].mine {
			if err := e.sweepTombstones(ctx, s); err != nil {
				return err
			}
		}
	}
	if sw.shards[0].mine && sw.pass%e.passes(time.Minute) == 0 {
		return e.sweepSpaces(ctx)
	}
	return nil
}

// sweepSpaces finishes what a process began that crashed while it dropped a space.
func (e *Engine) sweepSpaces(ctx context.Context) error {
	all, err := e.readCatalog(ctx)
	for _, s := range all {
		if err == nil && s.stage == dropping {
			err = e.clearSpace(ctx, s)
		}
	}
	return err
}

// takeLeases renews the leases of this process, and takes those that nobody renews.
// They only keep processes from doing the same work.
func (e *Engine) takeLeases(ctx context.Context) error {
	leases := map[string][]byte{}
	err := e.read(ctx, "read leases", e.logTable, callTimeout, bt.PrefixRange(leaseKey), func() { clear(leases) }, func(r bt.Row) bool {
		leases[r.Key()] = newest(r, recordCell)
		return true
	}, bt.RowFilter(recordCell.filter()))
	if err != nil {
		return err
	}
	for i := range e.sweep.shards {
		sh := &e.sweep.shards[i]
		key := leaseKey + string([]byte{byte(i)})
		now := leases[key]
		if sh.still++; !bytes.Equal(now, sh.lease) {
			sh.still = 0
		}
		sh.lease = now
		if now != nil && !bytes.HasPrefix(now, e.writer[:]) && sh.still < leasePasses {
			sh.mine = false
			continue
		}
		next := append(bytes.Clone(e.writer[:]), binary.BigEndian.AppendUint64(nil, uint64(e.sweep.pass))...)
		res, err := e.cas(ctx, "take lease", e.logTable, key, recordCell.is(now), newMutation().set(recordCell, next))
		if err != nil {
			return err
		}
		if sh.mine = res.applied; sh.mine {
			sh.lease, sh.still = next, 0
		}
	}
	return nil
}

func logBound(shard byte, p uint64) string {
	return string(binary.BigEndian.AppendUint64([]byte{shard}, p))
}

// logged is a record with its id.
type logged struct {
	record
	id txID
}

func (e *Engine) readLog(ctx context.Context, from, to string) ([]logged, error) {
	var all []logged
	var bad error
	filter := bt.ChainFilters(bt.FamilyFilter("^t$"), bt.ColumnFilter("^[se]$"), bt.LatestNFilter(1))
	err := e.read(ctx, "read log", e.logTable, pageTimeout, bt.NewRange(from, to), func() { all = nil }, func(r bt.Row) bool {
		rec, err := parseRecord(newest(r, recordCell), newest(r, deadlineCell))
		bad = err
		all = append(all, logged{rec, txID([]byte(r.Key()[1:]))})
		return err == nil
	}, bt.LimitRows(sweepPage), bt.RowFilter(filter))
	if err == nil {
		err = bad
	}
	return all, err
}

// sweepShard decides, finishes and in the end removes the transactions of a shard.
func (e *Engine) sweepShard(ctx context.Context, shard byte, sh *logShard) error {
	stillPending := map[txID]int{}
	for from, front := logBound(shard, sh.settled), true; ; {
		page, err := e.readLog(ctx, from, string([]byte{shard + 1}))
		if err != nil {
			return err
		}
		done, err := e.settleRecords(ctx, page, sh.pending, stillPending)
		if err != nil {
			return err
		}
		for i := range page {
			if front = front && done[i]; front {
				sh.settled = page[i].id.p()
			}
		}
		if len(page) < sweepPage {
			break
		}
		from = logKey(page[len(page)-1].id) + "\x00"
	}
	sh.pending = stillPending
	return e.forgetRecords(ctx, shard, sh)
}

// settleRecords settles records that are old enough, and tells which are.
func (e *Engine) settleRecords(ctx context.Context, page []logged, before, now map[txID]int) ([]bool, error) {
	done := make([]bool, len(page))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	clock := e.opts.Clock.Now()
	overdue := e.passes(e.opts.TxnDeadline+pushGrace) + 1
	for i, r := range page {
		switch {
		case r.finished:
			done[i] = true
			continue
		case r.status == pending && clock.Before(r.deadline.Add(pushGrace)):
			// A clock may be wrong, ours or that of a coordinator that is gone.
			if now[r.id] = before[r.id] + 1; now[r.id] <= overdue {
				continue
			}
		case r.decided() && clock.Sub(kv.Version(r.id.p()).Time()).Abs() < youth:
			continue
		}
		g.Go(func() (err error) {
			done[i], err = e.settleRecord(gctx, r)
			return err
		})
	}
	return done, g.Wait()
}

// settleRecord decides a transaction, finishes its rows and marks its record.
func (e *Engine) settleRecord(ctx context.Context, r logged) (bool, error) {
	if r.status == pending {
		if done, err := e.abort(ctx, r.id, r.raw); !done || err != nil {
			return false, err // the next pass sees what it is now
		}
		r.record = record{status: aborted, raw: []byte{aborted}}
	}
	raw, err := e.readCell(ctx, "read participants", e.logTable, logKey(r.id), participantsCell)
	if err != nil {
		return false, err
	}
	parts, err := parseParticipants(raw)
	if err != nil {
		return false, err
	}
	if err := e.finishParticipants(ctx, r, parts); err != nil {
		return false, err
	}
	marked := append(bytes.Clone(r.raw), finishedMark)
	res, err := e.cas(ctx, "mark finished", e.logTable, logKey(r.id), recordCell.is(r.raw), newMutation().set(recordCell, marked))
	return res.applied, err
}

// finishParticipants makes sure that no row is locked by a transaction.
func (e *Engine) finishParticipants(ctx context.Context, r logged, parts []participant) error {
	keys := map[string][]string{}
	for _, p := range parts {
		keys[p.table] = append(keys[p.table], p.key)
	}
	for name, ks := range keys {
		s := &space{SpaceInfo: kv.SpaceInfo{Name: name}, table: &table{name: name, bt: e.data.Open(name)}}
		rows, err := e.readRows(ctx, "read participants", s, ks, stateFilter)
		if isCode(err, codes.NotFound) {
			continue // the space was dropped
		}
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.state.locked && row.state.tx == r.id {
				if _, err := e.finish(ctx, row, r.record); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// forgetRecords removes records that are finished and past their retention.
func (e *Engine) forgetRecords(ctx context.Context, shard byte, sh *logShard) error {
	end := logBound(shard, uint64(kv.VersionAt(e.opts.Clock.Now().Add(-e.opts.TxnRecordRetention))))
	for from, front := logBound(shard, sh.deleted), true; from < end; {
		page, err := e.readLog(ctx, from, end)
		if err != nil {
			return err
		}
		for _, r := range page {
			if !r.finished {
				// It came late, or is a fence: once marked it is old enough.
				front = false
				if _, err := e.settleRecord(ctx, r); err != nil {
					return err
				}
				continue
			}
			if _, err := e.cas(ctx, "forget record", e.logTable, logKey(r.id), recordCell.is(r.raw), newMutation().deleteRow()); err != nil {
				return err
			}
			if front {
				sh.deleted = r.id.p()
			}
		}
		if len(page) < sweepPage {
			return nil
		}
		from = logKey(page[len(page)-1].id) + "\x00"
	}
	return nil
}
