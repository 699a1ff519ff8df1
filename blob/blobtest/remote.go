package blobtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
				r.server.SetHook(func(i int, q *http.Request, stage faulthttp.Stage) faulthttp.Action {
					action := at(i, q, stage)
					reached = reached || action != faulthttp.Pass
					return action
				})
				got := s.result(r, name)
				r.server.SetHook(nil)
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

// within runs fn in the middle of call: before its n-th request, and in a further round
// after it, for all n until call has no more requests. name is new in each round.
func (r *remote) within(call, fn func(name string), check func(name string)) {
	for _, stage := range []faulthttp.Stage{faulthttp.Before, faulthttp.After} {
		for n := range maxRequests {
			name := fmt.Sprintf("%s request %d", stage, n)
			r.put(name, remoteContent)
			reached := false
			r.server.SetHook(func(i int, _ *http.Request, at faulthttp.Stage) faulthttp.Action {
				if i == n && at == stage && !reached {
					reached = true
					r.server.SetHook(nil)
					fn(name)
				}
				return faulthttp.Pass
			})
			call(name)
			r.server.SetHook(nil)
			if !reached {
				if n == 0 {
					r.Error("the call made no request")
				}
				r.must(r.other.Delete(r.ctx, name))
				break
			}
			check(name)
		}
	}
}

func testLostAnswersDoNotHideOthers(r *remote) {
	// A request is lost, another process is faster, and ours is repeated.
	for n := range maxRequests {
		name := fmt.Sprint("lost/", n)
		r.put(name, remoteContent)
		reached, finalized := false, false
		r.server.SetHook(func(i int, _ *http.Request, at faulthttp.Stage) faulthttp.Action {
			if i != n || at != faulthttp.Before || reached {
				return faulthttp.Pass
			}
			reached = true
			r.server.SetHook(nil)
			finalized = r.must(r.other.Finalize(r.ctx, name))
			return faulthttp.Drop
		})
		removed, err := r.store.Discard(r.ctx, name)
		r.server.SetHook(nil)
		if !reached {
			return
		}
		if err != nil {
			r.Errorf("request %d: Discard = %v", n, err)
		}
		r.wantOneFate(name, finalized, removed)
	}
}

// wantOneFate checks that what Finalize and Discard said is what happened.
func (r *remote) wantOneFate(name string, finalized, discarded bool) {
	r.Helper()
	if finalized == discarded {
		r.Errorf("%s: finalized is %v and discarded is %v", name, finalized, discarded)
	}
	if finalized {
		checkFinalized(r, name)
	} else {
		checkGone(r, name)
	}
}

func (r *remote) must(ok bool, err error) bool {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
	return ok
}

func testFinalizeWithinDiscard(r *remote) {
	var finalized, discarded bool
	r.within(
		func(name string) { discarded = r.must(r.store.Discard(r.ctx, name)) },
		func(name string) { finalized = r.must(r.other.Finalize(r.ctx, name)) },
		func(name string) { r.wantOneFate(name, finalized, discarded) })
}

func testDiscardWithinFinalize(r *remote) {
	var finalized, discarded bool
	r.within(
		func(name string) { finalized = r.must(r.store.Finalize(r.ctx, name)) },
		func(name string) { discarded = r.must(r.other.Discard(r.ctx, name)) },
		func(name string) { r.wantOneFate(name, finalized, discarded) })
}

func testDeleteWithinDelete(r *remote) {
	for _, finalize := range []string{"never", "before", "between"} {
		var outer, inner bool
		r.within(
			func(name string) {
				if finalize == "before" {
					r.must(r.store.Finalize(r.ctx, name))
				}
				outer = r.must(r.store.Delete(r.ctx, name))
			},
			func(name string) {
				if finalize == "between" {
					r.must(r.other.Finalize(r.ctx, name))
				}
				inner = r.must(r.other.Delete(r.ctx, name))
			},
			func(name string) {
				if outer == inner {
					r.Errorf("%s: both or none of two Deletes found the object: %v", name, outer)
				}
				checkGone(r, name)
			})
	}
}

func testNewObjectWithinRemoval(r *remote) {
	const other = "another content"
	for _, cond := range []blob.Condition{{Unfinalized: true}, {Unfinalized: true, CustomTime: r.created()}} {
		r.clock.Set(start)
		r.within(
			func(name string) {
				if _, err := r.driver.Delete(r.ctx, name, cond); err != nil {
					r.Errorf("%s: Delete = %v", name, err)
				}
			},
			func(name string) {
				r.must(r.other.Delete(r.ctx, name))
				r.clock.Advance(time.Hour)
				if err := put(r.ctx, r.other, name, other); err != nil {
					r.Errorf("%s: Put = %v", name, err)
				}
				r.must(r.other.Finalize(r.ctx, name))
			},
			func(name string) {
				r.wantObject(r.other, name, other, true, blob.FinalizedTime)
				r.must(r.store.Delete(r.ctx, name))
				r.clock.Set(start)
			})
	}
}

