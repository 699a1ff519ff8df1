package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/queue"
)

// Queue is a queue as the door shows it.
type Queue struct {
	Name string `json:"name"`
	// OldestAge is the age of the oldest unacknowledged message in seconds.
	OldestAge float64 `json:"oldest_unacked_age_seconds"`
	// Ready is how many messages are in memory for delivery, Leased how many are
	// with receivers.
	Ready       int   `json:"ready_in_memory"`
	Leased      int   `json:"leased"`
	DeadLetters int64 `json:"dead_letters"`
	Sent        int64 `json:"sent_since_start"`
	Acked       int64 `json:"acked_since_start"`
	Expired     int64 `json:"leases_expired_since_start"`
}

// Message is a message or dead letter as the door shows it.
type Message struct {
	// ID names a dead letter in requests to redrive or drop it.
	ID  string `json:"id,omitempty"`
	Key string `json:"key"`
	// Payload is the payload as text; PayloadBase64 is set instead if it is none.
	Payload       string     `json:"payload,omitempty"`
	PayloadBase64 string     `json:"payload_base64,omitempty"`
	DeliverTime   time.Time  `json:"deliver_time"`
	Due           *time.Time `json:"due,omitempty"`
	Attempts      int        `json:"attempts"`
	Reason        string     `json:"reason,omitempty"`
	DiedAt        *time.Time `json:"died_at,omitempty"`
}

// Selection says which dead letters an operation is about.
type Selection struct {
	IDs []string `json:"ids,omitempty"`
	All bool     `json:"all,omitempty"`
}

// Done says how many dead letters an operation was carried out on.
type Done struct {
	Count int `json:"count"`
}

// maxListed bounds a listing.
const maxListed = 1000

// HandleQueues adds the pages about queues:
//
//	GET  /v1/queues                             all queues
//	GET  /v1/queues/{name}/messages?n=&order=   order=due (default) or oldest; takes no leases
//	GET  /v1/queues/{name}/dead?n=&after=       dead letters behind the id after
//	POST /v1/queues/{name}/redrive              a Selection is sent again
//	POST /v1/queues/{name}/drop                 a Selection is deleted for good
func (s *Server) HandleQueues(queues *queue.Service) {
	q := queuePages{queues}
	s.Handle("GET /v1/queues", q.page(q.list))
	s.Handle("GET /v1/queues/{name}/messages", q.page(q.messages))
	s.Handle("GET /v1/queues/{name}/dead", q.page(q.dead))
	s.Handle("POST /v1/queues/{name}/redrive", q.page(q.redrive))
	s.Handle("POST /v1/queues/{name}/drop", q.page(q.drop))
}

type queuePages struct{ queues *queue.Service }

// badRequest is a mistake of who asked.
type badRequest struct{ message string }

func (e *badRequest) Error() string { return e.message }

// page turns a function into a handler.
func (q queuePages) page(f func(r *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(r)
		var bad *badRequest
		switch {
		case err == nil:
			WriteJSON(w, http.StatusOK, answer)
		case errors.As(err, &bad):
			WriteError(w, http.StatusBadRequest, bad.message)
		case errors.Is(err, queue.ErrQueueNotFound):
			WriteError(w, http.StatusNotFound, "there is no queue of that name; holdfast queue list, or GET /v1/queues, lists them")
		case errors.Is(err, queue.ErrNotFound):
			WriteError(w, http.StatusNotFound, "there is no such dead letter; list them again")
		case errors.Is(err, queue.ErrExists):
			WriteError(w, http.StatusConflict, "a message with the same key is in the queue; wait until it is done, or drop the dead letter")
		default:
			WriteError(w, http.StatusInternalServerError, err.Error())
		}
	})
}

func (q queuePages) list(r *http.Request) (any, error) {
	names, err := q.queues.Names(r.Context())
	if err != nil {
		return nil, err
	}
	list := make([]Queue, 0, len(names))
	for _, name := range names {
		one, err := q.queues.Queue(r.Context(), name)
		if err != nil {
			return nil, err
		}
		stats, err := one.Stats(r.Context())
		if err != nil {
			return nil, err
		}
		list = append(list, Queue{
			Name: name, OldestAge: stats.OldestAge.Seconds(), Ready: stats.Ready, Leased: stats.Leased,
			DeadLetters: stats.DeadLetters, Sent: stats.Sent, Acked: stats.Acked, Expired: stats.Expired,
		})
	}
	return list, nil
}

