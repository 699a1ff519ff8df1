package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/blob"
)

// pair is a store under test beside the model, both under one clock.
type pair struct {
	*rapid.T
	ctx   context.Context
	fix   *fixture
	dir   string // all names of this check lie under it
	real  *blob.Store
	model *blob.Store
}

// testRandomOperationsMatchModel lets rapid pick operations on a few names and
// compares every answer with the model's. Each check has a folder of its own in
// one store. rapid prints the seed and the shrunk operations of a failure.
func testRandomOperationsMatchModel(f *fixture) {
	check := 0
	rapid.Check(f.T, func(t *rapid.T) {
		check++
		p := &pair{
			T: t, ctx: f.ctx, fix: f, dir: fmt.Sprintf("check %d/", check),
			real: f.store, model: f.over(NewMemory()),
		}
		t.Repeat(map[string]func(*rapid.T){
			"put":      p.put,
			"finalize": same(p, func(s *blob.Store, name string) (bool, error) { return s.Finalize(p.ctx, name) }),
			"delete":   same(p, func(s *blob.Store, name string) (bool, error) { return s.Delete(p.ctx, name) }),
			"discard":  same(p, func(s *blob.Store, name string) (bool, error) { return s.Discard(p.ctx, name) }),
			"stat":     same(p, p.stat),
			"get":      p.get,
			"copy":     p.copy,
			"list":     p.list,
			"clock":    p.advance,
		})
		p.compare("final list", p.listOf(p.real, "", ""), p.listOf(p.model, "", ""))
		p.cleanUp()
	})
}

// name draws one of few names, so that operations meet.
func (p *pair) name(t *rapid.T) string {
	return p.dir + rapid.SampledFrom([]string{"a", "a/", "a/b", "a/b/c", "a/B", "a/b/c/d", "..", "x//", strings.Repeat("%", 300)}).Draw(t, "name")
}

// answer is what an operation returned, in comparable form.
type answer struct {
	Value any
	Err   string
}

func answerOf(value any, err error) answer {
	for _, known := range []error{blob.ErrNotFound, blob.ErrExists} {
		if errors.Is(err, known) {
			return answer{value, known.Error()}
		}
	}
	if err != nil {
		return answer{value, "unexpected: " + err.Error()}
	}
	return answer{value, ""}
}

func (p *pair) compare(what string, real, model answer) {
	p.Helper()
	if diff := cmp.Diff(model, real); diff != "" {
		p.Fatalf("%s differs (-model +store):\n%s", what, diff)
	}
}

// same makes an action of an operation on one name.
func same[T any](p *pair, op func(s *blob.Store, name string) (T, error)) func(*rapid.T) {
	return func(t *rapid.T) {
		name := p.name(t)
		value, err := op(p.real, name)
		want, wantErr := op(p.model, name)
		p.compare(fmt.Sprintf("answer for %q", name), answerOf(value, err), answerOf(want, wantErr))
	}
}

func (p *pair) stat(s *blob.Store, name string) (blob.Attrs, error) {
	a, err := s.Stat(p.ctx, name)
	return plain(a), err
}

func (p *pair) put(t *rapid.T) {
	name := p.name(t)
	content := rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "content")
	put := func(s *blob.Store) answer {
		return answerOf(nil, s.Put(p.ctx, name, bytes.NewReader(content), int64(len(content))))
	}
	p.compare("put", put(p.real), put(p.model))
}

func (p *pair) get(t *rapid.T) {
	name := p.name(t)
	offset := rapid.Int64Range(0, 60).Draw(t, "offset")
	length := rapid.Int64Range(-1, 60).Draw(t, "length")
	get := func(s *blob.Store) answer {
		r, attrs, err := s.GetRange(p.ctx, name, offset, length)
		if err != nil {
			return answerOf(nil, err)
		}
		content, err := io.ReadAll(r)
		return answerOf(fmt.Sprintf("%q %+v", content, plain(attrs)), errors.Join(err, r.Close()))
	}
	p.compare("get", get(p.real), get(p.model))
}

func (p *pair) copy(t *rapid.T) {
	src, dst := p.name(t), p.name(t)
	p.compare("copy", answerOf(nil, p.real.Copy(p.ctx, src, dst)), answerOf(nil, p.model.Copy(p.ctx, src, dst)))
}

func (p *pair) list(t *rapid.T) {
	prefix := rapid.SampledFrom([]string{"", "a", "a/", "a/b", "a/b/", "%%", "x/"}).Draw(t, "prefix")
	after := ""
	if rapid.Bool().Draw(t, "from the start") {
		after = p.name(t)
	}
	p.compare("list", p.listOf(p.real, prefix, after), p.listOf(p.model, prefix, after))
}

func (p *pair) listOf(s *blob.Store, prefix, after string) answer {
	var all []blob.Attrs
	err := s.List(p.ctx, p.dir+prefix, after, func(a blob.Attrs) bool {
		all = append(all, plain(a))
		return true
	})
	return answerOf(all, err)
}

func (p *pair) advance(t *rapid.T) {
	p.fix.clock.Advance(time.Duration(rapid.Int64Range(-1e9, 1e10).Draw(t, "nanoseconds")))
}

// cleanUp keeps the store small over many checks.
func (p *pair) cleanUp() {
	err := p.real.List(p.ctx, p.dir, "", func(a blob.Attrs) bool {
		_, err := p.real.Delete(p.ctx, a.Name)
		if err != nil {
			p.Errorf("clean up: %v", err)
		}
		return err == nil
	})
	if err != nil {
		p.Errorf("clean up: %v", err)
	}
}
