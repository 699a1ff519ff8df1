// Package transfer moves everything that one engine and object store hold into
// another pair: rows with their links and deadlines, queues, objects.
//
// Nobody may use either pair meanwhile. Objects go first, so that at every moment
// each row of the target has its object. What is done is noted in the target, so that
// a transfer that was interrupted goes on where it stood, and repeats a little at most:
//
//	space          key            value
//	holdfast_copy  "s"            the id of the transfer's source
//	               "o"            the name up to which all objects are there
//	               "r", space     the key up to which all rows of a space are there
//	               "d"            nothing: everything is there
//
// Rows get new versions, each larger than the one that it had. The entries of feeds
// stay behind.
package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Space is the space in the target that notes how far a transfer has come.
const Space = "holdfast_copy"

// Spaces returns the spaces that a target needs beside those of its source.
func Spaces() []kv.SpaceInfo { return []kv.SpaceInfo{{Name: Space}} }

var (
	sourceKey  = []byte{'s'}
	objectsKey = []byte{'o'}
	doneKey    = []byte{'d'}
)

func rowsKey(space string) []byte { return append([]byte{'r'}, space...) }

var (
	// ErrNotEmpty says that the target holds data that no transfer has put there.
	ErrNotEmpty = errors.New("the target is not empty")
	// ErrOtherSource says that the target holds part of another source.
	ErrOtherSource = errors.New("the target holds an unfinished copy of another source")
	// ErrUnfinished says that a transfer into an engine has begun and not ended.
	ErrUnfinished = errors.New("a copy into this engine was begun and not finished")
	// ErrClockBehind says that rows of the source have versions far in the future
	// of the clock here.
	ErrClockBehind = errors.New("the source's clock is far ahead of the clock here")
)

// Side is an engine, without hooks, and the object store that its rows point into.
type Side struct {
	DB      *kv.DB
	Objects *blob.Store
}

// Options says what to transfer. From, To, SourceID and Clock are required.
type Options struct {
	From, To Side
	// SourceID tells sources apart, so that two are never mixed in one target.
	SourceID string
	Clock    clock.Clock
	// Concurrency is how many objects are copied at a time. Default 8.
	Concurrency int
	// Progress, if not nil, is told now and then how many items of a phase are
	// there. It is called by one goroutine at a time.
	Progress func(phase string, done int64)
}

