package kvtest

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// With nothing to inject, Faults is the engine that it wraps.
func TestFaultsPassTheSuite(t *testing.T) {
	for _, c := range suiteCases() {
		t.Run(c.name, func(t *testing.T) {
			runCase(t, Harness{Limits: ModelLimits, NewStore: func(testing.TB) Store {
				var model *Model
				return func(_ testing.TB, c clock.Clock) kv.Engine {
					if model == nil {
						model = NewModel(c)
					}
					model = model.Open(c)
					return NewFaults(model)
				}
			}}, c)
		})
	}
}

func TestCaseThatHangsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		tb := &fakeTB{TB: t}
		runCase(tb, Harness{Limits: ModelLimits, NewStore: func(testing.TB) Store {
			return func(_ testing.TB, c clock.Clock) kv.Engine { return NewModel(c) }
		}}, suiteCase{"hangs", func(*fixture) { <-release }})
		if !strings.HasPrefix(tb.failed, "hangs") {
			t.Errorf("failure = %.100q", tb.failed)
		}
		close(release)
	})
}

func TestNamesOfCasesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range suiteCases() {
		if seen[c.name] {
			t.Errorf("two cases are called %s", c.name)
		}
		seen[c.name] = true
	}
}
