package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

const (
	// bufferLen is how much of a Put is held in memory: an object that fits into
	// it, header included, is written at once.
	bufferLen = 256 << 10

	// publishTries is how often Put makes its folder anew because a Delete
	// removed it as empty in between. Each try is a few system calls.
	publishTries = 1000
)

// URLPrefix returns "file:///": names are relative to the root.
func (d *Driver) URLPrefix() string { return "file:///" }

func (d *Driver) locate(name string) location { return locate(d.objects, name) }

// Put implements blob.Driver.
func (d *Driver) Put(ctx context.Context, name string, customTime time.Time, r io.Reader, size int64) error {
	at := d.locate(name)
	if isTaken, err := taken(at); err != nil || isTaken {
		return d.refuse(at, err)
	}
	temp, _, err := d.writeTemp(ctx, header{size: size, customTime: customTime}, r)
	if err != nil {
		return err
	}
	return d.publish(ctx, name, temp)
}

// Copy implements blob.Driver.
func (d *Driver) Copy(ctx context.Context, src, dst string, customTime time.Time) error {
	r, attrs, err := d.Get(ctx, src, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	if isTaken, err := taken(d.locate(dst)); err != nil || isTaken {
		return d.refuse(d.locate(dst), err)
	}
	temp, crc, err := d.writeTemp(ctx, header{size: attrs.Size, customTime: customTime}, r)
	if err != nil {
		return err
	}
	if crc != attrs.CRC32C {
		d.drop(temp)
		return fmt.Errorf("%w: checksum %08x, expected %08x", blob.ErrCorrupt, crc, attrs.CRC32C)
	}
	return d.publish(ctx, dst, temp)
}

// taken reports whether there is an object in either state.
func taken(at location) (bool, error) {
	for _, path := range []string{at.unfinalized(), at.finalized()} {
		_, err := os.Lstat(path)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// refuse returns why a Put failed: err or, if it is nil, ErrExists. Who retries
// takes ErrExists as success, so what exists is made durable first.
func (d *Driver) refuse(at location, err error) error {
	if err == nil {
		err = d.folders.settle(at.dir)
	}
	if err == nil {
		err = blob.ErrExists
	}
	return err
}

// writeTemp writes a complete, synced file in tmp and returns its path and the
// checksum of its content. After an error there is no file.
func (d *Driver) writeTemp(ctx context.Context, h header, r io.Reader) (path string, crc uint32, err error) {
	path = filepath.Join(d.tmp, strconv.FormatUint(d.temps.Add(1), 10))
	f, err := d.disk.create(path)
	if err != nil {
		return "", 0, err
	}
	err = d.writeObject(ctx, f, &h, r)
	if err == nil {
		err = d.disk.sync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		d.drop(path)
		return "", 0, err
	}
	return path, h.crc, nil
}

// drop removes a file in tmp. If that fails, the next Open does it.
func (d *Driver) drop(temp string) { _ = d.disk.remove(temp) }

// writeObject writes the header and what r has, and sets h.crc.
func (d *Driver) writeObject(ctx context.Context, f *os.File, h *header, r io.Reader) error {
	pooled := d.buffers.Get().(*[]byte)
	defer d.buffers.Put(pooled)
	buf := *pooled
	clear(buf[:headerLen])

	// The first buffer has the header in front. If it is also the last, the header
	// is final when it is written; else it is written again at the end.
	filled, end, err := fill(buf, headerLen, r)
	content, whole, offset := buf[headerLen:filled], end, int64(0)
	for {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		h.crc = crc32.Update(h.crc, castagnoli, content)
		if whole {
			h.put(buf)
		}
		if err := d.disk.writeAt(f, buf[:filled], offset); err != nil {
			return err
		}
		offset += int64(filled)
		if end {
			break
		}
		filled, end, err = fill(buf, 0, r)
		content = buf[:filled]
	}
	if got := offset - headerLen; got != h.size {
		return fmt.Errorf("%w: %d bytes of %d", blob.ErrWrongSize, got, h.size)
	}
	if whole {
		return nil
	}
	h.put(buf)
	return d.disk.writeAt(f, buf[:headerLen], 0)
}

// fill reads into buf from index filled on until buf is full or r ends.
func fill(buf []byte, filled int, r io.Reader) (n int, end bool, err error) {
	for filled < len(buf) {
		n, err := r.Read(buf[filled:])
		filled += n
		if errors.Is(err, io.EOF) {
			return filled, true, nil
		}
		if err != nil {
			return filled, false, err
		}
	}
	return filled, false, nil
}

// publish gives the file in tmp the name of its object and makes it durable. The
// file in tmp is gone afterwards, also after an error.
func (d *Driver) publish(ctx context.Context, name, temp string) error {
	at := d.locate(name)
	refused, err := d.place(ctx, name, temp)
	if err != nil || refused {
		d.drop(temp)
		return d.refuse(at, err)
	}
	return d.folders.settle(at.dir)
}

// place renames the file in tmp to the object's path unless that is taken.
func (d *Driver) place(ctx context.Context, name, temp string) (refused bool, err error) {
	at := d.locate(name)
	for range publishTries {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		err = d.names.with(name, func() (err error) {
			if refused, err = taken(at); err != nil || refused {
				return err
			}
			return d.disk.rename(temp, at.unfinalized())
		})
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err := d.folders.create(at.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return refused, err
}

// Finalize implements blob.Driver.
func (d *Driver) Finalize(ctx context.Context, name string) (found bool, err error) {
	at := d.locate(name)
	err = d.names.with(name, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := d.disk.rename(at.unfinalized(), at.finalized())
		if errors.Is(err, fs.ErrNotExist) {
			found, err = taken(at)
			return err
		}
		found = err == nil
		return err
	})
	if err != nil || !found {
		return false, cmp.Or(err, d.present())
	}
	// Also if it was finalized before: whoever did that may have crashed, or may
	// still be waiting for the sync.
	if err := d.folders.settle(at.dir); err != nil {
		return false, err
	}
	return true, nil
}

// Delete implements blob.Driver.
func (d *Driver) Delete(ctx context.Context, name string, cond blob.Condition) (removed bool, err error) {
	at := d.locate(name)
	err = d.names.with(name, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		removed, err = d.removeIf(at, cond)
		return err
	})
	if err != nil {
		return false, err
	}
	if !removed {
		if err := d.present(); err != nil {
			return false, err
		}
	}
	// Also if there was nothing to remove: whoever did that may have crashed.
	if err := d.disk.syncDir(at.dir); err != nil {
		return false, err
	}
	if removed {
		d.folders.prune(at.dir)
	}
	return removed, nil
}

// removeIf removes the object if cond holds. The caller has the lock of its
// name. Only a condition on the custom time needs the header; without, even a
// corrupt object can be removed.
func (d *Driver) removeIf(at location, cond blob.Condition) (removed bool, err error) {
	if !cond.CustomTime.IsZero() {
		attrs, err := statObject(at, "")
		if errors.Is(err, blob.ErrNotFound) || err == nil && !cond.Holds(attrs) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	err = d.disk.remove(at.unfinalized())
	if errors.Is(err, fs.ErrNotExist) && !cond.Unfinalized {
		err = d.disk.remove(at.finalized())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
