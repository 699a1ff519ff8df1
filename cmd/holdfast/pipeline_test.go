package main_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/gcs"
	"github.com/holdfast-dev/holdfast/blob/gcs/gcstest"
	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/publish/changestream/streamtest"
)

const (
	linkTopic = "projects/p/topics/payload-link-changes"
	linkSub   = "projects/p/subscriptions/payload-link-reconciler-sub"
	deadTopic = linkTopic + "-dlq"
	deadSub   = "projects/p/subscriptions/payload-link-changes-dlq-sub"
)

// pipeline is the servers around publisher and reconciler.
type pipeline struct {
	*testing.T
	stream *streamtest.Server
	pubsub *pstest.Server
	bucket *gcstest.Server
	store  *blob.Store
}

func newPipeline(t *testing.T) *pipeline {
	t.Helper()
	p := &pipeline{T: t, stream: streamtest.New(t), pubsub: pstest.NewServer(), bucket: gcstest.New(t)}
	t.Cleanup(func() { p.pubsub.Close() })
	for _, name := range []string{linkTopic, deadTopic} {
		_, err := p.pubsub.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name})
		ok(t, err)
	}
	for _, s := range []*pubsubpb.Subscription{
		{Name: linkSub, Topic: linkTopic, AckDeadlineSeconds: 60, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: deadTopic, MaxDeliveryAttempts: 5}},
		{Name: deadSub, Topic: deadTopic, AckDeadlineSeconds: 60},
	} {
		_, err := p.pubsub.GServer.CreateSubscription(t.Context(), s)
		ok(t, err)
	}
	driver, err := gcs.Open(t.Context(), gcs.Options{Bucket: p.bucket.Bucket, Endpoint: p.bucket.URL})
	ok(t, err)
	t.Cleanup(func() { driver.Close() })
	p.store = blob.New(driver, blob.Options{})
	return p
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reconcileEnv is what the public pipeline's reconciler is given.
func (p *pipeline) reconcileEnv() map[string]string {
	return map[string]string{
		"PUBSUB_PROJECT_ID": "p", "PUBSUB_SUBSCRIPTION": "payload-link-reconciler-sub", "GCS_PAYLOAD_BUCKET": p.bucket.Bucket,
		"PUBSUB_EMULATOR_HOST": p.pubsub.Addr, "STORAGE_EMULATOR_HOST": p.bucket.URL,
	}
}

// publishEnv is what the public pipeline's publisher is given.
func (p *pipeline) publishEnv() map[string]string {
	return map[string]string{
		"SPANNER_PROJECT_ID": "test", "SPANNER_INSTANCE_ID": "test", "SPANNER_DATABASE_ID": "test", "SPANNER_EMULATOR_HOST": p.stream.Addr(),
		"PUBSUB_PROJECT_ID": "p", "PUBSUB_TOPIC": "payload-link-changes", "PUBSUB_EMULATOR_HOST": p.pubsub.Addr,
		"HEARTBEAT_MS": "1000", "POLL_OVERLAP_SECONDS": "5", "POLL_INTERVAL_SECONDS": "2",
	}
}

func home(t *testing.T, env map[string]string) *program.Home {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return program.NewHome(t, list...)
}

func (p *pipeline) put(name string) (url string) {
	p.Helper()
	ok(p, p.store.Put(p.Context(), name, strings.NewReader("x"), 1))
	return p.store.URL(name)
}

// state returns whether the object is committed, absent or neither.
func (p *pipeline) state(name string) string {
	p.Helper()
	attrs, err := p.store.Stat(p.Context(), name)
	switch {
	case err != nil:
		return "absent"
	case attrs.Committed:
		return "committed"
	}
	return "unfinalized"
}

func (p *pipeline) want(name, want string) {
	p.Helper()
	for end := time.Now().Add(30 * time.Second); p.state(name) != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("object %s is %s, want %s", name, p.state(name), want)
		}
	}
}

func change(table, modType, tag, old, now string) streamtest.Change {
	side := func(link string) string {
		if link == "" {
			return "{}"
		}
		return fmt.Sprintf(`{"payload_link":%q}`, link)
	}
	return streamtest.Change{Table: table, ModType: modType, Tag: tag, Mods: []streamtest.Mod{{Keys: `{"bso_id":"x"}`, Old: side(old), New: side(now)}}}
}

func message(old, now string) []byte {
	side := func(link string) string {
		if link == "" {
			return "{}"
		}
		return fmt.Sprintf(`{\"payload_link\":\"%s\"}`, link)
	}
	return fmt.Appendf(nil, `{"tableName":"bsos","transactionTag":"","mods":[{"oldValues":"%s","newValues":"%s"}]}`, side(old), side(now))
}

