package bigtable

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// pair is an engine that does its calls by turns through two others, as clients
// behind a load balancer do.
type pair struct {
	engines [2]kv.Engine
	n       atomic.Int64
}

func (p *pair) next() kv.Engine { return p.engines[p.n.Add(1)%2] }

func (p *pair) CreateSpace(ctx context.Context, name string, o kv.SpaceOptions) error {
	return p.next().CreateSpace(ctx, name, o)
}
func (p *pair) DropSpace(ctx context.Context, name string) error {
	return p.next().DropSpace(ctx, name)
}
func (p *pair) Spaces(ctx context.Context) ([]kv.SpaceInfo, error) { return p.next().Spaces(ctx) }
func (p *pair) Get(ctx context.Context, refs []kv.Ref) ([]kv.Row, error) {
	return p.next().Get(ctx, refs)
}
func (p *pair) Scan(ctx context.Context, space string, r kv.Range, fn func(kv.Row) bool) error {
	return p.next().Scan(ctx, space, r, fn)
}
func (p *pair) Commit(ctx context.Context, t *kv.Txn) (kv.Version, error) {
	return p.next().Commit(ctx, t)
}
func (p *pair) ReadFeed(ctx context.Context, space string, shard int, after kv.Position, limit int) ([]kv.FeedEntry, error) {
	return p.next().ReadFeed(ctx, space, shard, after, limit)
}
func (p *pair) Close() error { return errors.Join(p.engines[0].Close(), p.engines[1].Close()) }

// The whole suite, with every other call made by another process.
func TestConformanceOverTwoProcesses(t *testing.T) {
	slow(t)
	var last *server
	kvtest.Run(t, kvtest.Harness{
		Limits: Limits(),
		Shared: true,
		NewStore: func(tb testing.TB) kvtest.Store {
			last = newServer(tb)
			s := last
			return func(tb testing.TB, c clock.Clock) kv.Engine {
				tb.Helper()
				p := &pair{}
				for i := range p.engines {
					e, err := Open(context.Background(), s.options(c))
					if err != nil {
						tb.Fatal(err)
					}
					p.engines[i] = e
				}
				return p
			}
		},
		Freeze: func(testing.TB) func() { return last.freeze() },
	})
}
