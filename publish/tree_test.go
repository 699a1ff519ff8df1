package publish

import (
	"testing"
	"time"
)

func TestPartitionsWaitForParentsThatAreNotKnownYet(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 8, 20, 10, 0, s, 0, time.UTC) }
	tokens := func(tr *tree) (ready string) {
		for _, n := range tr.ready(time.Time{}) {
			if n.State == Created {
				ready += n.Token
			}
		}
		return ready
	}
	// x is to split into b and others; a and b merge into d, which a has announced
	// already.
	tr := newTree([]Position{
		{Token: "x", Start: at(0), Watermark: at(1), State: Running},
		{Token: "a", Start: at(0), Watermark: at(9), State: Finished},
		{Token: "d", Parents: []string{"a", "b"}, Start: at(9), Watermark: at(9), State: Created},
	})
	if got := tokens(tr); got != "" {
		t.Errorf("%s begins although nobody knows what b is", got)
	}
	tr.finish(tr.nodes["x"], []Event{{Time: at(5), Children: []Child{{"b", []string{"x"}}}}})
	if got := tokens(tr); got != "b" {
		t.Errorf("%q begins, want b", got)
	}
	tr.nodes["b"].State = Running
	tr.forget()
	if tr.nodes["a"] == nil {
		t.Error("a is forgotten although d waits for it")
	}
	tr.finish(tr.nodes["b"], []Event{{Time: at(9), Children: []Child{{"d", []string{"a", "b"}}}}})
	if got := tokens(tr); got != "d" {
		t.Errorf("%q begins, want d", got)
	}
	tr.nodes["d"].State = Running
	tr.forget()
	if len(tr.nodes) != 1 {
		t.Errorf("%d partitions are kept, want d alone", len(tr.nodes))
	}

	// What was forgotten is over once everybody else is beyond it.
	tr = newTree([]Position{
		{Token: "y", Start: at(0), Watermark: at(8), State: Running},
		{Token: "d", Parents: []string{"a", "b"}, Start: at(9), Watermark: at(9), State: Created},
	})
	if got := tokens(tr); got != "" {
		t.Errorf("%s begins before y is there", got)
	}
	tr.nodes["y"].advance(at(9))
	if got := tokens(tr); got != "d" {
		t.Errorf("%q begins, want d", got)
	}
}
