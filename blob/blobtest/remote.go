package blobtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

// RemoteHarness is a Harness of drivers that talk to a server, and the server.
type RemoteHarness func(tb testing.TB) (open func() blob.Driver, server *faulthttp.Server)

// maxRequests bounds how many requests one operation may need.
const maxRequests = 50

// RunRemote runs, beside Run, the cases that need a server that can be interfered
// with: requests and answers are lost, and other calls come between any two requests
// of one call. Drivers must repeat what was lost by themselves.
func RunRemote(t *testing.T, h RemoteHarness) {
	cases := []struct {
		name string
		run  func(*remote)
	}{
		{"LostRequestsAndAnswersAreRepeated", testLostRequests},
		{"LostAnswersDoNotHideOthers", testLostAnswersDoNotHideOthers},
		{"FinalizeWithinDiscard", testFinalizeWithinDiscard},
		{"DiscardWithinFinalize", testDiscardWithinFinalize},
		{"DeleteWithinDelete", testDeleteWithinDelete},
		{"NewObjectWithinRemoval", testNewObjectWithinRemoval},
		{"NewObjectWithinFinalize", testNewObjectWithinFinalize},
		{"PutWithinPut", testPutWithinPut},
		{"ChangesWithinReads", testChangesWithinReads},
		{"ReadIsOfOneObject", testReadIsOfOneObject},
		{"BrokenOffCallsCanBeRepeated", testBrokenOffCalls},
		{"HangingServerEndsWithContext", testHangingServer},
		{"GoneStoreIsNotGoneObject", testGoneStore},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
			defer cancel()
			open, server := h(t)
			f := &fixture{T: t, ctx: ctx, clock: clock.NewManual(start), open: open}
			f.driver = open()
			f.store = f.over(f.driver)
			c.run(&remote{fixture: f, server: server, other: f.over(open())})
		})
	}
}

// remote is the world of one case: other is a second process on the same store.
type remote struct {
	*fixture
	server *faulthttp.Server
	other  *blob.Store

	hooking sync.Mutex // held by hooks, for what they share with the case
}

// hook sets a hook that may share variables with the case, up to unhook.
func (r *remote) hook(h faulthttp.Hook) {
	r.server.SetHook(func(n int, q *http.Request, at faulthttp.Stage) faulthttp.Action {
		r.hooking.Lock()
		defer r.hooking.Unlock()
		return h(n, q, at)
	})
}

// unhook removes the hook and waits for its end.
func (r *remote) unhook() {
	r.server.SetHook(nil)
	r.hooking.Lock()
	defer r.hooking.Unlock()
}

// scenario is one call. It returns what the caller learns.
type scenario struct {
	name    string
	prepare func(r *remote, name string)
	call    func(r *remote, ctx context.Context, name string) (any, error)
	check   func(r *remote, name string)
}

const remoteContent = "content of a remote object"

func prepareNothing(*remote, string) {}

func preparePut(r *remote, name string) { r.put(name, remoteContent) }

func prepareFinalized(r *remote, name string) {
	r.put(name, remoteContent)
	r.finalize(name)
}

func checkBorn(r *remote, name string) {
	r.wantObject(r.other, name, remoteContent, false, r.created())
}

func checkFinalized(r *remote, name string) {
	r.wantObject(r.other, name, remoteContent, true, blob.FinalizedTime)
}

func checkGone(r *remote, name string) { r.wantGone(r.other, name) }

func scenarios() []scenario {
	remove := func(what func(*blob.Store, context.Context, string) (bool, error)) func(*remote, context.Context, string) (any, error) {
		return func(r *remote, ctx context.Context, name string) (any, error) { return what(r.store, ctx, name) }
	}
	return []scenario{
		{"put", prepareNothing, func(r *remote, ctx context.Context, name string) (any, error) {
			return nil, put(ctx, r.store, name, remoteContent)
		}, checkBorn},
		{"put taken", preparePut, func(r *remote, ctx context.Context, name string) (any, error) {
			return nil, put(ctx, r.store, name, "something else")
		}, checkBorn},
		{"finalize", preparePut, remove((*blob.Store).Finalize), checkFinalized},
		{"finalize again", prepareFinalized, remove((*blob.Store).Finalize), checkFinalized},
		{"finalize nothing", prepareNothing, remove((*blob.Store).Finalize), checkGone},
		{"discard", preparePut, remove((*blob.Store).Discard), checkGone},
		{"discard finalized", prepareFinalized, remove((*blob.Store).Discard), checkFinalized},
		{"delete", preparePut, remove((*blob.Store).Delete), checkGone},
		{"delete finalized", prepareFinalized, remove((*blob.Store).Delete), checkGone},
		{"delete nothing", prepareNothing, remove((*blob.Store).Delete), checkGone},
		{"stat", prepareFinalized, func(r *remote, ctx context.Context, name string) (any, error) {
			return r.store.Stat(ctx, name)
		}, checkFinalized},
		{"get", preparePut, func(r *remote, ctx context.Context, name string) (any, error) {
			return readAll(ctx, r.store, name, 0, -1)
		}, checkBorn},
		{"get range", prepareFinalized, func(r *remote, ctx context.Context, name string) (any, error) {
			return readAll(ctx, r.store, name, 3, 7)
		}, checkFinalized},
		{"copy", prepareFinalized, func(r *remote, ctx context.Context, name string) (any, error) {
			return nil, r.store.Copy(ctx, name, name+" copy")
		}, func(r *remote, name string) { checkBorn(r, name+" copy") }},
		{"list", prepareFinalized, func(r *remote, ctx context.Context, name string) (any, error) {
			var names []string
			err := r.store.List(ctx, name, "", func(a blob.Attrs) bool {
				names = append(names, fmt.Sprintf("%s %v", a.Name[len(name):], a.Committed))
				return true
			})
			return names, err
		}, checkFinalized},
	}
}

