package spanner_test

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/kv/spanner"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

func TestConformance(t *testing.T) {
	var last *spandbtest.Server
	kvtest.Run(t, kvtest.Harness{
		Limits: spanner.Limits(),
		Shared: true,
		NewStore: func(tb testing.TB) kvtest.Store {
			server := spandbtest.Start(tb, nil)
			last = server
			return func(tb testing.TB, c clock.Clock) kv.Engine {
				tb.Helper()
				server.SetClock(c) // commit timestamps are what versions are made of
				return open(tb, server, c)
			}
		},
		Freeze: func(testing.TB) func() { return last.Freeze() },
	})
}

// open opens an engine that may change the schema.
func open(tb testing.TB, server *spandbtest.Server, c clock.Clock) *spanner.Engine {
	tb.Helper()
	e, err := spanner.Open(context.Background(), spanner.Options{
		Database: spandbtest.Database, AutoSchema: true, Clock: c, ClientOptions: server.ClientOptions(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}
