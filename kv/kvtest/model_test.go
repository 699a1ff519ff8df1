package kvtest_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func TestModelPassesTheSuite(t *testing.T) {
	kvtest.Run(t, kvtest.Harness{
		NewStore: newModelStore,
		Limits:   kvtest.ModelLimits,
		Shared:   true,
	})
}

func newModelStore(testing.TB) kvtest.Store {
	var model *kvtest.Model
	return func(_ testing.TB, c clock.Clock) kv.Engine {
		if model == nil {
			model = kvtest.NewModel(c)
		} else {
			model = model.Open(c)
		}
		return model
	}
}