func testNewObjectWithinFinalize(r *remote) {
	const other = "another content"
	r.within(
		func(name string) { r.must(r.store.Finalize(r.ctx, name)) },
		func(name string) {
			r.must(r.other.Delete(r.ctx, name))
			if err := put(r.ctx, r.other, name, other); err != nil {
				r.Errorf("%s: Put = %v", name, err)
			}
		},
		func(name string) {
			// Either is right: the Finalize may have come before or after.
			if content, _ := r.get(r.other, name); content != other {
				r.Errorf("%s: content is %s", name, brief(content))
			}
			r.delete(name)
		})
}

func testPutWithinPut(r *remote) {
	var first, second error
	r.within(
		func(name string) { first = put(r.ctx, r.store, name+"!", "outer") },
		func(name string) { second = put(r.ctx, r.other, name+"!", "inner") },
		func(name string) {
			want := "outer"
			switch {
			case first == nil && errors.Is(second, blob.ErrExists):
			case second == nil && errors.Is(first, blob.ErrExists):
				want = "inner"
			default:
				r.Errorf("%s: two Puts = %v, %v; want one winner", name, first, second)
			}
			r.wantObject(r.other, name+"!", want, false, r.created())
		})
}

func testChangesWithinReads(r *remote) {
	reads := map[string]func(name string) (blob.Attrs, error){
		"stat": func(name string) (blob.Attrs, error) { return r.store.Stat(r.ctx, name) },
		"get": func(name string) (a blob.Attrs, err error) {
			rc, a, err := r.store.Get(r.ctx, name)
			if err == nil {
				_, err = io.Copy(new(strings.Builder), rc)
				err = errors.Join(err, rc.Close())
			}
			return a, err
		},
		"list": func(name string) (a blob.Attrs, err error) {
			err = orNotFound(r.store.List(r.ctx, name, "", func(b blob.Attrs) bool { a = b; return false }), &a)
			return a, err
		},
	}
	for what, read := range reads {
		var a blob.Attrs
		var err error
		checkAttrs := func(name string) {
			if err == nil && a.Committed != a.CustomTime.Equal(blob.FinalizedTime) {
				r.Errorf("%s of %s: half-finalized attributes: %+v", what, name, a)
			}
		}
		r.within(func(name string) { a, err = read(name) },
			func(name string) { r.must(r.other.Finalize(r.ctx, name)) },
			func(name string) {
				if err != nil {
					r.Errorf("%s of %s during Finalize = %v", what, name, err)
				}
				checkAttrs(name)
				r.delete(name)
			})
		r.within(func(name string) { a, err = read(name) },
			func(name string) { r.must(r.other.Delete(r.ctx, name)) },
			func(name string) {
				if err != nil && !errors.Is(err, blob.ErrNotFound) {
					r.Errorf("%s of %s during Delete = %v", what, name, err)
				}
				checkAttrs(name)
			})
	}
}

// testReadIsOfOneObject replaces the object within a read of it.
func testReadIsOfOneObject(r *remote) {
	const other = "quite another, longer content of the same name"
	for _, offset := range []int64{0, 3} {
		var attrs blob.Attrs
		var content string
		var err error
		r.within(
			func(name string) {
				var rc io.ReadCloser
				content = ""
				if rc, attrs, err = r.store.GetRange(r.ctx, name, offset, -1); err == nil {
					var b []byte
					b, err = io.ReadAll(rc)
					err = errors.Join(err, rc.Close())
					content = string(b)
				}
			},
			func(name string) {
				r.must(r.other.Delete(r.ctx, name))
				if err := put(r.ctx, r.other, name, other); err != nil {
					r.Errorf("%s: Put = %v", name, err)
				}
			},
			func(name string) {
				r.delete(name)
				if err != nil {
					if !errors.Is(err, blob.ErrNotFound) {
						r.Errorf("%s: read of a replaced object = %v", name, err)
					}
					return
				}
				want := remoteContent
				if attrs.Size == int64(len(other)) {
					want = other
				}
				if content != want[offset:] || attrs.Size != int64(len(want)) {
					r.Errorf("%s: read %s with size %d", name, brief(content), attrs.Size)
				}
			})
	}
}

// orNotFound gives a list that shows nothing the error of a read that finds nothing.
func orNotFound(err error, a *blob.Attrs) error {
	if err == nil && a.Name == "" {
		return blob.ErrNotFound
	}
	return err
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
				r.server.SetHook(func(i int, _ *http.Request, at faulthttp.Stage) faulthttp.Action {
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
				r.server.SetHook(nil)
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
