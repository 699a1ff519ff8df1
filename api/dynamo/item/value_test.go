package item

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// number parses a number that is one.
func number(t testing.TB, text string) Value {
	t.Helper()
	n, err := ParseNumber(text)
	if err != nil {
		t.Fatal(err)
	}
	return Num(n)
}

// parse reads an attribute value that is good.
func parse(t testing.TB, json string) Value {
	t.Helper()
	v, invalid, err := Parse([]byte(json))
	if err != nil || invalid != nil {
		t.Fatalf("%s: %v, %v", json, invalid, err)
	}
	return v
}

// parseItem reads an item that is good.
func parseItem(t testing.TB, json string) Value {
	t.Helper()
	v, invalid, err := ParseItem([]byte(json))
	if err != nil || invalid != nil {
		t.Fatalf("%s: %v, %v", json, invalid, err)
	}
	return v
}

// drawValue draws a value that may have others in it.
func drawValue(r *rapid.T, depth int) Value {
	kind := rapid.IntRange(0, 6).Draw(r, "kind")
	if depth > 0 {
		kind = rapid.IntRange(0, 8).Draw(r, "kind")
	}
	switch kind {
	case 0:
		return drawString(r)
	case 1:
		return drawNumber(r)
	case 2:
		return Bytes(rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(r, "bytes"))
	case 3:
		return BoolValue(rapid.Bool().Draw(r, "bool"))
	case 4:
		return NullValue()
	case 5:
		return Set(SS, rapid.SliceOfN(rapid.Custom(drawString), 1, 5).Draw(r, "strings")...)
	case 6:
		return Set(NS, rapid.SliceOfN(rapid.Custom(drawNumber), 1, 5).Draw(r, "numbers")...)
	case 7:
		var elements []Value
		for range rapid.IntRange(0, 4).Draw(r, "elements") {
			elements = append(elements, drawValue(r, depth-1))
		}
		return List(elements...)
	}
	return drawMap(r, depth-1)
}

var names = []string{"a", "b", "key", "#", "é", "\x00", "long name with \" and \\"}

func drawMap(r *rapid.T, depth int) Value {
	members := map[string]Value{}
	for range rapid.IntRange(0, 4).Draw(r, "members") {
		members[rapid.SampledFrom(names).Draw(r, "name")] = drawValue(r, depth)
	}
	return Map(members)
}

func drawString(r *rapid.T) Value { return String(rapid.StringN(0, 4, 12).Draw(r, "string")) }

func drawNumber(r *rapid.T) Value {
	n, err := ParseNumber(drawNumberText(r))
	if err != nil {
		r.Fatal(err)
	}
	return Num(n)
}

