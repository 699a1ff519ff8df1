package queue_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/pebble"
	"github.com/holdfast-dev/holdfast/queue"
)

// A program keeps orders and has mails to send about them. The row of an order and
// its message are one commit, and so are the mark on the row and the end of the
// message.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "orders-")
	check(err)
	defer os.RemoveAll(dir)

	engine, err := pebble.Open(ctx, dir, pebble.Options{})
	check(err)
	defer engine.Close()
	db := kv.New(engine, pebble.Limits())
	check(db.CreateSpace(ctx, "orders", kv.SpaceOptions{}))

	queues, err := queue.Open(ctx, db, queue.Options{TokenKey: []byte("at least sixteen bytes"), Rand: rand.Reader})
	check(err)
	mails, err := queues.Create(ctx, "mails", queue.Settings{})
	check(err)
	running := make(chan error)
	go func() { running <- queues.Run(ctx) }()

	// Either there is an order and a message, or neither.
	_, err = db.Update(ctx, func(tx *kv.Tx) error {
		tx.Put(kv.Write{Space: "orders", Key: []byte("1042"), Value: []byte("new")})
		return mails.Send(tx, queue.Outgoing{Key: []byte("1042"), Payload: []byte("thank you for your order")})
	})
	check(err)

	received, err := mails.Receive(ctx, 1)
	check(err)
	m := received[0]
	fmt.Printf("mail about order %s: %s\n", m.Key, m.Payload)

	// Should the process die before this commit, the message comes again.
	_, err = db.Update(ctx, func(tx *kv.Tx) error {
		tx.Put(kv.Write{Space: "orders", Key: m.Key, Value: []byte("confirmed")})
		return mails.Ack(tx, m.Key)
	})
	check(err)

	row, err := db.GetOne(ctx, "orders", []byte("1042"))
	check(err)
	fmt.Printf("order is %s\n", row.Value)

	stop()
	check(<-running)

	// Output:
	// mail about order 1042: thank you for your order
	// order is confirmed
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
