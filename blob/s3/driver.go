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
// other changes of the same object can be the cause, and each such change ends it.
const tries = 20

var errBusy = errors.New("the object keeps changing")

// look returns an object and its mark, or blob.ErrNotFound.
func (d *Driver) look(ctx context.Context, name string) (object, mark, error) {
	for range tries {
		o, err := d.head(ctx, name)
		if errors.Is(err, errGone) {
			return object{}, mark{}, d.missing(ctx)
		}
		if err != nil {
			return object{}, mark{}, err
		}
		m, settled, err := d.settledMark(ctx, o)
		if err != nil || settled {
			return o, m, err
		}
	}
	return object{}, mark{}, errBusy
}

// settledMark returns the mark of an object. If there is none, it looks whether the
// object is still there: a mark may have been deleted after its object. Settled is
// false if it has to be looked for anew. Of an object that is marked as removed it
// returns blob.ErrNotFound.
func (d *Driver) settledMark(ctx context.Context, o object) (m mark, settled bool, err error) {
	if m, err = d.markOf(ctx, o); err != nil {
		return m, false, err
	}
	switch m.state {
	case finalized:
		return m, true, nil
	case removed:
		return m, false, blob.ErrNotFound
	}
	settled, err = d.same(ctx, o)
	return m, settled, err
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
	for range tries {
		o, err := d.head(ctx, name)
		if errors.Is(err, errGone) {
			return false, d.present(ctx)
		}
		if err != nil {
			return false, err
		}
		written, err := d.write(ctx, o, mark{}, finalized, "")
		if err != nil {
			return false, err
		}
		m := mark{state: finalized}
		if !written {
			if m, err = d.markOf(ctx, o); err != nil {
				return false, err
			}
		}
		switch m.state {
		case unmarked: // it was removed, mark and all
			continue
		case removed:
			return false, nil
		}
		there, err := d.same(ctx, o)
		if err != nil || there {
			return there, err
		}
		// It was removed before we wrote, or since.
		d.unmark(ctx, markKey(o.name, o.id, o.etag))
	}
	return false, errBusy
}

// Delete implements blob.Driver.
func (d *Driver) Delete(ctx context.Context, name string, cond blob.Condition) (done bool, err error) {
	for range tries {
		o, err := d.head(ctx, name)
		if errors.Is(err, errGone) {
			return false, d.present(ctx)
		}
		if err != nil {
			return false, err
		}
		m, err := d.markOf(ctx, o)
		if err != nil {
			return false, err
		}
		if m.state == removed {
			// Somebody began and perhaps crashed.
			return false, d.erase(ctx, o)
		}
		if !cond.Holds(o.attrs(m.state)) {
			return false, nil
		}
		done, again, err := d.remove(ctx, o, m)
		if err != nil || !again {
			return done, err
		}
	}
	return false, errBusy
}

// remove removes an object that has the mark m. Again says that it has another one.
func (d *Driver) remove(ctx context.Context, o object, m mark) (done, again bool, err error) {
	by := rand.Text()
	written, err := d.write(ctx, o, m, removed, by)
	if err != nil {
		return false, false, err
	}
	if !written {
		// The answer to our own write may have been lost and the write repeated.
		now, err := d.markOf(ctx, o)
		if err != nil || now.by != by {
			return false, true, err
		}
	}
	there, err := d.same(ctx, o)
	if err != nil {
		return false, false, err
	}
	if !there {
		d.unmark(ctx, markKey(o.name, o.id, o.etag))
		return false, true, nil
	}
	if err := d.erase(ctx, o); err != nil {
		return false, false, err
	}
	return true, false, nil
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