func TestValuesAreReadAsTheyWereMade(t *testing.T) {
	v := Map(map[string]Value{
		"s": String("x"), "n": number(t, "-1.5"), "b": Bytes([]byte{0, 1}), "null": NullValue(), "yes": BoolValue(true),
		"l": List(String("a"), List(), NullValue()), "m": Map(map[string]Value{"k": String("v")}),
		"ss": Set(SS, String("b"), String("a"), String("b")),
	})
	if v.Len() != 8 || v.Type() != M {
		t.Fatalf("%d members of type %s", v.Len(), v.Type())
	}
	if got := slices.Collect(maps.Keys(maps.Collect(v.Members()))); len(got) != 8 {
		t.Errorf("names %q", got)
	}
	for path, want := range map[string]string{
		"s": `{"S":"x"}`, "n": `{"N":"-1.5"}`, "b": `{"B":"AAE="}`, "null": `{"NULL":true}`, "yes": `{"BOOL":true}`,
		"l": `{"L":[{"S":"a"},{"L":[]},{"NULL":true}]}`, "m": `{"M":{"k":{"S":"v"}}}`, "ss": `{"SS":["a","b"]}`,
	} {
		if got := string(AppendJSON(nil, v.Member(path))); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if v.Member("none") != nil || v.Member("l").Element(3) != nil || v.Member("l").Element(-1) != nil || v.Element(0) != nil {
		t.Error("what is not there is something")
	}
	if string(v.Member("ss").Element(1).Bytes()) != "b" || !v.Member("yes").Bool() || v.Member("s").Bool() {
		t.Error("elements or booleans are wrong")
	}
	if Set(SS) != nil {
		t.Error("a set is empty")
	}
}

func TestSizes(t *testing.T) {
	for json, want := range map[string]int{
		`{"S":""}`: 0, `{"S":"é"}`: 2, `{"B":"AAE="}`: 2, `{"NULL":true}`: 1, `{"BOOL":false}`: 1,
		`{"N":"0"}`: 1, `{"N":"1"}`: 2, `{"N":"-1"}`: 3, `{"N":"123"}`: 3, `{"N":"100"}`: 2, `{"N":"1.5"}`: 3, `{"N":"0.05"}`: 2,
		`{"N":"-123.456"}`: 6, `{"N":"12345678901234567890123456789012345678"}`: 20,
		`{"L":[]}`: 3, `{"L":[{"S":"ab"},{"NULL":true}]}`: 3 + 3 + 2, `{"M":{}}`: 3, `{"M":{"abc":{"S":"de"}}}`: 3 + 5 + 1,
		`{"SS":["a","bcd"]}`: 4, `{"NS":["1","-22"]}`: 5, `{"BS":["AAE=","AA=="]}`: 3,
	} {
		if got := parse(t, json).Size(); got != want {
			t.Errorf("%s has the size %d, want %d", json, got, want)
		}
	}
	if got := ItemSize(parseItem(t, `{"id":{"S":"abc"},"m":{"M":{"x":{"N":"1"}}}}`)); got != 5+1+3+1+2+1 {
		t.Errorf("the item has the size %d", got)
	}
}

func TestComparison(t *testing.T) {
	for _, c := range []struct {
		a, b    string
		order   int
		ordered bool
	}{
		{`{"S":"a"}`, `{"S":"b"}`, -1, true},
		{`{"S":"a"}`, `{"S":"a"}`, 0, true},
		{`{"S":"Z"}`, `{"S":"a"}`, -1, true},
		{`{"S":"z"}`, `{"S":"é"}`, -1, true},
		{`{"N":"10"}`, `{"N":"9"}`, 1, true},
		{`{"N":"-10"}`, `{"N":"-9"}`, -1, true},
		{`{"N":"1.0"}`, `{"N":"1"}`, 0, true},
		{`{"B":"/w=="}`, `{"B":"AA=="}`, 1, true},
		{`{"S":"1"}`, `{"N":"1"}`, 0, false},
		{`{"BOOL":true}`, `{"BOOL":false}`, 0, false},
		{`{"SS":["a"]}`, `{"SS":["b"]}`, 0, false},
		{`{"L":[]}`, `{"L":[]}`, 0, false},
	} {
		if order, ordered := Compare(parse(t, c.a), parse(t, c.b)); order != c.order || ordered != c.ordered {
			t.Errorf("%s and %s: %d, %v", c.a, c.b, order, ordered)
		}
	}
	for _, same := range [][2]string{
		{`{"NS":["1","2.50"]}`, `{"NS":["2.5","1.0"]}`},
		{`{"L":[{"SS":["a","b"]}]}`, `{"L":[{"SS":["b","a"]}]}`},
		{`{"M":{"a":{"N":"1e2"},"b":{"S":""}}}`, `{"M":{"b":{"S":""},"a":{"N":"100"}}}`},
	} {
		if !Equal(parse(t, same[0]), parse(t, same[1])) {
			t.Errorf("%s is not %s", same[0], same[1])
		}
	}
	if Equal(parse(t, `{"L":[{"S":"a"},{"S":"b"}]}`), parse(t, `{"L":[{"S":"b"},{"S":"a"}]}`)) {
		t.Error("a list has no order")
	}
}

func TestDepth(t *testing.T) {
	nested := func(n int) string {
		return strings.Repeat(`{"L":[`, n) + `{"S":"x"}` + strings.Repeat(`]}`, n)
	}
	for n, want := range map[int]string{0: "", 1: "", 32: "", 33: errDepth.Message, 200: errDepth.Message} {
		v, invalid, err := Parse([]byte(nested(n)))
		if err != nil || (invalid == nil) != (want == "") || invalid != nil && invalid != error(errDepth) {
			t.Errorf("%d lists: %v, %v", n, invalid, err)
		}
		if want == "" && v.Depth() != n {
			t.Errorf("%d lists have the depth %d", n, v.Depth())
		}
	}
	if v := parse(t, `{"M":{"a":{"L":[]},"b":{"M":{"c":{"L":[]}}}}}`); v.Depth() != 3 {
		t.Errorf("depth %d", v.Depth())
	}
}

// TestDamagedValuesAreReadWithoutAPanic cuts and changes encodings.
func FuzzDamagedValues(f *testing.F) {
	f.Add([]byte(parse(f, `{"M":{"a":{"N":"1.5"},"b":{"L":[{"S":"x"},{"NS":["1"]}]}}}`)), 3, byte(200))
	f.Fuzz(func(t *testing.T, b []byte, at int, to byte) {
		v := Value(bytes.Clone(b))
		if at >= 0 && at < len(v) {
			v[at] = to
		}
		v.Size()
		v.Depth()
		AppendJSON(nil, v)
		v.At(Path{{Name: "b"}, {Index: 1, IsIndex: true}})
		Project(v, []Path{{{Name: "b"}, {Index: 1, IsIndex: true}}})
		_, _ = Apply(v, []Edit{{Path{{Name: "b"}, {Index: 0, IsIndex: true}}, NullValue()}})
		_, _, _ = KeyNumber(v)
		ParseTTLKey(v)
		_, _ = v.Number().Add(v.Number())
	})
}
