package s3

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// tries is how often a method looks again because an object changed meanwhile. Only
// other changes of the same object can be the cause, and each of these ends it.
const tries = 20

var errBusy = errors.New("the object keeps changing")

// look returns an object that exists and its mark, or blob.ErrNotFound.
func (d *Driver) look(ctx context.Context, name string) (object, mark, error) {
	o, err := d.head(ctx, name)
	if errors.Is(err, errGone) {
		return object{}, mark{}, d.missing(ctx)
	}
	if err != nil {
		return object{}, mark{}, err
	}
	m, err := d.existing(ctx, o)
	return o, m, err
}

// existing returns the mark of an object, or blob.ErrNotFound if it is removed.
func (d *Driver) existing(ctx context.Context, o object) (mark, error) {
	m, err := d.markOf(ctx, o)
	if err == nil && m.state == removed {
		err = blob.ErrNotFound
	}
	return m, err
}

// Stat implements blob.Driver.
func (d *Driver) Stat(ctx context.Context, name string) (blob.Attrs, error) {
	o, m, err := d.look(ctx, name)
	if err != nil {
		return blob.Attrs{}, err
	}
	return o.attrs(m.state), nil
}

// Finalize implements blob.Driver.
func (d *Driver) Finalize(ctx context.Context, name string) (found bool, err error) {
	o, err := d.head(ctx, name)
	if errors.Is(err, errGone) {
		return false, d.present(ctx)
	}
	if err != nil {
		return false, err
	}
	for range tries {
		written, err := d.write(ctx, o, mark{}, finalized, "")
		if err != nil || written {
			return written, err
		}
		m, err := d.markOf(ctx, o)
		if err != nil || m.state != unmarked {
			return m.state == finalized, err
		}
		// Refused, and yet no mark: the store wants us to repeat a write that met
		// another one.
	}
	return false, errBusy
}

// Delete implements blob.Driver.
func (d *Driver) Delete(ctx context.Context, name string, cond blob.Condition) (done bool, err error) {
	o, err := d.head(ctx, name)
	if errors.Is(err, errGone) {
		return false, d.present(ctx)
	}
	if err != nil {
		return false, err
	}
	by := rand.Text()
	for range tries {
		m, err := d.markOf(ctx, o)
		if err != nil {
			return false, err
		}
		if m.state == removed {
			// It was us if the answer to a write was lost and the write repeated;
			// else somebody who is at it, or crashed.
			return m.by == by, d.erase(ctx, o)
		}
		if !cond.Holds(o.attrs(m.state)) {
			return false, nil
		}
		written, err := d.write(ctx, o, m, removed, by)
		if err != nil {
			return false, err
		}
		if written {
			return true, d.erase(ctx, o)
		}
	}
	return false, errBusy
}

// Copy implements blob.Driver. Not all stores know conditions on copies.
func (d *Driver) Copy(ctx context.Context, src, dst string, customTime time.Time) (err error) {
	r, attrs, err := d.Get(ctx, src, 0, -1)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, r.Close()) }()
	return d.Put(ctx, dst, customTime, checked(r, attrs), attrs.Size)
}
