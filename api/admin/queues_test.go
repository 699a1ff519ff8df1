package admin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
	"github.com/holdfast-dev/holdfast/queue"
)

// queueDoor is a door in front of one queue "jobs" that gives up at the first
// failure.
type queueDoor struct {
	t     *testing.T
	door  *Server
	db    *kv.DB
	queue *queue.Queue
}

func newQueueDoor(t *testing.T) *queueDoor {
	t.Helper()
	c := clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	db := kvtest.NewDB(c)
	s, err := queue.Open(t.Context(), db, queue.Options{TokenKey: make([]byte, 32), Rand: rand.Reader, Clock: c, Database: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	q, err := s.Create(t.Context(), "jobs", queue.Settings{MaxAttempts: 1, LocalReceivers: true})
	if err != nil {
		t.Fatal(err)
	}
	d := &queueDoor{t: t, door: New(Options{Token: "secret"}), db: db, queue: q}
	d.door.HandleQueues(s)
	return d
}

func (d *queueDoor) send(key, payload string) {
	d.t.Helper()
	_, err := d.db.Update(d.t.Context(), func(tx *kv.Tx) error {
		return d.queue.Send(tx, queue.Outgoing{Key: []byte(key), Payload: []byte(payload)})
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// kill lets a message fail for good.
func (d *queueDoor) kill() {
	d.t.Helper()
	messages, err := d.queue.Receive(d.t.Context(), 1)
	if err == nil {
		err = d.queue.Retry(d.t.Context(), messages[0].Token(), 0, "it is broken")
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *queueDoor) ask(method, path, body string, wantStatus int, answer any) {
	d.t.Helper()
	r := httptest.NewRequest(method, "http://localhost"+path, bytes.NewReader([]byte(body)))
	r.Header.Set("Authorization", "Bearer secret")
	w := httptest.NewRecorder()
	d.door.ServeHTTP(w, r)
	if w.Code != wantStatus {
		d.t.Fatalf("%s %s: status %d, want %d: %s", method, path, w.Code, wantStatus, w.Body)
	}
	if answer != nil {
		if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
			d.t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
		}
	}
}

func TestQueuesAreListedAndPeekedWithoutTakingMessages(t *testing.T) {
	d := newQueueDoor(t)
	d.send("a", "first")
	d.send("b", "\xff\x00")
	var queues []Queue
	d.ask("GET", "/v1/queues", "", http.StatusOK, &queues)
	if len(queues) != 1 || queues[0].Name != "jobs" || queues[0].Sent != 2 || queues[0].DeadLetters != 0 {
		t.Errorf("queues: %+v", queues)
	}
	for range 2 { // looking does not take
		for _, order := range []string{"", "&order=due", "&order=oldest"} {
			var messages []Message
			d.ask("GET", "/v1/queues/jobs/messages?n=5"+order, "", http.StatusOK, &messages)
			if len(messages) != 2 || messages[0].Key != "a" || messages[0].Payload != "first" || messages[1].PayloadBase64 != "/wA=" {
				t.Errorf("order %q: messages %+v", order, messages)
			}
		}
	}
}

func TestDeadLettersAreShownRedrivenAndDropped(t *testing.T) {
	d := newQueueDoor(t)
	for i := range 3 {
		d.send(fmt.Sprint("key", i), "payload")
		d.kill()
	}
	var dead []Message
	d.ask("GET", "/v1/queues/jobs/dead?n=2", "", http.StatusOK, &dead)
	if len(dead) != 2 || dead[0].Reason != "it is broken" || dead[0].DiedAt == nil || dead[0].Attempts != 1 {
		t.Fatalf("dead letters: %+v", dead)
	}
	var rest []Message
	d.ask("GET", "/v1/queues/jobs/dead?after="+dead[1].ID, "", http.StatusOK, &rest)
	if len(rest) != 1 || rest[0].ID == dead[1].ID {
		t.Errorf("behind the second: %+v", rest)
	}
	selection := func(ids ...string) string {
		b, _ := json.Marshal(Selection{IDs: ids})
		return string(b)
	}
	var done Done
	d.ask("POST", "/v1/queues/jobs/redrive", selection(dead[0].ID), http.StatusOK, &done)
	var messages []Message
	d.ask("GET", "/v1/queues/jobs/messages", "", http.StatusOK, &messages)
	if done.Count != 1 || len(messages) != 1 || messages[0].Key != dead[0].Key || messages[0].Attempts != 0 {
		t.Errorf("redriven %d, in the queue %+v", done.Count, messages)
	}
	d.ask("POST", "/v1/queues/jobs/redrive", selection(dead[0].ID), http.StatusNotFound, nil)
	d.ask("POST", "/v1/queues/jobs/drop", selection(dead[1].ID), http.StatusOK, &done)
	d.ask("POST", "/v1/queues/jobs/drop", `{"all":true}`, http.StatusOK, &done)
	if done.Count != 1 {
		t.Errorf("dropped %d, want the last one", done.Count)
	}
	d.ask("GET", "/v1/queues/jobs/dead", "", http.StatusOK, &dead)
	if len(dead) != 0 {
		t.Errorf("left: %+v", dead)
	}
}

func TestAMessageInTheQueueKeepsItsDeadNamesakeWhereItIs(t *testing.T) {
	d := newQueueDoor(t)
	d.send("same", "old")
	d.kill()
	d.send("same", "new")
	var dead []Message
	d.ask("GET", "/v1/queues/jobs/dead", "", http.StatusOK, &dead)
	b, _ := json.Marshal(Selection{IDs: []string{dead[0].ID}})
	d.ask("POST", "/v1/queues/jobs/redrive", string(b), http.StatusConflict, nil)
}

func TestMistakesAboutQueuesAreExplained(t *testing.T) {
	d := newQueueDoor(t)
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/v1/queues/none/messages", "", 404},
		{"GET", "/v1/queues/none/dead", "", 404},
		{"POST", "/v1/queues/none/drop", `{"all":true}`, 404},
		{"GET", "/v1/queues/jobs/messages?n=0", "", 400},
		{"GET", "/v1/queues/jobs/messages?n=1001", "", 400},
		{"GET", "/v1/queues/jobs/messages?n=x", "", 400},
		{"GET", "/v1/queues/jobs/messages?order=random", "", 400},
		{"GET", "/v1/queues/jobs/dead?after=%25", "", 400},
		{"POST", "/v1/queues/jobs/drop", "", 400},
		{"POST", "/v1/queues/jobs/drop", "{}", 400},
		{"POST", "/v1/queues/jobs/drop", `{"all":true,"ids":["AA"]}`, 400},
		{"POST", "/v1/queues/jobs/drop", `{"ids":["%"]}`, 400},
		{"GET", "/v1/queues/jobs/drop", "", 405},
	} {
		var answer struct{ Error string }
		d.ask(c.method, c.path, c.body, c.status, &answer)
		if answer.Error == "" {
			t.Errorf("%s %s: no explanation", c.method, c.path)
		}
	}
}
