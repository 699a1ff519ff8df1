package blobtest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

// within runs fn in the middle of call: before its n-th request, and in a further round
// after it, for all n until call has no more requests. name is new in each round.
func (r *remote) within(call, fn func(name string), check func(name string)) {
	for _, stage := range []faulthttp.Stage{faulthttp.Before, faulthttp.After} {
		for n := range maxRequests {
			name := fmt.Sprintf("%s request %d", stage, n)
			r.put(name, remoteContent)
			reached := false
			r.hook(func(i int, _ *http.Request, at faulthttp.Stage) faulthttp.Action {
				if i == n && at == stage && !reached {
					reached = true
					r.server.SetHook(nil)
					fn(name)
				}
				return faulthttp.Pass
			})
			call(name)
			r.unhook()
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
		r.hook(func(i int, _ *http.Request, at faulthttp.Stage) faulthttp.Action {
			if i != n || at != faulthttp.Before || reached {
				return faulthttp.Pass
			}
			reached = true
			r.server.SetHook(nil)
			finalized = r.must(r.other.Finalize(r.ctx, name))
			return faulthttp.Drop
		})
		removed, err := r.store.Discard(r.ctx, name)
		r.unhook()
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
