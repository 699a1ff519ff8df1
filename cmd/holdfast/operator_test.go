package main_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api/admin"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/pebble"
	"github.com/holdfast-dev/holdfast/queue"
	"github.com/holdfast-dev/holdfast/verify"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "holdfast.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// eventually waits until check says that all is well.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	late := time.Now().Add(time.Minute)
	for !check() {
		if time.Now().After(late) {
			t.Fatal("it did not happen that " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// output is the JSON that a command prints.
func output[T any](t *testing.T, home *program.Home, args ...string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(home.Output(t, args...)), &v); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// fetch trades an offline token for a grant.
func fetch(t *testing.T, home *program.Home, account string) (syncclient.Grant, error) {
	t.Helper()
	token := home.Output(t, "sync", "token", account, "--generation", "1")
	return syncclient.Fetch(t.Context(), http.DefaultClient, home.SyncURL(), token, syncclient.KeyID(1, account))
}

func login(t *testing.T, home *program.Home, account string) *syncclient.Client {
	t.Helper()
	g, err := fetch(t, home, account)
	if err != nil {
		t.Fatal(err)
	}
	return syncclient.New(http.DefaultClient, g)
}

func put(t *testing.T, c *syncclient.Client, target, body string) {
	t.Helper()
	res, err := c.Do(t.Context(), syncclient.Request{Method: http.MethodPut, Target: target, Body: body})
	if err != nil || res.Status != http.StatusOK {
		t.Fatalf("PUT %s: %v %+v", target, err, res)
	}
}

// sendNonsense puts messages into the queue of change records that no reconciler
// understands. Nobody may have the data directory open.
func sendNonsense(t *testing.T, home *program.Home, texts ...string) {
	t.Helper()
	engine, err := pebble.Open(t.Context(), filepath.Join(home.Dir, "rows"), pebble.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	db := kv.New(engine, pebble.Limits())
	service, err := queue.Open(t.Context(), db, queue.Options{TokenKey: make([]byte, 32), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	q, err := service.Queue(t.Context(), changes.QueueName)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Update(t.Context(), func(tx *kv.Tx) error {
		for _, text := range texts {
			if err := q.Send(tx, queue.Outgoing{Key: []byte("key of " + text), Payload: []byte(text)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// changeQueue returns what the list says of the queue of change records.
func changeQueue(t *testing.T, home *program.Home) admin.Queue {
	t.Helper()
	for _, q := range output[[]admin.Queue](t, home, "queue", "list", "--json") {
		if q.Name == changes.QueueName {
			return q
		}
	}
	t.Fatal("the queue of change records is not listed")
	return admin.Queue{}
}

func TestQueueCommandsOnAClosedFolder(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, "HOLDFAST_RECONCILE_MAX_ATTEMPTS=1")
	home.Serve(t).Stop(t)
	sendNonsense(t, home, "one", "two", "three")

	messages := output[[]admin.Message](t, home, "queue", "peek", changes.QueueName, "--json")
	if len(messages) != 3 || messages[0].Payload == "" || messages[0].Attempts != 0 {
		t.Errorf("peek: %+v", messages)
	}
	if got := output[[]admin.Message](t, home, "queue", "peek", changes.QueueName, "--json", "--oldest", "-n", "2"); len(got) != 2 {
		t.Errorf("peek -n 2 --oldest: %+v", got)
	}
	holds(t, home.Output(t, "queue", "peek", changes.QueueName), "ATTEMPTS", `"three"`)
	if q := changeQueue(t, home); q.OldestAge <= 0 || q.DeadLetters != 0 {
		t.Errorf("list: %+v", q)
	}

	server := home.Serve(t)
	eventually(t, "three messages die", func() bool { return changeQueue(t, home).DeadLetters == 3 })
	server.Stop(t)
	deadLetters(t, home, func() int {
		return len(output[[]admin.Message](t, home, "queue", "peek", changes.QueueName, "--json"))
	})
}

func TestQueueCommandsBesideARunningServer(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, "HOLDFAST_RECONCILE_MAX_ATTEMPTS=1")
	home.Serve(t).Stop(t)
	sendNonsense(t, home, "one", "two", "three")
	home.Serve(t)
	eventually(t, "three messages die", func() bool { return changeQueue(t, home).DeadLetters == 3 })
	deadLetters(t, home, func() int {
		eventually(t, "the messages die once more", func() bool { return changeQueue(t, home).DeadLetters == 2 })
		return 2
	})
	holds(t, home.Output(t, "queue", "list"), "QUEUE", "DEAD", changes.QueueName, "sync_purge")
}

// deadLetters handles three dead letters. After two are sent again, redriven tells
// how many of them there are in the queue or dead again.
func deadLetters(t *testing.T, home *program.Home, redriven func() int) {
	dead := output[[]admin.Message](t, home, "queue", "dead", changes.QueueName, "--json")
	if len(dead) != 3 || dead[0].ID == "" || dead[0].Reason == "" || dead[0].DiedAt == nil {
		t.Fatalf("dead: %+v", dead)
	}
	rest := output[[]admin.Message](t, home, "queue", "dead", changes.QueueName, "--json", "--after", dead[0].ID)
	if len(rest) != 2 || rest[0].ID != dead[1].ID {
		t.Errorf("dead --after: %+v", rest)
	}
	holds(t, home.Output(t, "queue", "dead", changes.QueueName), "malformed", "one")

	if r := home.Run(t, "queue", "drop", changes.QueueName); r.Status != 2 || !strings.Contains(r.Stderr, "--all") {
		t.Errorf("drop of nothing: status %d %s", r.Status, r.Stderr)
	}
	if r := home.Run(t, "queue", "drop", "nothing", "--all"); r.Status != 1 || !strings.Contains(r.Stderr, "no queue of that name") {
		t.Errorf("drop in no queue: status %d %s", r.Status, r.Stderr)
	}
	holds(t, home.Output(t, "queue", "drop", changes.QueueName, dead[0].ID), "1 deleted")
	if r := home.Run(t, "queue", "drop", changes.QueueName, dead[0].ID); r.Status != 1 || !strings.Contains(r.Stderr, "no such dead letter") {
		t.Errorf("drop of what is dropped: status %d %s", r.Status, r.Stderr)
	}
	holds(t, home.Output(t, "queue", "redrive", changes.QueueName, dead[1].ID), "1 sent again")
	holds(t, home.Output(t, "queue", "redrive", changes.QueueName, "--all"), " sent again")
	if n := redriven(); n != 2 {
		t.Errorf("%d messages after the redrive, want 2", n)
	}
	holds(t, home.Output(t, "queue", "drop", changes.QueueName, "--all"), " deleted")
	if q := changeQueue(t, home); q.DeadLetters != 0 {
		t.Errorf("after the drop of all: %+v", q)
	}
}

func TestSyncUsersListsShowsAndRetires(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	server := home.Serve(t)
	alice := login(t, home, "alice")
	login(t, home, "bob")
	const email = "alice@api.accounts.firefox.com"
	check := func() {
		t.Helper()
		holds(t, home.Output(t, "sync", "users"), "ACCOUNT", email, "bob@")
		holds(t, home.Output(t, "sync", "users", "-n", "1"), email)
		if out := home.Output(t, "sync", "users", "--after", email); strings.Contains(out, "alice") {
			t.Errorf("users --after alice:\n%s", out)
		}
		holds(t, home.Output(t, "sync", "users", "show", email, "--json"), email, `"uid"`)
	}
	check()
	holds(t, home.Output(t, "sync", "users", "show", jsonNumber(alice.UID())), email)
	holds(t, home.Output(t, "sync", "users", "retire", email), email+" retired")
	var refused *syncclient.StatusError
	_, err := fetch(t, home, "alice")
	if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		t.Errorf("a retired account gets %v", err)
	}
	if r := home.Run(t, "sync", "users", "show", "nobody"); r.Status != 1 || !strings.Contains(r.Stderr, "no such account") {
		t.Errorf("show of nobody: status %d %s", r.Status, r.Stderr)
	}
	server.Stop(t)
	check()
	holds(t, home.Output(t, "sync", "users", "retire", email), "was retired before")
}

func jsonNumber(n uint64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// withRecordsUnreconciled returns a folder with an offloaded record whose change
// record nobody has handled: its server was killed, and had no reconciler.
func withRecordsUnreconciled(t *testing.T) *program.Home {
	t.Helper()
	home := program.NewHome(t, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=history", "HOLDFAST_RECONCILE_ENABLED=false")
	server := home.Serve(t)
	c := login(t, home, "user")
	put(t, c, "/storage/history/a", `{"payload":"overwritten"}`)
	put(t, c, "/storage/history/a", `{"payload":"stays"}`)
	server.Kill()
	return home
}

// objectFiles returns the files of objects with a suffix, ".u" or ".f".
func objectFiles(t *testing.T, home *program.Home, suffix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(home.Dir, "objects", "objects", "user.d", "history.d", "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestReconcileOnceHandlesWhatAKilledServerLeft(t *testing.T) {
	t.Parallel()
	home := withRecordsUnreconciled(t)
	if r := home.Run(t, "verify", "--lag", "1ns"); r.Status != 1 || !strings.Contains(r.Stdout, string(verify.Unfinalized)) {
		t.Errorf("verify before: status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
	}
	home.Output(t, "reconcile", "--once")
	if u, f := objectFiles(t, home, ".u"), objectFiles(t, home, ".f"); len(u) != 0 || len(f) != 1 {
		t.Errorf("after the reconciliation: unfinalized %v, finalized %v", u, f)
	}
	if r := home.Run(t, "verify", "--lag", "1ns"); r.Status != 0 || !strings.Contains(r.Stdout, "rows and objects agree") {
		t.Errorf("verify after: status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
	}
}

func TestReconcileFollowRunsUntilItIsStopped(t *testing.T) {
	t.Parallel()
	home := withRecordsUnreconciled(t)
	follower := home.Start(t, "reconcile", "--follow")
	eventually(t, "the object is finalized", func() bool {
		return len(objectFiles(t, home, ".u")) == 0 && len(objectFiles(t, home, ".f")) == 1
	})
	follower.Signal(t, syscall.SIGTERM)
	if status := follower.Wait(t); status != 0 {
		t.Errorf("status %d\n%s", status, follower.Log())
	}
}

func TestReconcileSendsDeadLettersAgain(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, "HOLDFAST_RECONCILE_MAX_ATTEMPTS=1")
	home.Serve(t).Stop(t)
	sendNonsense(t, home, "one")
	home.Output(t, "reconcile", "--once", "--budget", "2s")
	if q := changeQueue(t, home); q.DeadLetters != 1 {
		t.Fatalf("%+v", q)
	}
	holds(t, home.Output(t, "reconcile", "--once", "--budget", "2s", "--dead-letters"), "1 dead letters sent again")
	if q := changeQueue(t, home); q.DeadLetters != 1 {
		t.Errorf("%+v", q)
	}
}

// findings runs verify --json and takes its output apart.
func findings(t *testing.T, home *program.Home, status int, args ...string) ([]verify.Finding, verify.Report) {
	t.Helper()
	r := home.Run(t, append([]string{"verify", "--json"}, args...)...)
	if r.Status != status {
		t.Fatalf("verify: status %d, want %d\n%s%s", r.Status, status, r.Stdout, r.Stderr)
	}
	var found []verify.Finding
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		var f verify.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.Kind == "" {
			t.Fatalf("verify: line %s (%v)", line, err)
		}
		found = append(found, f)
	}
	var report verify.Report
	d := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
	d.DisallowUnknownFields()
	if err := d.Decode(&report); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("verify: report %s (%v)", lines[len(lines)-1], err)
	}
	return found, report
}

func TestVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t, "HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=history")
	server := home.Serve(t)
	c := login(t, home, "user")
	put(t, c, "/storage/history/a", `{"payload":"a"}`)
	put(t, c, "/storage/history/b", `{"payload":"b"}`)
	eventually(t, "both are finalized", func() bool { return len(objectFiles(t, home, ".f")) == 2 })
	// The change records are acknowledged a moment after their objects were.
	eventually(t, "nothing is left to do", func() bool { return changeQueue(t, home).OldestAge == 0 })
	if _, report := findings(t, home, 0); report.Links != 2 || report.Objects != 2 {
		t.Errorf("beside a running server: %+v", report)
	}

	lost := objectFiles(t, home, ".f")[0]
	if err := os.Rename(lost, strings.Replace(lost, "history.d/a", "history.d/stray", 1)); err != nil {
		t.Fatal(err)
	}
	for _, running := range []bool{true, false} {
		if !running {
			server.Stop(t)
		}
		found, report := findings(t, home, 1)
		kinds := map[verify.Kind]bool{}
		for _, f := range found {
			kinds[f.Kind] = true
		}
		if len(found) != 2 || !kinds[verify.MissingObject] || !kinds[verify.Orphan] || report.Findings[verify.Orphan] != 1 {
			t.Errorf("running=%v: %+v %+v", running, found, report)
		}
		holds(t, home.Run(t, "verify").Stdout, "missing_object", "orphan_object", "file:///user/history/")
	}
}

func TestVerifyThatCannotFinishHasStatus2(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	home.Serve(t).Stop(t)
	if err := os.WriteFile(filepath.Join(home.Dir, "objects", "holdfast-objects"), []byte("of another world"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := home.Run(t, "verify"); r.Status != 2 || r.Stderr == "" {
		t.Errorf("status %d, want 2\n%s", r.Status, r.Stderr)
	}
}

// TestLogsTellNoPayloadAndNoSecret makes a server log as much as it can, failures
// included, and looks for what must not be there.
func TestLogsTellNoPayloadAndNoSecret(t *testing.T) {
	t.Parallel()
	const master = "the master secret of this test"
	home := program.NewHome(t, "HOLDFAST_SYNC_MASTER_SECRET="+master, "HOLDFAST_LOG_LEVEL=debug",
		"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=history", "HOLDFAST_RECONCILE_MAX_ATTEMPTS=1", "HOLDFAST_ADMIN_TOKEN=the token of the admin door")
	server := home.Serve(t)
	token := home.Output(t, "sync", "token", "user")
	g, err := syncclient.Fetch(t.Context(), http.DefaultClient, home.SyncURL(), token, syncclient.KeyID(1, "user"))
	if err != nil {
		t.Fatal(err)
	}
	c := syncclient.New(http.DefaultClient, g)
	const marker = "payload-that-nobody-logs"
	put(t, c, "/storage/history/a", `{"payload":"`+marker+`"}`)
	put(t, c, "/storage/tabs/a", `{"payload":"`+marker+`"}`)
	for _, rq := range []syncclient.Request{
		{Method: http.MethodPut, Target: "/storage/tabs/b", Body: `{"payload":"` + marker},
		{Method: http.MethodPost, Target: "/storage/tabs", Body: `[{"id":"x","payload":"` + marker + `","other":1}]`},
		{Method: http.MethodPost, Target: "/storage/history?batch=true", Body: `[{"id":"x","payload":"` + marker + `"}]`},
		{Method: http.MethodGet, Target: "/storage/tabs?full=1"},
	} {
		if _, err := c.Do(t.Context(), rq); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "objects are finalized", func() bool { return len(objectFiles(t, home, ".f")) == 2 })
	for _, file := range objectFiles(t, home, ".f") {
		if err := os.Truncate(file, 10); err != nil { // reads fail, and are logged
			t.Fatal(err)
		}
	}
	if res, err := c.Do(t.Context(), syncclient.Request{Method: http.MethodGet, Target: "/storage/history/a"}); err != nil || res.Status != http.StatusInternalServerError {
		t.Errorf("a read of a spoilt object: %v %+v", err, res)
	}
	home.Output(t, "queue", "list")
	server.Stop(t)
	log := server.Log() + server.Output()
	holds(t, log, "sync request failed")
	secrets, err := os.ReadFile(filepath.Join(home.Dir, "secrets.toml"))
	if err != nil {
		t.Fatal(err)
	}
	forbidden := []string{marker, master, token, g.ID, g.Key, "the token of the admin door"}
	for _, line := range bytes.Split(secrets, []byte("\n")) {
		if _, value, ok := bytes.Cut(line, []byte("= ")); ok {
			forbidden = append(forbidden, strings.Trim(string(value), `'" `))
		}
	}
	for i, text := range forbidden {
		if text != "" && strings.Contains(log, text) {
			t.Errorf("the log tells secret %d", i)
		}
	}
}