func (q queuePages) queue(r *http.Request) (*queue.Queue, error) {
	return q.queues.Queue(r.Context(), r.PathValue("name"))
}

func number(r *http.Request) (int, error) {
	text := r.URL.Query().Get("n")
	if text == "" {
		return 10, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxListed {
		return 0, &badRequest{fmt.Sprintf("n is a number from 1 to %d", maxListed)}
	}
	return n, nil
}

func (q queuePages) messages(r *http.Request) (any, error) {
	n, err := number(r)
	if err != nil {
		return nil, err
	}
	one, err := q.queue(r)
	if err != nil {
		return nil, err
	}
	read := one.Peek
	switch r.URL.Query().Get("order") {
	case "", "due":
	case "oldest":
		read = one.Oldest
	default:
		return nil, &badRequest{"order is due or oldest"}
	}
	messages, err := read(r.Context(), n)
	if err != nil {
		return nil, err
	}
	list := make([]Message, 0, len(messages))
	for i := range messages {
		list = append(list, show(&messages[i]))
	}
	return list, nil
}

func show(m *queue.Message) Message {
	shown := Message{Key: showKey(m.Key), DeliverTime: m.DeliverTime, Attempts: m.Attempts, Reason: m.Reason}
	if !m.Due.IsZero() {
		due := m.Due
		shown.Due = &due
	}
	if utf8.Valid(m.Payload) {
		shown.Payload = string(m.Payload)
	} else {
		shown.PayloadBase64 = base64.StdEncoding.EncodeToString(m.Payload)
	}
	return shown
}

// showKey renders a key as text where it is some, else in base64.
func showKey(k []byte) string {
	for _, c := range k {
		if c < ' ' || c > '~' {
			return base64.RawURLEncoding.EncodeToString(k)
		}
	}
	return string(k)
}

func (q queuePages) dead(r *http.Request) (any, error) {
	n, err := number(r)
	if err != nil {
		return nil, err
	}
	var after []byte
	if text := r.URL.Query().Get("after"); text != "" {
		if after, err = base64.RawURLEncoding.DecodeString(text); err != nil {
			return nil, &badRequest{"after is the id of a dead letter"}
		}
	}
	one, err := q.queue(r)
	if err != nil {
		return nil, err
	}
	letters, err := one.DeadLetters(r.Context(), after, n)
	if err != nil {
		return nil, err
	}
	list := make([]Message, 0, len(letters))
	for i := range letters {
		m := show(&letters[i].Message)
		m.ID, m.Due = base64.RawURLEncoding.EncodeToString(letters[i].ID), nil
		died := letters[i].Died
		m.DiedAt = &died
		list = append(list, m)
	}
	return list, nil
}

// selected reads the Selection of a request.
func selected(r *http.Request) (ids [][]byte, all bool, err error) {
	var sel Selection
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20)).Decode(&sel); err != nil {
		return nil, false, &badRequest{`the body is JSON: {"ids":["..."]} or {"all":true}`}
	}
	if sel.All == (len(sel.IDs) > 0) {
		return nil, false, &badRequest{"name either ids or all"}
	}
	for _, text := range sel.IDs {
		id, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return nil, false, &badRequest{"not the id of a dead letter: " + strconv.Quote(text)}
		}
		ids = append(ids, id)
	}
	return ids, sel.All, nil
}

func (q queuePages) redrive(r *http.Request) (any, error) {
	return q.onSelected(r, (*queue.Queue).Redrive, (*queue.Queue).RedriveAll)
}

func (q queuePages) drop(r *http.Request) (any, error) {
	return q.onSelected(r, (*queue.Queue).DropDead, (*queue.Queue).DropAllDead)
}

// onSelected does one thing to each dead letter that a request selects.
func (q queuePages) onSelected(r *http.Request, one func(*queue.Queue, context.Context, []byte) error,
	every func(*queue.Queue, context.Context) (int, error)) (any, error) {
	ids, all, err := selected(r)
	if err != nil {
		return nil, err
	}
	of, err := q.queue(r)
	if err != nil {
		return nil, err
	}
	if all {
		n, err := every(of, r.Context())
		return Done{n}, err
	}
	for _, id := range ids {
		if err := one(of, r.Context(), id); err != nil {
			return nil, err
		}
	}
	return Done{len(ids)}, nil
}
