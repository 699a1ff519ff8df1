package pebble_test

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/kv/pebble"
)

func TestConformance(t *testing.T) {
	kvtest.Run(t, kvtest.Harness{
		Limits: pebble.Limits(),
		NewStore: func(tb testing.TB) kvtest.Store {
			disk := vfs.NewMem()
			return func(tb testing.TB, c clock.Clock) kv.Engine {
				tb.Helper()
				e, err := pebble.Open(context.Background(), "/data", pebble.Options{Clock: c, FS: disk})
				if err != nil {
					tb.Fatal(err)
				}
				return e
			}
		},
	})
}
