package queue

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/kv"
)

// findings runs Check and returns what it found, as "space detail".
func findings(t *testing.T, w *world) []string {
	t.Helper()
	var list []string
	err := w.s.Check(context.Background(), func(space string, _ []byte, detail string) {
		list = append(list, space+" "+detail)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func TestCheckFindsNothingWhereNothingIsWrong(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.create("empty", Settings{})
		for i := range 2 * checkPage {
			w.send(q, out(number(i))...)
		}
		w.send(q, at("later", w.clock.Now().Add(time.Hour)))
		for range 3 { // some rest after a lost lease
			m := w.receive(q, 1)[0]
			if err := q.Retry(context.Background(), m.Token(), time.Hour, "no"); err != nil {
				t.Fatal(err)
			}
		}
		if got := findings(t, w); len(got) > 0 {
			t.Errorf("found %q", got)
		}
	})
}

func TestCheckFindsEveryDisagreementOfMessagesAndIndexes(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("lost", "hidden", "misplaced", "good")...)
		m := w.receive(q, 4)
		for i := range m {
			if string(m[i].Key) == "hidden" { // so that it is in both indexes
				if err := q.Retry(context.Background(), m[i].Token(), time.Hour, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		stored := w.stored(q)
		hidden, misplaced := stored["hidden"], stored["misplaced"]
		_, err := w.db.Commit(context.Background(), &kv.Txn{Writes: []kv.Write{
			{Space: messageSpace, Key: q.messageKey([]byte("lost")), Delete: true},
			{Space: readySpace, Key: q.timeKey(hidden.due, []byte("hidden")), Delete: true},
			{Space: movedSpace, Key: q.timeKey(hidden.deliver, []byte("hidden")), Delete: true},
			{Space: readySpace, Key: q.timeKey(misplaced.due.Add(time.Second), []byte("misplaced")), Value: readyValue(&misplaced)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"queue_message queue q: message without its entry in queue_moved",
			"queue_message queue q: message without its entry in queue_ready",
			"queue_ready queue q: entry at a place where its message is not",
			"queue_ready queue q: entry without its message",
		}
		if got := findings(t, w); !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	})
}
