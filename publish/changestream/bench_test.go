package changestream_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	api "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-dev/holdfast/publish"
	"github.com/holdfast-dev/holdfast/publish/changestream/streamtest"
	"github.com/holdfast-dev/holdfast/publish/pubsub"
)

// slowTopic takes as long as a request to Pub/Sub does, and counts.
type slowTopic struct {
	publish.Topic
	delay time.Duration
	n     atomic.Int64
}

func (p *slowTopic) Publish(ctx context.Context, messages [][]byte) ([][]byte, error) {
	time.Sleep(p.delay)
	failed, err := p.Topic.Publish(ctx, messages)
	p.n.Add(int64(len(messages) - len(failed)))
	return failed, err
}

// BenchmarkPublisher carries records from a stream with the official client to a
// topic with the official client, whose requests take 30 ms; in one case all
// records are in one partition.
func BenchmarkPublisher(b *testing.B) {
	for _, partitions := range []int{1, 8} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			s := streamtest.New(b)
			if partitions > 1 {
				s.Split(s.Living()[0], partitions)
			}
			ps := pstest.NewServer()
			b.Cleanup(func() { ps.Close() })
			const name = "projects/p/topics/t"
			if _, err := ps.GServer.CreateTopic(b.Context(), &api.Topic{Name: name}); err != nil {
				b.Fatal(err)
			}
			to, err := pubsub.Open(b.Context(), name, option.WithEndpoint("passthrough:///"+ps.Addr), option.WithoutAuthentication(),
				option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { to.Close() })
			for i := range b.N {
				s.Commit(insert(fmt.Sprint("user", i), i))
			}
			topic := &slowTopic{Topic: to, delay: 30 * time.Millisecond}
			src := open(b, s, options())
			b.ResetTimer()
			publisher(b, src, topic, filepath.Join(b.TempDir(), "p"))
			wait(b, "all records", func() bool { return topic.n.Load() >= int64(b.N) })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
