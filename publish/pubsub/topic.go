// Package pubsub is the publish.Topic of Google Cloud Pub/Sub.
package pubsub

import (
	"context"
	"fmt"
	"regexp"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
)

// Limits of one request. Pub/Sub takes 10 MB and 1000 messages; a message needs a
// few bytes around it.
const (
	maxMessages = 1000
	maxBytes    = 9_500_000
	overhead    = 16
)

var topicPattern = regexp.MustCompile(`^projects/[^/]+/topics/[^/]+$`)

// TopicName returns the resource name of a topic, which may be one already.
func TopicName(project, topic string) (string, error) {
	name := topic
	if !topicPattern.MatchString(name) {
		name = "projects/" + project + "/topics/" + topic
	}
	if !topicPattern.MatchString(name) {
		return "", fmt.Errorf("pubsub: %q is not a topic such as projects/P/topics/T, nor one in project %q", topic, project)
	}
	return name, nil
}

// Topic publishes to a topic: the data alone, without attributes and ordering keys.
// Close it after use.
type Topic struct {
	client *pubsub.TopicAdminClient
	name   string
}

// Open returns the topic of that resource name.
func Open(ctx context.Context, name string, client ...option.ClientOption) (*Topic, error) {
	c, err := pubsub.NewTopicAdminClient(ctx, client...)
	if err != nil {
		return nil, fmt.Errorf("pubsub: open %s: %w", name, err)
	}
	return &Topic{client: c, name: name}, nil
}

// Close ends the use of the topic.
func (t *Topic) Close() error { return t.client.Close() }

// Publish implements publish.Topic. It makes as few requests as possible, one after
// the other, and stops at the first that fails: the caller repeats, and counts.
func (t *Topic) Publish(ctx context.Context, messages [][]byte) (failed [][]byte, err error) {
	for len(messages) > 0 {
		n := fitting(messages)
		req := &pubsubpb.PublishRequest{Topic: t.name, Messages: make([]*pubsubpb.PubsubMessage, n)}
		for i, m := range messages[:n] {
			req.Messages[i] = &pubsubpb.PubsubMessage{Data: m}
		}
		if _, err := t.client.Publish(ctx, req, noRetry); err != nil {
			return messages, fmt.Errorf("pubsub: publish: %w", err)
		}
		messages = messages[n:]
	}
	return nil, nil
}

// fitting returns how many messages one request can carry, at least one.
func fitting(messages [][]byte) int {
	size := 0
	for i, m := range messages {
		if size += len(m) + overhead; i > 0 && (size > maxBytes || i == maxMessages) {
			return i
		}
	}
	return len(messages)
}

var noRetry = gax.WithRetry(func() gax.Retryer { return nil })
