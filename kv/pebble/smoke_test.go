package pebble

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(context.Background(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := kv.New(e, Limits())
	ctx := context.Background()
	if err := db.CreateSpace(ctx, "a", kv.SpaceOptions{Links: true}); err != nil {
		t.Fatal(err)
	}
	v, err := db.Commit(ctx, &kv.Txn{Writes: []kv.Write{{Space: "a", Key: []byte("k"), Value: []byte("v"), Link: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, err = Open(ctx, dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	db = kv.New(e, Limits())
	r, err := db.GetOne(ctx, "a", []byte("k"))
	if err != nil || r.Version != v || string(r.Value) != "v" || r.Link != "x" {
		t.Fatal(r, err)
	}
	if _, err := Open(ctx, dir, Options{}); err == nil {
		t.Fatal("second open")
	} else {
		t.Log(err)
	}
}
