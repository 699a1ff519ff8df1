package config

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func loadPipeline(t *testing.T, which Pipeline, args []string, env ...string) (*Loaded, error) {
	t.Helper()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	Flags(fs)
	JobFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(Options{Env: env, Flags: fs, Pipeline: which})
}

func TestPublisherUnderstandsEveryNameOfThePublicPipeline(t *testing.T) {
	env := []string{
		"SPANNER_PROJECT_ID=a", "SPANNER_INSTANCE_ID=b", "SPANNER_DATABASE_ID=c", "PUBSUB_PROJECT_ID=d", "PUBSUB_TOPIC=e",
		"SPANNER_CHANGE_STREAM_NAME=f", "HEARTBEAT_MS=2500", "POLL_OVERLAP_SECONDS=5", "SPANNER_EMULATOR_HOST=g:1", "PUBSUB_EMULATOR_HOST=h:2",
		"STATSD_HOST=i", "STATSD_PORT=9",
	}
	l, err := loadPipeline(t, PipelinePublish, nil, env...)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultPublish()
	want.Project, want.Instance, want.Database, want.TopicProject, want.Topic, want.Stream = "a", "b", "c", "d", "e", "f"
	want.Heartbeat, want.SpannerEmulator, want.PubSubEmulator = 2500*time.Millisecond, "g:1", "h:2"
	if l.Publish != want {
		t.Errorf("got  %+v\nwant %+v", l.Publish, want)
	}
	if !l.Statsd.Enabled || l.Statsd.Address != "i:9" {
		t.Errorf("statsd %+v", l.Statsd)
	}
	if len(l.Warnings) != 1 || !strings.HasPrefix(l.Warnings[0], "POLL_OVERLAP_SECONDS is ignored") {
		t.Errorf("warnings %q", l.Warnings)
	}

	l, err = loadPipeline(t, PipelinePublish, []string{
		"--spannerProjectId=A", "--spannerInstanceId=B", "--spannerDatabase=C", "--spannerMetadataInstanceId=D", "--spannerMetadataDatabase=E",
		"--changeStreamName=F", "--spannerDatabaseRole=G", "--pubsubTopic=projects/P/topics/T", "--startTimestamp=2026-08-20T10:00:00Z", "--endTimestamp=", "--rpcPriority=LOW",
	}, env...)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Publish.StreamDatabase(), "projects/A/instances/B/databases/C"; got != want {
		t.Errorf("database %s", got)
	}
	if got, want := l.Publish.PositionsDatabase(), "projects/A/instances/D/databases/E"; got != want {
		t.Errorf("positions in %s", got)
	}
	if p := l.Publish; p.Stream != "F" || p.Role != "G" || p.Topic != "projects/P/topics/T" || p.Priority != "low" {
		t.Errorf("got %+v", p)
	}
	if start, err := l.Publish.StartTime(time.Time{}); err != nil || start.Hour() != 10 {
		t.Errorf("start %v, %v", start, err)
	}
}

func TestReconcilerUnderstandsEveryNameOfThePublicPipeline(t *testing.T) {
	env := []string{
		"PUBSUB_PROJECT_ID=a", "PUBSUB_SUBSCRIPTION=b", "GCS_PAYLOAD_BUCKET=c", "RUN_BUDGET_SECONDS=240",
		"PUBSUB_EMULATOR_HOST=d:1", "STORAGE_EMULATOR_HOST=e:2", "SYNC_STATSD_HOST=f", "STATSD_HOST=g", "STATSD_PORT=9",
	}
	l, err := loadPipeline(t, PipelineReconcile, nil, env...)
	if err != nil {
		t.Fatal(err)
	}
	p := l.Reconcile.PubSub
	budget, bounded, err := p.Budget()
	if p.Project != "a" || p.Subscription != "b" || p.Bucket != "c" || budget != 4*time.Minute || !bounded || err != nil ||
		p.Emulator != "d:1" || p.StoreEndpoint != "http://e:2" {
		t.Errorf("got %+v", p)
	}
	if l.Statsd.Address != "f:8125" || !l.Statsd.Enabled {
		t.Errorf("statsd %+v: SYNC_STATSD_HOST counts more than STATSD_HOST", l.Statsd)
	}
	if !l.Reconcile.RequireTransactionTag {
		t.Error("a foreign source may lose the tag")
	}
	if l, err = loadPipeline(t, PipelineReconcile, nil, append(env, "HOLDFAST_RECONCILE_REQUIRE_TRANSACTION_TAG=false", "HOLDFAST_STATSD_ENABLED=false")...); err != nil ||
		l.Reconcile.RequireTransactionTag || l.Statsd.Enabled {
		t.Errorf("what is set is not kept: %v", err)
	}
	if _, bounded, err := (&PubSub{}).Budget(); bounded || err != nil {
		t.Errorf("no budget: %v, %v", bounded, err)
	}
}

func TestNamesOfThePipelineMeanNothingToOtherCommands(t *testing.T) {
	l, err := Load(Options{Env: []string{"PUBSUB_SUBSCRIPTION=b", "RUN_BUDGET_SECONDS=x", "STATSD_HOST=h", "HEARTBEAT_MS=1"}})
	if err != nil || l.Reconcile.PubSub != defaultPubSub() || l.Statsd.Enabled || l.Publish != defaultPublish() {
		t.Errorf("got %+v, %v", l, err)
	}
	l, err = loadPipeline(t, PipelineReconcile, nil)
	if err != nil || l.Reconcile.PubSub.Wanted() || l.Reconcile.RequireTransactionTag {
		t.Errorf("reconcile without a subscription: %v", err)
	}
}

func TestMistakesOfThePipelineAreFound(t *testing.T) {
	full := []string{"PUBSUB_PROJECT_ID=a", "PUBSUB_SUBSCRIPTION=b", "GCS_PAYLOAD_BUCKET=c"}
	for env, says := range map[string]string{
		"RUN_BUDGET_SECONDS=1.5":                                    "RUN_BUDGET_SECONDS",
		"HOLDFAST_RECONCILE_PUBSUB_RUN_BUDGET=soon":                 "reconcile.pubsub.run_budget",
		"HOLDFAST_RECONCILE_PUBSUB_ACK_DEADLINE=1s":                 "reconcile.pubsub.ack_deadline",
		"HOLDFAST_RECONCILE_DELETE_DELAY=1h":                        "reconcile.delete_delay",
		"HOLDFAST_PUBLISH_HEARTBEAT=10ms":                           "publish.heartbeat",
		"HOLDFAST_PUBLISH_START=yesterday":                          "publish.start",
		"HOLDFAST_PUBLISH_END=now":                                  "publish.end",
		"HOLDFAST_PUBLISH_PRIORITY=urgent":                          "publish.priority",
		"HOLDFAST_PUBLISH_METRICS_LISTEN=9090":                      "publish.metrics_listen",
		"HOLDFAST_RECONCILE_PUBSUB_METRICS_LISTEN=no port anywhere": "reconcile.pubsub.metrics_listen",
	} {
		if _, err := loadPipeline(t, PipelineReconcile, nil, append(full, env)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", env, err)
		}
	}
	_, err := loadPipeline(t, PipelinePublish, nil, "HOLDFAST_PUBLISH_DATABASE=projects/p/instances/i/databases/d", "PUBSUB_TOPIC=t", "PUBSUB_PROJECT_ID=p")
	if err != nil {
		t.Errorf("a full name of the database: %v", err)
	}
}
