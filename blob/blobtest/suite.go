package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/clock"
)

// Harness makes an empty store for one test and returns what opens it: each call
// of open gives another driver on the same objects, as another process would
// have. The harness cleans up by tb.Cleanup; drivers may be used up to then.
type Harness func(tb testing.TB) (open func() blob.Driver)

// caseTimeout ends a case that hangs or pages for ever.
const caseTimeout = time.Minute

// start is what the manual clock of each case shows first. It is off the
// millisecond on purpose.
var start = time.Date(2026, time.March, 4, 5, 6, 7, 89_012_345, time.UTC)

// fixture is the world of one case.
type fixture struct {
	*testing.T
	ctx    context.Context
	clock  *clock.Manual
	open   func() blob.Driver
	driver blob.Driver
	store  *blob.Store
}

// Run runs the conformance suite.
func Run(t *testing.T, h Harness) {
	cases := []struct {
		name string
		run  func(*fixture)
	}{
		{"PutIsBornUntrusted", testPutIsBornUntrusted},
		{"PutNeverReplaces", testPutNeverReplaces},
		{"PutIsInvisibleUntilComplete", testPutIsInvisibleUntilComplete},
		{"CancelledPutLeavesNothing", testCancelledPutLeavesNothing},
		{"FailedPutLeavesNothing", testFailedPutLeavesNothing},
		{"ConcurrentPutsHaveOneWinner", testConcurrentPutsHaveOneWinner},
		{"ContentOfEverySizeComesBack", testContentOfEverySizeComesBack},
		{"RangesAreClamped", testRangesAreClamped},
		{"InvalidInputIsRefused", testInvalidInputIsRefused},
		{"AbsentObjectIsNotFound", testAbsentObjectIsNotFound},
		{"FinalizeChangesOnlyTrust", testFinalizeChangesOnlyTrust},
		{"DiscardSparesFinalized", testDiscardSparesFinalized},
		{"DeleteTakesAnyState", testDeleteTakesAnyState},
		{"DeleteKeepsToItsCondition", testDeleteKeepsToItsCondition},
		{"DeletedNameStartsAnew", testDeletedNameStartsAnew},
		{"FinalizeOrDiscardNeverBoth", testFinalizeOrDiscardNeverBoth},
		{"DeleteBeatsFinalizeForGood", testDeleteBeatsFinalizeForGood},
		{"OneOfManyDeletesFinds", testOneOfManyDeletesFinds},
		{"ReadDuringFinalizeNeverMisses", testReadDuringFinalizeNeverMisses},
		{"CopyIsIndependent", testCopyIsIndependent},
		{"ListIsInByteOrder", testListIsInByteOrder},
		{"ListHonoursPrefixAndAfter", testListHonoursPrefixAndAfter},
		{"ListStopsWhenTold", testListStopsWhenTold},
		{"ListWhileDeleting", testListWhileDeleting},
		{"ListDuringFinalizeNeverMisses", testListDuringFinalizeNeverMisses},
		{"WeirdNamesAreLiteral", testWeirdNamesAreLiteral},
		{"URLsRoundTripAndForeignOnesAreRefused", testURLs},
		{"LifecycleRemovesAfter30Days", testLifecycleRemovesAfter30Days},
		{"LifecycleYieldsToFinalize", testLifecycleYieldsToFinalize},
		{"LifecycleSparesNewObjectOfOldName", testLifecycleSparesNewObjectOfOldName},
		{"ReopenedStoreSeesEverything", testReopenedStoreSeesEverything},
		{"EndedContextFailsCalls", testEndedContextFailsCalls},
		{"RandomOperationsMatchModel", testRandomOperationsMatchModel},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
			defer cancel()
			f := &fixture{T: t, ctx: ctx, clock: clock.NewManual(start), open: h(t)}
			f.driver = f.open()
			f.store = f.over(f.driver)
			c.run(f)
		})
	}
}

// over returns a Store with the case's clock.
func (f *fixture) over(d blob.Driver) *blob.Store {
	return blob.New(d, blob.Options{Clock: f.clock})
}

