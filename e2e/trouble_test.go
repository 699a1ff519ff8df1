package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/e2e/program"
	"github.com/holdfast-dev/holdfast/e2e/syncclient"
)

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	server := home.Serve(t)
	second := program.NewHomeIn(t, home.Dir)
	r := second.Run(t, "serve")
	if r.Status != 1 || !strings.Contains(r.Stderr, "in use by another holdfast process") || strings.Count(r.Stderr, "holdfast:") != 1 {
		t.Errorf("a second server: status %d\n%s", r.Status, r.Stderr)
	}
	if r := home.Run(t, "reconcile", "--once"); r.Status != 1 || !strings.Contains(r.Stderr, "in use by another holdfast process") {
		t.Errorf("a reconciler beside a server: status %d\n%s", r.Status, r.Stderr)
	}
	// The first is none the worse for it, and still found.
	if len(queues(t, home)) != 2 {
		t.Error("the first server is not found any more")
	}
	server.Stop(t)
	if left, _ := filepath.Glob(filepath.Join(home.Dir, "admin.address")); len(left) > 0 {
		t.Errorf("%v is left after the stop", left)
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	home := program.NewHome(t)
	home.Serve(t)
	other := program.NewHome(t, "HOLDFAST_SYNC_LISTEN="+strings.TrimPrefix(home.SyncURL(), "http://"))
	if r := other.Run(t, "serve"); r.Status != 1 || !strings.Contains(r.Stderr, "sync.listen") || !strings.Contains(r.Stderr, "address already in use") {
		t.Errorf("a port that is taken: status %d\n%s", r.Status, r.Stderr)
	}
}

// mountTmpfs mounts a file system of a size in a new folder.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func TestReadOnlyFolder(t *testing.T) {
	t.Parallel()
	dir := mountTmpfs(t, "256m")
	home := program.NewHomeIn(t, filepath.Join(dir, "data"))
	home.Serve(t).Stop(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("the file system cannot be made read-only: %v", err)
	}
	r := home.Run(t, "serve")
	if r.Status != 1 || !strings.Contains(r.Stderr, "read-only file system") {
		t.Errorf("a read-only folder: status %d\n%s", r.Status, r.Stderr)
	}
	fresh := program.NewHomeIn(t, filepath.Join(dir, "fresh"))
	if r := fresh.Run(t, "serve"); r.Status != 1 || !strings.Contains(r.Stderr, "read-only file system") {
		t.Errorf("a read-only place for a new folder: status %d\n%s", r.Status, r.Stderr)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, offloaded := range []bool{false, true} {
		t.Run(fmt.Sprintf("offloaded=%v", offloaded), func(t *testing.T) {
			t.Parallel()
			fillDisk(t, offloaded)
		})
	}
}

// fillDisk writes until the disk is full, makes room and goes on. Whatever the
// server has acknowledged must be there.
func fillDisk(t *testing.T, offloaded bool) {
	dir := mountTmpfs(t, "180m")
	home := program.NewHomeIn(t, filepath.Join(dir, "data"))
	if offloaded {
		home.Env = []string{"HOLDFAST_SYNC_OFFLOAD_COLLECTIONS=bookmarks"}
	}
	server := home.Serve(t)
	b := browser{t, login(t, home, newHTTP(t), "user")}
	acknowledged := map[string]string{}
	var refused *syncclient.Response
	write := func(n int) (*syncclient.Response, error) {
		id, payload := fmt.Sprintf("r%d", n), strings.Repeat(fmt.Sprintf("%04d ", n), 200_000)
		res, err := b.Do(t.Context(), syncclient.Request{Method: http.MethodPut, Target: "/storage/bookmarks/" + id,
			Body: (patch{id: id, payload: &payload}).json()})
		if err == nil && res.Status == http.StatusOK {
			acknowledged[id] = payload
		}
		return res, err
	}
	for n := 0; n < 1000 && refused == nil; n++ {
		res, err := write(n)
		if err != nil {
			break // it has stopped
		}
		if res.Status != http.StatusOK {
			refused = res
		}
	}
	if len(acknowledged) == 0 || len(acknowledged) == 1000 {
		t.Fatalf("%d writes were acknowledged on a small disk", len(acknowledged))
	}
	if refused != nil && refused.Status < 500 {
		t.Errorf("on a full disk: %d %s", refused.Status, refused.Body)
	}
	t.Logf("%d writes acknowledged, then %v", len(acknowledged), refused)
	says := "is full" // by the engine, which leaves room for itself
	if offloaded {
		says = "no space left on device"
	}
	if !server.WaitLog(t, says) {
		t.Errorf("the log does not tell of a full disk:\n%s", server.Log())
	}

	// The operator makes room.
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	recovered := func() bool {
		res, err := write(5000)
		return err == nil && res.Status == http.StatusOK
	}
	late := time.After(15 * time.Second)
	for !recovered() {
		select {
		case <-server.Ended():
			t.Logf("the server has stopped with status %d", server.Wait(t))
			server = home.Serve(t)
			continue
		case <-late:
			t.Logf("the server did not recover by itself\n%s", tail(server.Log()))
			server.Kill()
			server = home.Serve(t)
			late = time.After(patience)
			continue
		case <-time.After(50 * time.Millisecond):
		}
	}
	got := b.payloads("bookmarks")
	for id, payload := range acknowledged {
		if got[id] != payload {
			t.Errorf("record %s is lost: %d bytes of %d", id, len(got[id]), len(payload))
		}
	}
	waitForQueues(t, home)
	server.Stop(t)
	audit(t, home)
}

// tail returns the end of a log.
func tail(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
