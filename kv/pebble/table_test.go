package pebble

import (
	"bytes"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestTableFilesAreWrittenWhenTheyMustBe: what was given to a file is in it after
// each call that promises so, whatever the sizes of the pieces.
func TestTableFilesAreWrittenWhenTheyMustBe(t *testing.T) {
	r := newRand(t)
	for name, flush := range map[string]func(f vfs.File, given int) error{
		"Sync":     func(f vfs.File, _ int) error { return f.Sync() },
		"SyncData": func(f vfs.File, _ int) error { return f.SyncData() },
		"SyncTo":   func(f vfs.File, given int) error { _, err := f.SyncTo(int64(given)); return err },
		"Close":    func(f vfs.File, _ int) error { return f.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewMem()
			z := &freezer{FS: disk}
			f, err := z.Create("000001.sst", vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			var want []byte
			rounds := 4
			if name == "Close" {
				rounds = 1
			}
			for range rounds {
				for range 8 {
					piece := bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(200<<10))
					if n, err := f.Write(piece); n != len(piece) || err != nil {
						t.Fatalf("Write of %d bytes: %d, %v", len(piece), n, err)
					}
					want = append(want, piece...)
				}
				if err := flush(f, len(want)); err != nil {
					t.Fatal(err)
				}
				if got := content(t, disk, "000001.sst"); !bytes.Equal(got, want) {
					t.Fatalf("%d bytes in the file, and not the %d that were written", len(got), len(want))
				}
			}
		})
	}
}

// TestPiecesOfATableAreWrittenTogether, and those of other files, the log above all,
// are not.
func TestPiecesOfATableAreWrittenTogether(t *testing.T) {
	disk := vfs.NewMem()
	z := &freezer{FS: disk}
	for name, want := range map[string]int{"000001.sst": 0, "000001.blob": 0, "000001.log": 5, "MANIFEST-000001": 5} {
		f, err := z.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("block")); err != nil {
			t.Fatal(err)
		}
		if got := len(content(t, disk, name)); got != want {
			t.Errorf("%s: %d bytes in the file after a piece, want %d", name, got, want)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, disk vfs.FS, name string) []byte {
	t.Helper()
	f, err := disk.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
