package e2e

import (
	"flag"
	"io"
	"log"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/blob/gcs/gcstest"
	"github.com/holdfast-dev/holdfast/blob/s3/s3test"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
	"github.com/holdfast-dev/holdfast/kv/spanner/spandbtest"
)

// quiet swallows what a proxy has to say about processes that are killed.
var quiet = log.New(io.Discard, "", 0)

// place is an engine or a store.
type place struct {
	name string
	// start makes a fresh one and returns the settings that lead to it. None: it is in
	// the data directory.
	start func(t *testing.T) (settings []string)
}

// The tests of the Sync door run where these say.
var (
	engineName = flag.String("engine", "pebble", "the engine below the Sync door: pebble, postgres, bigtable or spanner")
	storeName  = flag.String("store", "fs", "the object store below the Sync door: fs, gcs or s3")
)

var (
	engines = []place{pebbleEngine, postgresEngine, bigtableEngine, spannerEngine}
	stores  = []place{folderStore, gcsStore, s3Store}
)

// newHome returns a home in the place that the flags of the tests name.
func newHome(t *testing.T, env ...string) *program.Home {
	t.Helper()
	return homeIn(t, placeNamed(t, engines, *engineName), placeNamed(t, stores, *storeName), env...)
}

func placeNamed(t *testing.T, places []place, name string) place {
	t.Helper()
	i := slices.IndexFunc(places, func(p place) bool { return p.name == name })
	if i < 0 {
		t.Fatalf("there is no engine or store %q", name)
	}
	return places[i]
}

// homeIn returns a home in a fresh place. It shares its secrets with no other.
func homeIn(t *testing.T, engine, store place, env ...string) *program.Home {
	t.Helper()
	home := program.NewHome(t, env...)
	if engine.name == pebbleEngine.name && store.name == folderStore.name {
		return home // the defaults of the program
	}
	home.Place = append(engine.start(t), store.start(t)...)
	if engine.name != pebbleEngine.name {
		home.Place = append(home.Place, "HOLDFAST_SYNC_PUBLIC_URL="+home.SyncURL(), "HOLDFAST_SYNC_MASTER_SECRET=of "+home.SyncURL())
	}
	return home
}

var pebbleEngine = place{"pebble", func(*testing.T) []string { return nil }}

var bigtableEngine = place{"bigtable", func(t *testing.T) []string {
	server, err := bttest.NewServer("127.0.0.1:0", grpc.MaxRecvMsgSize(1<<28), grpc.MaxSendMsgSize(1<<28))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return []string{
		"HOLDFAST_ENGINE_KIND=bigtable", "HOLDFAST_ENGINE_BIGTABLE_PROJECT_ID=project",
		"HOLDFAST_ENGINE_BIGTABLE_INSTANCE_ID=instance", "HOLDFAST_ENGINE_BIGTABLE_EMULATOR_HOST=" + server.Addr,
	}
}}

var postgresEngine = place{"postgres", func(t *testing.T) []string {
	return []string{
		"HOLDFAST_ENGINE_KIND=postgres", "HOLDFAST_ENGINE_POSTGRES_URL=" + pgtest.Shared(t).URL(),
		"HOLDFAST_ENGINE_POSTGRES_SCHEMA=" + pgtest.NewSchema(),
	}
}}

var spannerEngine = place{"spanner", func(t *testing.T) []string {
	server := spandbtest.Start(t, clock.System{})
	return []string{
		"HOLDFAST_ENGINE_KIND=spanner", "HOLDFAST_ENGINE_SPANNER_PROJECT_ID=p", "HOLDFAST_ENGINE_SPANNER_INSTANCE_ID=i",
		"HOLDFAST_ENGINE_SPANNER_DATABASE_ID=d", "HOLDFAST_ENGINE_SPANNER_EMULATOR_HOST=" + server.Addr(),
		"HOLDFAST_ENGINE_SPANNER_AUTO_SCHEMA=true", "HOLDFAST_ENGINE_SPANNER_CHANGE_STREAM=false",
	}
}}

var folderStore = place{"fs", func(t *testing.T) []string {
	return []string{"HOLDFAST_STORE_PATH=" + t.TempDir()}
}}

var gcsStore = place{"gcs", func(t *testing.T) []string {
	server := gcstest.New(t)
	return []string{"HOLDFAST_STORE_KIND=gcs", "HOLDFAST_STORE_GCS_BUCKET=" + server.Bucket, "HOLDFAST_STORE_GCS_ENDPOINT=" + server.URL}
}}

var s3Store = place{"s3", func(t *testing.T) []string {
	server := s3test.New(t)
	return []string{
		"HOLDFAST_STORE_KIND=s3", "HOLDFAST_STORE_S3_BUCKET=" + server.Bucket, "HOLDFAST_STORE_S3_ENDPOINT=" + server.URL,
		"HOLDFAST_STORE_S3_PATH_STYLE=true", "HOLDFAST_STORE_S3_REGION=us-east-1",
		"HOLDFAST_STORE_S3_ACCESS_KEY_ID=" + s3test.AccessKeyID, "HOLDFAST_STORE_S3_SECRET_ACCESS_KEY=" + s3test.SecretAccessKey,
	}
}}

// TestSessionsOnEveryEngineAndStore is one test of those that matrix.sh runs in each
// place.
func TestSessionsOnEveryEngineAndStore(t *testing.T) {
	for _, engine := range engines {
		for _, store := range stores {
			t.Run(engine.name+" "+store.name, func(t *testing.T) {
				t.Parallel()
				home := homeIn(t, engine, store, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS="+everyCollection, largeHistory)
				session(t, home)
				audit(t, home)
			})
		}
	}
}
