package kvtest

import "testing"

func TestHistoriesThatNoOrderExplainsAreFound(t *testing.T) {
	reads := func(kv ...any) map[string][]int {
		m := map[string][]int{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1].([]int)
		}
		return m
	}
	var none []int
	for name, c := range map[string]struct {
		history []observed
		final   map[string][]int
		sound   bool
	}{
		"one after the other": {[]observed{
			{id: 1, reads: reads("x", none, "y", none), writes: []string{"x"}},
			{id: 2, reads: reads("x", []int{1}, "y", none), writes: []string{"y"}},
			{id: 3, reads: reads("x", []int{1}, "y", []int{2})},
		}, reads("x", []int{1}, "y", []int{2}), true},
		"reader in between": {[]observed{
			{id: 1, reads: reads("x", none), writes: []string{"x"}},
			{id: 2, reads: reads("x", []int{1}), writes: []string{"x"}},
			{id: 3, reads: reads("x", []int{1})},
		}, reads("x", []int{1, 2}), true},
		"unsure and absent": {[]observed{{id: 1, reads: reads("x", none), writes: []string{"x"}, unsure: true}}, reads("x", none), true},
		"write skew": {[]observed{
			{id: 1, reads: reads("x", none, "y", none), writes: []string{"x"}},
			{id: 2, reads: reads("x", none, "y", none), writes: []string{"y"}},
		}, reads("x", []int{1}, "y", []int{2}), false},
		"lost update": {[]observed{
			{id: 1, reads: reads("x", none), writes: []string{"x"}},
			{id: 2, reads: reads("x", none), writes: []string{"x"}},
		}, reads("x", []int{2}), false},
		"two cuts seen by readers": {[]observed{
			{id: 1, reads: reads("x", none), writes: []string{"x"}},
			{id: 2, reads: reads("y", none), writes: []string{"y"}},
			{id: 3, reads: reads("x", []int{1}, "y", none)},
			{id: 4, reads: reads("x", none, "y", []int{2})},
		}, reads("x", []int{1}, "y", []int{2}), false},
		"torn commit": {[]observed{
			{id: 1, reads: reads("x", none, "y", none), writes: []string{"x", "y"}},
			{id: 2, reads: reads("x", []int{1}, "y", none)},
		}, reads("x", []int{1}, "y", []int{1}), false},
		"read of what was never committed": {[]observed{{id: 1, reads: reads("x", []int{9})}}, reads("x", none), false},
		"written twice":                    {[]observed{{id: 1, reads: reads("x", none), writes: []string{"x"}}}, reads("x", []int{1, 1}), false},
	} {
		if err := checkSerializable(c.history, c.final); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
}
