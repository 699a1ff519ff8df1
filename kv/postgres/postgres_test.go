package postgres_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

func TestConformance(t *testing.T) {
	server := pgtest.Shared(t)
	var proxy *pgtest.Proxy // of the last store
	kvtest.Run(t, kvtest.Harness{
		Limits: postgres.Limits(),
		Shared: true,
		NewStore: func(tb testing.TB) kvtest.Store {
			proxy = pgtest.NewProxy(tb, server)
			options := postgres.Options{URL: proxy.URL(), Schema: pgtest.NewSchema()}
			return func(tb testing.TB, c clock.Clock) kv.Engine {
				tb.Helper()
				options := options
				options.Clock = c
				e, err := postgres.Open(tb.Context(), options)
				if err != nil {
					tb.Fatal(err)
				}
				return e
			}
		},
		Freeze: func(testing.TB) func() { return proxy.Freeze() },
	})
}
