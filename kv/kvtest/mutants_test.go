package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// mutant is a Model with some methods replaced by wrong ones.
type mutant struct {
	*Model
	get         func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error)
	scan        func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error
	commit      func(ctx context.Context, t *kv.Txn) (kv.Version, error)
	readFeed    func(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error)
	createSpace func(ctx context.Context, name string, opts kv.SpaceOptions) error
	dropSpace   func(ctx context.Context, name string) error
	close       func() error
}

func (m *mutant) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	if m.get != nil {
		return m.get(ctx, refs)
	}
	return m.Model.Get(ctx, refs)
}

func (m *mutant) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	if m.scan != nil {
		return m.scan(ctx, space, r, fn)
	}
	return m.Model.Scan(ctx, space, r, fn)
}

func (m *mutant) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	if m.commit != nil {
		return m.commit(ctx, t)
	}
	return m.Model.Commit(ctx, t)
}

func (m *mutant) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	if m.readFeed != nil {
		return m.readFeed(ctx, space, shard, after, limit)
	}
	return m.Model.ReadFeed(ctx, space, shard, after, limit)
}

func (m *mutant) CreateSpace(ctx context.Context, name string, opts kv.SpaceOptions) error {
	if m.createSpace != nil {
		return m.createSpace(ctx, name, opts)
	}
	return m.Model.CreateSpace(ctx, name, opts)
}

func (m *mutant) DropSpace(ctx context.Context, name string) error {
	if m.dropSpace != nil {
		return m.dropSpace(ctx, name)
	}
	return m.Model.DropSpace(ctx, name)
}

func (m *mutant) Close() error {
	if m.close != nil {
		return m.close()
	}
	return m.Model.Close()
}

// yield is the time that an engine spends in the middle of what should be atomic.
func yield() { time.Sleep(10 * time.Microsecond) }

// eachWrite makes a mutant's commit change the writes first.
func eachWrite(change func(w *kv.Write)) func(*mutant) {
	return func(m *mutant) {
		m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
			changed := *t
			changed.Writes = slices.Clone(t.Writes)
			for i := range changed.Writes {
				change(&changed.Writes[i])
			}
			return m.Model.Commit(ctx, &changed)
		}
	}
}

func eachCheck(change func(c *kv.Check)) func(*mutant) {
	return func(m *mutant) {
		m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
			changed := *t
			changed.Checks = slices.Clone(t.Checks)
			for i := range changed.Checks {
				change(&changed.Checks[i])
			}
			return m.Model.Commit(ctx, &changed)
		}
	}
}

func eachRef(change func(r *kv.Ref)) func(*mutant) {
	return func(m *mutant) {
		m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
			changed := slices.Clone(refs)
			for i := range changed {
				change(&changed[i])
			}
			return m.Model.Get(ctx, changed)
		}
	}
}

func eachRange(change func(r *kv.Range)) func(*mutant) {
	return func(m *mutant) {
		m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
			change(&r)
			return m.Model.Scan(ctx, space, r, fn)
		}
	}
}

func eachScanned(change func(r *kv.Row)) func(*mutant) {
	return func(m *mutant) {
		m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
			return m.Model.Scan(ctx, space, r, func(row kv.Row) bool {
				change(&row)
				return fn(row)
			})
		}
	}
}

func eachConflict(change func(c *kv.ConflictError, t *kv.Txn) error) func(*mutant) {
	return func(m *mutant) {
		m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
			v, err := m.Model.Commit(ctx, t)
			var c *kv.ConflictError
			if errors.As(err, &c) {
				err = change(c, t)
			}
			return v, err
		}
	}
}

// afterCommit breaks the model once a commit is done. change holds the lock.
func afterCommit(change func(m *Model, t *kv.Txn)) func(*mutant) {
	return func(m *mutant) {
		m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
			v, err := m.Model.Commit(ctx, t)
			if err == nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				change(m.Model, t)
			}
			return v, err
		}
	}
}

type seeded struct {
	name   string
	mutate func(*mutant)
	cases  []string // each must fail
}

func mutants() []seeded {
	return slices.Concat(commitMutants(), readMutants(), expiryMutants(), feedMutants(), spaceMutants())
}