// created returns the custom time that an object created now must have.
func (f *fixture) created() time.Time { return f.clock.Now().Truncate(time.Millisecond) }

func (f *fixture) put(name, content string) {
	f.Helper()
	if err := f.store.Put(f.ctx, name, bytes.NewReader([]byte(content)), int64(len(content))); err != nil {
		f.Fatalf("Put(%q) = %v", name, err)
	}
}

func (f *fixture) finalize(name string) {
	f.Helper()
	if found, err := f.store.Finalize(f.ctx, name); !found || err != nil {
		f.Fatalf("Finalize(%q) = %v, %v; want true, nil", name, found, err)
	}
}

func (f *fixture) delete(name string) {
	f.Helper()
	if found, err := f.store.Delete(f.ctx, name); !found || err != nil {
		f.Fatalf("Delete(%q) = %v, %v; want true, nil", name, found, err)
	}
}

// get returns the content and the attributes of an object that must be there.
func (f *fixture) get(s *blob.Store, name string) (string, blob.Attrs) {
	f.Helper()
	r, attrs, err := s.Get(f.ctx, name)
	if err != nil {
		f.Fatalf("Get(%q) = %v", name, err)
	}
	content, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		f.Fatalf("Get(%q): read: %v", name, err)
	}
	return string(content), attrs
}

// wantObject checks content and attributes as Get and Stat report them.
func (f *fixture) wantObject(s *blob.Store, name, content string, committed bool, customTime time.Time) {
	f.Helper()
	want := blob.Attrs{Name: name, Size: int64(len(content)), Committed: committed, CustomTime: customTime}
	got, attrs := f.get(s, name)
	if got != content {
		f.Errorf("Get(%q): content is %s, want %s", name, brief(got), brief(content))
	}
	if diff := cmp.Diff(want, plain(attrs)); diff != "" {
		f.Errorf("Get(%q): attributes (-want +got):\n%s", name, diff)
	}
	stat, err := s.Stat(f.ctx, name)
	if err != nil {
		f.Errorf("Stat(%q) = %v", name, err)
	}
	if diff := cmp.Diff(attrs, stat); diff != "" {
		f.Errorf("Stat(%q) differs from Get (-get +stat):\n%s", name, diff)
	}
}

// wantGone checks that nobody sees the object.
func (f *fixture) wantGone(s *blob.Store, name string) {
	f.Helper()
	if _, err := s.Stat(f.ctx, name); !errors.Is(err, blob.ErrNotFound) {
		f.Errorf("Stat(%q) = %v, want ErrNotFound", name, err)
	}
	if r, _, err := s.Get(f.ctx, name); !errors.Is(err, blob.ErrNotFound) {
		f.Errorf("Get(%q) = %v, want ErrNotFound", name, err)
		if err == nil {
			r.Close()
		}
	}
	for _, a := range f.list(name, "") {
		if a.Name == name {
			f.Errorf("List shows %q", name)
		}
	}
}

func (f *fixture) list(prefix, after string) []blob.Attrs {
	f.Helper()
	var all []blob.Attrs
	err := f.store.List(f.ctx, prefix, after, func(a blob.Attrs) bool {
		all = append(all, a)
		return true
	})
	if err != nil {
		f.Fatalf("List(%q, %q) = %v", prefix, after, err)
	}
	return all
}

func (f *fixture) listNames(prefix, after string) []string {
	f.Helper()
	var names []string
	for _, a := range f.list(prefix, after) {
		names = append(names, a.Name)
	}
	return names
}

// plain strips what a driver may leave out.
func plain(a blob.Attrs) blob.Attrs {
	a.CRC32C, a.HasCRC32C = 0, false
	return a
}

// randomContent returns n bytes that compress badly and start with their size.
func randomContent(n int) string {
	content := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	rng.Read(content) // never fails
	return string(content)
}

// brief shows content without flooding the log.
func brief(s string) string {
	if len(s) <= 64 {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:64], len(s))
}