func put(ctx context.Context, s *blob.Store, name, content string) error {
	return s.Put(ctx, name, strings.NewReader(content), int64(len(content)))
}

func readAll(ctx context.Context, s *blob.Store, name string, offset, length int64) (string, error) {
	r, _, err := s.GetRange(ctx, name, offset, length)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	_, err = io.Copy(&b, r)
	return b.String(), errors.Join(err, r.Close())
}

// result is what a caller learns, in comparable form.
func (s scenario) result(r *remote, name string) answer {
	value, err := s.call(r, r.ctx, name)
	if a, ok := value.(blob.Attrs); ok {
		a.Name = ""
		value = a
	}
	return answerOf(value, err)
}

func testLostRequests(r *remote) {
	faults := []struct {
		name   string
		stage  faulthttp.Stage
		action faulthttp.Action
	}{
		{"request lost", faulthttp.Before, faulthttp.Drop},
		{"answer lost", faulthttp.After, faulthttp.Drop},
		{"server error", faulthttp.Before, faulthttp.Fail(http.StatusServiceUnavailable, "")},
		{"server error after success", faulthttp.After, faulthttp.Fail(http.StatusServiceUnavailable, "")},
	}
	for _, s := range scenarios() {
		s.prepare(r, s.name+"/undisturbed")
		want := s.result(r, s.name+"/undisturbed")
		for _, fault := range faults {
			for n := range maxRequests {
				name := fmt.Sprintf("%s/%s/%d", s.name, fault.name, n)
				s.prepare(r, name)
				reached := false
				at := faulthttp.At(n, fault.stage, fault.action)
				r.hook(func(i int, q *http.Request, stage faulthttp.Stage) faulthttp.Action {
					action := at(i, q, stage)
					reached = reached || action != faulthttp.Pass
					return action
				})
				got := s.result(r, name)
				r.unhook()
				if !reached {
					break
				}
				if diff := cmp.Diff(want, got); diff != "" {
					r.Errorf("%s, %s at request %d (-without +with):\n%s", s.name, fault.name, n, diff)
				}
				s.check(r, name)
			}
		}
	}
}

// testBrokenOffCalls ends the process, so to speak, at each request of each call: all
// later requests fail, until another process repeats the call.
func testBrokenOffCalls(r *remote) {
	for _, s := range scenarios() {
		for _, stage := range []faulthttp.Stage{faulthttp.Before, faulthttp.After} {
			for n := range maxRequests {
				name := fmt.Sprintf("%s/%s/%d", s.name, stage, n)
				s.prepare(r, name)
				reached := false
				ctx, cancel := context.WithCancel(r.ctx)
				r.hook(func(i int, _ *http.Request, at faulthttp.Stage) faulthttp.Action {
					if i == n && at == stage {
						reached = true
					}
					if reached {
						cancel()
						return faulthttp.Drop
					}
					return faulthttp.Pass
				})
				_, err := s.call(r, ctx, name)
				r.unhook()
				cancel()
				if !reached {
					break
				}
				if err != nil {
					// What the repeated call learns may differ, what it leaves may not.
					repeated := &remote{fixture: &fixture{T: r.T, ctx: r.ctx, clock: r.clock, driver: r.driver, store: r.other}, server: r.server, other: r.store}
					if _, err := s.call(repeated, r.ctx, name); err != nil && !errors.Is(err, blob.ErrExists) {
						r.Errorf("%s broken off %s request %d, and repeated: %v", s.name, stage, n, err)
					}
				}
				s.check(r, name)
				r.wantListed(name)
			}
		}
	}
}

// wantListed checks that a list shows what Stat does.
func (r *remote) wantListed(name string) {
	r.Helper()
	stat, err := r.store.Stat(r.ctx, name)
	found := slices.ContainsFunc(r.list(name, ""), func(a blob.Attrs) bool { return a.Name == name && plain(a) == plain(stat) })
	if found != (err == nil) {
		r.Errorf("%q: listed is %v, Stat says %+v, %v", name, found, stat, err)
	}
}

func testHangingServer(r *remote) {
	for _, s := range scenarios() {
		s.prepare(r, s.name)
		ctx, cancel := context.WithCancel(r.ctx)
		arrived := make(chan struct{}, maxRequests)
		r.server.SetHook(func(_ int, q *http.Request, at faulthttp.Stage) faulthttp.Action {
			if at == faulthttp.Before {
				arrived <- struct{}{}
				<-q.Context().Done()
				return faulthttp.Drop
			}
			return faulthttp.Pass
		})
		failed := make(chan error, 1)
		go func() {
			_, err := s.call(r, ctx, s.name)
			failed <- err
		}()
		<-arrived
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			r.Errorf("%s at a hanging server = %v, want context.Canceled", s.name, err)
		}
		r.server.SetHook(nil)
	}
}

func testGoneStore(r *remote) {
	r.put("there", remoteContent)
	r.server.SetHook(faulthttp.Always(faulthttp.Before, faulthttp.Fail(http.StatusNotFound, "")))
	defer r.server.SetHook(nil)
	for _, s := range scenarios() {
		if _, err := s.call(r, r.ctx, "there"); err == nil || errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrExists) {
			r.Errorf("%s in a store that is gone = %v, want another error", s.name, err)
		}
	}
}
