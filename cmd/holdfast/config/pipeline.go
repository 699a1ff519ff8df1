package config

import (
	"path/filepath"
	"regexp"
	"time"
)

// Publish configures `holdfast publish`, which carries link changes from a change
// stream of Cloud Spanner to a Pub/Sub topic.
type Publish struct {
	Project           string        `key:"project" help:"Project of the Spanner instance."`
	Instance          string        `key:"instance" help:"The Spanner instance."`
	Database          string        `key:"database" help:"Database that has the change stream; a full name projects/P/instances/I/databases/D stands for itself."`
	Stream            string        `key:"stream" help:"Name of the change stream."`
	Role              string        `key:"role" help:"Database role to read the stream with. Empty: none. With a role that is missing or has no rights, nothing is read."`
	Priority          string        `key:"priority" help:"Priority of the stream's queries: high, medium or low."`
	Topic             string        `key:"topic" help:"Topic to publish to: its full name projects/P/topics/T, or its id in publish.topic_project."`
	TopicProject      string        `key:"topic_project" help:"Project of the topic. Empty: publish.project."`
	MetadataProject   string        `key:"metadata_project" help:"Project of the instance with the positions. Empty: publish.project."`
	MetadataInstance  string        `key:"metadata_instance" help:"Instance of the database with the positions. Empty: publish.instance."`
	MetadataDatabase  string        `key:"metadata_database" help:"Database whose tables holdfast_publish_* keep how far the stream is published; by preference another one than publish.database. Empty: a file keeps it."`
	PositionsFile     string        `key:"positions_file" help:"File that keeps how far the stream is published, without a metadata database. Empty: publish-positions.json in the data directory. Without what it has, everything that the stream still has is published again."`
	Start             string        `key:"start" help:"Where to begin when nothing is known of how far the stream is published: a time (RFC 3339), or now, which leaves out what happened before. Empty: with the oldest change that the stream has."`
	End               string        `key:"end" help:"Where to end, as a time. Empty: never."`
	Heartbeat         time.Duration `key:"heartbeat" help:"How often the stream says that there was no change, from 1s to 5m; as old may the known lag be."`
	Concurrency       int           `key:"concurrency" help:"Publish requests at a time."`
	MaxPartitions     int           `key:"max_partitions" help:"Partitions of the stream that are read at a time; more of them take turns."`
	SpannerEmulator   string        `key:"spanner_emulator" help:"Address of another server with Spanner's protocol, without TLS and credentials."`
	PubSubEmulator    string        `key:"pubsub_emulator" help:"The same for Pub/Sub."`
	MetricsListenAddr string        `key:"metrics_listen" help:"Address for /metrics and /healthz. Empty: none."`
}

// PubSub configures `holdfast reconcile` for a Pub/Sub subscription and a bucket.
type PubSub struct {
	Project                string        `key:"project" help:"Project of the subscriptions."`
	Subscription           string        `key:"subscription" help:"Pull subscription to receive change records from: its full name or its id. Set, it makes holdfast reconcile work on it and on the bucket, not on the data directory."`
	DeadLetterSubscription string        `key:"dead_letter_subscription" help:"Subscription of the dead letters' topic, for reconcile --dead-letters."`
	Bucket                 string        `key:"bucket" help:"Bucket of Google Cloud Storage that has the objects. Links into other buckets are refused."`
	RunBudget              string        `key:"run_budget" help:"After this time, or when nothing is waiting, the command ends with success. Empty: it goes on for ever."`
	AckDeadline            time.Duration `key:"ack_deadline" help:"What the deadlines of messages are extended to while they are worked on, from 10s to 10m."`
	Emulator               string        `key:"emulator" help:"Address of another server with Pub/Sub's protocol, without TLS and credentials."`
	StoreEndpoint          string        `key:"store_endpoint" help:"Root URL of another server with the bucket's interface, without credentials."`
	MetricsListenAddr      string        `key:"metrics_listen" help:"Address for /metrics and /healthz while the command runs. Empty: none."`
}

