package kvtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

func lifeCases() []suiteCase {
	return []suiteCase{
		{"CancelledBeforeTheCallDoesNothing", caseCancelledBefore},
		{"CancelledDuringCommitIsAllOrNothing", caseCancelledDuring},
		{"DeadlineHoldsWhileTheServerIsFrozen", caseFrozen},
		{"UseAfterCloseIsAnError", caseClosed},
		{"CloseWhileCallsAreRunning", caseCloseRunning},
		{"ReopenSeesEverythingAcknowledged", caseReopen},
	}
}

// eachMethod calls every method of the engine below the DB once.
func (f *fixture) eachMethod(ctx context.Context, do func(name string, err error)) {
	f.Helper()
	e := f.engine
	do("CreateSpace", e.CreateSpace(ctx, "b", kv.SpaceOptions{}))
	_, err := e.Spaces(ctx)
	do("Spaces", err)
	_, err = e.Get(ctx, []kv.Ref{{Space: "a", Key: []byte("k")}})
	do("Get", err)
	do("Scan", e.Scan(ctx, "a", kv.Range{}, func(kv.Row) bool { return true }))
	_, err = e.Commit(ctx, &kv.Txn{Writes: []kv.Write{fed(put("a", "k", "new"), "new"), put("a", "l", "new")}})
	do("Commit", err)
	_, err = e.ReadFeed(ctx, "a", 0, "", 1)
	do("ReadFeed", err)
	do("DropSpace", e.DropSpace(ctx, "a"))
}

func caseCancelledBefore(f *fixture) {
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	v := f.write(put("a", "k", "old"))
	cancelled, cancel := context.WithCancel(f.ctx)
	cancel()
	late, cancel := context.WithDeadline(f.ctx, time.Unix(1, 0))
	defer cancel()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		f.eachMethod(ctx, func(name string, err error) {
			if !errors.Is(err, want) || errors.Is(err, kv.ErrUnknownOutcome) {
				f.Errorf("%s: error = %v, want %v", name, err, want)
			}
		})
	}
	f.wantRow("a", "k", kv.Row{Value: []byte("old"), Version: v})
	f.wantKeys("a", kv.Range{}, "k")
	if infos, err := f.db.Spaces(f.ctx); err != nil || len(infos) != 1 {
		f.Errorf("spaces = %v, %v", infos, err)
	}
	if entries, err := f.db.ReadFeed(f.ctx, "a", 0, "", 10); err != nil || len(entries) > 0 {
		f.Errorf("feed = %v, %v", entries, err)
	}
}

// caseCancelledDuring cancels commits at many moments. Whatever the answer is, the
// rows and the feed agree with it and with each other.
func caseCancelledDuring(f *fixture) {
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	f.space("b")
	unsure := map[string]bool{}
	for i := range 60 {
		key := numbered(i)
		ctx, cancel := context.WithCancel(f.ctx)
		timer := time.AfterFunc(time.Duration(i)*50*time.Microsecond, cancel)
		_, err := f.db.Commit(ctx, &kv.Txn{Writes: []kv.Write{
			fed(kv.Write{Space: "a", Key: []byte(key), Value: pattern(20_000)}, key), put("b", key, "x"),
		}})
		timer.Stop()
		cancel()
		unsure[key] = errors.Is(err, kv.ErrUnknownOutcome)
		if exists := f.get("b", key).Exists(); !unsure[key] && exists != (err == nil) {
			f.Fatalf("commit returned %v, row exists: %v", err, exists)
		}
	}
	f.reopen(f.clock) // a commit that is still on its way has ended
	inFeed := map[string]bool{}
	entries, err := f.db.ReadFeed(f.ctx, "a", 0, "", 1000)
	f.ok(err)
	for _, e := range entries {
		inFeed[string(e.Data)] = true
	}
	for i := range 60 {
		key := numbered(i)
		rows, err := f.db.Get(f.ctx, kv.Ref{Space: "a", Key: []byte(key)}, kv.Ref{Space: "b", Key: []byte(key)})
		f.ok(err)
		if rows[0].Exists() != rows[1].Exists() || rows[0].Exists() != inFeed[key] && !unsure[key] {
			f.Errorf("commit %s is there in part: %v, %v, feed %v", key, rows[0].Exists(), rows[1].Exists(), inFeed[key])
		}
	}
}

