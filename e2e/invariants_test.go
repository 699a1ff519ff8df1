package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

// attack is a load on a house whose engine and object store fail, and a witness
// that looks at every commit and every removal.
type attack struct {
	*house
	links map[string]bool // spaces whose rows have links

	mu        sync.Mutex
	rng       *rand.Rand
	announced map[string]bool // links that a change record releases whose commit may have failed
	released  map[string]bool // links that a committed change record releases
	injected  map[string]int  // how often which failure happened

	// commitFailures and objectFailures are how many of a hundred calls fail.
	commitFailures, objectFailures int
}

func newAttack(t *testing.T, seed uint64) *attack {
	a := &attack{
		house: newHouse(t), links: map[string]bool{}, rng: rand.New(rand.NewPCG(seed, 1<<33)),
		announced: map[string]bool{}, released: map[string]bool{}, injected: map[string]int{},
	}
	for space := range storage.ChangeTables() {
		a.links[space] = true
	}
	a.engine.Before(a.beforeCall)
	a.engine.After(a.afterCall)
	a.store.SetHook(a.onObject)
	return a
}

// percent decides whether something that happens n times in a hundred happens
// now, and counts it.
func (a *attack) percent(n int, failure string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rng.IntN(100) >= n {
		return false
	}
	a.injected[failure]++
	return true
}

// peace ends all failures; the witness goes on.
func (a *attack) peace() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.commitFailures, a.objectFailures = 0, 0
}

func (a *attack) rates() (commits, objects int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.commitFailures, a.objectFailures
}

func (a *attack) beforeCall(ctx context.Context, c kvtest.Call) error {
	if c.Op != kvtest.OpCommit {
		return nil
	}
	a.witnessCommit(ctx, c.Txn)
	commits, _ := a.rates()
	switch {
	case a.percent(commits, "commit refused"):
		return fmt.Errorf("injected: %w", kvtest.ErrInjected)
	case a.percent(commits, "commit not applied, outcome unknown"):
		return fmt.Errorf("injected, not applied: %w", kv.ErrUnknownOutcome)
	}
	return nil
}

func (a *attack) afterCall(_ context.Context, c kvtest.Call, err error) error {
	commits, _ := a.rates()
	if c.Op == kvtest.OpCommit && err == nil {
		a.witnessMessages(c.Txn, a.released)
	}
	if c.Op == kvtest.OpCommit && err == nil && a.percent(commits, "commit applied, outcome unknown") {
		return fmt.Errorf("injected, applied: %w", kv.ErrUnknownOutcome)
	}
	return err
}

// witnessCommit sees a transaction before it is committed. Objects are uploaded
// before that, so each link that it writes must have one. What its change records
// release may be removed as soon as it is committed, which is before anybody could
// be told.
func (a *attack) witnessCommit(ctx context.Context, txn *kv.Txn) {
	for i := range txn.Writes {
		w := &txn.Writes[i]
		if a.links[w.Space] && w.Link != "" {
			name, err := a.objects.Name(w.Link)
			if err == nil {
				_, err = a.objects.Stat(ctx, name)
			}
			if err != nil {
				a.t.Errorf("a commit (tag %q) writes a link without an object: %v", txn.Tag, err)
			}
		}
	}
	a.witnessMessages(txn, a.announced)
}

// witnessMessages notes what the change records of a transaction release.
func (a *attack) witnessMessages(txn *kv.Txn, released map[string]bool) {
	for i := range txn.Writes {
		if w := &txn.Writes[i]; w.Space == "queue_message" {
			a.witnessMessage(w.Value, released)
		}
	}
}

