package bigtable

import (
	"context"
	"os"
	"testing"

	bt "cloud.google.com/go/bigtable"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// TestConformanceOnARealInstance runs the suite on the instance that
// HOLDFAST_BIGTABLE_PROJECT and HOLDFAST_BIGTABLE_INSTANCE name, which must be
// empty: each case deletes all its tables in the end. HOLDFAST_BIGTABLE_CREDENTIALS
// may name a key file, and HOLDFAST_BIGTABLE_APP_PROFILE a profile. Mind the quota of
// changes to tables; -run picks cases.
func TestConformanceOnARealInstance(t *testing.T) {
	o := Options{
		ProjectID:       os.Getenv("HOLDFAST_BIGTABLE_PROJECT"),
		InstanceID:      os.Getenv("HOLDFAST_BIGTABLE_INSTANCE"),
		CredentialsPath: os.Getenv("HOLDFAST_BIGTABLE_CREDENTIALS"),
		AppProfile:      os.Getenv("HOLDFAST_BIGTABLE_APP_PROFILE"),
		MetricsProvider: bt.NoopMetricsProvider{},
	}
	if o.ProjectID == "" || o.InstanceID == "" {
		t.Skip("HOLDFAST_BIGTABLE_PROJECT and HOLDFAST_BIGTABLE_INSTANCE name no instance")
	}
	opts, _, err := o.clientOptions()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := bt.NewAdminClient(t.Context(), o.ProjectID, o.InstanceID, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if names, err := admin.Tables(t.Context()); err != nil || len(names) > 0 {
		t.Fatalf("the instance has %d tables, and must be empty (%v)", len(names), err)
	}
	kvtest.Run(t, kvtest.Harness{
		Limits: Limits(),
		Shared: true,
		NewStore: func(tb testing.TB) kvtest.Store {
			tb.Cleanup(func() {
				names, err := admin.Tables(context.Background())
				for _, name := range names {
					if err == nil {
						err = admin.DeleteTable(context.Background(), name)
					}
				}
				if err != nil {
					tb.Errorf("delete tables: %v", err)
				}
			})
			return func(tb testing.TB, c clock.Clock) kv.Engine {
				tb.Helper()
				o := o
				o.Clock = c
				e, err := Open(context.Background(), o)
				if err != nil {
					tb.Fatal(err)
				}
				return e
			}
		},
	})
}