func caseFrozen(f *fixture) {
	if f.harness.Freeze == nil {
		return
	}
	f.space("a")
	v := f.write(put("a", "k", "old"))
	thaw := f.harness.Freeze(f.TB)
	// Each call gets a time of its own, so that each is under way when it ends.
	during := func(name string, call func(ctx context.Context) error) error {
		f.Helper()
		ctx, cancel := context.WithTimeout(f.ctx, 500*time.Millisecond)
		defer cancel()
		err := call(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			f.Errorf("%s without the server: error = %v, want %v", name, err, context.DeadlineExceeded)
		}
		return err
	}
	_ = during("Get", func(ctx context.Context) error {
		_, err := f.db.GetOne(ctx, "a", []byte("k"))
		return err
	})
	_ = during("Scan", func(ctx context.Context) error {
		return f.db.Scan(ctx, "a", kv.Range{}, func(kv.Row) bool { return true })
	})
	err := during("Commit", func(ctx context.Context) error {
		_, err := f.db.Commit(ctx, &kv.Txn{Writes: []kv.Write{put("a", "k", "new")}})
		return err
	})
	thaw()
	switch row := f.get("a", "k"); {
	case row.Version == v:
	case string(row.Value) == "new" && errors.Is(err, kv.ErrUnknownOutcome):
	default:
		f.Errorf("row = %+v after commit returned %v", row, err)
	}
	f.write(put("a", "k", "again"))
}

func caseClosed(f *fixture) {
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	f.write(put("a", "k", "x"))
	for range 3 {
		f.ok(f.engine.Close())
	}
	f.eachMethod(f.ctx, func(name string, err error) {
		if !errors.Is(err, kv.ErrClosed) {
			f.Errorf("%s: error = %v, want %v", name, err, kv.ErrClosed)
		}
	})
	f.open(f.clock)
	f.wantValue("a", "k", "x")
	f.wantKeys("a", kv.Range{}, "k")
}

// caseCloseRunning: calls that were running finish or say that the engine was
// closed, and what they acknowledged is there.
func caseCloseRunning(f *fixture) {
	f.space("a")
	started := make(chan struct{}, 1000)
	acked := make([]int, 4)
	engine := f.engine
	f.parallel(len(acked)+1, func(i int) error {
		if i == len(acked) {
			for range 20 {
				<-started
			}
			return engine.Close()
		}
		for {
			select {
			case started <- struct{}{}:
			default:
			}
			_, err := f.db.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{put("a", fmt.Sprintf("%d.%05d", i, acked[i]), "x")}})
			if err == nil {
				err = f.db.Scan(f.ctx, "a", kv.Range{Limit: 10}, func(kv.Row) bool { return true })
				acked[i]++
			}
			if errors.Is(err, kv.ErrClosed) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	f.open(f.clock)
	total := 0
	for _, n := range acked {
		total += n
	}
	if rows := len(f.keys("a", kv.Range{})); rows != total {
		f.Errorf("%d rows, %d were acknowledged", rows, total)
	}
}

func caseReopen(f *fixture) {
	f.space("a")
	f.space("b", feedOptions())
	var want []string
	var versions []kv.Version
	for i := range 50 {
		want = append(want, numbered(i))
		versions = append(versions, f.write(put("a", numbered(i), "x"), fed(put("b", numbered(i), "y"), "e"), put("a", "gone", "x")))
	}
	f.write(del("a", "gone"))
	at := f.clock.Now().Add(time.Hour)
	expiring := f.putExpiring("a", "z", "x", at)
	for range 2 {
		f.reopen(f.clock)
		f.wantKeys("a", kv.Range{}, append(want[:len(want):len(want)], "z")...)
		f.wantKeys("b", kv.Range{}, want...)
		for i, v := range versions {
			f.wantRow("b", numbered(i), kv.Row{Value: []byte("y"), Version: v})
		}
		f.wantRow("a", "z", kv.Row{Value: []byte("x"), Link: "gs://b/z", ExpiresAt: at, Version: expiring})
		entries := f.readFeed(&feedReader{db: f.db, space: "b", limit: 7})
		if len(entries) != len(want) {
			f.Errorf("%d entries, want %d", len(entries), len(want))
		}
	}
	f.conflicts([]kv.Check{check("b", "00000", versions[0]+1)}, nil, 0)
	f.commit([]kv.Check{check("b", "00000", versions[0])}, put("b", "00000", "z"))
}