func commitMutants() []seeded {
	return []seeded{
		{"value of the caller kept", afterCommit(func(m *Model, t *kv.Txn) {
			for _, w := range t.Writes {
				if i, ok := m.spaces[w.Space].find(w.Key); ok {
					m.spaces[w.Space].rows[i].value = w.Value
				}
			}
		}), []string{"EngineKeepsNoBytesOfTheCaller"}},
		{"check and write not atomic", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				if _, err := m.Model.Commit(ctx, &kv.Txn{Checks: t.Checks}); err != nil {
					return 0, err
				}
				yield()
				return m.Model.Commit(ctx, &kv.Txn{Writes: t.Writes})
			}
		}, []string{"OneWinnerPerVersion", "OneInsertOfAnAbsentKeyWins", "WriteSkewIsRefused", "ReadsOfAbsentKeysAreProtected", "GetIsAConsistentCutDuringTransfers", "ConcurrentTransactionsAreSerializable"}},
		{"rows read but not written are not checked", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				written := func(c kv.Check) bool {
					return slices.ContainsFunc(t.Writes, func(w kv.Write) bool { return place(w.Space, w.Key) == place(c.Space, c.Key) })
				}
				changed := *t
				changed.Checks = slices.DeleteFunc(slices.Clone(t.Checks), func(c kv.Check) bool { return len(t.Writes) > 0 && !written(c) })
				return m.Model.Commit(ctx, &changed)
			}
		}, []string{"WriteSkewIsRefused", "ReadsOfAbsentKeysAreProtected", "ConcurrentTransactionsAreSerializable", "ChecksDecideWhetherWritesHappen"}},
		{"large commit does not exclude small ones", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				if len(t.Writes) <= 100 {
					return m.Model.Commit(ctx, t)
				}
				if _, err := m.Model.Commit(ctx, &kv.Txn{Checks: t.Checks}); err != nil {
					return 0, err
				}
				yield()
				return m.Model.Commit(ctx, &kv.Txn{Writes: t.Writes})
			}
		}, []string{"LargeAndSmallCommitsExcludeEachOther"}},
		{"commit torn", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (v kv.Version, err error) {
				if v, err = m.Model.Commit(ctx, &kv.Txn{Checks: t.Checks}); err != nil {
					return 0, err
				}
				for i := range t.Writes {
					if v, err = m.Model.Commit(ctx, &kv.Txn{Writes: t.Writes[i : i+1]}); err != nil {
						return 0, err
					}
					yield()
				}
				return v, nil
			}
		}, []string{"CommitIsAtomicAcrossSpaces", "MissingSpaceWritesNothing", "CommitOverSpacesIsOneVersion"}},
		{"versions used again after a delete", afterCommit(func(m *Model, t *kv.Txn) {
			if slices.ContainsFunc(t.Writes, func(w kv.Write) bool { return w.Delete }) {
				m.last = 0
			}
		}), []string{"VersionsRiseOverDeletionAndReCreation", "VersionsRiseOverReopenWithEarlierClock"}},
		{"versions follow the clock back", afterCommit(func(m *Model, t *kv.Txn) { m.last = min(m.last, kv.VersionAt(m.clock.Now())) }),
			[]string{"VersionsRiseWhateverTheClockDoes", "VersionIsAboveEveryCheckedOne", "ABAConflicts"}},
		{"checks of absence always hold", eachCheck(func(c *kv.Check) {
			if c.Version == 0 {
				c.Key = append([]byte("\xfe\xfe no such row"), c.Key...)
			}
		}), []string{"ChecksDecideWhetherWritesHappen", "OneInsertOfAnAbsentKeyWins"}},
		{"conflict names all checks", eachConflict(func(c *kv.ConflictError, t *kv.Txn) error {
			c.Refs = nil
			for _, check := range t.Checks {
				c.Refs = append(c.Refs, kv.Ref{Space: check.Space, Key: check.Key})
			}
			return c
		}), []string{"ConflictNamesExactlyTheFailedChecks"}},
		{"conflict names one check", eachConflict(func(c *kv.ConflictError, _ *kv.Txn) error { c.Refs = c.Refs[:1]; return c }),
			[]string{"ConflictNamesExactlyTheFailedChecks"}},
		{"native error of a conflict", eachConflict(func(*kv.ConflictError, *kv.Txn) error { return errors.New("40001") }),
			[]string{"ChecksDecideWhetherWritesHappen", "OneWinnerPerVersion"}},
		{"context ignored", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				return m.Model.Commit(context.WithoutCancel(ctx), t)
			}
		}, []string{"CancelledBeforeTheCallDoesNothing"}},
		{"works after Close", func(m *mutant) { m.close = func() error { return nil } }, []string{"UseAfterCloseIsAnError"}},
		{"links lost", eachWrite(func(w *kv.Write) { w.Link = "" }), []string{"RowKeepsAllItsFields", "ScanShowsWholeRows"}},
		{"values cut at 64 KiB", eachWrite(func(w *kv.Write) { w.Value = w.Value[:min(len(w.Value), 64<<10)] }), []string{"ValuesOfEverySize"}},
		{"keys cut at a zero byte", eachWrite(func(w *kv.Write) {
			if i := bytes.IndexByte(w.Key, 0); i > 0 {
				w.Key = w.Key[:i]
			}
		}), []string{"KeysOfAnyBytesAreApartAndOrdered"}},
	}
}

