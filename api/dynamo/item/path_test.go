package item

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// path reads a path such as a.b[1].
func path(s string) Path {
	var p Path
	for part := range strings.SplitSeq(s, ".") {
		name, indices, _ := strings.Cut(part, "[")
		p = append(p, Step{Name: name})
		if indices != "" {
			for i := range strings.SplitSeq(strings.TrimSuffix(indices, "]"), "][") {
				n, _ := strconv.Atoi(i)
				p = append(p, Step{Index: n, IsIndex: true})
			}
		}
	}
	return p
}

const document = `{"a":{"S":"x"},"l":{"L":[{"S":"0"},{"S":"1"},{"M":{"k":{"S":"2"}}}]},"m":{"M":{"b":{"S":"y"},"c":{"M":{"d":{"N":"1"}}}}}}`

func TestPaths(t *testing.T) {
	item := parseItem(t, document)
	for p, want := range map[string]string{
		"a": `{"S":"x"}`, "l[1]": `{"S":"1"}`, "l[2].k": `{"S":"2"}`, "m.c.d": `{"N":"1"}`,
		"l[3]": "", "x": "", "a.b": "", "a[0]": "", "m[0]": "", "l.k": "", "m.c.x": "",
	} {
		got := ""
		if v := item.At(path(p)); v != nil {
			got = string(AppendJSON(nil, v))
		}
		if got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	if s := path("a.b[2][0]").String(); s != "[a, b, [2], [0]]" {
		t.Error(s)
	}
}

// edits reads edits such as "a=v" and "a.b-", which removes.
func edits(s string) []Edit {
	var all []Edit
	for e := range strings.FieldsSeq(s) {
		if p, ok := strings.CutSuffix(e, "-"); ok {
			all = append(all, Edit{Path: path(p)})
		} else {
			p, v, _ := strings.Cut(e, "=")
			all = append(all, Edit{path(p), String(v)})
		}
	}
	return all
}

func TestApply(t *testing.T) {
	const bad = "ValidationException: The document path provided in the update expression is invalid for update"
	for do, want := range map[string]string{
		"":                             `{"l":{"L":[{"S":"0"},{"S":"1"},{"M":{"k":{"S":"2"}}}]},"m":{"M":{"b":{"S":"y"}}}}`,
		"m.b=z l- a=new zz=last":       `{"a":{"S":"new"},"m":{"M":{"b":{"S":"z"}}},"zz":{"S":"last"}}`,
		"l[0]- l[1]=one l[2].k- m-":    `{"l":{"L":[{"S":"one"},{"M":{}}]}}`,
		"l[9]=b l[5]=a l[7]- l[0]- m-": `{"l":{"L":[{"S":"1"},{"M":{"k":{"S":"2"}}},{"S":"a"},{"S":"b"}]}}`,
		"l[2].k=x l[2].j=y m-":         `{"l":{"L":[{"S":"0"},{"S":"1"},{"M":{"j":{"S":"y"},"k":{"S":"x"}}}]}}`,
		"m.x- m.b- l- nothing-":        `{"m":{"M":{}}}`,
		"m.a=1 m.c=2 l-":               `{"m":{"M":{"a":{"S":"1"},"b":{"S":"y"},"c":{"S":"2"}}}}`,
		"x.y=1":                        bad,
		"x.y-":                         bad,
		"l.y-":                         bad,
		"m[0]-":                        bad,
		"x[0]=1":                       bad,
		"m.c.d=1":                      bad,
		"l[5].x=1":                     bad,
		"m.b.c=1":                      bad,
	} {
		item := parseItem(t, `{"l":{"L":[{"S":"0"},{"S":"1"},{"M":{"k":{"S":"2"}}}]},"m":{"M":{"b":{"S":"y"}}}}`)
		before := slices.Clone(item)
		v, err := Apply(item, edits(do))
		got := string(AppendItemJSON(nil, v))
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s\ngives %s\nwant  %s", do, got, want)
		}
		if !slices.Equal(before, item) {
			t.Errorf("%s changes the item in place", do)
		}
	}
}

func TestProject(t *testing.T) {
	for paths, want := range map[string]string{
		"a":               `{"a":{"S":"x"}}`,
		"x":               `{}`,
		"m.c.d a":         `{"a":{"S":"x"},"m":{"M":{"c":{"M":{"d":{"N":"1"}}}}}}`,
		"l[2] l[0]":       `{"l":{"L":[{"S":"0"},{"M":{"k":{"S":"2"}}}]}}`,
		"l[2].k l[9] x.y": `{"l":{"L":[{"M":{"k":{"S":"2"}}}]}}`,
		"l[2].x m.x a.b":  `{}`,
		"m.x m.b":         `{"m":{"M":{"b":{"S":"y"}}}}`,
	} {
		var ps []Path
		for p := range strings.FieldsSeq(paths) {
			ps = append(ps, path(p))
		}
		if got := string(AppendItemJSON(nil, Project(parseItem(t, document), ps))); got != want {
			t.Errorf("%s gives %s, want %s", paths, got, want)
		}
	}
}