// The whole way: rows' links, stream, topic, subscription, bucket; a batch that is
// committed, its removal under the tag included.
func TestPipelineFromTheStreamToTheBucket(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	publisher := home(t, p.publishEnv()).Start(t, "publish")
	reconciler := home(t, p.reconcileEnv()).Start(t, "reconcile")

	a, b := p.put("u/crypto/x/a"), p.put("u/crypto/x/b")
	p.stream.Commit(change("batch_bsos", "INSERT", "", "", a))
	p.want("u/crypto/x/a", "committed")
	p.stream.Commit(change("bsos", "INSERT", "batch_commit", "", a))
	p.stream.Commit(change("batch_bsos", "DELETE", "batch_commit", a, ""))
	p.stream.Split(p.stream.Living()[0], 2)
	p.stream.Commit(change("bsos", "UPDATE", "", a, b))
	p.want("u/crypto/x/b", "committed")
	p.want("u/crypto/x/a", "absent")
	p.stream.Commit(change("bsos", "DELETE", "", b, ""))
	p.want("u/crypto/x/b", "absent")
	publisher.Stop(t)
	reconciler.Stop(t)
	for _, m := range p.pubsub.Messages() {
		if len(m.Attributes) > 0 || m.OrderingKey != "" {
			t.Errorf("message %+v", m)
		}
	}
}

func TestPublisherStopsWhenChangesAreLost(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	h := home(t, p.publishEnv())
	s := h.Start(t, "publish")
	p.stream.Commit(change("bsos", "INSERT", "", "", "gs://B/a"))
	for end := time.Now().Add(30 * time.Second); len(p.pubsub.Messages()) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	s.Stop(t)
	p.stream.Recreate(time.Now())
	r := h.Run(t, "publish")
	if r.Status != 3 || !strings.Contains(r.Stderr, "changes are lost") || !strings.Contains(r.Stderr, "--reset") {
		t.Errorf("status %d, want 3\n%s", r.Status, r.Stderr)
	}
	p.stream.Commit(change("bsos", "INSERT", "", "", "gs://B/b"))
	before := len(p.pubsub.Messages())
	s = h.Start(t, "publish", "--reset")
	for end := time.Now().Add(30 * time.Second); len(p.pubsub.Messages()) == before && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	s.Stop(t)
	if len(p.pubsub.Messages()) == before {
		t.Error("nothing is published after a reset")
	}
}

func TestPublisherTakesTheParametersOfTheJob(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	h := home(t, map[string]string{"SPANNER_EMULATOR_HOST": p.stream.Addr(), "PUBSUB_EMULATOR_HOST": p.pubsub.Addr})
	p.stream.Role = "payload_link_reader"
	end := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)
	p.stream.Commit(change("bsos", "INSERT", "", "", "gs://B/a"))
	r := h.Run(t, "publish", "--spannerProjectId=test", "--spannerInstanceId=test", "--spannerDatabase=test", "--changeStreamName=payload_link_changes",
		"--spannerDatabaseRole=payload_link_reader", "--pubsubTopic="+linkTopic, "--rpcPriority=HIGH", "--startTimestamp=", "--endTimestamp="+end)
	if r.Status != 0 || len(p.pubsub.Messages()) != 1 {
		t.Errorf("status %d, %d messages\n%s", r.Status, len(p.pubsub.Messages()), r.Stderr)
	}
	r = h.Run(t, "publish", "--spannerProjectId=test", "--spannerInstanceId=test", "--spannerDatabase=test", "--pubsubTopic="+linkTopic)
	if r.Status != 1 || !strings.Contains(r.Stderr, "no SELECT") {
		t.Errorf("without the role: status %d\n%s", r.Status, r.Stderr)
	}
}

// P1, P2
func TestPipelineRefusesToStartWithoutItsSettings(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	for _, c := range []struct {
		command string
		env     map[string]string
		names   []string
	}{
		{"reconcile", p.reconcileEnv(), []string{"PUBSUB_PROJECT_ID", "PUBSUB_SUBSCRIPTION", "GCS_PAYLOAD_BUCKET"}},
		{"publish", p.publishEnv(), []string{"SPANNER_PROJECT_ID", "SPANNER_INSTANCE_ID", "SPANNER_DATABASE_ID", "PUBSUB_TOPIC"}},
	} {
		for _, missing := range c.names {
			env := maps.Clone(c.env)
			delete(env, missing)
			if r := home(t, env).Run(t, c.command); r.Status != 1 || !strings.Contains(r.Stderr, missing) {
				t.Errorf("%s without %s: status %d\n%s", c.command, missing, r.Status, r.Stderr)
			}
		}
	}
	for _, budget := range []string{"soon", "1.5", "240s"} {
		env := p.reconcileEnv()
		env["RUN_BUDGET_SECONDS"] = budget
		if r := home(t, env).Run(t, "reconcile"); r.Status != 1 || !strings.Contains(r.Stderr, "RUN_BUDGET_SECONDS") {
			t.Errorf("budget %q: status %d\n%s", budget, r.Status, r.Stderr)
		}
	}
	env := p.reconcileEnv()
	env["PUBSUB_SUBSCRIPTION"] = "nothing"
	if r := home(t, env).Run(t, "reconcile"); r.Status != 1 {
		t.Errorf("no such subscription: status %d\n%s", r.Status, r.Stderr)
	}
}

