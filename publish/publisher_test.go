package publish

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// R1
func TestChildrenOfTheFirstQueryAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 6)
		stop := w.start(Options{})
		for n := range 5 {
			time.Sleep(time.Second)
			for k := range 6 {
				w.stream.commit(time.Now(), k, n)
			}
		}
		time.Sleep(time.Second)
		must(t, stop())
		for k := range 6 {
			w.want(k, 5)
		}
		for token, n := range w.stream.reads {
			if n != 1 {
				t.Errorf("partition %q was read %d times", token, n)
			}
		}
	})
}

// R2, R3
func TestSplitsAndMergesAreFollowedOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 4)
		w.sink.delay = 300 * time.Millisecond
		n := 0
		commit := func() {
			for range 5 {
				time.Sleep(100 * time.Millisecond)
				for k := range 4 {
					w.stream.commit(time.Now(), k, n)
				}
				n++
			}
		}
		stop := w.start(Options{})
		commit()
		w.stream.split(time.Now(), w.stream.living()[0], 2)
		commit()
		w.stream.merge(time.Now(), w.stream.living()...)
		commit()
		w.stream.split(time.Now(), w.stream.living()[0], 3)
		commit()
		w.stream.merge(time.Now(), w.stream.living()[:2]...)
		commit()
		time.Sleep(10 * time.Second)
		must(t, stop())
		for k := range 4 {
			w.want(k, n)
		}
		for token, n := range w.stream.reads {
			if n != 1 {
				t.Errorf("partition %q was read %d times", token, n)
			}
		}
	})
}

// A child of a merge waits for the slower parent, even if only the faster one has
// announced it.
func TestMergedPartitionWaitsForAllParents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2)
		slow := w.stream.living()[1]
		var held sync.Map
		w.stream.fault = func(q Query) error {
			if _, ok := held.Load("free"); !ok && q.Token == slow.token {
				return errInjected
			}
			return nil
		}
		w.stream.commit(time.Now(), 1, 0)
		stop := w.start(Options{})
		time.Sleep(time.Second)
		w.stream.merge(time.Now(), w.stream.living()...)
		w.stream.commit(time.Now(), 1, 1)
		time.Sleep(time.Minute)
		if got := w.sink.of(1); len(got) > 0 {
			t.Errorf("published %v before its parent was read", got)
		}
		held.Store("free", true)
		time.Sleep(time.Minute)
		must(t, stop())
		if got := fmt.Sprint(w.sink.of(1)); !strings.HasSuffix(got, "0 1]") || strings.Contains(got, "1 0") {
			t.Errorf("published %v", got)
		}
	})
}

// R4
func TestRestartLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 4)
		stop := w.start(Options{})
		n := 0
		for range 10 {
			for range 5 {
				time.Sleep(300 * time.Millisecond)
				for k := range 4 {
					w.stream.commit(time.Now(), k, n)
				}
				n++
			}
			w.stream.split(time.Now(), w.stream.living()[0], 2)
			must(t, stop())
			for k := range 4 {
				w.stream.commit(time.Now(), k, n)
			}
			n++
			w.stream.merge(time.Now(), w.stream.living()[:2]...)
			stop = w.start(Options{})
		}
		time.Sleep(time.Minute)
		must(t, stop())
		for k := range 4 {
			complete(t, k, w.sink.of(k), n)
		}
		if live := len(w.stream.living()); len(w.memory.stored()) > live+3 {
			t.Errorf("%d positions are kept for %d partitions", len(w.memory.stored()), live)
		}
	})
}

// complete wants each of n changes, in order but for repetitions.
func complete(t interface {
	Errorf(string, ...any)
	Helper()
}, key int, got []int, n int) {
	t.Helper()
	next := 0
	for _, g := range got {
		switch {
		case g == next:
			next++
		case g > next:
			t.Errorf("key %d: %d is published before %d: %v", key, g, next, got)
			return
		}
	}
	if next != n {
		t.Errorf("key %d: published %v, want up to %d", key, got, n-1)
	}
}