func readMutants() []seeded {
	return []seeded{
		{"get row by row", func(m *mutant) {
			m.get = func(ctx context.Context, refs []kv.Ref) (rows []kv.Row, err error) {
				for i := range refs {
					row, err := m.Model.Get(ctx, refs[i:i+1])
					if err != nil {
						return nil, err
					}
					rows = append(rows, row...)
					yield()
				}
				return rows, nil
			}
		}, []string{"GetIsAConsistentCutDuringTransfers", "CommitIsAtomicAcrossSpaces"}},
		{"get hands out its own bytes", func(m *mutant) {
			m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
				rows, err := m.Model.Get(ctx, refs)
				m.mu.Lock()
				defer m.mu.Unlock()
				for i := range rows {
					if j, ok := m.spaces[refs[i].Space].find(refs[i].Key); ok && rows[i].Exists() {
						rows[i].Value = m.spaces[refs[i].Space].rows[j].value
					}
				}
				return rows, err
			}
		}, []string{"RowsOfGetBelongToTheCaller"}},
		{"rows of get in the order of their keys", func(m *mutant) {
			m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
				rows, err := m.Model.Get(ctx, refs)
				slices.SortFunc(rows, func(a, b kv.Row) int { return bytes.Compare(a.Key, b.Key) })
				return rows, err
			}
		}, []string{"GetKeepsTheOrderOfItsRefs", "GetOfManyRowsIsAsGetOfEach"}},
		{"get finds a key named twice once", func(m *mutant) {
			m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
				rows, err := m.Model.Get(ctx, refs)
				seen := map[string]bool{}
				for i, ref := range refs {
					if p := place(ref.Space, ref.Key); seen[p] {
						rows[i] = kv.Row{Key: rows[i].Key}
					} else {
						seen[p] = true
					}
				}
				return rows, err
			}
		}, []string{"GetKeepsTheOrderOfItsRefs", "GetOfManyRowsIsAsGetOfEach"}},
		{"get shows all rows as its first ref wants", func(m *mutant) {
			m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
				changed := slices.Clone(refs)
				for i := range changed {
					changed[i].IncludeExpired = refs[0].IncludeExpired
				}
				return m.Model.Get(ctx, changed)
			}
		}, []string{"GetOfManyRowsIsAsGetOfEach"}},
		{"absence is an error", func(m *mutant) {
			m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
				rows, err := m.Model.Get(ctx, refs)
				for _, r := range rows {
					if !r.Exists() {
						return nil, errors.New("not found")
					}
				}
				return rows, err
			}
		}, []string{"AbsentRowReadsAsVersionZero"}},
		{"end of a scan inclusive", eachRange(func(r *kv.Range) {
			if len(r.End) > 0 {
				r.End = append(bytes.Clone(r.End), 0)
			}
		}), []string{"ScanKeepsBoundsOrderAndLimit", "KeysOfAnyBytesAreApartAndOrdered"}},
		{"empty end means none", eachRange(func(r *kv.Range) {
			if len(r.End) == 0 {
				r.End = nil
			}
		}), []string{"ScanKeepsBoundsOrderAndLimit"}},
		{"reverse ignored", eachRange(func(r *kv.Range) { r.Reverse = false }), []string{"ScanKeepsBoundsOrderAndLimit"}},
		{"start of a reverse scan exclusive", eachRange(func(r *kv.Range) {
			if r.Reverse && len(r.Start) > 0 {
				r.Start = append(bytes.Clone(r.Start), 0)
			}
		}), []string{"ScanKeepsBoundsOrderAndLimit"}},
		{"one row too many", eachRange(func(r *kv.Range) {
			if r.Limit > 0 {
				r.Limit++
			}
		}), []string{"ScanKeepsBoundsOrderAndLimit"}},
		{"row at a page border twice", func(m *mutant) {
			m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
				n := 0
				return m.Model.Scan(ctx, space, r, func(row kv.Row) bool {
					n++
					return fn(row) && (n%1000 != 0 || fn(row))
				})
			}
		}, []string{"ScanCrossesPageBorders"}},
		{"scan ends at a page", func(m *mutant) {
			m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
				n := 0
				return m.Model.Scan(ctx, space, r, func(row kv.Row) bool { n++; return fn(row) && n < 1000 })
			}
		}, []string{"ScanCrossesPageBorders"}},
		{"cancelled scan looks complete", func(m *mutant) {
			m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
				if err := m.Model.Scan(ctx, space, r, fn); !errors.Is(err, context.Canceled) {
					return err
				}
				return nil
			}
		}, []string{"ScanEndsOnCancelOrShowsAll"}},
		{"scan ends at a page of large rows", func(m *mutant) {
			m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
				size := 0
				return m.Model.Scan(ctx, space, r, func(row kv.Row) bool { size += len(row.Value); return fn(row) && size < 8<<20 })
			}
		}, []string{"ScanOfLargeRowsShowsAll"}},
		{"scan has no values", eachScanned(func(r *kv.Row) { r.Value = nil }), []string{"ScanShowsWholeRows"}},
		{"scan has no links", eachScanned(func(r *kv.Row) { r.Link = "" }), []string{"ScanShowsWholeRows"}},
	}
}