// Report sums a transfer up. Items of an earlier, interrupted run do not count.
type Report struct {
	Spaces  int   `json:"spaces"`
	Rows    int64 `json:"rows"`
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"object_bytes"`
}

// Run transfers everything, or what an interrupted transfer has left. It may be
// repeated until it returns no error; after that it does nothing.
func Run(ctx context.Context, opts Options) (Report, error) {
	t := &transfer{Options: opts}
	if t.Concurrency <= 0 {
		t.Concurrency = 8
	}
	if err := t.run(ctx); err != nil {
		return t.report, fmt.Errorf("copy: %w", err)
	}
	return t.report, nil
}

// Check returns ErrUnfinished if a transfer into db has begun and not ended: then
// db must not be used for anything else.
func Check(ctx context.Context, db *kv.DB) error {
	rows, err := db.Get(ctx, kv.Ref{Space: Space, Key: sourceKey}, kv.Ref{Space: Space, Key: doneKey})
	if errors.Is(err, kv.ErrSpaceNotFound) {
		return nil
	}
	if err == nil && rows[0].Exists() && !rows[1].Exists() {
		err = ErrUnfinished
	}
	return err
}

type transfer struct {
	Options
	report Report
}

func (t *transfer) progress(phase string, done int64) {
	if t.Progress != nil {
		t.Progress(phase, done)
	}
}

func (t *transfer) run(ctx context.Context) error {
	spaces, err := t.From.DB.Spaces(ctx)
	if err != nil {
		return err
	}
	if err := Check(ctx, t.From.DB); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	done, err := t.begin(ctx, spaces)
	if err != nil || done {
		return err
	}
	if err := t.copyObjects(ctx); err != nil {
		return err
	}
	for _, s := range spaces {
		if s.Name == Space {
			continue
		}
		if err := t.copySpace(ctx, s); err != nil {
			return fmt.Errorf("space %s: %w", s.Name, err)
		}
		t.report.Spaces++
	}
	_, err = t.To.DB.Commit(ctx, &kv.Txn{Writes: []kv.Write{note(doneKey, nil)}})
	return err
}

func note(key, value []byte) kv.Write { return kv.Write{Space: Space, Key: key, Value: value} }

// begin claims the target for this transfer. It reports whether the transfer was
// finished before.
func (t *transfer) begin(ctx context.Context, spaces []kv.SpaceInfo) (done bool, err error) {
	if err := t.To.DB.CreateSpace(ctx, Space, kv.SpaceOptions{}); err != nil {
		return false, err
	}
	rows, err := t.To.DB.Get(ctx, kv.Ref{Space: Space, Key: sourceKey}, kv.Ref{Space: Space, Key: doneKey})
	switch {
	case err != nil:
		return false, err
	case rows[0].Exists() && string(rows[0].Value) != t.SourceID:
		return false, ErrOtherSource
	case rows[0].Exists():
		return rows[1].Exists(), nil
	}
	for _, s := range spaces {
		if err := t.wantEmpty(ctx, s.Name); err != nil {
			return false, err
		}
	}
	_, err = t.To.DB.Commit(ctx, &kv.Txn{
		Checks: []kv.Check{{Space: Space, Key: sourceKey}},
		Writes: []kv.Write{note(sourceKey, []byte(t.SourceID))},
	})
	return false, err
}

func (t *transfer) wantEmpty(ctx context.Context, space string) error {
	empty := true
	err := t.To.DB.Scan(ctx, space, kv.Range{Limit: 1, IncludeExpired: true}, func(kv.Row) bool {
		empty = false
		return false
	})
	if errors.Is(err, kv.ErrSpaceNotFound) {
		return nil
	}
	if err == nil && !empty {
		err = fmt.Errorf("%w: space %s has rows", ErrNotEmpty, space)
	}
	return err
}

const (
	// batchRows and batchBytes bound one commit, together with the limits of the
	// target.
	batchRows  = 500
	batchBytes = 4 << 20

	// mostAhead is how far the source's clock may be ahead: so long is waited for
	// versions to be in the past.
	mostAhead = time.Minute
)

// batch is what one commit writes.
type batch struct {
	writes []kv.Write
	bytes  int
	last   []byte     // key of the last row
	newest kv.Version // the largest version of its rows in the source
	before []byte     // key of the last row of the batch before
}

func (b *batch) add(space string, row kv.Row, link string) {
	w := kv.Write{Space: space, Key: bytes.Clone(row.Key), Value: bytes.Clone(row.Value), Link: link, ExpiresAt: row.ExpiresAt}
	b.writes = append(b.writes, w)
	b.bytes += len(w.Key) + len(w.Value) + len(w.Link)
	b.last = w.Key
	b.newest = max(b.newest, row.Version)
}

func (t *transfer) copySpace(ctx context.Context, s kv.SpaceInfo) error {
	if err := t.To.DB.CreateSpace(ctx, s.Name, s.SpaceOptions); err != nil {
		return err
	}
	start, err := t.position(ctx, rowsKey(s.Name))
	if err != nil {
		return err
	}
	limits := t.To.DB.Limits()
	rows, size := min(batchRows, limits.CommitRows-1), min(batchBytes, limits.CommitBytes/2)
	var b batch
	var failure error
	err = t.From.DB.Scan(ctx, s.Name, kv.Range{Start: start, IncludeExpired: true}, func(row kv.Row) bool {
		var link string
		if link, failure = t.relink(row.Link); failure != nil {
			failure = fmt.Errorf("row %q: %w", row.Key, failure)
			return false
		}
		b.add(s.Name, row, link)
		if len(b.writes) >= rows || b.bytes >= size {
			failure = t.flush(ctx, s.Name, &b)
		}
		return failure == nil
	})
	if err := errors.Join(err, failure); err != nil {
		return err
	}
	if err := t.flush(ctx, s.Name, &b); err != nil || b.before == nil {
		return err
	}
	_, err = t.To.DB.Commit(ctx, &kv.Txn{Writes: []kv.Write{note(rowsKey(s.Name), b.before)}})
	return err
}

// relink returns the URL in the target of the object that a link of the source
// names.
func (t *transfer) relink(link string) (string, error) {
	if link == "" {
		return "", nil
	}
	name, err := t.From.Objects.Name(link)
	if err != nil {
		return "", err
	}
	return t.To.Objects.URL(name), nil
}

// position returns where to go on behind what a note says is there.
func (t *transfer) position(ctx context.Context, key []byte) ([]byte, error) {
	row, err := t.To.DB.GetOne(ctx, Space, key)
	if err != nil || !row.Exists() {
		return nil, err
	}
	return append(row.Value, 0), nil
}

// flush commits a batch and empties it. The note that its rows are there goes with the
// next one, when their versions are known to be right.
func (t *transfer) flush(ctx context.Context, space string, b *batch) error {
	if len(b.writes) == 0 {
		return nil
	}
	if err := t.waitFor(ctx, b.newest); err != nil {
		return err
	}
	n, writes := len(b.writes), b.writes
	if b.before != nil {
		writes = append(writes, note(rowsKey(space), b.before))
	}
	v, err := t.To.DB.Commit(ctx, &kv.Txn{Writes: writes})
	if err != nil {
		return err
	}
	if v <= b.newest {
		return fmt.Errorf("%w: a row of version %d got version %d", ErrClockBehind, b.newest, v)
	}
	t.report.Rows += int64(n)
	t.progress("rows", t.report.Rows)
	*b = batch{writes: b.writes[:0], before: b.last}
	return nil
}

// waitFor waits until the clock is past a version.
func (t *transfer) waitFor(ctx context.Context, v kv.Version) error {
	ahead := v.Time().Sub(t.Clock.Now()) + time.Millisecond
	if v == 0 || ahead <= 0 {
		return nil
	}
	if ahead > mostAhead {
		return fmt.Errorf("%w: by %v", ErrClockBehind, ahead.Round(time.Second))
	}
	timer := time.NewTimer(ahead)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
