// Package program builds the holdfast binary and runs it for tests: servers that
// are stopped and killed, and commands that end by themselves.
//
// A test package that uses it has a TestMain that calls Main.
package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// binary is the path of the program, set by Main before any test runs.
var binary string

// Main builds the program into a temporary folder, with the race detector if the
// test has it, runs the tests and ends the process. Nothing is built when tests
// are only listed.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-program-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "holdfast")
	args := []string{"build", "-o", binary}
	if raceDetector {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/holdfast-dev/holdfast/cmd/holdfast")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// Home is a data directory and the settings to run the program on it. Ports stay
// the same over restarts.
type Home struct {
	// Dir is the data directory.
	Dir string
	// Place are settings, like those of Env, that say where rows and objects are. What
	// is not said is in the data directory.
	Place []string
	// Env are settings beyond those of the home, as NAME=value. A later one of
	// the same name counts.
	Env []string

	syncListen, adminListen string
}

// NewHome returns a home in a new folder, in offline mode and with ports of its
// own.
func NewHome(tb testing.TB, env ...string) *Home {
	tb.Helper()
	return NewHomeIn(tb, filepath.Join(tb.TempDir(), "data"), env...)
}

// NewHomeIn is NewHome with a data directory that the caller names.
func NewHomeIn(tb testing.TB, dir string, env ...string) *Home {
	tb.Helper()
	return &Home{Dir: dir, Env: env, syncListen: freeAddress(tb), adminListen: freeAddress(tb)}
}

// Setting returns the value of a setting of Place or Env, or "".
func (h *Home) Setting(name string) (value string) {
	for _, setting := range append(slices.Clone(h.Place), h.Env...) {
		if v, ok := strings.CutPrefix(setting, name+"="); ok {
			value = v
		}
	}
	return value
}

// SyncURL returns the URL of the Sync door of the home's servers.
func (h *Home) SyncURL() string { return "http://" + h.syncListen }

// AdminURL returns the URL of their admin door.
func (h *Home) AdminURL() string { return "http://" + h.adminListen }

// environment returns the environment of a process: nothing of the test's own
// that could configure it.
func (h *Home) environment() []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir(),
		"HOLDFAST_DATA_DIR=" + h.Dir,
		"HOLDFAST_SYNC_LISTEN=" + h.syncListen,
		"HOLDFAST_ADMIN_LISTEN=" + h.adminListen,
		"HOLDFAST_TOKENSERVER_MODE=offline",
	}
	return append(append(env, h.Place...), h.Env...)
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Status         int
}

// commandTimeout is when a command that does not end fails its test.
const commandTimeout = time.Minute

// Run runs a command of the program to its end.
func (h *Home) Run(tb testing.TB, args ...string) Result {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), commandTimeout)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.environment(), &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		tb.Fatalf("holdfast %s: %v\n%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), errOut.String())
	}
	checkLog(tb, errOut.String())
	return Result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// Output runs a command that must succeed and returns what it printed, without
// the last line end.
func (h *Home) Output(tb testing.TB, args ...string) string {
	tb.Helper()
	r := h.Run(tb, args...)
	if r.Status != 0 {
		tb.Fatalf("holdfast %s: status %d\n%s%s", strings.Join(args, " "), r.Status, r.Stdout, r.Stderr)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// Server is a running process.
type Server struct {
	cmd    *exec.Cmd
	out    lines // standard output
	log    lines // standard error
	ended  chan struct{}
	status int // once ended is closed
}

// Serve starts `holdfast serve` and waits until it has said what listens where. It
// is killed at the end of the test if it still runs then.
func (h *Home) Serve(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := h.Start(tb, append([]string{"serve"}, args...)...)
	if !s.WaitOutput(tb, "data directory:") {
		tb.Fatalf("serve ended with status %d\n%s", s.status, s.Log())
	}
	return s
}

// Start starts a command that goes on until somebody ends it.
func (h *Home) Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = h.environment(), &s.out, &s.log
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		s.cmd.Wait() // the status tells
		s.status = s.cmd.ProcessState.ExitCode()
		close(s.ended)
	}()
	tb.Cleanup(func() {
		s.Kill()
		checkLog(tb, s.Log())
	})
	return s
}

// WaitOutput waits until standard output holds the text, and returns false if the
// process ends without it.
func (s *Server) WaitOutput(tb testing.TB, text string) bool {
	tb.Helper()
	return s.waitFor(tb, &s.out, text)
}

// WaitLog waits until the log holds the text, and returns false if the process
// ends without it.
func (s *Server) WaitLog(tb testing.TB, text string) bool {
	tb.Helper()
	return s.waitFor(tb, &s.log, text)
}

func (s *Server) waitFor(tb testing.TB, l *lines, text string) bool {
	tb.Helper()
	found := func() bool { return strings.Contains(l.String(), text) }
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(commandTimeout)
	for !found() {
		select {
		case <-tick.C:
		case <-s.ended:
			return found()
		case <-late:
			tb.Fatalf("the process did not say %q within %v\n%s%s", text, commandTimeout, s.Output(), s.Log())
		}
	}
	return true
}

// Output returns what the process has printed.
func (s *Server) Output() string { return s.out.String() }

// Log returns what the process has logged.
func (s *Server) Log() string { return s.log.String() }

// PID returns the number of the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Signal sends a signal.
func (s *Server) Signal(tb testing.TB, sig os.Signal) {
	tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		tb.Fatal(err)
	}
}

// Wait waits for the end of the process and returns its status.
func (s *Server) Wait(tb testing.TB) int {
	tb.Helper()
	select {
	case <-s.ended:
		return s.status
	case <-time.After(commandTimeout):
		tb.Fatalf("the process did not end within %v\n%s", commandTimeout, s.Log())
		return -1
	}
}

// Stop ends the process in order; its status must be 0.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.Signal(tb, os.Interrupt)
	if status := s.Wait(tb); status != 0 {
		tb.Errorf("after an interrupt: status %d\n%s", status, s.Log())
	}
}

// Kill ends the process at once, without any chance to clean up.
func (s *Server) Kill() {
	s.cmd.Process.Kill() // fails only if it has ended
	<-s.ended
}

// alarms are words that no log may hold, whatever the test does.
var alarms = []string{"DATA RACE", "panic:", "goroutine 1 [", "BUG:"}

func checkLog(tb testing.TB, log string) {
	tb.Helper()
	i := slices.IndexFunc(alarms, func(a string) bool { return strings.Contains(log, a) })
	if i >= 0 {
		tb.Errorf("the log holds %q:\n%s", alarms[i], log)
	}
}

// lines is a buffer for several goroutines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