func expiryMutants() []seeded {
	later := func(w *kv.Write) {
		if !w.ExpiresAt.IsZero() {
			w.ExpiresAt = w.ExpiresAt.Add(time.Microsecond)
		}
	}
	return []seeded{
		{"get shows expired rows", eachRef(func(r *kv.Ref) { r.IncludeExpired = true }), []string{"ExpiredRowIsInvisibleAtTheVeryInstant", "IncludeExpiredShowsRowsAsStored"}},
		{"scan shows expired rows", eachRange(func(r *kv.Range) { r.IncludeExpired = true }), []string{"ExpiredRowIsInvisibleAtTheVeryInstant", "ExpiredRowsDoNotCountForLimits"}},
		{"checks see expired rows", eachCheck(func(c *kv.Check) { c.IncludeExpired = true }), []string{"ExpiredRowIsInvisibleAtTheVeryInstant", "ChecksOfExpiredRows", "ExpiredRowsAreTakenOver"}},
		{"get ignores IncludeExpired", eachRef(func(r *kv.Ref) { r.IncludeExpired = false }), []string{"IncludeExpiredShowsRowsAsStored"}},
		{"scan ignores IncludeExpired", eachRange(func(r *kv.Range) { r.IncludeExpired = false }), []string{"IncludeExpiredShowsRowsAsStored"}},
		{"checks ignore IncludeExpired", eachCheck(func(c *kv.Check) { c.IncludeExpired = false }), []string{"ChecksOfExpiredRows", "ExpiredRowsAreTakenOver"}},
		{"expiry one tick late", eachWrite(later), []string{"ExpiredRowIsInvisibleAtTheVeryInstant", "ExpiryIsKeptToTheMicrosecond"}},
		{"expiry cut to seconds", eachWrite(func(w *kv.Write) { w.ExpiresAt = w.ExpiresAt.Truncate(time.Second) }), []string{"RowKeepsAllItsFields", "ExpiryIsKeptToTheMicrosecond"}},
		{"expired rows count for the limit", func(m *mutant) {
			m.scan = func(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
				included := r.IncludeExpired
				r.IncludeExpired = true
				return m.Model.Scan(ctx, space, r, func(row kv.Row) bool { return row.Expired && !included || fn(row) })
			}
		}, []string{"ExpiredRowsDoNotCountForLimits"}},
	}
}

