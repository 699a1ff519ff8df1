package sync15

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

func TestTurnsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(1, 1000)
		var first, second turn
		if err := first.begin(t.Context(), &all, 5*smallCommit); err != nil {
			t.Fatal(err)
		}
		var order []string
		queue := func(name string, commit int64) {
			go func() {
				var own turn
				if err := own.begin(t.Context(), &all, commit); err != nil {
					t.Error(err)
				}
				order = append(order, name)
				own.end()
			}()
			synctest.Wait()
		}
		queue("large", 2*smallCommit) // has no memory, and is in nobody's way
		for i := range 5 {
			queue(fmt.Sprint("small", i), smallCommit)
		}
		if len(order) > 0 {
			t.Fatalf("%v did not wait", order)
		}
		first.pause()
		synctest.Wait()
		if want := []string{"small0", "small1", "small2", "small3", "small4"}; !slices.Equal(order, want) {
			t.Errorf("the turns came in the order %v, want %v", order, want)
		}
		if err := second.begin(t.Context(), &all, 0); err != nil {
			t.Fatal(err)
		}
		first.end()
		first.end()
		second.end()
		synctest.Wait()
		if order[len(order)-1] != "large" {
			t.Errorf("the large commit never came: %v", order)
		}
	})
}

func TestATurnEndsWithTheContext(t *testing.T) {
	all := newTurns(1, 1000)
	var first, second, large turn
	if err := first.begin(t.Context(), &all, smallCommit+1); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.begin(ended, &all, 0); !errors.Is(err, errRetry) {
		t.Errorf("begin: %v", err)
	}
	if err := large.begin(ended, &all, smallCommit+1); !errors.Is(err, errRetry) {
		t.Errorf("begin: %v", err)
	}
	second.end()
	large.end()
	if err := first.waiting(ended, func() error { return nil }); !errors.Is(err, errRetry) {
		t.Errorf("waiting: %v", err)
	}
	first.end()
	if !all.free.TryAcquire(1) || !all.commits.TryAcquire(1000) {
		t.Error("a turn was not given back")
	}
	if all.free.TryAcquire(1) || all.commits.TryAcquire(1) {
		t.Error("a turn was given back twice")
	}
}

// bodyOf is a body that does something before it ends.
type bodyOf struct {
	io.Reader
	then func()
}

func (b *bodyOf) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && b.then != nil {
		b.then()
		b.then = nil
	}
	return n, err
}

// TestAWaitingRequestHoldsNoTurn does whole requests while others wait for their
// client or the store, where requests come one after the other.
func TestAWaitingRequestHoldsNoTurn(t *testing.T) {
	oneAtATime := func(o *Options) { o.Turns, o.CommitBudget = 1, 1 }
	w := newWorld(t, setup{offload: []string{"off"}, concurrency: 1, door: oneAtATime})
	w.server.stream = 64 << 10
	w.large(10, 32<<10)
	others := 0
	other := func() {
		others++
		w.put("col", "other", "x")
		w.do("GET", "storage/col?full=1&limit=5", "").want(200)
		w.do("GET", "info/collections", "").want(200)
	}
	for _, method := range []string{"PUT", "POST"} {
		target, body := "storage/col/slow", `{"payload":"slow"}`
		if method == "POST" {
			target, body = "storage/col", `[{"id":"slow","payload":"slow"}]`
		}
		r := w.request(w.user, method, target, &bodyOf{strings.NewReader(body), other})
		r.ContentLength = -1
		w.serve(r).want(200)
	}
	w.stream("storage/col?full=1", &watched{onPiece: func(int) { other() }})
	w.stream("storage/col?full=1&limit=1", &watched{onPiece: func(int) { other() }})
	hook := func(op blobtest.Op) {
		w.objects.SetHook(blobtest.On(op, blobtest.After, func(context.Context, blobtest.Call) error {
			other()
			return nil
		}))
	}
	hook(blobtest.OpPut)
	w.put("off", "a", strings.Repeat("y", 1000))
	hook(blobtest.OpGet)
	if got := w.get("off", "a"); got != strings.Repeat("y", 1000) {
		t.Errorf("payload %q", got)
	}
	w.do("GET", "storage/off?full=1", "").want(200)
	if others < 8 {
		t.Errorf("only %d times somebody else came", others)
	}
}

func TestACutOffAnswerEndsItsTurn(t *testing.T) {
	w := newWorld(t, setup{door: func(o *Options) { o.Turns = 1 }})
	w.server.stream = 64 << 10
	w.large(10, 32<<10)
	if !w.stream("storage/col?full=1&newer=0", &watched{onPiece: func(int) { w.put("col", "r00000", "changed") }}) {
		t.Error("the answer is whole")
	}
	w.put("col", "after", "x")
	w.do("POST", "storage/col", "no JSON").want(400)
	w.do("GET", "storage/col/none", "").want(404)
	w.put("col", "after", "x")
}

func TestAnUploadWithoutATurnLeavesNoObject(t *testing.T) {
	w := newWorld(t, setup{offload: []string{"col"}, concurrency: 1, door: func(o *Options) { o.Turns = 1 }})
	var busy turn
	ctx, cancel := context.WithCancel(t.Context())
	w.objects.SetHook(blobtest.On(blobtest.OpPut, blobtest.After, func(context.Context, blobtest.Call) error {
		if err := busy.begin(t.Context(), &w.server.turns, 0); err != nil {
			t.Error(err)
		}
		go cancel()
		return nil
	}))
	r := w.request(w.user, "PUT", "storage/col/a", strings.NewReader(`{"payload":"abc"}`)).WithContext(ctx)
	rec := httptest.NewRecorder()
	w.server.ServeHTTP(rec, r)
	busy.end()
	w.objects.SetHook(nil)
	if rec.Code != 503 {
		t.Errorf("status %d", rec.Code)
	}
	w.wantPayloads()
	w.do("GET", "storage/col/a", "").want(404)
}
