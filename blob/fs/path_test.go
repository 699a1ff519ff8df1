package fs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// nameAt is the inverse of locate, or false for a path that is none of ours.
func nameAt(top, path string) (string, bool) {
	inside, ok := strings.CutPrefix(path, top+"/")
	if !ok {
		return "", false
	}
	var name strings.Builder
	files := strings.Split(inside, "/")
	for i, file := range files {
		e, ok := parseEntry(file)
		if !ok || e.folder != (i < len(files)-1) {
			return "", false
		}
		name.WriteString(e.key)
	}
	return name.String(), true
}

func checkPath(t interface {
	Helper()
	Errorf(string, ...any)
}, name string) {
	t.Helper()
	const top = "/root/objects"
	at := locate(top, name)
	for _, path := range []string{at.unfinalized(), at.finalized()} {
		if path != filepath.Clean(path) || !strings.HasPrefix(path, top+"/") {
			t.Errorf("%q: path %q is not inside the root", name, path)
		}
		if got, ok := nameAt(top, path); got != name || !ok {
			t.Errorf("%q: path %q stands for %q, %v", name, path, got, ok)
		}
		if dir, _ := filepath.Split(path); filepath.Clean(dir) != at.dir {
			t.Errorf("%q: path %q is not in folder %q", name, path, at.dir)
		}
		for _, part := range strings.Split(path, "/") {
			if len(part) > 255 {
				t.Errorf("%q: %d bytes of file name", name, len(part))
			}
			if strings.ToLower(part) != part {
				t.Errorf("%q: file name %q depends on case", name, part)
			}
		}
	}
}

func FuzzNameToPathAndBack(f *testing.F) {
	for _, name := range []string{"a", "a/b/c/d", "..", ".", "/", "//", "///x", "A/é/%2f", "a.d/b.c/.u", strings.Repeat("é", 512), "\x00\xff"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) { checkPath(t, name) })
}

func FuzzPathToNameAndBack(f *testing.F) {
	for _, file := range []string{"a.u", "a.d/b.f", "a.c/b.u", "%41.u", "%2F.u", "^A.u", "+.d/.u", ".u", "%.f", "%0.f", "x.z"} {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file string) {
		for part := range strings.SplitSeq(file, "/") {
			e, ok := parseEntry(part)
			if !ok {
				continue
			}
			var back strings.Builder
			for _, c := range []byte(strings.TrimSuffix(e.key, "/")) {
				writeEscaped(&back, c)
			}
			// A file may end in an escaped slash, which is not that of a folder.
			if strings.HasSuffix(e.key, "/") && !strings.HasSuffix(part, suffixSegment) {
				continue
			}
			if got := part[:len(part)-suffixLen]; back.String() != got {
				t.Errorf("%q: unescaped to %q, escaped to %q", part, e.key, back.String())
			}
		}
	})
}

// nameGen makes names whose pieces meet the limits of chunks.
var nameGen = rapid.Custom(func(t *rapid.T) string {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "a!", "ab", "A", "\xff", "\x00", "~", ".", "..", "/"}),
		rapid.Custom(func(t *rapid.T) string {
			unit := rapid.SampledFrom([]string{"a", "%", "~", "A", "a%"}).Draw(t, "unit")
			return strings.Repeat(unit, rapid.SampledFrom([]int{75, 76, 77, 78, 114, 115, 116, 229, 230, 231, 459, 460, 461}).Draw(t, "count"))
		}),
	)
	return strings.Join(rapid.SliceOfN(piece, 1, 5).Draw(t, "pieces"), rapid.SampledFrom([]string{"", "/"}).Draw(t, "joint"))
})

func TestPathsAreUniqueAndWalkInOrderOfNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(nameGen, 2, 12, rapid.ID[string]).Draw(t, "names")
		paths := map[string][]string{}
		for _, name := range names {
			checkPath(t, name)
			path := locate("/", name).unfinalized()
			paths[path] = append(paths[path], name)
		}
		if len(paths) != len(names) {
			t.Fatalf("names share paths: %q", paths)
		}
		var walked []string
		walkPaths(paths, "", &walked)
		slices.Sort(names)
		if !slices.Equal(walked, names) {
			t.Fatalf("walk gives %q, want %q", walked, names)
		}
	})
}

// walkPaths visits paths as List does: each folder by the order of keys.
func walkPaths(paths map[string][]string, dir string, walked *[]string) {
	var entries []entry
	for path := range paths {
		if rest, ok := strings.CutPrefix(path, dir+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			if e, ok := parseEntry(first); ok && !slices.Contains(entries, e) {
				entries = append(entries, e)
			}
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	for _, e := range entries {
		if e.folder {
			walkPaths(paths, dir+"/"+e.file, walked)
		} else {
			*walked = append(*walked, paths[dir+"/"+e.file]...)
		}
	}
}