// R5
func TestPartitionThatIsOverIsReplacedByThoseThatExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 2)
		w.stream.commit(time.Now(), 0, 0)
		stop := w.start(Options{})
		time.Sleep(3 * time.Second)
		must(t, stop())
		p := w.stream.living()[0]
		w.stream.split(time.Now().Add(-time.Minute), p, 2) // long before its watermark
		for k := range 2 {
			w.stream.commit(time.Now(), k, 1)
		}
		stop = w.start(Options{})
		time.Sleep(10 * time.Second)
		must(t, stop())
		if got := w.sink.of(0); len(got) < 2 || got[len(got)-1] != 1 {
			t.Errorf("published %v", got)
		}
		if got := w.sink.of(1); len(got) == 0 || got[len(got)-1] != 1 {
			t.Errorf("published %v", got)
		}
	})
}

// R6
func TestPositionOlderThanTheStreamIsALoudFailure(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2, 2)
			w.stream.forgets = forgets
			stop := w.start(Options{})
			time.Sleep(5 * time.Second)
			must(t, stop())
			time.Sleep(8 * 24 * time.Hour)
			w.stream.dropped = time.Now().Add(-7 * 24 * time.Hour)
			if err := w.publisher(Options{}).Run(t.Context()); !errors.Is(err, ErrLost) {
				t.Fatalf("Run: %v, want ErrLost", err)
			}
			if got := scrape(w); !strings.Contains(got, "payload_link_publisher_errors_lost_total 1\n") {
				t.Errorf("metrics:\n%s", got)
			}
			w.stream.commit(time.Now(), 0, 0)
			stop = w.start(Options{Reset: true})
			time.Sleep(5 * time.Second)
			must(t, stop())
			w.want(0, 1)
		})
	}
}

func TestExplicitStartOlderThanTheStreamIsALoudFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		if err := w.publisher(Options{Start: time.Now().Add(-time.Hour)}).Run(t.Context()); !errors.Is(err, ErrLost) {
			t.Fatalf("Run: %v, want ErrLost", err)
		}
	})
}

func scrape(w *world) string {
	rec := httptest.NewRecorder()
	w.reg.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	return rec.Body.String()
}

// R7
func TestHeartbeatsMoveTheWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		stop := w.start(Options{})
		time.Sleep(time.Hour)
		for _, p := range w.memory.stored() {
			if age := time.Since(p.Watermark); p.State == Running && age > 3*time.Second {
				t.Errorf("watermark is %v old", age)
			}
		}
		if got := scrape(w); !strings.Contains(got, "payload_link_publisher_lag_seconds 1") && !strings.Contains(got, "payload_link_publisher_lag_seconds 0") {
			t.Errorf("metrics:\n%s", got)
		}
		must(t, stop())
	})
}

// R8
func TestPublishIsRepeatedUntilItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		failures := 0
		w.sink.fault = func(m [][]byte) ([][]byte, error) {
			if failures++; failures <= 10 {
				return m[len(m)/2:], errInjected
			}
			return nil, nil
		}
		time.Sleep(time.Minute)
		for k := range 3 {
			w.stream.commit(time.Now(), k, 0)
		}
		stop := w.start(Options{})
		time.Sleep(20 * time.Second)
		for _, p := range w.memory.stored() {
			if p.State == Running && p.Watermark.After(w.stream.created) {
				t.Errorf("the watermark has moved past what is not published: %+v", p)
			}
		}
		time.Sleep(5 * time.Minute)
		must(t, stop())
		for k := range 3 {
			w.want(k, 1)
		}
	})
}

func TestRecordsWithoutLinksAreNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.stream.commit(time.Now(), 0, 0)
		p := w.stream.living()[0]
		inert := *p.events[0].Change
		inert.Mods = nil
		p.events = append(p.events, Event{Time: time.Now(), Change: &inert})
		stop := w.start(Options{})
		time.Sleep(time.Second)
		must(t, stop())
		w.want(0, 1)
		got := scrape(w)
		for _, m := range []string{"published_total 1\n", "filtered_total 1\n"} {
			if !strings.Contains(got, "payload_link_publisher_"+m) {
				t.Errorf("metrics lack %s:\n%s", m, got)
			}
		}
		must(t, w.reg.Err())
	})
}

func TestEndIsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2)
		end := time.Now().Add(10 * time.Second)
		done := make(chan error, 1)
		go func() { done <- w.publisher(Options{End: end}).Run(t.Context()) }()
		time.Sleep(5 * time.Second)
		w.stream.commit(time.Now(), 0, 0)
		w.stream.split(time.Now(), w.stream.living()[0], 2)
		time.Sleep(10 * time.Second)
		must(t, <-done)
		w.stream.commit(time.Now(), 0, 1) // after the end
		w.want(0, 1)
		stop := w.start(Options{}) // goes on from there
		time.Sleep(5 * time.Second)
		must(t, stop())
		complete(t, 0, w.sink.of(0), 2)
	})
}

func TestMorePartitionsThanCanBeReadTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 7, 7)
		stop := w.start(Options{MaxPartitions: 2})
		for n := range 10 {
			time.Sleep(time.Minute)
			for k := range 7 {
				w.stream.commit(time.Now(), k, n)
			}
		}
		time.Sleep(5 * time.Minute)
		must(t, stop())
		for k := range 7 {
			complete(t, k, w.sink.of(k), 10)
		}
	})
}

func TestPublishRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20, 20)
		w.sink.delay = time.Second
		for k := range 20 {
			w.stream.commit(time.Now(), k, 0)
		}
		stop := w.start(Options{Concurrency: 3})
		time.Sleep(time.Minute)
		must(t, stop())
		if w.sink.most != 3 {
			t.Errorf("up to %d requests at a time, want 3", w.sink.most)
		}
		for k := range 20 {
			w.want(k, 1)
		}
	})
}

func TestSilentStreamIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.stream.silent = true
		stop := w.start(Options{})
		time.Sleep(10 * time.Minute)
		must(t, stop())
		if n := w.stream.reads[w.stream.living()[0].token]; n < 5 || n > 12 {
			t.Errorf("read %d times in 10 minutes", n)
		}
	})
}

func TestStopFinishesWhatIsBeingPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.sink.delay = 5 * time.Second
		w.stream.commit(time.Now(), 0, 0)
		stop := w.start(Options{})
		time.Sleep(time.Second)
		must(t, stop())
		w.want(0, 1)
		stop = w.start(Options{})
		time.Sleep(time.Second)
		must(t, stop())
		if p := w.memory.stored()[w.stream.living()[0].token]; p.Watermark.Before(w.stream.created) || p.State != Running {
			t.Errorf("stored %+v", p)
		}
	})
}

func TestTwoPublishersOneWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2)
		first := w.start(Options{})
		time.Sleep(time.Second)
		second := w.start(Options{})
		w.stream.commit(time.Now(), 0, 0)
		time.Sleep(time.Hour)
		w.want(0, 1)
		must(t, first())
		w.stream.commit(time.Now(), 0, 1)
		time.Sleep(time.Minute)
		complete(t, 0, w.sink.of(0), 2)
		must(t, second())
	})
}

func TestPublisherThatWasAwayTooLongStoresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		away := w.memory.user()
		var lost sync.Map
		away.fault = func(string) error {
			if _, ok := lost.Load("away"); ok {
				return errInjected
			}
			return nil
		}
		done := make(chan error, 1)
		p := New(w.stream, w.sink, away, Options{Clock: w.publisher(Options{}).opts.Clock})
		go func() { done <- p.Run(ctx) }()
		time.Sleep(5 * time.Second)
		lost.Store("away", true)
		second := w.start(Options{})
		time.Sleep(2 * time.Minute)
		if w.memory.isOwner(away) {
			t.Error("the claim of a publisher that is away does not end")
		}
		lost.Delete("away")
		w.stream.commit(time.Now(), 0, 0)
		time.Sleep(2 * time.Minute)
		if w.memory.isOwner(away) {
			t.Error("it took its claim back")
		}
		cancel()
		must(t, <-done)
		must(t, second())
		complete(t, 0, w.sink.of(0), 1)
	})
}
