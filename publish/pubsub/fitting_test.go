package pubsub

import "testing"

func TestFitting(t *testing.T) {
	of := func(sizes ...int) (m [][]byte) {
		for _, s := range sizes {
			m = append(m, make([]byte, s))
		}
		return m
	}
	for _, c := range []struct {
		messages [][]byte
		want     int
	}{
		{of(1, 1, 1), 3}, {of(9_000_000, 400_000, 200_000), 2}, {of(9_000_000, 9_000_000), 1},
		{of(12_000_000, 1), 1}, {of(make([]int, 1000)...), 1000}, {of(make([]int, 1001)...), 1000},
	} {
		if got := fitting(c.messages); got != c.want {
			t.Errorf("%d messages: %d fit, want %d", len(c.messages), got, c.want)
		}
	}
}
