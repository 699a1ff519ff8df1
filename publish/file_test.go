package publish

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFileKeepsPositions(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "positions.json")
	f := OpenFile(path, "projects/p/instances/i/databases/d/changeStreams/s")
	if err := f.Save(ctx, nil, nil); !errors.Is(err, ErrDeposed) {
		t.Errorf("Save without a claim: %v", err)
	}
	if ok, err := f.Claim(ctx, time.Minute); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got, err := f.Load(ctx); len(got) != 0 || err != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	at := time.Date(2026, 8, 20, 10, 0, 0, 123456789, time.UTC)
	a := Position{Token: "a", Start: at, Watermark: at.Add(1), State: Running}
	b := Position{Token: "b", Parents: []string{"a", "x"}, Start: at, Watermark: at, State: Created}
	must(t, f.Save(ctx, []Position{a, b}, nil))

	other := OpenFile(path, f.stream)
	if ok, err := other.Claim(ctx, time.Minute); ok || err != nil {
		t.Errorf("two claims at a time: %v", err)
	}
	if ok, err := f.Claim(ctx, time.Minute); !ok || err != nil {
		t.Errorf("prolonged: %v, %v", ok, err)
	}
	if _, err := f.Claim(ctx, 0); err != nil {
		t.Error(err)
	}
	if ok, err := other.Claim(ctx, time.Minute); !ok || err != nil {
		t.Fatal(ok, err)
	}
	a.State = Finished
	must(t, other.Save(ctx, []Position{a}, []string{"b", "unknown"}))
	must(t, f.Save(ctx, nil, nil), ErrDeposed)
	got, err := OpenFile(path, f.stream).Load(ctx)
	must(t, err)
	if d := cmp.Diff([]Position{a}, got); d != "" {
		t.Error("-want +got\n" + d)
	}
	if _, err := OpenFile(path, "another").Load(ctx); !errors.Is(err, ErrRefused) {
		t.Errorf("positions of another stream: %v", err)
	}
	must(t, other.Reset(ctx))
	if got, err := other.Load(ctx); len(got) != 0 || err != nil {
		t.Errorf("after Reset: %v, %v", got, err)
	}
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := other.Load(ctx); !errors.Is(err, ErrRefused) {
		t.Errorf("a broken file: %v", err)
	}
}
