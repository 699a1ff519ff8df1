package e2e

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/fs"
	"github.com/holdfast-dev/holdfast/blob/gcs"
	"github.com/holdfast-dev/holdfast/blob/s3"
	"github.com/holdfast-dev/holdfast/blob/s3/s3test"
	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/bigtable"
	"github.com/holdfast-dev/holdfast/kv/pebble"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/spanner"
)

// linksOf returns the links of all rows, expired ones included, with the row that
// holds each.
func linksOf(t *testing.T, db *kv.DB) map[string]string {
	t.Helper()
	links := map[string]string{}
	for space := range storage.ChangeTables() {
		err := db.Scan(t.Context(), space, kv.Range{IncludeExpired: true}, func(r kv.Row) bool {
			if r.Link != "" {
				row := fmt.Sprintf("%s %q", space, r.Key)
				if other := links[r.Link]; other != "" {
					t.Errorf("both %s and %s hold %s", other, row, r.Link)
				}
				links[r.Link] = row
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return links
}

// objectsOf returns the objects of a store by their URLs.
func objectsOf(t *testing.T, store *blob.Store, prefix string) map[string]blob.Attrs {
	t.Helper()
	objects := map[string]blob.Attrs{}
	err := store.List(t.Context(), prefix, "", func(a blob.Attrs) bool {
		objects[store.URL(a.Name)] = a
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// disagreements compares links and objects when no change is under way: each link
// has a finalized object, and each finalized object a link. Others wait for the
// lifecycle.
func disagreements(links map[string]string, objects map[string]blob.Attrs) []string {
	var found []string
	for link, row := range links {
		a, ok := objects[link]
		switch {
		case !ok:
			found = append(found, fmt.Sprintf("%s points at %s, which is missing", row, link))
		case !a.Committed:
			found = append(found, fmt.Sprintf("%s points at %s, which is not finalized", row, link))
		}
	}
	for _, url := range slices.Sorted(maps.Keys(objects)) {
		if _, ok := links[url]; !ok && objects[url].Committed {
			found = append(found, "no row points at "+url+", which is finalized")
		}
	}
	return found
}

// openObjects opens the object store of a home, beside whoever else has them
// open.
func openObjects(t *testing.T, home *program.Home, c clock.Clock) *blob.Store {
	t.Helper()
	var driver blob.Driver
	var err error
	switch home.Setting("HOLDFAST_STORE_KIND") {
	case "gcs":
		driver, err = gcs.Open(t.Context(), gcs.Options{
			Bucket: home.Setting("HOLDFAST_STORE_GCS_BUCKET"), Endpoint: home.Setting("HOLDFAST_STORE_GCS_ENDPOINT"),
		})
	case "s3":
		driver, err = s3.Open(t.Context(), s3.Options{
			Bucket: home.Setting("HOLDFAST_STORE_S3_BUCKET"), Endpoint: home.Setting("HOLDFAST_STORE_S3_ENDPOINT"),
			PathStyle: true, AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey,
		})
	default:
		dir := cmp.Or(home.Setting("HOLDFAST_STORE_PATH"), filepath.Join(home.Dir, "objects"))
		driver, err = fs.Open(t.Context(), dir, fs.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := driver.(io.Closer); ok {
		t.Cleanup(func() { c.Close() })
	}
	return blob.New(driver, blob.Options{Clock: c})
}

// openRows opens the engine of a home.
func openRows(t *testing.T, home *program.Home) *kv.DB {
	t.Helper()
	var engine kv.Engine
	var limits kv.Limits
	var err error
	switch home.Setting("HOLDFAST_ENGINE_KIND") {
	case "bigtable":
		limits = bigtable.Limits()
		engine, err = bigtable.Open(t.Context(), bigtable.Options{
			ProjectID: home.Setting("HOLDFAST_ENGINE_BIGTABLE_PROJECT_ID"), InstanceID: home.Setting("HOLDFAST_ENGINE_BIGTABLE_INSTANCE_ID"),
			EmulatorHost: home.Setting("HOLDFAST_ENGINE_BIGTABLE_EMULATOR_HOST"), Rand: rand.Reader,
		})
	case "postgres":
		limits = postgres.Limits()
		engine, err = postgres.Open(t.Context(), postgres.Options{
			URL: home.Setting("HOLDFAST_ENGINE_POSTGRES_URL"), Schema: home.Setting("HOLDFAST_ENGINE_POSTGRES_SCHEMA"),
		})
	case "spanner":
		limits = spanner.Limits()
		engine, err = spanner.Open(t.Context(), spanner.Options{
			ProjectID: home.Setting("HOLDFAST_ENGINE_SPANNER_PROJECT_ID"), InstanceID: home.Setting("HOLDFAST_ENGINE_SPANNER_INSTANCE_ID"),
			DatabaseID:   home.Setting("HOLDFAST_ENGINE_SPANNER_DATABASE_ID"),
			EmulatorHost: home.Setting("HOLDFAST_ENGINE_SPANNER_EMULATOR_HOST"),
		})
	default:
		limits = pebble.Limits()
		engine, err = pebble.Open(t.Context(), filepath.Join(home.Dir, "rows"), pebble.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	return kv.New(engine, limits)
}

// audit audits what a home has while no process has it open, and then lets the
// lifecycle pass over it as it will in 31 days.
func audit(t *testing.T, home *program.Home) {
	t.Helper()
	links := linksOf(t, openRows(t, home))
	later := clock.NewManual(time.Now().Add(blob.UnfinalizedLifetime + 24*time.Hour))
	objects := openObjects(t, home, later)
	before := objectsOf(t, objects, "")
	for _, d := range disagreements(links, before) {
		t.Error(d)
	}
	runLifecycle(t, objects)
	after := objectsOf(t, objects, "")
	t.Logf("%d links, %d objects, %d after the lifecycle", len(links), len(before), len(after))
	for url := range after {
		if _, ok := links[url]; !ok {
			t.Errorf("no row points at %s, and the lifecycle has left it", url)
		}
	}
	if len(after) != len(links) {
		t.Errorf("the lifecycle has left %d objects of %d links", len(after), len(links))
	}
}

// runLifecycle makes one pass of the lifecycle.
func runLifecycle(t *testing.T, objects *blob.Store) {
	t.Helper()
	worker := blob.NewLifecycle(objects, blob.LifecycleOptions{})
	for more := true; more; {
		var err error
		if more, err = worker.Step(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

// under returns what lies below a prefix of names, in a few lines.
func under(objects map[string]blob.Attrs) string {
	var lines []string
	for url, a := range objects {
		lines = append(lines, fmt.Sprintf("%s committed=%v", url, a.Committed))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
