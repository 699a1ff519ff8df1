package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Pipeline is a command that understands the names of the public pipeline.
type Pipeline string

// The commands of the pipeline.
const (
	PipelinePublish   Pipeline = "publish"
	PipelineReconcile Pipeline = "reconcile"
)

// pipelineAlias is an environment variable of the public pipeline.
type pipelineAlias struct {
	key     string
	unit    string // to be put behind a whole number
	ignored string // why it means nothing here
}

const followed = "the stream is followed as it goes"

var pipelineAliases = map[Pipeline]map[string]pipelineAlias{
	PipelinePublish: {
		"SPANNER_PROJECT_ID":         {key: "publish.project"},
		"SPANNER_INSTANCE_ID":        {key: "publish.instance"},
		"SPANNER_DATABASE_ID":        {key: "publish.database"},
		"SPANNER_CHANGE_STREAM_NAME": {key: "publish.stream"},
		"SPANNER_EMULATOR_HOST":      {key: "publish.spanner_emulator"},
		"PUBSUB_PROJECT_ID":          {key: "publish.topic_project"},
		"PUBSUB_TOPIC":               {key: "publish.topic"},
		"PUBSUB_EMULATOR_HOST":       {key: "publish.pubsub_emulator"},
		"HEARTBEAT_MS":               {key: "publish.heartbeat", unit: "ms"},
		"POLL_OVERLAP_SECONDS":       {ignored: followed},
		"POLL_INTERVAL_SECONDS":      {ignored: followed},
	},
	PipelineReconcile: {
		"PUBSUB_PROJECT_ID":     {key: "reconcile.pubsub.project"},
		"PUBSUB_SUBSCRIPTION":   {key: "reconcile.pubsub.subscription"},
		"GCS_PAYLOAD_BUCKET":    {key: "reconcile.pubsub.bucket"},
		"RUN_BUDGET_SECONDS":    {key: "reconcile.pubsub.run_budget", unit: "s"},
		"PUBSUB_EMULATOR_HOST":  {key: "reconcile.pubsub.emulator"},
		"STORAGE_EMULATOR_HOST": {key: "reconcile.pubsub.store_endpoint"},
	},
}

// pipelineRequired are the keys without which a command of the pipeline cannot work,
// and the variables that set them.
var pipelineRequired = map[Pipeline][][2]string{
	PipelinePublish: {
		{"publish.project", "SPANNER_PROJECT_ID"}, {"publish.instance", "SPANNER_INSTANCE_ID"},
		{"publish.database", "SPANNER_DATABASE_ID"}, {"publish.topic", "PUBSUB_TOPIC"},
	},
	PipelineReconcile: {
		{"reconcile.pubsub.project", "PUBSUB_PROJECT_ID"}, {"reconcile.pubsub.subscription", "PUBSUB_SUBSCRIPTION"},
		{"reconcile.pubsub.bucket", "GCS_PAYLOAD_BUCKET"},
	},
}

// jobParameters are the parameters of the public pipeline's job, as flags.
var jobParameters = []struct{ flag, key string }{
	{"spannerProjectId", "publish.project"},
	{"spannerInstanceId", "publish.instance"},
	{"spannerDatabase", "publish.database"},
	{"spannerMetadataInstanceId", "publish.metadata_instance"},
	{"spannerMetadataDatabase", "publish.metadata_database"},
	{"changeStreamName", "publish.stream"},
	{"spannerDatabaseRole", "publish.role"},
	{"pubsubTopic", "publish.topic"},
	{"startTimestamp", "publish.start"},
	{"endTimestamp", "publish.end"},
	{"rpcPriority", "publish.priority"},
}

// JobFlags defines the parameters of the public pipeline's job as flags.
func JobFlags(fs *pflag.FlagSet) {
	for _, p := range jobParameters {
		fs.Var(&flagValue{}, p.flag, "key "+p.key)
	}
}

func (l *loader) readJobFlags(fs *pflag.FlagSet) {
	if fs == nil {
		return
	}
	for _, p := range jobParameters {
		if f := fs.Lookup(p.flag); f != nil && f.Changed {
			l.setText(p.key, lowerPriority(p.key, f.Value.String()), "--"+p.flag)
		}
	}
}

// readPipeline reads the variables of the public pipeline.
func (l *loader) readPipeline(which Pipeline, env map[string]string) {
	known := pipelineAliases[which]
	for _, v := range slices.Sorted(maps.Keys(known)) {
		text, a := env[v], known[v]
		switch {
		case text == "":
		case a.ignored != "":
			l.warn("%s is ignored: %s", v, a.ignored)
		case a.unit != "":
			if _, err := strconv.Atoi(text); err != nil {
				l.mistake("%s: %q is not a whole number", v, text)
				continue
			}
			l.setText(a.key, text+a.unit, v)
		case a.key == "reconcile.pubsub.store_endpoint":
			l.setText(a.key, withScheme(text), v)
		default:
			l.setText(a.key, text, v)
		}
	}
	// The service has sent its metrics to this address, told or not.
	if l.sources["statsd.enabled"] == "" {
		l.set("statsd.enabled", true, fmt.Sprintf("holdfast %s", which))
	}
	if l.sources["statsd.address"] == "" {
		l.readAddress(env, "STATSD_HOST", "STATSD_PORT", "statsd.address")
	}
}

// requirePipeline reports what is missing for the command. The reconciler works on
// a subscription only if one of its keys is set.
func (l *loader) requirePipeline(which Pipeline) {
	if which == PipelineReconcile && !l.Reconcile.PubSub.Wanted() {
		return
	}
	if which == PipelineReconcile && l.sources["reconcile.require_transaction_tag"] == "" {
		// Somebody else's publisher may be an old one.
		l.set("reconcile.require_transaction_tag", true, "reconcile.pubsub.subscription")
	}
	for _, r := range pipelineRequired[which] {
		value := *l.keys[r[0]].value.(*string)
		inTopic := r[0] == "publish.project" || r[0] == "publish.instance"
		if value == "" && !(inTopic && databaseName.MatchString(l.Publish.Database)) {
			l.mistake("%s: is missing; set it, or %s", r[0], r[1])
		}
	}
}

// Wanted reports whether somebody means the reconciler to work on a subscription.
func (p *PubSub) Wanted() bool { return p.Project+p.Subscription+p.Bucket+p.RunBudget != "" }

// lowerPriority takes HIGH for high.
func lowerPriority(key, text string) string {
	if key == "publish.priority" {
		return strings.ToLower(text)
	}
	return text
}

// withScheme makes a URL of what may be host:port only.
func withScheme(endpoint string) string {
	if strings.Contains(endpoint, "://") {
		return endpoint
	}
	return "http://" + endpoint
}
