package blobtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
)

// weirdNames are valid names that a driver may be tempted to interpret.
func weirdNames() []string {
	names := []string{
		"a", "a/", "a//", "a/b", "a//b", "a/b/", "a/b//", "a/b//c", "/", "//", "///", "////", "/a", "//a",
		"a/.", "a/..", "a/../b", "../a", "../../etc/passwd", "./a", "a/./b", ".../", "/..", "..a", ".a", "a.",
		"a/b/..", "a/b/../..", "a/b/../../../../c", ".u", ".f", ".d", ".c", "a.u", "a.f/b", "a.d/b", "a.c",
		"A", "a/B", "A/b", "aux", "CON", "nul.txt", "a:b", `a\b`, `..\a`, "a*", "a?x=1", "a#x", "a&b", "a=b;c",
		" ", " a", "a ", "a b", "a+b", "a%2Fb", "a%2fb", "%", "%%", "%zz", "%00", "^a", "a^", "~", "~root", "$HOME", "`x`",
		"'", `"`, "<>", "|", "{x}", "[x]", "a!", "a-", "a,b", "a0", "\t", "\x01", "\x7f", "a\x01/\x7f",
		"é", "e\u0301", "ß/ß/ß/ß", "日本語/テキスト", "🦑", "\u202e", "\ufeffbom", "\U0010ffff",
		"apps/x/y", "apps/x/y/z", "apps/x.y", "apps/x-y", "apps/x", "apps", "apps0",
	}
	for _, n := range []int{75, 76, 77, 200, 229, 230, 231, 232, 233, 255, 256, 460, 738, blob.MaxNameLen} {
		names = append(names, strings.Repeat("x", n), strings.Repeat("X", n), strings.Repeat("/", n))
		if n+2 <= blob.MaxNameLen {
			long := strings.Repeat("%", n)
			names = append(names, long, long+"/b", "b/"+long, long+"!", long+"0")
		}
	}
	names = append(names, "d/"+strings.Repeat("s", 738)+"/t", "d/e/"+strings.Repeat("é", 400), strings.Repeat("é", blob.MaxNameLen/2))
	slices.Sort(names)
	return slices.Compact(names)
}

