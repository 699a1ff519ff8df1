package blobtest

import (
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// Memory is a blob.Driver that keeps objects in memory: the model that other
// drivers are compared with, and the store of most tests.
type Memory struct {
	mu      sync.Mutex
	objects map[string]object // guarded by mu; contents are never changed in place
}

type object struct {
	attrs   blob.Attrs
	content []byte
}

var _ blob.Driver = (*Memory)(nil)

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{objects: map[string]object{}} }

// Clone returns an independent Memory with the same objects: what a crash at
// this moment would leave.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Memory{objects: maps.Clone(m.objects)}
}

// Names returns the names of all objects in order.
func (m *Memory) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}

// Corrupt flips a bit in the middle of the object's content, as a bad disk
// might, and reports whether there is any content to spoil.
func (m *Memory) Corrupt(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[name]
	if len(o.content) == 0 {
		return false
	}
	o.content = slices.Clone(o.content)
	o.content[len(o.content)/2] ^= 0x10
	m.objects[name] = o
	return true
}

// URLPrefix returns "mem://test/".
func (m *Memory) URLPrefix() string { return "mem://test/" }

// Put implements blob.Driver.
func (m *Memory) Put(ctx context.Context, name string, customTime time.Time, r io.Reader, size int64) error {
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.create(name, customTime, content)
}

// create adds an unfinalized object. The caller holds mu.
func (m *Memory) create(name string, customTime time.Time, content []byte) error {
	if _, ok := m.objects[name]; ok {
		return blob.ErrExists
	}
	m.objects[name] = object{content: content, attrs: blob.Attrs{
		Name:       name,
		Size:       int64(len(content)),
		CustomTime: customTime,
		CRC32C:     crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli)),
		HasCRC32C:  true,
	}}
	return nil
}

// Finalize implements blob.Driver.
func (m *Memory) Finalize(ctx context.Context, name string) (found bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[name]
	if err := ctx.Err(); err != nil || !ok {
		return false, err
	}
	o.attrs.Committed, o.attrs.CustomTime = true, blob.FinalizedTime
	m.objects[name] = o
	return true, nil
}

// Get implements blob.Driver.
func (m *Memory) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, blob.Attrs, error) {
	o, err := m.find(ctx, name)
	if err != nil {
		return nil, blob.Attrs{}, err
	}
	part := o.content[min(offset, int64(len(o.content))):]
	if length >= 0 {
		part = part[:min(length, int64(len(part)))]
	}
	return io.NopCloser(bytes.NewReader(part)), o.attrs, nil
}

// Stat implements blob.Driver.
func (m *Memory) Stat(ctx context.Context, name string) (blob.Attrs, error) {
	o, err := m.find(ctx, name)
	return o.attrs, err
}

func (m *Memory) find(ctx context.Context, name string) (object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return object{}, err
	}
	o, ok := m.objects[name]
	if !ok {
		return object{}, blob.ErrNotFound
	}
	return o, nil
}

// Delete implements blob.Driver.
func (m *Memory) Delete(ctx context.Context, name string, cond blob.Condition) (removed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[name]
	if err := ctx.Err(); err != nil || !ok || !cond.Holds(o.attrs) {
		return false, err
	}
	delete(m.objects, name)
	return true, nil
}

// Copy implements blob.Driver.
func (m *Memory) Copy(ctx context.Context, src, dst string, customTime time.Time) error {
	o, err := m.find(ctx, src)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.create(dst, customTime, o.content)
}

// List implements blob.Driver.
func (m *Memory) List(ctx context.Context, prefix, after string, fn func(blob.Attrs) bool) error {
	for _, name := range m.Names() {
		if name <= after || !strings.HasPrefix(name, prefix) {
			continue
		}
		o, err := m.find(ctx, name)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // deleted meanwhile
			continue
		}
		if !fn(o.attrs) {
			return nil
		}
	}
	return ctx.Err()
}
