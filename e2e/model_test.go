package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// item is a record as the server must show it.
type item struct {
	Payload   string
	SortIndex string // decimal; empty if there is none
	Modified  string // empty: the time of a write that nobody has acknowledged
}

// state is a collection as the server must show it.
type state struct {
	Exists   bool
	Modified string // empty: like that of an item
	Items    map[string]item

	// wiped marks the state after a deletion of the whole storage.
	wiped bool
}

// patch is what a client gives of a record. nil: not given.
type patch struct {
	id                 string
	payload, sortIndex *string
}

// json renders the patch as clients send it.
func (p patch) json() string {
	fields := []string{fmt.Sprintf(`"id":%q`, p.id)}
	if p.payload != nil {
		fields = append(fields, fmt.Sprintf(`"payload":%q`, *p.payload))
	}
	if p.sortIndex != nil {
		fields = append(fields, `"sortindex":`+*p.sortIndex)
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func jsonList(patches []patch) string {
	texts := make([]string, len(patches))
	for i, p := range patches {
		texts[i] = p.json()
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// with returns the state after patches were applied at one time.
func (s state) with(patches []patch, modified string) state {
	s = state{Exists: true, Modified: modified, Items: maps.Clone(s.Items)}
	if s.Items == nil {
		s.Items = map[string]item{}
	}
	for _, p := range patches {
		it, known := s.Items[p.id]
		if p.payload != nil {
			it.Payload = *p.payload
		}
		if p.sortIndex != nil {
			it.SortIndex = *p.sortIndex
		}
		if !known || p.payload != nil || p.sortIndex != nil {
			it.Modified = modified
		}
		s.Items[p.id] = it
	}
	return s
}

// without returns the state after records were deleted.
func (s state) without(ids []string, modified string) state {
	s = state{Exists: s.Exists, Modified: modified, Items: maps.Clone(s.Items)}
	for _, id := range ids {
		delete(s.Items, id)
	}
	return s
}

// shows reports whether the server, when it shows seen, may be in state s. Times
// that nobody knows must all be one and the same.
func (s state) shows(seen state) bool {
	if s.Exists != seen.Exists || len(s.Items) != len(seen.Items) {
		return false
	}
	unknown := ""
	same := func(want, got string) bool {
		if want != "" {
			return want == got
		}
		if unknown == "" {
			unknown = got
		}
		return unknown == got
	}
	if s.Exists && !same(s.Modified, seen.Modified) {
		return false
	}
	for id, want := range s.Items {
		got, ok := seen.Items[id]
		if !ok || want.Payload != got.Payload || want.SortIndex != got.SortIndex || !same(want.Modified, got.Modified) {
			return false
		}
	}
	return true
}

// difference tells in a few lines how seen differs from each possible state.
func difference(possible []state, seen state) string {
	short := func(s state) state {
		s.Items = maps.Clone(s.Items)
		for id, it := range s.Items {
			if len(it.Payload) > 60 {
				it.Payload = fmt.Sprintf("%.60s... (%d bytes)", it.Payload, len(it.Payload))
			}
			s.Items[id] = it
		}
		s.wiped = false
		return s
	}
	var b strings.Builder
	for i, p := range possible {
		fmt.Fprintf(&b, "possible state %d of %d (-want +got):\n%s", i+1, len(possible),
			cmp.Diff(short(p), short(seen), cmp.AllowUnexported(state{})))
	}
	return b.String()
}

// merge returns patches with others over them, field by field.
func merge(patches, over []patch) []patch {
	merged := slices.Clone(patches)
	for _, p := range over {
		i := slices.IndexFunc(merged, func(m patch) bool { return m.id == p.id })
		if i < 0 {
			merged = append(merged, p)
			continue
		}
		if p.payload != nil {
			merged[i].payload = p.payload
		}
		if p.sortIndex != nil {
			merged[i].sortIndex = p.sortIndex
		}
	}
	return merged
}