func testWeirdNamesAreLiteral(f *fixture) {
	names := weirdNames()
	errs := together(8, func(worker int) error {
		for i := worker; i < len(names); i += 8 {
			content := "content of " + names[i]
			if err := f.store.Put(f.ctx, names[i], strings.NewReader(content), int64(len(content))); err != nil {
				return err
			}
			if i%2 == 1 {
				if found, err := f.store.Finalize(f.ctx, names[i]); err != nil || !found {
					return fmt.Errorf("Finalize(%q) = %v, %w", names[i], found, err)
				}
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		f.Fatal(err)
	}
	if diff := cmp.Diff(names, f.listNames("", "")); diff != "" {
		f.Errorf("List (-want +got):\n%s", diff)
	}
	for i, name := range names {
		want := f.created()
		if i%2 == 1 {
			want = blob.FinalizedTime
		}
		f.wantObject(f.store, name, "content of "+name, i%2 == 1, want)
		if got, err := f.store.Name(f.store.URL(name)); got != name || err != nil {
			f.Errorf("Name(URL(%q)) = %q, %v", name, got, err)
		}
	}
	// Removing each one leaves the others.
	for i := 0; i < len(names); i += 2 {
		f.delete(names[i])
	}
	var rest []string
	for i := 1; i < len(names); i += 2 {
		rest = append(rest, names[i])
	}
	if diff := cmp.Diff(rest, f.listNames("", "")); diff != "" {
		f.Errorf("List after deletes (-want +got):\n%s", diff)
	}
}

var someNames = []string{
	"a", "a!", "a/", "a/1", "a/2", "a/2/3", "a/2/3/4", "a/20", "a0", "ab", "b/c/d", "b/c/e", "b/cc/d", "é/a", "é/b",
}

func (f *fixture) putAll(names []string) {
	f.Helper()
	for _, name := range names {
		f.put(name, name)
	}
}

func testListIsInByteOrder(f *fixture) {
	reversed := slices.Clone(someNames)
	slices.Reverse(reversed)
	f.putAll(reversed)
	f.finalize("a/2")
	all := f.list("", "")
	var got []string
	for _, a := range all {
		got = append(got, a.Name)
		want, err := f.store.Stat(f.ctx, a.Name)
		if err != nil {
			f.Fatal(err)
		}
		if diff := cmp.Diff(plain(want), plain(a)); diff != "" {
			f.Errorf("List differs from Stat (-stat +list):\n%s", diff)
		}
		if a.HasCRC32C && a.CRC32C != want.CRC32C {
			f.Errorf("List(%q): checksum %x, want %x", a.Name, a.CRC32C, want.CRC32C)
		}
	}
	if diff := cmp.Diff(someNames, got); diff != "" {
		f.Errorf("List (-want +got):\n%s", diff)
	}
}

func testListHonoursPrefixAndAfter(f *fixture) {
	if got := f.listNames("", ""); got != nil {
		f.Errorf("List of an empty store = %v", got)
	}
	f.putAll(someNames)
	prefixes := []string{"", "a", "a/", "a/2", "a/2/", "a/2/3", "a/2/3/4", "a/2/3/4x", "b", "b/c", "b/c/", "é", "é/", "x", "/", strings.Repeat("a", 2000)}
	afters := append([]string{"", "A", "a/!", "a/2/", "a/2/3!", "b", "b/", "b/c", "b/c/", "b/c0", "z", "é/", "\U0010ffff"}, someNames...)
	for _, prefix := range prefixes {
		for _, after := range afters {
			var want []string
			for _, name := range someNames {
				if strings.HasPrefix(name, prefix) && name > after {
					want = append(want, name)
				}
			}
			if diff := cmp.Diff(want, f.listNames(prefix, after)); diff != "" {
				f.Errorf("List(%q, %q) (-want +got):\n%s", prefix, after, diff)
			}
		}
	}
	if err := f.store.List(f.ctx, "\xff", "", func(blob.Attrs) bool { return true }); !errors.Is(err, blob.ErrInvalidName) {
		f.Errorf("List of an invalid prefix = %v, want ErrInvalidName", err)
	}
}

func testListStopsWhenTold(f *fixture) {
	f.putAll(someNames)
	for limit := 1; limit <= len(someNames); limit++ {
		var got []string
		after := ""
		for {
			n := 0
			err := f.store.List(f.ctx, "", after, func(a blob.Attrs) bool {
				n++
				got = append(got, a.Name)
				after = a.Name
				return n < limit
			})
			if err != nil {
				f.Fatal(err)
			}
			if n > limit {
				f.Fatalf("List went on after false: %d calls, limit %d", n, limit)
			}
			if n < limit {
				break
			}
		}
		if diff := cmp.Diff(someNames, got); diff != "" {
			f.Errorf("pages of %d (-want +got):\n%s", limit, diff)
		}
	}
}

func testListWhileDeleting(f *fixture) {
	f.putAll(someNames)
	var got []string
	err := f.store.List(f.ctx, "", "", func(a blob.Attrs) bool {
		got = append(got, a.Name)
		f.delete(a.Name)
		return true
	})
	if err != nil {
		f.Fatal(err)
	}
	if diff := cmp.Diff(someNames, got); diff != "" {
		f.Errorf("List while deleting (-want +got):\n%s", diff)
	}
	if rest := f.listNames("", ""); rest != nil {
		f.Errorf("left over: %v", rest)
	}
}

func testListDuringFinalizeNeverMisses(f *fixture) {
	var names []string
	for i := range 120 {
		names = append(names, fmt.Sprintf("dir/sub/%03d", i))
	}
	f.putAll(names)
	var got []string
	errs := together(2, func(i int) error {
		if i == 1 {
			for n := range names {
				if _, err := f.store.Finalize(f.ctx, names[(n*37)%len(names)]); err != nil {
					return err
				}
			}
			return nil
		}
		for range 20 {
			got = got[:0]
			err := f.store.List(f.ctx, "dir/", "", func(a blob.Attrs) bool {
				got = append(got, a.Name)
				return true
			})
			if err != nil || !slices.Equal(got, names) {
				return errors.Join(err, fmt.Errorf("list while finalizing (-want +got):\n%s", cmp.Diff(names, got)))
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		f.Error(err)
	}
}

func testURLs(f *fixture) {
	prefix := f.driver.URLPrefix()
	scheme, rest, ok := strings.Cut(prefix, "://")
	bucket, end, slash := strings.Cut(rest, "/")
	if !ok || scheme == "" || !slash || end != "" || bucket == "" && scheme != "file" {
		f.Fatalf("URLPrefix() = %q, want scheme://bucket/", prefix)
	}
	if got, want := f.store.URL("a b/%2F?#é"), prefix+"a b/%2F?#é"; got != want {
		f.Errorf("URL = %q, want %q", got, want)
	}
	foreign := []string{
		scheme + "://other-bucket/name", scheme + "x://x" + bucket + "/name", "https://example.com/name",
		scheme + "://" + bucket + "x/name", strings.ToUpper(scheme) + "://x" + bucket + "/name",
	}
	malformed := []string{
		"", "/", "name", prefix, strings.TrimSuffix(prefix, "/"), scheme + "://", scheme + ":", scheme + ":/x/y", "://" + bucket + "/name",
		scheme + "://other-bucket", scheme + "://other-bucket/", prefix + "..", prefix + "\xff", prefix + "a\x00",
		prefix + strings.Repeat("x", blob.MaxNameLen+1), " " + prefix + "name", "gs:///name",
	}
	for _, url := range foreign {
		if name, err := f.store.Name(url); !errors.Is(err, blob.ErrForeignURL) || errors.Is(err, blob.ErrInvalidURL) {
			f.Errorf("Name(%q) = %q, %v; want ErrForeignURL", url, name, err)
		}
	}
	for _, url := range malformed {
		if name, err := f.store.Name(url); !errors.Is(err, blob.ErrInvalidURL) || errors.Is(err, blob.ErrForeignURL) {
			f.Errorf("Name(%.80q) = %q, %v; want ErrInvalidURL", url, name, err)
		}
	}
}