// A simple model: maps, lists and leaves of Go.
func thaw(v Value) any {
	switch v.Type() {
	case M:
		m := map[string]any{}
		for name, e := range v.Members() {
			m[name] = thaw(e)
		}
		return m
	case L:
		l := []any{}
		for e := range v.Elements() {
			l = append(l, thaw(e))
		}
		return l
	}
	return v
}

func freeze(a any) Value {
	switch a := a.(type) {
	case map[string]any:
		m := map[string]Value{}
		for name, e := range a {
			m[name] = freeze(e)
		}
		return Map(m)
	case []any:
		var l []Value
		for _, e := range a {
			if e != nil {
				l = append(l, freeze(e))
			}
		}
		return List(l...)
	}
	return a.(Value)
}

// edit makes one edit in the model, and reports whether its path leads there. Elements
// that are removed stay as nil, so that indices do not move.
func edit(a any, p Path, v Value) (any, bool) {
	if len(p) == 0 {
		if v == nil {
			return nil, true
		}
		return v, true
	}
	s := p[0]
	if m, ok := a.(map[string]any); ok && !s.IsIndex {
		child, there := m[s.Name]
		if !there && len(p) > 1 {
			return a, false
		}
		e, ok := edit(child, p[1:], v)
		if e == nil {
			delete(m, s.Name)
		} else {
			m[s.Name] = e
		}
		return m, ok
	}
	if l, ok := a.([]any); ok && s.IsIndex {
		if s.Index >= len(l) {
			if len(p) > 1 {
				return a, false
			}
			if v != nil {
				l = append(l, v)
			}
			return l, true
		}
		e, ok := edit(l[s.Index], p[1:], v)
		l[s.Index] = e
		return l, ok
	}
	return a, false
}

// TestApplyIsWhatTheModelDoes draws items and one edit, or several below different
// attributes.
func TestApplyIsWhatTheModelDoes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		item := drawMap(r, 3)
		var all []Edit
		model := thaw(item)
		good := true
		used := map[string]bool{}
		for range rapid.IntRange(1, 3).Draw(r, "edits") {
			first := rapid.SampledFrom(names).Draw(r, "attribute")
			if used[first] {
				continue
			}
			used[first] = true
			p := Path{{Name: first}}
			for range rapid.IntRange(0, 3).Draw(r, "steps") {
				if rapid.Bool().Draw(r, "index") {
					p = append(p, Step{Index: rapid.IntRange(0, 5).Draw(r, "at"), IsIndex: true})
				} else {
					p = append(p, Step{Name: rapid.SampledFrom(names).Draw(r, "name")})
				}
			}
			e := Edit{Path: p}
			if rapid.Bool().Draw(r, "set") {
				e.Value = drawValue(r, 1)
			}
			all = append(all, e)
			var ok bool
			model, ok = edit(model, p, e.Value)
			good = good && ok
		}
		got, err := Apply(item, all)
		if (err == nil) != good {
			r.Fatalf("%v: %v, but in the model %v", all, err, good)
		}
		if err == nil && !Equal(got, freeze(model)) {
			r.Errorf("%s\nedited is %s\nwant      %s", AppendItemJSON(nil, item), AppendItemJSON(nil, got), AppendItemJSON(nil, freeze(model)))
		}
		for _, e := range all {
			if e.Value != nil && err == nil && !e.Path[len(e.Path)-1].IsIndex && !Equal(got.At(e.Path), e.Value) {
				r.Errorf("%s is not there", e.Path)
			}
		}
		var paths []Path
		for _, e := range all {
			paths = append(paths, e.Path)
		}
		part := Project(item, paths)
		if len(paths) == 1 && !slices.ContainsFunc(paths[0], func(s Step) bool { return s.IsIndex }) && !Equal(part.At(paths[0]), item.At(paths[0])) {
			r.Errorf("the projection to %s is %s", paths[0], AppendItemJSON(nil, part))
		}
	})
}

func BenchmarkApply(b *testing.B) {
	item, _, _ := ParseItem(sample())
	do := []Edit{{path("name"), String("Other")}, {path("address.zip"), Num(Int(7))}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Apply(item, do); err != nil {
			b.Fatal(err)
		}
	}
}
