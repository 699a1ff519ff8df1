package kvtest

import (
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

func keyCases() []suiteCase {
	return []suiteCase{
		{"KeysOfAnyBytesAreApartAndOrdered", caseOddKeys},
		{"SpacesOfAnyNameAreApart", caseOddSpaces},
	}
}

// oddKeys are keys that an engine might cut, join, escape or order wrongly.
func oddKeys() []string {
	long := strings.Repeat("k", kv.MaxKeySize-1)
	return []string{
		"\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "\x01\x00", "a", "a\x00", "a\x00b", "a\x00\x00b", "a\x01", "a/b",
		"a/b/c", "a\xff", "a\xff\xff", "aa", "ab", "b", "A", "B", "'; DROP TABLE a; --", "%", "_", "\\", "\\x00", "\"", "\n", " ", "é",
		"e\u0301", "\x80", "\xc3", "\xc3\x28", "\xed\xa0\x80", "\xf0\x9f\x8c\x8a", "\xfe", "\xfe\xff", "\xff", "\xff\x00", "\xff\xff", "\xff\xff\xff", "0", "10", "2",
		long + "\x00", long + "a", long + "b", long + "\xff", long, strings.Repeat("\xff", kv.MaxKeySize), strings.Repeat("\x00", kv.MaxKeySize),
	}
}

func caseOddKeys(f *fixture) {
	f.space("a")
	keys := oddKeys()
	var writes []kv.Write
	for _, k := range keys {
		writes = append(writes, put("a", k, "value of "+k))
	}
	f.write(writes...)
	for _, k := range keys {
		f.wantValue("a", k, "value of "+k)
	}
	sorted := slices.Sorted(slices.Values(keys))
	f.wantKeys("a", kv.Range{}, sorted...)
	reversed := slices.Clone(sorted)
	slices.Reverse(reversed)
	f.wantKeys("a", kv.Range{Reverse: true}, reversed...)
	for i, k := range sorted {
		f.wantKeys("a", kv.Range{Start: []byte(k)}, sorted[i:]...)
		f.wantKeys("a", kv.Range{End: []byte(k)}, sorted[:i]...)
		f.wantKeys("a", kv.Range{Start: append([]byte(k), 0), Limit: 1}, sorted[i+1:min(i+2, len(sorted))]...)
		f.wantKeys("a", kv.Range{End: []byte(k), Reverse: true, Limit: 1}, sorted[max(i-1, 0):i]...)
		var prefixed []string
		for _, other := range sorted {
			if strings.HasPrefix(other, k) {
				prefixed = append(prefixed, other)
			}
		}
		f.wantKeys("a", kv.Prefix([]byte(k)), prefixed...)
	}
	for _, k := range keys {
		f.write(del("a", k))
		sorted = slices.DeleteFunc(sorted, func(s string) bool { return s == k })
	}
	f.wantKeys("a", kv.Range{}, sorted...)
}

func caseOddSpaces(f *fixture) {
	long := strings.Repeat("s", kv.MaxSpaceNameSize-1)
	names := []string{
		"a", "A", "aa", "ab", "a_", "a_b", "_", "__", "_1", "select", "SELECT", "table", "user", "drop_table_a", "null", "pg_class", "public",
		"holdfast", "spaces", "rows", "meta", long, long + "a", long + "b",
	}
	for _, n := range names {
		f.space(n)
	}
	for _, n := range names {
		f.write(put(n, "k", "row of "+n), put(n, "\x00", n), put(n, "\xff\xff", n))
	}
	for _, n := range names {
		f.wantValue(n, "k", "row of "+n)
		f.wantKeys(n, kv.Range{}, "\x00", "k", "\xff\xff")
		f.wantKeys(n, kv.Range{Reverse: true}, "\xff\xff", "k", "\x00")
	}
	infos, err := f.db.Spaces(f.ctx)
	f.ok(err)
	var listed []string
	for _, s := range infos {
		listed = append(listed, s.Name)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(names)), listed); diff != "" {
		f.Errorf("spaces (-want +got):\n%s", diff)
	}
	f.ok(f.db.DropSpace(f.ctx, "a"))
	f.wantValue("A", "k", "row of A")
	f.wantKeys("a_", kv.Range{}, "\x00", "k", "\xff\xff")
	for _, bad := range []string{"", "a/b", "a\x00", "1a", "é", "a b", "a'b", long + "ab"} {
		f.wantErr(f.db.CreateSpace(f.ctx, bad, kv.SpaceOptions{}), kv.ErrInvalid)
	}
}