// witnessMessage notes what a message releases. A change record is the text at the
// end of its row.
func (a *attack) witnessMessage(row []byte, released map[string]bool) {
	for start := range row {
		if row[start] != '{' {
			continue
		}
		record, err := changes.Decode(row[start:])
		if err != nil {
			continue // not the beginning, or a message of another queue
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, m := range record.Mods {
			if m.Old != "" && m.Old != m.New && !record.IsHandover(m) {
				released[m.Old] = true
			}
		}
		return
	}
}

func (a *attack) onObject(ctx context.Context, c blobtest.Call) error {
	if c.Stage == blobtest.Before && c.Op == blobtest.OpDelete {
		a.witnessDelete(ctx, c.Name)
	}
	_, objects := a.rates()
	switch {
	case c.Op == blobtest.OpRead:
		return nil
	case a.percent(objects, string(c.Op)+" fails "+string(c.Stage)):
		return blobtest.ErrInjected
	case c.Stage == blobtest.Before && a.percent(objects/5, string(c.Op)+" hangs"):
		return a.hang(ctx)
	}
	return nil
}

// hang answers only when nobody waits any more, or after longer than a transfer
// may take.
func (a *attack) hang(ctx context.Context) error {
	timer := time.NewTimer(2 * houseTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return blobtest.ErrInjected
	}
}

// witnessDelete sees the removal of an object that may be finalized.
func (a *attack) witnessDelete(ctx context.Context, name string) {
	link := a.objects.URL(name)
	a.mu.Lock()
	released := a.announced[link]
	a.mu.Unlock()
	if !released {
		a.t.Errorf("%s is removed, and no change record has released it", link)
	}
	for space := range a.links {
		err := a.rows.Scan(ctx, space, kv.Range{IncludeExpired: true}, func(r kv.Row) bool {
			if r.Link == link {
				a.t.Errorf("%s is removed while %s %q points at it", link, space, r.Key)
			}
			return true
		})
		if err != nil && ctx.Err() == nil {
			a.t.Error(err)
		}
	}
}

// raid is how long load and failures go on.
const raid = 4 * time.Second

// raidAndDrain puts load on the house while it fails, then lets it finish its work
// in peace, and compares everything that clients know. stop ends the workers.
func (a *attack) raidAndDrain(seed uint64, commitFailures, objectFailures int) (stop func()) {
	a.t.Helper()
	stop = a.work()
	c := newCast(a.t, seed, a.login, false)
	// The program ends if its queues cannot begin, so they begin in peace.
	a.login("harbinger").Do(a.t.Context(), syncclient.Request{Method: http.MethodPut, Target: "/storage/history/first", Body: `{"payload":"x"}`})
	a.drain()
	a.mu.Lock()
	a.commitFailures, a.objectFailures = commitFailures, objectFailures
	a.mu.Unlock()
	c.performFor(a.t.Context(), raid)
	a.peace()
	c.curtain(a.t)
	a.drain()
	c.curtain(a.t)
	a.t.Log(c.tally())
	a.t.Log("injected: ", a.injected)
	if a.t.Failed() {
		stop()
		a.t.FailNow()
	}
	return stop
}

func TestInvariant1_ACommittedRowNeverPointsAtAMissingObject(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	a := newAttack(t, seed)
	defer a.raidAndDrain(seed, 8, 4)()
	objects := objectsOf(t, a.objects, "")
	for link, row := range linksOf(t, a.rows) {
		if _, ok := objects[link]; !ok {
			t.Errorf("%s points at %s, which does not exist", row, link)
		}
	}
}

func TestInvariant2_AFinalizedObjectIsDeletedOnlyAfterAChangeRecord(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	a := newAttack(t, seed)
	defer a.raidAndDrain(seed, 3, 15)()
	links := linksOf(t, a.rows)
	for _, d := range disagreements(links, objectsOf(t, a.objects, "")) {
		t.Error(d)
	}
	for link := range a.released {
		if row := links[link]; row != "" {
			t.Errorf("a change record has released %s, and %s points at it", link, row)
		}
	}
}

func TestInvariant3_AnObjectThatNoRowPointsAtDisappears(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	a := newAttack(t, seed)
	defer a.raidAndDrain(seed, 8, 8)()

	// What a change record has released is gone at once.
	for url, attrs := range objectsOf(t, a.objects, "") {
		if attrs.Committed && linksOf(t, a.rows)[url] == "" {
			t.Errorf("no row points at %s, which is finalized", url)
		}
	}
	// Batches that nobody has committed go when they expire.
	a.clock.advance(storage.BatchLifetime + time.Minute)
	a.drain()
	for _, row := range linksOf(t, a.rows) {
		if strings.HasPrefix(row, storage.SpaceStaged) {
			t.Errorf("%s is left of a batch that has expired", row)
		}
	}
	// Uploads whose commit failed go by the lifecycle.
	a.clock.advance(blob.UnfinalizedLifetime)
	runLifecycle(t, a.objects)
	links := linksOf(t, a.rows)
	for url := range objectsOf(t, a.objects, "") {
		if links[url] == "" {
			t.Errorf("no row points at %s, 30 days later", url)
		}
	}
	if len(links) == 0 {
		t.Error("nothing is left to prove anything by")
	}
}
