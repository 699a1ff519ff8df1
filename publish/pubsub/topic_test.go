package pubsub_test

import (
	"bytes"
	"fmt"
	"testing"

	api "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/publish/pubsub"
)

const name = "projects/p/topics/payload-link-changes"

func server(t *testing.T, opts ...pstest.ServerReactorOption) (*pstest.Server, *pubsub.Topic) {
	t.Helper()
	s := pstest.NewServer(opts...)
	t.Cleanup(func() { s.Close() })
	if _, err := s.GServer.CreateTopic(t.Context(), &api.Topic{Name: name}); err != nil {
		t.Fatal(err)
	}
	topic, err := pubsub.Open(t.Context(), name,
		option.WithEndpoint("passthrough:///"+s.Addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { topic.Close() })
	return s, topic
}

// requests counts publish requests and lets one fail.
type requests struct {
	n, bad int
	sizes  []int
}

func (r *requests) React(req any) (bool, any, error) {
	r.n++
	p := req.(*api.PublishRequest)
	r.sizes = append(r.sizes, len(p.Messages))
	if r.n == r.bad {
		return true, &api.PublishResponse{}, status.Error(codes.Unavailable, "injected")
	}
	return false, nil, nil
}

func TestMessagesAreSentAsTheyAreInFewRequests(t *testing.T) {
	r := &requests{}
	s, topic := server(t, pstest.ServerReactorOption{FuncName: "Publish", Reactor: r})
	var messages [][]byte
	for i := range 2500 {
		messages = append(messages, fmt.Appendf(nil, `{"i":%d}`, i))
	}
	if failed, err := topic.Publish(t.Context(), messages); len(failed) != 0 || err != nil {
		t.Fatal(len(failed), err)
	}
	if fmt.Sprint(r.sizes) != "[1000 1000 500]" {
		t.Errorf("requests of %v messages", r.sizes)
	}
	for i, m := range s.Messages() {
		if !bytes.Equal(m.Data, messages[i]) || len(m.Attributes) != 0 || m.OrderingKey != "" {
			t.Fatalf("message %d: %+v", i, m)
		}
	}
}

func TestRequestsStayBelowTheLimit(t *testing.T) {
	r := &requests{}
	_, topic := server(t, pstest.ServerReactorOption{FuncName: "Publish", Reactor: r})
	big := bytes.Repeat([]byte{'x'}, 3_000_000) // the server's own limit on a request is 4 MB
	if failed, err := topic.Publish(t.Context(), [][]byte{[]byte("a"), []byte("b")}); len(failed) != 0 || err != nil {
		t.Error(len(failed), err)
	}
	if failed, err := topic.Publish(t.Context(), [][]byte{big}); len(failed) != 0 || err != nil {
		t.Error(len(failed), err)
	}
}

func TestPublishStopsAtTheFirstFailureAndSaysWhatIsLeft(t *testing.T) {
	r := &requests{bad: 2}
	s, topic := server(t, pstest.ServerReactorOption{FuncName: "Publish", Reactor: r})
	messages := make([][]byte, 3000)
	for i := range messages {
		messages[i] = fmt.Append(nil, i)
	}
	failed, err := topic.Publish(t.Context(), messages)
	if err == nil || len(failed) != 2000 || string(failed[0]) != "1000" || r.n != 2 {
		t.Errorf("%d left after %d requests: %v", len(failed), r.n, err)
	}
	if failed, err = topic.Publish(t.Context(), failed); len(failed) != 0 || err != nil || len(s.Messages()) != 3000 {
		t.Errorf("%d left, %v, %d published", len(failed), err, len(s.Messages()))
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct{ project, topic, want string }{
		{"p", "t", "projects/p/topics/t"}, {"", "projects/q/topics/t", "projects/q/topics/t"}, {"p", "projects/q/topics/t", "projects/q/topics/t"},
		{"", "t", ""}, {"p", "", ""}, {"p", "projects/q/subscriptions/t", ""},
	} {
		got, err := pubsub.TopicName(c.project, c.topic)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}
