package main

import (
	"fmt"
	"io"
	"text/template"
	"time"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

const (
	// cronPeriod is how often the reconciler's job is started, and its deadline:
	// the next one is to find the field free.
	cronPeriod = 5 * time.Minute
	// defaultBudget is what a job does without a budget of its own.
	defaultBudget = 240 * time.Second
	// budgetRoom is what a job needs after its budget: records in hand are finished.
	budgetRoom = 30 * time.Second
)

// variable is one of a container's environment.
type variable struct{ Name, Value string }

// manifest is what the templates show.
type manifest struct {
	Env            []variable
	Budget         int // seconds
	ActiveDeadline int // seconds
	Follow         bool
}

func given(names ...string) []variable {
	var all []variable
	for i := 0; i < len(names); i += 2 {
		if names[i+1] != "" {
			all = append(all, variable{names[i], names[i+1]})
		}
	}
	return all
}

func or(s, placeholder string) string {
	if s == "" {
		return placeholder
	}
	return s
}

// writeReconcileManifests writes a CronJob for the reconciler of a subscription, or
// a Deployment.
func writeReconcileManifests(w io.Writer, cfg *config.Loaded, follow bool) error {
	c := &cfg.Reconcile.PubSub
	budget, bounded, err := c.Budget()
	if err != nil {
		return err
	}
	if !bounded {
		budget = defaultBudget
	}
	if budget+budgetRoom > cronPeriod {
		return fmt.Errorf("reconcile.pubsub.run_budget is %v: with the %v that finishing takes it exceeds the job's deadline of %v, "+
			"so that the job would be killed and count as failed", budget, budgetRoom, cronPeriod)
	}
	m := manifest{
		Env: given("PUBSUB_PROJECT_ID", or(c.Project, "PROJECT"), "PUBSUB_SUBSCRIPTION", or(c.Subscription, "payload-link-reconciler-sub"),
			"GCS_PAYLOAD_BUCKET", or(c.Bucket, "BUCKET"), "HOLDFAST_STATSD_ADDRESS", cfg.Statsd.Address),
		Budget: int(budget / time.Second), ActiveDeadline: int(cronPeriod / time.Second), Follow: follow,
	}
	return write(w, reconcileTemplate, m)
}

// writePublishManifests writes a Deployment for the publisher.
func writePublishManifests(w io.Writer, cfg *config.Loaded) error {
	c := &cfg.Publish
	m := manifest{Env: given(
		"SPANNER_PROJECT_ID", or(c.Project, "PROJECT"), "SPANNER_INSTANCE_ID", or(c.Instance, "INSTANCE"), "SPANNER_DATABASE_ID", or(c.Database, "DATABASE"),
		"SPANNER_CHANGE_STREAM_NAME", c.Stream, "HOLDFAST_PUBLISH_ROLE", or(c.Role, "payload_link_reader"),
		"HOLDFAST_PUBLISH_METADATA_INSTANCE", c.MetadataInstance, "HOLDFAST_PUBLISH_METADATA_DATABASE", or(c.MetadataDatabase, "METADATA_DATABASE"),
		"PUBSUB_PROJECT_ID", or(or(c.TopicProject, c.Project), "PROJECT"), "PUBSUB_TOPIC", or(c.Topic, "payload-link-changes"),
		"HOLDFAST_STATSD_ADDRESS", cfg.Statsd.Address,
	)}
	return write(w, publishTemplate, m)
}

func write(w io.Writer, t *template.Template, m manifest) error {
	if err := t.Execute(w, m); err != nil {
		return fmt.Errorf("write manifests: %w", err)
	}
	return nil
}

var (
	reconcileTemplate = template.Must(template.New("reconcile").Parse(accountManifest("holdfast-reconcile",
		"roles/pubsub.subscriber on the subscription and roles/storage.objectAdmin on the bucket") + reconcileManifest))
	publishTemplate = template.Must(template.New("publish").Parse(accountManifest("holdfast-publish",
		"roles/spanner.databaseUser on the database and on the metadata database, membership in\n"+
			"# the database role that may read the stream, and roles/pubsub.publisher on the topic") + publishManifest))
)

func accountManifest(name, rights string) string {
	return `# Credentials by workload identity: the account below needs
# ` + rights + `.
# There is no key file.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: ` + name + `
  annotations:
    iam.gke.io/gcp-service-account: ` + name + `@PROJECT.iam.gserviceaccount.com
---
`
}

const podSecurity = `          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            runAsNonRoot: true
`

const reconcileManifest = `{{if .Follow -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: holdfast-reconcile
spec:
  replicas: 1
  selector:
    matchLabels: {app: holdfast-reconcile}
  template:
    metadata:
      labels: {app: holdfast-reconcile}
    spec:
      serviceAccountName: holdfast-reconcile
      terminationGracePeriodSeconds: 60 # records in hand are finished
      containers:
        - name: reconcile
          image: holdfast
          command: ["holdfast", "reconcile"] # the image starts the server by itself
          env: # without RUN_BUDGET_SECONDS it goes on for ever
{{- range .Env}}
            - {name: {{.Name}}, value: {{printf "%q" .Value}}}
{{- end}}
            - {name: HOLDFAST_RECONCILE_PUBSUB_METRICS_LISTEN, value: ":9090"}
          ports: [{name: metrics, containerPort: 9090}]
          livenessProbe:
            httpGet: {path: /healthz, port: metrics}
` + podSecurity + `{{else -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: holdfast-reconcile
spec:
  schedule: "*/5 * * * *"
  concurrencyPolicy: Forbid # two drains would race for the same messages
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 0 # the next tick is the retry
      activeDeadlineSeconds: {{.ActiveDeadline}} # above RUN_BUDGET_SECONDS: a run that is killed counts as failed
      template:
        spec:
          serviceAccountName: holdfast-reconcile
          restartPolicy: Never
          terminationGracePeriodSeconds: 60 # records in hand are finished
          containers:
            - name: reconcile
              image: holdfast
              command: ["holdfast", "reconcile"] # the image starts the server by itself
              env:
{{- range .Env}}
                - {name: {{.Name}}, value: {{printf "%q" .Value}}}
{{- end}}
                - {name: RUN_BUDGET_SECONDS, value: "{{.Budget}}"}
              securityContext:
                allowPrivilegeEscalation: false
                readOnlyRootFilesystem: true
                runAsNonRoot: true
{{end}}`

const publishManifest = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: holdfast-publish
spec:
  replicas: 2 # one publishes, one waits
  selector:
    matchLabels: {app: holdfast-publish}
  template:
    metadata:
      labels: {app: holdfast-publish}
    spec:
      serviceAccountName: holdfast-publish
      terminationGracePeriodSeconds: 45 # what is being published is finished
      containers:
        - name: publish
          image: holdfast
          command: ["holdfast", "publish"] # the image starts the server by itself
          env:
{{- range .Env}}
            - {name: {{.Name}}, value: {{printf "%q" .Value}}}
{{- end}}
            - {name: HOLDFAST_PUBLISH_METRICS_LISTEN, value: ":9090"}
          ports: [{name: metrics, containerPort: 9090}]
          livenessProbe:
            httpGet: {path: /healthz, port: metrics}
` + podSecurity
