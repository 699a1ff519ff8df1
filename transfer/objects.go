package transfer

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/kv"
)

// objectsPage is how many objects lie between two notes of how far they are there.
const objectsPage = 200

// copyObjects copies all objects in the order of their names, a page at a time.
func (t *transfer) copyObjects(ctx context.Context) error {
	row, err := t.To.DB.GetOne(ctx, Space, objectsKey)
	if err != nil {
		return err
	}
	after := string(row.Value)
	for {
		page := make([]blob.Attrs, 0, objectsPage)
		err := t.From.Objects.List(ctx, "", after, func(a blob.Attrs) bool {
			page = append(page, a)
			return len(page) < objectsPage
		})
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return nil
		}
		if err := t.copyPage(ctx, page); err != nil {
			return err
		}
		after = page[len(page)-1].Name
		if _, err := t.To.DB.Commit(ctx, &kv.Txn{Writes: []kv.Write{note(objectsKey, []byte(after))}}); err != nil {
			return err
		}
		for _, a := range page {
			t.report.Objects++
			t.report.Bytes += a.Size
		}
		t.progress("objects", t.report.Objects)
	}
}

func (t *transfer) copyPage(ctx context.Context, page []blob.Attrs) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(t.Concurrency)
	for _, a := range page {
		group.Go(func() error {
			if err := t.copyObject(ctx, a); err != nil {
				return fmt.Errorf("object %.200q: %w", a.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// copyObject makes the object in the target what it is in the source. One that is
// there already is from an interrupted run, or from one object store on both sides.
func (t *transfer) copyObject(ctx context.Context, from blob.Attrs) error {
	there, err := t.To.Objects.Stat(ctx, from.Name)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		err = t.putObject(ctx, from.Name)
		if errors.Is(err, blob.ErrNotFound) {
			return nil // the lifecycle of the source took it
		}
	case err == nil && !same(there, from):
		err = fmt.Errorf("%w: there is an object of this name with another content", ErrNotEmpty)
	}
	if err == nil && from.Committed && !there.Committed {
		_, err = t.To.Objects.Finalize(ctx, from.Name)
	}
	return err
}

func (t *transfer) putObject(ctx context.Context, name string) error {
	content, attrs, err := t.From.Objects.Get(ctx, name)
	if err != nil {
		return err
	}
	defer content.Close()
	return t.To.Objects.Put(ctx, name, content, attrs.Size)
}

// same reports whether two objects have the same content, as far as that is known.
func same(a, b blob.Attrs) bool {
	return a.Size == b.Size && (!a.HasCRC32C || !b.HasCRC32C || a.CRC32C == b.CRC32C)
}