func defaultPublish() Publish {
	return Publish{Stream: "payload_link_changes", Priority: "high", Heartbeat: time.Second, Concurrency: 16, MaxPartitions: 500}
}

func defaultPubSub() PubSub {
	return PubSub{DeadLetterSubscription: "payload-link-changes-dlq-sub", AckDeadline: time.Minute}
}

var databaseName = regexp.MustCompile(`^projects/[^/]+/instances/[^/]+/databases/[^/]+$`)

// StreamDatabase returns the full name of the database with the change stream.
func (p *Publish) StreamDatabase() string { return database(p.Project, p.Instance, p.Database) }

// PositionsDatabase returns the full name of the database with the positions, or
// "" if a file has them.
func (p *Publish) PositionsDatabase() string {
	if p.MetadataDatabase == "" {
		return ""
	}
	project, instance := p.MetadataProject, p.MetadataInstance
	if project == "" {
		project = p.Project
	}
	if instance == "" {
		instance = p.Instance
	}
	return database(project, instance, p.MetadataDatabase)
}

func database(project, instance, name string) string {
	if databaseName.MatchString(name) {
		return name
	}
	return "projects/" + project + "/instances/" + instance + "/databases/" + name
}

// PositionsPath returns the file with the positions.
func (c *Config) PositionsPath() string {
	if c.Publish.PositionsFile != "" {
		return c.Publish.PositionsFile
	}
	return filepath.Join(c.DataDir, "publish-positions.json")
}

// maxPubSubDelay is the longest ack deadline of Pub/Sub.
const maxPubSubDelay = 10 * time.Minute

// startNow is a value of publish.start.
const startNow = "now"

// StartTime returns publish.start, the zero time if it is empty.
func (p *Publish) StartTime(now time.Time) (time.Time, error) {
	if p.Start == startNow {
		return now, nil
	}
	return optionalTime(p.Start)
}

// EndTime returns publish.end, the zero time if it is empty.
func (p *Publish) EndTime() (time.Time, error) { return optionalTime(p.End) }

func optionalTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, s)
}

// Budget returns reconcile.pubsub.run_budget; bounded is false if it is empty.
func (p *PubSub) Budget() (budget time.Duration, bounded bool, err error) {
	if p.RunBudget == "" {
		return 0, false, nil
	}
	budget, err = time.ParseDuration(p.RunBudget)
	return budget, true, err
}

func (p *Publish) validate(m *mistakes) {
	m.oneOf("publish.priority", p.Priority, "high", "medium", "low")
	if p.Heartbeat < time.Second || p.Heartbeat > 5*time.Minute {
		m.add("publish.heartbeat", "%v is not from 1s to 5m", p.Heartbeat)
	}
	atLeast(m, "publish.concurrency", p.Concurrency, 1)
	atLeast(m, "publish.max_partitions", p.MaxPartitions, 1)
	if _, err := p.StartTime(time.Time{}); err != nil {
		m.add("publish.start", "%q is neither now nor a time such as 2026-08-20T10:00:00Z", p.Start)
	}
	if _, err := p.EndTime(); err != nil {
		m.add("publish.end", "%q is not a time such as 2026-08-20T10:00:00Z", p.End)
	}
	if p.MetadataDatabase != "" && p.PositionsFile != "" {
		m.add("publish.positions_file", "is set beside publish.metadata_database; remove one")
	}
	if p.MetricsListenAddr != "" {
		m.address("publish.metrics_listen", p.MetricsListenAddr)
	}
}

func (p *PubSub) validate(m *mistakes) {
	if _, _, err := p.Budget(); err != nil {
		m.add("reconcile.pubsub.run_budget", "%q is not a duration such as 240s", p.RunBudget)
	}
	if p.AckDeadline < 10*time.Second || p.AckDeadline > 10*time.Minute {
		m.add("reconcile.pubsub.ack_deadline", "%v is not from 10s to 10m", p.AckDeadline)
	}
	m.wholeSeconds("reconcile.pubsub.ack_deadline", p.AckDeadline)
	if p.MetricsListenAddr != "" {
		m.address("reconcile.pubsub.metrics_listen", p.MetricsListenAddr)
	}
}