func feedMutants() []seeded {
	return []seeded{
		{"feed entries of deletes lost", eachWrite(func(w *kv.Write) {
			if w.Delete {
				w.Feed = nil
			}
		}), []string{"FeedEntryExistsIfAndOnlyIfItsWriteDoes", "FeedKeepsTheOrderOfEachKeyInOneShard"}},
		{"empty feed entries lost", eachWrite(func(w *kv.Write) {
			if len(w.Feed) == 0 {
				w.Feed = nil
			}
		}), []string{"FeedEntryExistsIfAndOnlyIfItsWriteDoes"}},
		{"feed written without the commit", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				v, err := m.Model.Commit(ctx, t)
				m.mu.Lock()
				defer m.mu.Unlock()
				for _, w := range t.Writes {
					if err != nil && w.Feed != nil && m.spaces[w.Space] != nil {
						m.entries++
						m.spaces[w.Space].feed(w.Key).append(modelEntry{number: m.entries, key: bytes.Clone(w.Key), version: m.last, data: w.Feed})
					}
				}
				return v, err
			}
		}, []string{"FeedEntryExistsIfAndOnlyIfItsWriteDoes"}},
		{"feed entry repeated at the border", func(m *mutant) {
			again := map[string]bool{}
			var mu sync.Mutex
			m.readFeed = func(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
				entries, err := m.Model.ReadFeed(ctx, space, shard, after, limit)
				mu.Lock()
				defer mu.Unlock()
				if id := fmt.Sprint(space, shard, after, limit); len(entries) > 1 && !again[id] {
					again[id] = true
					entries[len(entries)-1].Position = entries[len(entries)-2].Position
				}
				return entries, err
			}
		}, []string{"FeedReadInPiecesIsTheSame", "FeedReaderMissesAndRepeatsNothingWhileManyCommit"}},
		{"feed reader passes commits in flight", func(m *mutant) {
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				silent := *t
				silent.Writes = slices.Clone(t.Writes)
				for i := range silent.Writes {
					silent.Writes[i].Feed = nil
				}
				m.mu.Lock()
				first := m.entries
				m.entries += uint64(len(t.Writes))
				m.mu.Unlock()
				yield()
				v, err := m.Model.Commit(ctx, &silent)
				if err != nil {
					return v, err
				}
				m.mu.Lock()
				defer m.mu.Unlock()
				for i, w := range t.Writes {
					if f := m.spaces[w.Space].feed(w.Key); w.Feed != nil {
						e := modelEntry{number: first + uint64(i) + 1, key: bytes.Clone(w.Key), version: v, data: bytes.Clone(w.Feed)}
						at, _ := slices.BinarySearchFunc(f.entries, e.number, func(e modelEntry, n uint64) int { return int(e.number) - int(n) })
						f.entries = slices.Insert(f.entries, at, e)
					}
				}
				return v, nil
			}
		}, []string{"FeedReaderMissesAndRepeatsNothingWhileManyCommit"}},
		{"large feed entries passed over", func(m *mutant) {
			m.readFeed = func(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
				entries, err := m.Model.ReadFeed(ctx, space, shard, after, limit)
				size := 0
				for i := range entries {
					if size += len(entries[i].Data); size > 2<<20 {
						entries[i].Position = entries[len(entries)-1].Position
						return entries[:i+1], err
					}
				}
				return entries, err
			}
		}, []string{"FeedOfLargeEntriesIsReadToItsEnd"}},
		{"trimmed entries passed over in silence", func(m *mutant) {
			m.readFeed = func(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
				entries, err := m.Model.ReadFeed(ctx, space, shard, after, limit)
				if errors.Is(err, kv.ErrFeedTrimmed) {
					return m.Model.ReadFeed(ctx, space, shard, "", limit)
				}
				return entries, err
			}
		}, []string{"FeedForgetsAfterItsRetention"}},
		{"removed entries forgotten", func(m *mutant) {
			m.readFeed = func(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
				entries, err := m.Model.ReadFeed(ctx, space, shard, after, limit)
				if !errors.Is(err, kv.ErrFeedTrimmed) {
					return entries, err
				}
				if entries, err = m.Model.ReadFeed(ctx, space, shard, "", limit); len(entries) > 0 {
					return entries, err
				}
				return nil, kv.ErrFeedTrimmed // as long as there is nothing else to show
			}
		}, []string{"FeedKnowsWhatItHasRemoved"}},
		{"feed never trimmed", func(m *mutant) {
			m.createSpace = func(ctx context.Context, name string, opts kv.SpaceOptions) error {
				opts.FeedRetention *= 1000
				return m.Model.CreateSpace(ctx, name, opts)
			}
		}, []string{"FeedForgetsAfterItsRetention"}},
	}
}

