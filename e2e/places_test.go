package e2e

import (
	"io"
	"log"
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

// place is an engine or a store that several processes may share.
type place struct {
	name string
	// start makes a fresh one and returns the settings that lead to it.
	start func(t *testing.T) (env []string)
}

// masterSecret is that of every process on a shared engine.
const masterSecret = "HOLDFAST_SYNC_MASTER_SECRET=a secret of all processes"

var bigtableEngine = place{"bigtable", func(t *testing.T) []string {
	server, err := bttest.NewServer("127.0.0.1:0", grpc.MaxRecvMsgSize(1<<28), grpc.MaxSendMsgSize(1<<28))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return []string{
		masterSecret, "HOLDFAST_ENGINE_KIND=bigtable", "HOLDFAST_ENGINE_BIGTABLE_PROJECT_ID=project",
		"HOLDFAST_ENGINE_BIGTABLE_INSTANCE_ID=instance", "HOLDFAST_ENGINE_BIGTABLE_EMULATOR_HOST=" + server.Addr,
	}
}}

var postgresEngine = place{"postgres", func(t *testing.T) []string {
	return []string{
		masterSecret, "HOLDFAST_ENGINE_KIND=postgres", "HOLDFAST_ENGINE_POSTGRES_URL=" + pgtest.Shared(t).URL(),
		"HOLDFAST_ENGINE_POSTGRES_SCHEMA=" + pgtest.NewSchema(),
	}
}}

var spannerEngine = place{"spanner", func(t *testing.T) []string {
	server := spandbtest.Start(t, clock.System{})
	return []string{
		masterSecret, "HOLDFAST_ENGINE_KIND=spanner", "HOLDFAST_ENGINE_SPANNER_PROJECT_ID=p", "HOLDFAST_ENGINE_SPANNER_INSTANCE_ID=i",
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

func TestSessionsOnEveryEngineAndStore(t *testing.T) {
	for _, engine := range []place{bigtableEngine, postgresEngine, spannerEngine} {
		for _, store := range []place{folderStore, gcsStore, s3Store} {
			t.Run(engine.name+" "+store.name, func(t *testing.T) {
				t.Parallel()
				home := program.NewHome(t, append(engine.start(t), store.start(t)...)...)
				home.Env = append(home.Env, "HOLDFAST_SYNC_PUBLIC_URL="+home.SyncURL(), "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS="+everyCollection, largeHistory)
				session(t, home)
			})
		}
	}
}
