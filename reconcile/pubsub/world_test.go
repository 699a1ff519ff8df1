package pubsub_test

import (
	"sync"
	"testing"
	"time"

	api "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/metrics"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/reconcile/pubsub"
	"github.com/holdfast-dev/holdfast/reconcile/reconciletest"
)

const (
	topic      = "projects/p/topics/payload-link-changes"
	deadTopic  = topic + "-dlq"
	sub        = "projects/p/subscriptions/payload-link-reconciler-sub"
	deadSub    = "projects/p/subscriptions/payload-link-changes-dlq-sub"
	maxAttempt = 5
)

// world is a service with topics, subscriptions and a clock of its own, and a store.
type world struct {
	testing.TB
	server *pstest.Server
	faults *faults
	clock  *clock.Manual // of the service
	store  *blob.Store
	blobs  *blobtest.Faults
	reg    *metrics.Registry
}

// faults lets requests of the service fail.
type faults struct {
	mu   sync.Mutex
	fail func(call string) codes.Code
}

func (f *faults) set(fail func(call string) codes.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// reactor is the faults of one call.
type reactor struct {
	*faults
	call string
}

func (r reactor) React(any) (bool, any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail == nil {
		return false, nil, nil
	}
	c := r.fail(r.call)
	var none any
	switch r.call {
	case "Pull":
		none = &api.PullResponse{}
	default:
		none = nil
	}
	if c == codes.OK {
		return false, none, nil
	}
	return true, none, status.Error(c, "injected")
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, faults: &faults{}, clock: clock.NewManual(time.Now()), reg: metrics.New()}
	var opts []pstest.ServerReactorOption
	for _, call := range []string{"Pull", "Acknowledge", "ModifyAckDeadline"} {
		opts = append(opts, pstest.ServerReactorOption{FuncName: call, Reactor: reactor{w.faults, call}})
	}
	w.server = pstest.NewServer(opts...)
	w.server.SetTimeNowFunc(w.clock.Now)
	t.Cleanup(func() { w.server.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{topic, deadTopic} {
		_, err := w.server.GServer.CreateTopic(t.Context(), &api.Topic{Name: name})
		must(err)
	}
	_, err := w.server.GServer.CreateSubscription(t.Context(), &api.Subscription{
		Name: sub, Topic: topic, AckDeadlineSeconds: 60,
		DeadLetterPolicy: &api.DeadLetterPolicy{DeadLetterTopic: deadTopic, MaxDeliveryAttempts: maxAttempt},
	})
	must(err)
	_, err = w.server.GServer.CreateSubscription(t.Context(), &api.Subscription{Name: deadSub, Topic: deadTopic, AckDeadlineSeconds: 60})
	must(err)
	w.store, w.blobs = reconciletest.NewStore(t, clock.System{})
	return w
}

func (w *world) client() []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + w.server.Addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

func (w *world) source(name string, opts pubsub.Options) *pubsub.Source {
	w.Helper()
	opts.Clock = w.clock
	s, err := pubsub.Open(w.Context(), name, opts, w.client()...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { s.Close() })
	return s
}

func (w *world) reconciler(name string, source pubsub.Options, opts reconcile.Options) *reconcile.Reconciler {
	w.Helper()
	opts.Clock = clock.System{}
	if opts.Metrics == nil {
		opts.Metrics = w.reg
	}
	return reconcile.New(w.source(name, source), w.store, opts)
}

// drain works until the subscription is empty.
func (w *world) drain(name string) {
	w.Helper()
	r := w.reconciler(name, pubsub.Options{UntilEmpty: true}, reconcile.Options{Wait: time.Minute})
	if err := r.Once(w.Context(), time.Minute); err != nil {
		w.Error(err)
	}
}

func (w *world) send(messages ...string) (ids []string) {
	for _, m := range messages {
		ids = append(ids, w.server.Publish(topic, []byte(m), nil))
	}
	return ids
}

func (w *world) acked(id string) bool { return w.server.Message(id).Acks > 0 }

// want compares the objects a and b with "committed", "absent" or "unfinalized".
func (w *world) want(a, b string) {
	w.Helper()
	for name, want := range map[string]string{"a": a, "b": b} {
		got := "unfinalized"
		attrs, err := w.store.Stat(w.Context(), "u/c/i/"+name)
		switch {
		case err != nil:
			got = "absent"
		case attrs.Committed:
			got = "committed"
		}
		if got != want {
			w.Errorf("object %s is %s, want %s", name, got, want)
		}
	}
}

// pass lets ack deadlines end, some times, until stop is called. In all it must be
// less than the 10 minutes after which the server forgets messages.
func (w *world) pass(times int, every time.Duration) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range times {
			select {
			case <-time.After(every):
				w.clock.Advance(61 * time.Second)
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