func spaceMutants() []seeded {
	return []seeded{
		{"other options accepted", func(m *mutant) {
			m.createSpace = func(ctx context.Context, name string, opts kv.SpaceOptions) error {
				if err := m.Model.CreateSpace(ctx, name, opts); !errors.Is(err, kv.ErrSpaceMismatch) {
					return err
				}
				return nil
			}
		}, []string{"SpaceOptionsAreFixed"}},
		{"dropped rows come back", func(m *mutant) {
			dropped := map[string]*modelSpace{}
			m.dropSpace = func(ctx context.Context, name string) error {
				m.mu.Lock()
				dropped[name] = m.spaces[name]
				m.mu.Unlock()
				return m.Model.DropSpace(ctx, name)
			}
			m.createSpace = func(ctx context.Context, name string, opts kv.SpaceOptions) error {
				err := m.Model.CreateSpace(ctx, name, opts)
				m.mu.Lock()
				defer m.mu.Unlock()
				if old := dropped[name]; err == nil && old != nil {
					m.spaces[name] = old
				}
				return err
			}
		}, []string{"ReCreatedSpaceIsEmpty", "FeedOfReCreatedSpaceIsEmpty"}},
		{"space without rows forgets its versions", func(m *mutant) {
			m.dropSpace = func(ctx context.Context, name string) error {
				m.mu.Lock()
				if s := m.spaces[name]; s != nil && len(s.rows) == 0 {
					m.last = 0
				}
				m.mu.Unlock()
				return m.Model.DropSpace(ctx, name)
			}
		}, []string{"VersionsAreNotReusedInReCreatedSpaces"}},
		{"space dropped by another process not noticed", func(m *mutant) {
			known := map[string]bool{}
			m.createSpace = func(ctx context.Context, name string, opts kv.SpaceOptions) error {
				known[name] = true
				return m.Model.CreateSpace(ctx, name, opts)
			}
			m.get = func(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
				rows, err := m.Model.Get(ctx, refs)
				if errors.Is(err, kv.ErrSpaceNotFound) && known[refs[0].Space] {
					return make([]kv.Row, len(refs)), nil
				}
				return rows, err
			}
		}, []string{"SpaceReplacedByAnotherProcess"}},
		{"names of spaces without case", func(m *mutant) {
			eachWrite(func(w *kv.Write) { w.Space = strings.ToLower(w.Space) })(m)
			eachRef(func(r *kv.Ref) { r.Space = strings.ToLower(r.Space) })(m)
		}, []string{"SpacesOfAnyNameAreApart"}},
		{"reopen loses the last commits", func(m *mutant) {
			var synced *Model
			n := 0
			m.commit = func(ctx context.Context, t *kv.Txn) (kv.Version, error) {
				v, err := m.Model.Commit(ctx, t)
				if n++; n%40 == 0 {
					synced = m.Clone(m.clock)
				}
				return v, err
			}
			m.close = func() error {
				if synced != nil {
					m.mu.Lock()
					m.spaces, m.last, m.entries = synced.spaces, synced.last, synced.entries
					m.mu.Unlock()
				}
				return m.Model.Close()
			}
		}, []string{"ReopenSeesEverythingAcknowledged"}},
	}
}

// fakeTB notes whether a case failed.
type fakeTB struct {
	testing.TB
	mu     sync.Mutex
	failed string
}

func (f *fakeTB) fail(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == "" {
		f.failed = s
	}
}

func (f *fakeTB) Errorf(format string, args ...any) { f.fail(fmt.Sprintf(format, args...)) }
func (f *fakeTB) Logf(string, ...any)               {}
func (f *fakeTB) Fatalf(format string, args ...any) {
	f.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// tryCase runs a case on a mutant and returns how it failed, or "".
func tryCase(t *testing.T, name string, mutate func(*mutant)) string {
	t.Helper()
	for _, c := range suiteCases() {
		if c.name != name {
			continue
		}
		tb := &fakeTB{TB: t}
		runCase(tb, Harness{Limits: ModelLimits, Shared: true, NewStore: func(testing.TB) Store {
			var model *Model
			return func(_ testing.TB, c clock.Clock) kv.Engine {
				if model == nil {
					model = NewModel(c)
				} else {
					model = model.Open(c)
				}
				m := &mutant{Model: model}
				mutate(m)
				return m
			}
		}}, c)
		return tb.failed
	}
	t.Fatalf("no case %s", name)
	return ""
}

func TestSuiteCatchesSeededFaults(t *testing.T) {
	for _, s := range mutants() {
		t.Run(s.name, func(t *testing.T) {
			for _, name := range s.cases {
				if tryCase(t, name, s.mutate) == "" {
					t.Errorf("%s passed", name)
				}
				if failed := tryCase(t, name, func(*mutant) {}); failed != "" {
					t.Errorf("%s failed without the fault: %s", name, failed)
				}
			}
		})
	}
}
