// Package pgtest starts PostgreSQL servers for tests, and cuts, freezes and watches
// the connections to them. It needs PostgreSQL's programs (initdb, postgres) in the
// PATH or where Debian installs them.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a PostgreSQL server that listens on a socket in a folder of its own. It
// ends, and its folder disappears, with the test process at the latest, however
// that ends.
type Server struct {
	dir      string
	programs string
	account  *syscall.Credential // nil: ours
	settings []string

	stdin  io.Closer // the server ends when this is closed
	keeper *exec.Cmd
}

// startTimeout is far beyond what a start takes, also after a crash.
const startTimeout = 60 * time.Second

var (
	sharedOnce sync.Once
	shared     *Server
	errShared  error
	schemas    atomic.Int64
)

// Shared returns the server that all tests of a process have in common. It starts
// with the first call.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	sharedOnce.Do(func() { shared, errShared = start() })
	if errShared != nil {
		tb.Fatal(errShared)
	}
	return shared
}

// New returns a server for one test, with settings like "max_connections=20".
func New(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := start(settings...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// NewSchema returns the name of a schema that nobody has used.
func NewSchema() string { return fmt.Sprintf("test_%d", schemas.Add(1)) }

func start(settings ...string) (*Server, error) {
	s, err := create(settings)
	if err != nil {
		return nil, fmt.Errorf("pgtest: start PostgreSQL: %w", err)
	}
	if err := s.run(); err != nil {
		return nil, fmt.Errorf("pgtest: start PostgreSQL: %w", err)
	}
	return s, nil
}

// create makes a data folder.
func create(settings []string) (*Server, error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(shortTempDir(), "pgtest")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, programs: programs, settings: settings}
	if err := s.dropRoot(); err != nil {
		return nil, err
	}
	initdb := s.command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("initdb: %w: %s", err, out), os.RemoveAll(dir))
	}
	// The user "locked" needs a password.
	hba := "local all locked scram-sha-256\nlocal all all trust\nlocal replication all trust\n"
	return s, os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(hba), 0o600)
}

// shortTempDir is where a socket's path stays below the limit of 107 bytes.
func shortTempDir() string {
	if dir := os.TempDir(); len(dir) < 60 {
		return dir
	}
	return "/tmp"
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// findPrograms returns the folder with the newest programs.
func findPrograms() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	slices.SortFunc(found, func(a, b string) int { return versionOf(a) - versionOf(b) })
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("PostgreSQL is not installed: no initdb in /usr/lib/postgresql/*/bin nor in PATH (on Debian and Ubuntu: apt-get install postgresql)")
	}
	return filepath.Dir(path), nil
}

func versionOf(program string) int {
	n, _ := strconv.Atoi(strings.Split(program, "/")[4])
	return n
}

// dropRoot chooses who runs the server, which refuses to be root.
func (s *Server) dropRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return err
	}
	s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, int(uid), int(gid))
}

// NewStandby returns a hot standby of s, for one test.
func NewStandby(tb testing.TB, s *Server) *Server {
	tb.Helper()
	standby, err := s.standby()
	if err != nil {
		tb.Fatalf("pgtest: start a standby: %v", err)
	}
	tb.Cleanup(standby.Stop)
	return standby
}

func (s *Server) standby() (*Server, error) {
	dir, err := os.MkdirTemp(shortTempDir(), "pgtest")
	if err != nil {
		return nil, err
	}
	standby := &Server{dir: dir, programs: s.programs, settings: s.settings}
	if err := standby.dropRoot(); err != nil {
		return nil, err
	}
	backup := standby.command("pg_basebackup", "-D", standby.data(), "-R", "-X", "stream", "-c", "fast", "-d", s.URL())
	if out, err := backup.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("pg_basebackup: %w: %s", err, out), os.RemoveAll(dir))
	}
	return standby, standby.run()
}

// command runs one of PostgreSQL's programs as the server's user, in a process
// group of its own: what stops the tests does not reach it directly.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	if !filepath.IsAbs(program) {
		program = filepath.Join(s.programs, program)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account, Setpgid: true}
	return cmd
}

// keepScript runs the server in a folder, again whenever it ends, until standard
// input ends. Then it stops the server and removes the folder.
const keepScript = `
dir=$1; shift
exec 3<&0
(
	read -r _ <&3
	touch "$dir/stop"
	while [ -d "$dir" ]; do
		kill -INT "$(head -n 1 "$dir/data/postmaster.pid")"
		sleep 0.1
	done
) 2>/dev/null &
until [ -e "$dir/stop" ]; do
	"$@" </dev/null
	sleep 0.05
done
rm -rf "$dir"
wait
`

// run starts the server on its data and waits until it answers.
func (s *Server) run() error {
	args := []string{"-c", keepScript, "pgtest", s.dir, filepath.Join(s.programs, "postgres"), "-D", s.data(), "-k", s.dir, "-c", "listen_addresses="}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	cmd := s.command("/bin/sh", args...)
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.keeper = cmd
	return s.await()
}

// await waits until the server takes connections.
func (s *Server) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			return conn.Close(ctx)
		}
		if ctx.Err() != nil {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("no connection: %w\n%s", err, log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// URL is how the superuser connects to the database postgres.
func (s *Server) URL() string { return s.URLFor("postgres", "", "postgres") }

// URLFor is how a user connects to a database.
func (s *Server) URLFor(user, password, database string) string {
	if password != "" {
		user += ":" + password
	}
	return fmt.Sprintf("postgres://%s@/%s?host=%s", user, database, s.dir)
}

// socket is the path of the server's socket.
func (s *Server) socket() string { return filepath.Join(s.dir, ".s.PGSQL.5432") }

// Stop ends the server and removes its data.
func (s *Server) Stop() {
	_ = s.stdin.Close()
	_ = s.keeper.Wait()
	_ = os.RemoveAll(s.dir)
}

// Crash kills the server without warning, and returns when it is back.
func (s *Server) Crash(tb testing.TB) {
	tb.Helper()
	s.restart(tb, syscall.SIGKILL)
}

// Restart ends all connections, stops the server in good order, and returns when it
// is back.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.restart(tb, syscall.SIGINT)
}

func (s *Server) restart(tb testing.TB, signal syscall.Signal) {
	tb.Helper()
	old, err := s.pid()
	if err == nil {
		err = syscall.Kill(old, signal)
	}
	if err != nil {
		tb.Fatal(err)
	}
	deadline := time.Now().Add(startTimeout)
	for pid := old; pid == old || err != nil; pid, err = s.pid() {
		if time.Now().After(deadline) {
			tb.Fatal("pgtest: the server did not start again")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.await(); err != nil {
		tb.Fatal(err)
	}
}

// pid returns the process of the server that has the others as its children.
func (s *Server) pid() (int, error) {
	b, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strconv.Atoi(line)
}