// P3, and the end at SIGTERM
func TestReconcilerWithoutABudgetGoesOn(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	env := p.reconcileEnv()
	env["RUN_BUDGET_SECONDS"] = ""
	s := home(t, env).Start(t, "reconcile")
	for i := range 3 {
		name := fmt.Sprint("u/crypto/x/", i)
		p.pubsub.Publish(linkTopic, message("", p.put(name)), nil)
		p.want(name, "committed")
		time.Sleep(time.Second) // longer than an answer that there is nothing takes
	}
	s.Stop(t)
}

// P4, P6, dead letters, and a link into another bucket
func TestReconcilerWithABudgetEndsWhenNothingIsWaiting(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	env := p.reconcileEnv()
	env["RUN_BUDGET_SECONDS"] = "40"
	h := home(t, env)
	if r := h.Run(t, "reconcile"); r.Status != 0 {
		t.Errorf("nothing to do: status %d\n%s", r.Status, r.Stderr)
	}
	p.pubsub.Publish(linkTopic, message("", p.put("u/crypto/x/a")), nil)
	p.pubsub.Publish(linkTopic, message("gs://another/u/crypto/x/a", ""), nil)
	p.pubsub.Publish(linkTopic, []byte(`{"mods":[`), nil)
	began := time.Now()
	if r := h.Run(t, "reconcile"); r.Status != 0 || time.Since(began) > 20*time.Second || strings.Count(r.Stderr, "change record failed") != 2 {
		t.Errorf("errors of records: status %d\n%s", r.Status, r.Stderr)
	}
	p.want("u/crypto/x/a", "committed")

	p.pubsub.Publish(deadTopic, message(p.store.URL("u/crypto/x/a"), ""), nil)
	p.pubsub.Publish(deadTopic, []byte(`{"mods":[`), nil)
	if r := h.Run(t, "reconcile", "--dead-letters"); r.Status != 0 || strings.Count(r.Stderr, "change record failed") != 1 {
		t.Errorf("dead letters: status %d\n%s", r.Status, r.Stderr)
	}
	p.want("u/crypto/x/a", "absent")

	env["RUN_BUDGET_SECONDS"] = "0"
	p.pubsub.Publish(linkTopic, message("", p.put("u/crypto/x/b")), nil)
	if r := home(t, env).Run(t, "reconcile"); r.Status != 0 || p.state("u/crypto/x/b") != "unfinalized" {
		t.Errorf("no budget: status %d, %s\n%s", r.Status, p.state("u/crypto/x/b"), r.Stderr)
	}
}

// P5
func TestReconcilerEndsAfterItsBudgetThoughMoreIsWaiting(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	url := p.put("u/crypto/x/a")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			p.pubsub.Publish(linkTopic, message("", url), nil)
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { <-done })
	env := p.reconcileEnv()
	env["RUN_BUDGET_SECONDS"] = "3"
	began := time.Now()
	r := home(t, env).Run(t, "reconcile")
	if d := time.Since(began); r.Status != 0 || d < 3*time.Second || d > 20*time.Second {
		t.Errorf("status %d after %v\n%s", r.Status, d, r.Stderr)
	}
}

func TestASecondPublisherWaitsAndTakesOver(t *testing.T) {
	t.Parallel()
	p := newPipeline(t)
	env := p.publishEnv()
	env["HOLDFAST_PUBLISH_POSITIONS_FILE"] = filepath.Join(t.TempDir(), "positions")
	h := home(t, env)
	s := h.Start(t, "publish")
	s.WaitLog(t, "beginning anew")
	second := h.Start(t, "publish")
	second.WaitLog(t, "another publisher is at work")
	s.Stop(t)
	p.stream.Commit(change("bsos", "INSERT", "", "", "gs://B/a"))
	for end := time.Now().Add(30 * time.Second); len(p.pubsub.Messages()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the one that waited does not take over")
		}
	}
	second.Stop(t)
}

func TestManifestsHaveWhatMatters(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, "PUBSUB_PROJECT_ID=my-project", "RUN_BUDGET_SECONDS=200")
	holds(t, h.Output(t, "reconcile", "--print-manifests"),
		"kind: CronJob", "concurrencyPolicy: Forbid", "backoffLimit: 0", "activeDeadlineSeconds: 300", `name: RUN_BUDGET_SECONDS, value: "200"`,
		`command: ["holdfast", "reconcile"]`, "iam.gke.io/gcp-service-account", `"my-project"`)
	follow := h.Output(t, "reconcile", "--print-manifests", "--follow")
	holds(t, follow, "kind: Deployment", `command: ["holdfast", "reconcile"]`)
	if strings.Contains(follow, "name: RUN_BUDGET_SECONDS") {
		t.Error("a deployment with a budget")
	}
	holds(t, h.Output(t, "publish", "--print-manifests"), "kind: Deployment", `command: ["holdfast", "publish"]`, "METADATA_DATABASE", "iam.gke.io/gcp-service-account")
	if r := program.NewHome(t, "RUN_BUDGET_SECONDS=290").Run(t, "reconcile", "--print-manifests"); r.Status != 1 || !strings.Contains(r.Stderr, "deadline") {
		t.Errorf("a budget beyond the deadline: status %d\n%s", r.Status, r.Stderr)
	}
}
