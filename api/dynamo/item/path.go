package item

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// Step leads from a map to a member, or from a list to an element.
type Step struct {
	Name    string
	Index   int
	IsIndex bool
}

func (s Step) compare(o Step) int {
	switch {
	case s.IsIndex && o.IsIndex:
		return cmp.Compare(s.Index, o.Index)
	case s.IsIndex:
		return 1
	case o.IsIndex:
		return -1
	}
	return strings.Compare(s.Name, o.Name)
}

// Path leads from an item to a value in it. Its first step is a name.
type Path []Step

// String returns the path as the service prints it, such as [a, [0], b].
func (p Path) String() string {
	parts := make([]string, len(p))
	for i, s := range p {
		if parts[i] = s.Name; s.IsIndex {
			parts[i] = "[" + strconv.Itoa(s.Index) + "]"
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// At returns the value at a path, or none.
func (v Value) At(p Path) Value {
	for _, s := range p {
		if v = v.step(s); v == nil {
			return nil
		}
	}
	return v
}

func (v Value) step(s Step) Value {
	switch {
	case !s.IsIndex:
		return v.Member(s.Name)
	case v.Type() == L:
		return v.Element(s.Index)
	}
	return nil
}

// Edit puts a value at a path, or removes what is there if the value is none.
type Edit struct {
	Path  Path
	Value Value
}

// branch is a step that some of a set of paths have in common, and what follows.
type branch struct {
	step Step
	edit *Edit // ends here; then there are no twigs
	next []*branch
}

// grow arranges paths as a tree, those of a branch in order. No path may be another's
// beginning.
func grow(edits []Edit) *branch {
	root := &branch{}
	for i := range edits {
		b := root
		for _, s := range edits[i].Path {
			at, found := slices.BinarySearchFunc(b.next, s, func(n *branch, s Step) int { return n.step.compare(s) })
			if !found {
				b.next = slices.Insert(b.next, at, &branch{step: s})
			}
			b = b.next[at]
		}
		b.edit = &edits[i]
	}
	return root
}

// errPath is where an update leads nowhere.
var errPath = fault.Validation("The document path provided in the update expression is invalid for update")

// Apply returns the item with all edits made together: paths lead through the item as
// it is, also where elements of lists are removed. No path may be the beginning of
// another. An element put behind the end of a list is appended. Apply fails where a
// path leads through what is not there.
func Apply(item Value, edits []Edit) (Value, error) {
	return grow(edits).apply(item)
}

// apply returns the value with what the branch does to it, none if that removes it.
func (b *branch) apply(v Value) (Value, error) {
	switch {
	case b.edit != nil:
		return b.edit.Value, nil
	case len(b.next) == 0:
		return v, nil
	}
	want := M
	if b.next[0].step.IsIndex {
		want = L
	}
	if v.Type() != want || b.next[len(b.next)-1].step.IsIndex != (want == L) {
		return nil, errPath
	}
	if want == L {
		return b.applyToList(v)
	}
	return b.applyToMap(v)
}

func (b *branch) applyToMap(v Value) (Value, error) {
	out := make(builder, 0, v.Len()+len(b.next))
	left := b.next
	put := func(n *branch, old Value) error {
		e, err := n.apply(old)
		if e != nil {
			out = append(out, member{[]byte(n.step.Name), e})
		}
		return err
	}
	for name, e := range v.members() {
		for len(left) > 0 && left[0].step.Name < string(name) {
			if err := put(left[0], nil); err != nil {
				return nil, err
			}
			left = left[1:]
		}
		if len(left) == 0 || left[0].step.Name != string(name) {
			out = append(out, member{name, e})
			continue
		}
		if err := put(left[0], e); err != nil {
			return nil, err
		}
		left = left[1:]
	}
	for _, n := range left {
		if err := put(n, nil); err != nil {
			return nil, err
		}
	}
	return out.appendTo(make([]byte, 0, len(v)+64)), nil
}

func (b *branch) applyToList(v Value) (Value, error) {
	out := make([]Value, 0, v.Len()+len(b.next))
	left := b.next
	i := 0
	for e := range v.Elements() {
		if len(left) > 0 && left[0].step.Index == i {
			var err error
			if e, err = left[0].apply(e); err != nil {
				return nil, err
			}
			left = left[1:]
		}
		if e != nil {
			out = append(out, e)
		}
		i++
	}
	for _, n := range left {
		e, err := n.apply(nil)
		if err != nil {
			return nil, err
		}
		if e != nil {
			out = append(out, e)
		}
	}
	return appendElements(make([]byte, 0, len(v)+64), L, out), nil
}

// Project returns what of an item is at the paths: maps with the members that are
// named, lists with the elements that are, close together and in their order. No path
// may be the beginning of another.
func Project(item Value, paths []Path) Value {
	edits := make([]Edit, len(paths))
	for i, p := range paths {
		edits[i].Path = p
	}
	if v := grow(edits).project(item); v != nil {
		return v
	}
	return Empty()
}

// project returns none if nothing of the value is asked for.
func (b *branch) project(v Value) Value {
	if b.edit != nil {
		return v
	}
	var members builder
	var elements []Value
	for _, n := range b.next {
		e := v.step(n.step)
		if e == nil {
			continue
		}
		if e = n.project(e); e == nil {
			continue
		}
		if n.step.IsIndex {
			elements = append(elements, e)
		} else {
			members = append(members, member{[]byte(n.step.Name), e})
		}
	}
	switch {
	case len(members) > 0:
		return members.appendTo(nil)
	case len(elements) > 0:
		return appendElements(nil, L, elements)
	}
	return nil
}
